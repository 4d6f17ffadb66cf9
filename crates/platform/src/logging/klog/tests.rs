use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use tracing::{Level, subscriber::with_default};

use super::*;

/// Standard error, for a test to read.
#[derive(Clone, Default)]
struct Stderr(Arc<Mutex<Vec<u8>>>);

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stderr {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

/// What `log` puts to standard error with these options.
fn stderr_of(options: &KlogOptions, log: impl FnOnce(&Klog)) -> Vec<String> {
    let stderr = Stderr::default();
    let (output, _) = Output::open_with(options, Timestamp::now(), Box::new(stderr.clone())).unwrap();
    let klog = Klog::new(output, options);
    with_default(registry().with(options.filter()).with(klog.clone()), || log(&klog));
    stderr.lines()
}

fn one_of_each(klog: &Klog) {
    tracing::info!("good");
    tracing::warn!("careful");
    tracing::error!("bad");
    klog.fatal("worst");
}

fn bare() -> KlogOptions {
    KlogOptions { skip_headers: true, ..KlogOptions::new("program") }
}

#[test]
fn events_are_the_lines_that_klog_prints_for_the_same() {
    let lines = stderr_of(&bare(), |_| {
        let problem = io::Error::other("boom \"quoted\" \\ back");
        tracing::info!("claimkeeper has ended");
        tracing::info!(
            claim = "default/web-scratch",
            attempt = 2,
            waited = ?std::time::Duration::from_millis(1500),
            ours = true,
            ratio = 0.5,
            "created the claim"
        );
        tracing::error!(err = %problem, empty = "", "it failed");
        tracing::info!(text = "one\ntwo", ended = "one\n", after = "x", "several\nlines");
        tracing::info!("a message\nof several lines");
    });
    // klog v2.140.0 printed these, but for the last one, which it would print on two lines.
    let expected = r#"claimkeeper has ended
"created the claim" claim="default/web-scratch" attempt=2 waited="1.5s" ours=true ratio=0.5
"it failed" err="boom \"quoted\" \\ back" empty=""
"several\nlines" text=<
	one
	two
 > ended=<
	one
 > after="x"
"a message\nof several lines""#;
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn a_header_tells_severity_time_process_and_place() {
    let options = KlogOptions::new("program");
    let lines = stderr_of(&options, one_of_each);
    let mut rest = Vec::new();
    for (line, letter) in lines.iter().zip(["I", "W", "E", "F"]) {
        let (header, text) = line.split_once("] ").unwrap();
        let [day, time, process, place] = header.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(day.len() == 5 && day.starts_with(letter), "{line}");
        assert!(time.len() == "hh:mm:ss.uuuuuu".len(), "{line}");
        assert_eq!(process.parse::<u32>().unwrap(), process::id(), "{line}");
        assert!(place.starts_with("tests.rs:"), "{line}");
        rest.push(text);
    }
    assert_eq!(rest, ["good", "careful", "bad", "worst"]);
}

#[test]
fn verbosity_chooses_what_is_told_and_all_of_it_is_info() {
    for (verbosity, told) in [
        (-1, vec!["info"]),
        (0, vec!["info"]),
        (1, vec!["info", "debug"]),
        (5, vec!["info", "debug"]),
        (6, vec!["info", "debug", "trace", "connecting"]),
        (10, vec!["info", "debug", "trace", "connecting"]),
    ] {
        let options = KlogOptions { verbosity, ..bare() };
        let lines = stderr_of(&options, |_| {
            tracing::info!("info");
            tracing::debug!("debug");
            tracing::trace!("trace");
            tracing::debug!(target: "hyper_util::client", "connecting");
            tracing::error!(target: "kube_client", "what our own lines say better");
        });
        assert_eq!(lines, told, "-v={verbosity}");
    }
    assert_eq!([Level::DEBUG, Level::TRACE].map(Severity::of), [Severity::Info; 2]);
}

#[test]
fn the_threshold_and_the_also_flag_choose_what_standard_error_shows_beside_the_file() {
    let all = ["good", "careful", "bad", "worst"];
    let directory = tempfile::tempdir().unwrap();
    for (to_stderr, also_to_stderr, stderr_threshold, shown) in [
        (true, false, 3, &all[..]),
        (false, false, 2, &all[2..]),
        (false, false, 0, &all[..]),
        (false, false, 1, &all[1..]),
        (false, false, 4, &[]),
        (false, true, 4, &all[..]),
    ] {
        let file = directory.path().join(format!("{to_stderr}-{also_to_stderr}-{stderr_threshold}"));
        let log_file = Some(file.clone());
        let options = KlogOptions { to_stderr, also_to_stderr, stderr_threshold, log_file, ..bare() };
        assert_eq!(stderr_of(&options, one_of_each), shown, "{options:?}");
        let written = fs::read_to_string(&file).ok();
        assert_eq!(written, (!to_stderr).then(|| all.join("\n") + "\n"), "{options:?}");
    }
}

#[test]
fn severities_are_known_by_name_in_any_case() {
    assert_eq!(
        ["INFO", "warning", "Error", "FATAL", "loud"].map(klog_severity),
        [Some(0), Some(1), Some(2), Some(3), None]
    );
}

#[test]
fn a_full_disk_is_told_once_and_no_line_is_lost() {
    let options = KlogOptions { to_stderr: false, log_file: Some("/dev/full".into()), stderr_threshold: 3, ..bare() };
    let lines = stderr_of(&options, |_| {
        tracing::info!("first");
        tracing::info!("second");
    });
    let [first, trouble, second] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((first.as_str(), second.as_str()), ("first", "second"));
    assert!(trouble.starts_with("log: cannot write the log file /dev/full: No space left on device"), "{trouble}");
}

#[test]
fn what_cannot_be_opened_is_told_before_anything_starts() {
    let options = KlogOptions { log_file: Some(Path::new("/nonexistent/log").into()), ..KlogOptions::new("program") };
    assert!(Output::open(&KlogOptions { to_stderr: false, ..options.clone() }, Timestamp::now()).is_err());
    let (output, _) = Output::open(&options, Timestamp::now()).unwrap();
    assert!(output.files.is_none(), "without effect as long as everything goes to standard error");
}
