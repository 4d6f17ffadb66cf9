//! What is bounded, and by how much.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// The longest body that is read. The API server takes objects of 1.5 MiB at most, and a review of an update has two.
pub const MOST_BODY: usize = 3 * 1024 * 1024;

/// The bodies of all requests in flight together: claims have a few KiB, so this is only ever reached by those who try to.
pub(super) const MOST_BUFFERED: usize = 64 * 1024 * 1024;

/// A body that is too long is read up to here and forgotten: who is cut off while sending often does not see the answer.
pub(super) const MOST_DISCARDED: u64 = 16 * 1024 * 1024;

/// What the API server sends beside the body fits many times.
pub(super) const MOST_HEADER_BYTES: u32 = 32 * 1024;

/// As many as Go's servers allow; the API server's clients are made for it.
pub(super) const MOST_STREAMS: u32 = 250;

/// A handshake takes milliseconds. The API server gives it 10 s.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// From the handshake to the end of the first request's header: who connects has something to ask. Longer than the last call: who
/// connects at its beginning is still served after its end.
pub(super) const FIRST_REQUEST: Duration = Duration::from_secs(30);

/// More than the 90 s after which the API server itself closes what it does not use. The one who closes must be the one
/// who asks: a request that crosses our closing on the way is lost, and the API server does not repeat it.
pub(super) const IDLE: Duration = Duration::from_mins(2);

/// How long connections of HTTP/1.1 have for one last request, whose answer tells the client that it ends them. Only who
/// does not need theirs finds it closed afterwards; closed at once, one in use would take a request with it that is on its way.
/// HTTP/1.1 has no other farewell, so the longer one was idle the better: clients take the one that they used last. It must fit
/// into the 30 s that a pod has to end, together with the delay before and the answers after.
pub(super) const LAST_CALL: Duration = Duration::from_secs(10);

/// Once told to, a connection ends as soon as what is under way on it has been answered; this bounds how long it takes to
/// get the last bytes across.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// How often the bundle of client CAs is looked at.
pub(super) const REREAD: Duration = Duration::from_secs(10);

/// What can be configured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// If given, only who shows a certificate of one of these CAs is served: a PEM bundle.
    pub client_ca: Option<PathBuf>,
    /// How long one request may take. Less than the webhook's `timeoutSeconds`, so that it is us who say what went wrong.
    pub request_timeout: Duration,
    /// How many requests are answered at once. A request is answered within microseconds; what adds up waits for live reads.
    pub max_in_flight: usize,
    /// How many connections are open at once. An API server keeps 25 idle ones, and has one more per request at once.
    pub max_connections: usize,
    /// How long connections are still accepted once the end has been asked for: until every node knows that this replica
    /// is no longer ready, some of them send requests here.
    pub drain_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: ([0, 0, 0, 0], 9443).into(),
            client_ca: None,
            request_timeout: Duration::from_millis(2500),
            max_in_flight: 256,
            max_connections: 1024,
            drain_delay: Duration::from_secs(5),
        }
    }
}
