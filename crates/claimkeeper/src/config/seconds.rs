//! Durations as people write them: `15s`, `500ms`, `1m30s`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};

/// A length of time that is not negative.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seconds(Duration);

impl Seconds {
    /// So many seconds.
    pub(crate) const fn new(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl From<Seconds> for Duration {
    fn from(Seconds(duration): Seconds) -> Self {
        duration
    }
}

impl From<Duration> for Seconds {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let signed: SignedDuration = text
            .parse()
            .map_err(|_| de::Error::custom(format_args!("{text:?} is not a duration; write it like 15s or 1m30s")))?;
        let positive = Duration::try_from(signed);
        positive.map(Self).map_err(|_| de::Error::custom(format_args!("the duration {text:?} must not be negative")))
    }
}
