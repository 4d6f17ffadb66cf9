//! Readiness: the conditions under which this replica may be sent work, each under a name that a person can read.
//!
//! Liveness is deliberately not here: it never depends on anything but the process itself, so that an API server that is
//! down does not become a restart storm.

use std::{fmt::Write, sync::Arc};

use parking_lot::Mutex;

/// All conditions of the process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Readiness {
    gates: Arc<Mutex<Vec<(String, bool)>>>,
}

/// One condition; whoever holds it says when it is met and when no longer.
pub struct Gate {
    readiness: Readiness,
    index: usize,
}

impl Readiness {
    /// A new condition, not met yet. The name completes the sentence "waiting for …".
    #[must_use]
    pub fn gate(&self, name: impl Into<String>) -> Gate {
        let mut gates = self.gates.lock();
        gates.push((name.into(), false));
        Gate { readiness: self.clone(), index: gates.len() - 1 }
    }

    /// Whether every condition is met.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.gates.lock().iter().all(|(_, met)| *met)
    }

    /// One line a condition, in the form of the Kubernetes components' `/readyz?verbose`.
    #[must_use]
    pub fn report(&self) -> String {
        let mut report = String::new();
        for (name, met) in self.gates.lock().iter() {
            // Writing to a string cannot fail.
            let _ = if *met { writeln!(report, "[+]{name} ok") } else { writeln!(report, "[-]waiting for {name}") };
        }
        report.push_str(if self.is_ready() { "readyz check passed\n" } else { "readyz check failed\n" });
        report
    }
}

impl Gate {
    /// The condition is met.
    pub fn open(&self) {
        self.set(true);
    }

    /// The condition is no longer met.
    pub fn close(&self) {
        self.set(false);
    }

    fn set(&self, met: bool) {
        if let Some((_, state)) = self.readiness.gates.lock().get_mut(self.index) {
            *state = met;
        }
    }
}
