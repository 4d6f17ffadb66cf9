//! A program of ours, usually the operator under test, that ends with whoever started it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Binaries, within};

/// A running program. Dropping it kills the program; so does the death of this process, whichever way it dies.
pub struct Leash {
    /// The keeper: it holds the program and watches its standard input, whose other end is ours.
    keeper: Child,
    pid: Pid,
    log: PathBuf,
}

impl Leash {
    /// Starts `program`, with everything that it prints going to `<directory>/<name>.log`.
    pub async fn start(directory: &Path, name: &str, program: &Path, arguments: &[&str]) -> Result<Self> {
        let (log, pid_file) = (directory.join(format!("{name}.log")), directory.join(format!("{name}.pid")));
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut keeper = Command::new(Binaries::get()?.controlplane())
            .arg("leash")
            .arg(&pid_file)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = within(Duration::from_secs(10), "the program to start", async || {
            let ended = keeper.try_wait().ok().flatten();
            match fs::read_to_string(&pid_file).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?)) {
                Some(pid) => Ok(Ok(pid)),
                None if ended.is_some() => {
                    Ok(Err(anyhow!("it ended at once: {}", fs::read_to_string(&log).unwrap_or_default().trim())))
                }
                None => Err("it has no process id yet"),
            }
        })
        .await??;
        fs::remove_file(&pid_file).with_context(|| format!("cannot remove {}", pid_file.display()))?;
        Ok(Self { keeper, pid, log })
    }

    /// The program's process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Where the program's output is.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// All that the program has printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Asks the program to end (SIGTERM).
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Ends the program without asking (SIGKILL).
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    /// Freezes the program (SIGSTOP).
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a frozen program go on (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.keeper.try_wait()?.is_some())
    }

    /// Waits for the program's end.
    pub async fn ended(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let keeper = &mut self.keeper;
        within(deadline, "the program to end", async || keeper.try_wait()?.context("it still runs")).await
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("cannot send {signal:?} to process {}", self.pid()))
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        // Closing its input lets the keeper kill the program and end.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
