//! Leaves an API alone that does not answer.
//!
//! After several failures in a row nobody asks for a while; then one request is let through, and its answer decides. One namespace
//! that fails while others are read opens nothing.

use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use tokio::time::Instant;

/// So many failures in a row are no accident.
const FAILURES: u32 = 5;

/// The longest time without a request: two polls, so that a failover is not seen much later than it could be.
const LONGEST: Duration = Duration::from_secs(10);

/// Whether requests are let through.
#[derive(Default)]
pub(super) struct Circuit {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures: u32,
    closed_at: Option<Instant>,
    probing: bool,
}

/// A request that was let through. Dropping it without a word says nothing about the API.
pub(super) struct Pass<'a> {
    circuit: &'a Circuit,
    probe: bool,
}

impl Circuit {
    /// Lets a request through, or not.
    pub(super) fn enter(&self) -> Option<Pass<'_>> {
        let mut state = self.state.lock();
        let probe = match state.closed_at {
            None => false,
            Some(time) if Instant::now() < time || state.probing => return None,
            Some(_) => true,
        };
        state.probing |= probe;
        Some(Pass { circuit: self, probe })
    }
}

impl Pass<'_> {
    /// The API has answered, whatever it said.
    pub(super) fn answered(self) {
        let mut state = self.circuit.state.lock();
        (state.failures, state.closed_at) = (0, None);
    }

    /// It has not.
    pub(super) fn failed(self) {
        let mut state = self.circuit.state.lock();
        state.failures = state.failures.saturating_add(1);
        if state.failures >= FAILURES {
            state.closed_at = Some(Instant::now() + pause(state.failures - FAILURES + 2));
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.circuit.state.lock().probing = false;
        }
    }
}

/// How long to wait after so many failures: longer each time, and never the same as anybody else.
pub(super) fn pause(failures: u32) -> Duration {
    let longest = Duration::from_millis(100).saturating_mul(1 << failures.min(10)).min(LONGEST);
    longest.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn fail(circuit: &Circuit, times: u32) {
        (0..times).for_each(|_| circuit.enter().unwrap().failed());
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_several_failures_in_a_row_and_lets_one_request_try() {
        let circuit = Circuit::default();
        fail(&circuit, FAILURES - 1);
        circuit.enter().unwrap().answered();
        fail(&circuit, FAILURES);
        assert!(circuit.enter().is_none());
        advance(LONGEST).await;
        let probe = circuit.enter().unwrap();
        assert!(circuit.enter().is_none(), "one is enough to find out");
        probe.failed();
        assert!(circuit.enter().is_none());
        advance(LONGEST).await;
        drop(circuit.enter().unwrap());
        circuit.enter().unwrap().answered();
        assert!(circuit.enter().is_some() && circuit.enter().is_some());
    }

    #[test]
    fn pauses_grow_and_end() {
        assert!(pause(1) < pause(5));
        assert!(pause(u32::MAX) <= LONGEST);
    }
}
