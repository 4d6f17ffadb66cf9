//! Tells whoever waits at the terminal that a long step is alive.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// Often enough to see that a log goes on, rare enough not to fill it.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// One long step on standard error: a line that rewrites itself on a terminal, a line every 30 seconds elsewhere.
pub struct Progress {
    step: String,
    started: Instant,
    printed: Instant,
    terminal: bool,
}

impl Progress {
    /// The step begins.
    #[must_use]
    pub fn start(step: &str) -> Self {
        let now = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        if !terminal {
            eprintln!("{step} …");
        }
        Self { step: step.to_owned(), started: now, printed: now, terminal }
    }

    /// Says how far the step is; may be called as often as the caller likes.
    pub fn update(&mut self, detail: &str) {
        let interval = if self.terminal { Duration::from_millis(500) } else { LINE_INTERVAL };
        if self.printed.elapsed() < interval {
            return;
        }
        self.printed = Instant::now();
        let line = format!("{} … {detail}, {}", self.step, elapsed(self.started.elapsed()));
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            // A progress line that can't be shown is no reason to stop the step.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    /// The step is over.
    pub fn finish(self, outcome: &str) {
        let start_of_line = if self.terminal { "\r\x1b[K" } else { "" };
        eprintln!("{start_of_line}{} … {outcome} after {}", self.step, elapsed(self.started.elapsed()));
    }
}

fn elapsed(time: Duration) -> String {
    match (time.as_secs() / 60, time.as_secs() % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}
