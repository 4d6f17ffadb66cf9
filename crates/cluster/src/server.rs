//! Which Kubernetes we talk to, and which of its newer abilities we may use.

use std::fmt;

use k8s_openapi::apimachinery::pkg::version::Info;

/// A Kubernetes release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 1, so far.
    pub major: u32,
    /// The release's number.
    pub minor: u32,
}

/// The oldest release that we test against and support.
pub const MINIMUM: Version = Version { major: 1, minor: 33 };

/// From here on a list can be streamed object by object (`WatchList` is on by default): neither side holds a whole list.
const STREAMING_LISTS: Version = Version { major: 1, minor: 34 };

impl Version {
    /// Reads what `/version` says. Vendors append to the minor number (`34+`): digits count, the rest does not.
    #[must_use]
    pub fn parse(info: &Info) -> Option<Self> {
        let number = |text: &str| {
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text.get(..digits)?.parse().ok()
        };
        Some(Self { major: number(&info.major)?, minor: number(&info.minor)? })
    }

    /// How the first list of every watch is asked for. A server that promises streaming and then refuses it (the ability can
    /// be switched off) is found out by the watch itself, which then falls back to pages.
    #[must_use]
    pub fn list_mode(self) -> ListMode {
        if self >= STREAMING_LISTS { ListMode::Streamed } else { ListMode::Paged }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// How the first list of a watch reaches us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListMode {
    /// Object by object over the watch itself.
    Streamed,
    /// In pages: what every server can do.
    Paged,
}

impl ListMode {
    /// The name of the mode in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Streamed => "streamed",
            Self::Paged => "paged",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendors_versions_are_understood_and_old_servers_get_pages() {
        for (major, minor, mode) in
            [("1", "33", ListMode::Paged), ("1", "34", ListMode::Streamed), ("1", "37+", ListMode::Streamed)]
        {
            let info = Info { major: major.into(), minor: minor.into(), ..Info::default() };
            assert_eq!(Version::parse(&info).unwrap().list_mode(), mode, "{major}.{minor}");
        }
        assert_eq!(Version::parse(&Info { major: "one".into(), ..Info::default() }), None);
    }
}
