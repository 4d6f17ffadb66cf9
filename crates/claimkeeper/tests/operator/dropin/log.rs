//! What a run leaves in the log, letter by letter as klog would have it.

use std::fs;

use anyhow::{Result, ensure};
use tempfile::tempdir;
use testbed::eventually;

use super::{NAME, Original};

/// What an administrator should know about the original's ways.
const WARNINGS: [&str; 2] = ["provisioner.authorize is none: ", "provisioner.template is seed: "];

/// `Lmmdd hh:mm:ss.uuuuuu threadid file:line] `.
fn header(line: &str) -> Option<&str> {
    let (header, message) = line.split_once("] ")?;
    let digits = |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    let [date, time, process, place] = header.split_ascii_whitespace().collect::<Vec<_>>()[..] else { return None };
    let (clock, micros) = time.split_once('.')?;
    let (file, number) = place.split_once(':')?;
    let valid = date.starts_with(['I', 'W', 'E', 'F'])
        && digits(&date[1..], 4)
        && clock.split(':').filter(|part| digits(part, 2)).count() == 3
        && digits(micros, 6)
        && header[date.len() + time.len() + 2..].len() == process.len().max(7) + 1 + place.len()
        && digits(process, process.len())
        && !file.contains('/')
        && digits(number, number.len());
    valid.then_some(message)
}

#[tokio::test]
async fn every_line_of_a_run_is_one_of_klogs() -> Result<()> {
    let original = Original::on(testbed::shared().await?, "klog").await?;
    let replica = original.start("plain", &original.line("-v=2")).await?;
    original.ask("pod").await?;
    original.claim_of("pod").await?;
    replica.leash.terminate()?;
    let mut leash = replica.leash;
    assert_eq!(leash.ended(testbed::PATIENCE).await?.code(), Some(0), "{}", leash.output());
    let output = leash.output();
    for line in output.lines() {
        assert!(header(line).is_some(), "{line:?} in\n{output}");
    }
    let process = format!(" {:>7} ", leash.pid());
    assert!(output.lines().all(|line| line.contains(&process)), "{output}");
    for warning in WARNINGS {
        let told: Vec<&str> = output.lines().filter(|line| line.contains(warning)).collect();
        assert!(matches!(told[..], [line] if line.starts_with('W')), "{warning}\n{output}");
    }
    // Which features run and where the admin server is, in the form of klog.InfoS.
    let start = output.lines().find_map(|line| header(line)?.strip_prefix("\"claimkeeper starts\" "));
    assert!(start.is_some_and(|fields| fields.contains("features=\"provisioner\"")), "{output}");
    Ok(())
}

#[tokio::test]
async fn a_run_that_logs_to_a_directory_leaves_standard_error_to_what_is_bad() -> Result<()> {
    let original = Original::on(testbed::shared().await?, "logdir").await?;
    let directory = tempdir()?;
    let line = original.line(&format!("-logtostderr=false -log_dir {} -skip_headers", directory.path().display()));
    let account = original.account("quiet").await?;
    let mut leash = original.launch("quiet", &account, &line).await?;
    original.ask("pod").await?;
    original.claim_of("pod").await?;
    let read = |severity: &str| fs::read_to_string(directory.path().join(format!("{NAME}.{severity}")));
    eventually("the claim to be told", async || {
        let info = read("INFO")?;
        ensure!(info.contains("reason=\"PVCProvisioned\""), "{info}");
        Ok(())
    })
    .await?;
    leash.terminate()?;
    assert_eq!(leash.ended(testbed::PATIENCE).await?.code(), Some(0), "{}", leash.output());
    assert_eq!(leash.output(), "");

    let (info, warning) = (read("INFO")?, read("WARNING")?);
    assert!(info.lines().all(|line| header(line).is_none()), "{info}");
    for told in WARNINGS {
        assert_eq!([&info, &warning].map(|file| file.matches(told).count()), [1, 1], "{told}\n{info}");
    }
    assert!(warning.lines().count() < info.lines().count(), "{warning}");
    assert!(read("ERROR").is_err(), "nothing was bad");
    Ok(())
}
