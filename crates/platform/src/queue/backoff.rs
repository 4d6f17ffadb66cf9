//! How long a key that keeps failing is left alone.

use std::time::Duration;

/// A delay that starts at `base` and doubles with every failure of the same key up to `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub base: Duration,
    /// The longest delay.
    pub cap: Duration,
}

impl Default for Backoff {
    /// What client-go's controllers use.
    fn default() -> Self {
        Self { base: Duration::from_millis(5), cap: Duration::from_secs(1000) }
    }
}

impl Backoff {
    /// The delay of a key that failed `failures` times before this one.
    pub(super) fn delay(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures);
        factor.and_then(|factor| self.base.checked_mul(factor)).map_or(self.cap, |delay| delay.min(self.cap))
    }
}
