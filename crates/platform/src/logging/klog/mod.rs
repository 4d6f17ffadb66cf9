//! Logs as Go programs with klog write them, for those who replace such a program: their log shippers, alerts and greps know
//! these lines, and their command lines carry klog's flags.
//!
//! ```text
//!              verbosity            severity ──> line ──┬──> standard error, above a threshold or all of it
//! event ──> filter ──> Klog (a layer) ──────────────────┴──> files
//! ```

mod files;
mod line;
mod output;

use std::{panic::Location, path::PathBuf, process, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer,
    layer::{Context, SubscriberExt},
    registry,
    util::SubscriberInitExt,
};

pub use files::KlogError;
use line::{Body, Place, Severity};
use output::Output;

use super::QUIET;

/// klog's flags; the defaults are klog's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // they are flags
pub struct KlogOptions {
    /// The name of the program in the names of log files.
    pub program: String,
    /// `-v`: how much is told.
    pub verbosity: i32,
    /// `-logtostderr`: to standard error and to no file.
    pub to_stderr: bool,
    /// `-alsologtostderr`: to standard error and to files.
    pub also_to_stderr: bool,
    /// `-stderrthreshold`: from which severity on lines go to standard error too; 0 is info, 3 is fatal.
    pub stderr_threshold: i32,
    /// `-log_file`: the one file of all severities.
    pub log_file: Option<PathBuf>,
    /// `-log_file_max_size`: at how many megabytes that file is emptied; never if 0.
    pub log_file_max_size: u64,
    /// `-log_dir`: where the files of each severity are if there is no `log_file`; the temporary directory if absent.
    pub log_dir: Option<PathBuf>,
    /// `-one_output`: a line is only in the file of its own severity, not in those of milder ones too.
    pub one_output: bool,
    /// `-skip_headers`: no time, process and place in front of the lines.
    pub skip_headers: bool,
    /// Flags that were given, and that change nothing here.
    pub without_effect: Vec<&'static str>,
}

impl KlogOptions {
    /// What a program logs that is given no flag.
    #[must_use]
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            verbosity: 0,
            to_stderr: true,
            also_to_stderr: false,
            stderr_threshold: Severity::Error as i32,
            log_file: None,
            log_file_max_size: 1800,
            log_dir: None,
            one_output: false,
            skip_headers: false,
            without_effect: Vec::new(),
        }
    }

    /// The originals say more and more from 1 to 5, and repeat themselves from 6 on. Only then do their libraries join in.
    fn filter(&self) -> EnvFilter {
        EnvFilter::new(match self.verbosity {
            ..=0 => format!("{QUIET},info"),
            1..=5 => format!("{QUIET},{LIBRARIES},debug"),
            6.. => format!("{QUIET},trace"),
        })
    }
}

/// Those below us that have something to say about every connection and request.
const LIBRARIES: &str = "hyper=info,hyper_util=info,tower=info";

/// The number of a severity that `-stderrthreshold` names, in letters of any case.
#[must_use]
pub fn klog_severity(name: &str) -> Option<i32> {
    let named = |severity: &Severity| severity.name().eq_ignore_ascii_case(name);
    Severity::ALL.into_iter().find(named).map(|severity| severity as i32)
}

/// A log that looks like klog's.
#[derive(Clone)]
pub struct Klog {
    output: Arc<Mutex<Output>>,
    skip_headers: bool,
}

/// Sends the process's logs where klog would, in klog's form.
pub fn start_klog(options: &KlogOptions) -> Result<Klog, KlogError> {
    let (output, passed_over) = Output::open(options, Timestamp::now())?;
    let klog = Klog::new(output, options);
    // A second call, as tests make it, keeps the first one's settings.
    let _ = registry().with(options.filter()).with(klog.clone()).try_init();
    if let Some(reason) = passed_over {
        tracing::warn!(%reason, "the log files are in the temporary directory instead");
    }
    if !options.without_effect.is_empty() {
        let flags = options.without_effect.join(" ");
        tracing::warn!(flags, "some flags are accepted for compatibility and have no effect");
    }
    Ok(klog)
}

impl Klog {
    fn new(output: Output, options: &KlogOptions) -> Self {
        Self { output: Arc::new(Mutex::new(output)), skip_headers: options.skip_headers }
    }

    /// Writes the last line of a program that cannot go on. Ending it is the caller's part; klog's exit code is 255.
    #[track_caller]
    pub fn fatal(&self, message: &str) {
        let caller = Location::caller();
        self.write(Severity::Fatal, Place::new(caller.file(), caller.line()), Body::from(message));
    }

    fn write(&self, severity: Severity, place: Place<'_>, body: Body) {
        let now = Timestamp::now();
        let header = if self.skip_headers { String::new() } else { line::header(severity, now, process::id(), place) };
        self.output.lock().write(severity, &(header + &body.text() + "\n"), now);
    }
}

impl<S: Subscriber> Layer<S> for Klog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut body = Body::default();
        event.record(&mut body);
        self.write(Severity::of(*event.metadata().level()), Place::of(event.metadata()), body);
    }
}

#[cfg(test)]
mod tests;
