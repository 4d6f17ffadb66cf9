//! Which line goes where.

use std::io::{self, Write};

use jiff::Timestamp;

use super::{
    KlogOptions,
    files::{Files, KlogError},
    line::Severity,
};

/// Where lines end.
pub(super) struct Output {
    stderr: Box<dyn Write + Send>,
    /// None if everything goes to standard error alone.
    pub(super) files: Option<Files>,
    also_to_stderr: bool,
    stderr_threshold: i32,
    /// Whether the last line found its file, so that trouble is told once and not with every line.
    troubled: bool,
}

impl Output {
    /// Opens what is needed; tells why if the directory that was named is not where the files are.
    pub(super) fn open(options: &KlogOptions, now: Timestamp) -> Result<(Self, Option<KlogError>), KlogError> {
        Self::open_with(options, now, Box::new(io::stderr()))
    }

    pub(super) fn open_with(
        options: &KlogOptions,
        now: Timestamp,
        stderr: Box<dyn Write + Send>,
    ) -> Result<(Self, Option<KlogError>), KlogError> {
        let (files, passed_over) = if options.to_stderr {
            (None, None)
        } else {
            let (files, passed_over) = Files::open(options, now)?;
            (Some(files), passed_over)
        };
        let KlogOptions { also_to_stderr, stderr_threshold, .. } = *options;
        Ok((Self { stderr, files, also_to_stderr, stderr_threshold, troubled: false }, passed_over))
    }

    /// klog ends the program when a log file can no longer be written. A full disk is no reason to stop looking after
    /// claims: here the lines go to standard error for as long as it takes.
    pub(super) fn write(&mut self, severity: Severity, line: &str, now: Timestamp) {
        let Some(files) = &mut self.files else { return self.tell(line) };
        let written = files.write(severity, line.as_bytes(), now);
        if written.is_err() || self.also_to_stderr || severity as i32 >= self.stderr_threshold {
            self.tell(line);
        }
        let troubled = written.is_err();
        if let Err(error) = written
            && !self.troubled
        {
            self.tell(&format!("log: {error}; until then lines go to standard error\n"));
        }
        self.troubled = troubled;
    }

    fn tell(&mut self, line: &str) {
        // Where there is no standard error there is nobody to tell.
        let _ = self.stderr.write_all(line.as_bytes());
    }
}
