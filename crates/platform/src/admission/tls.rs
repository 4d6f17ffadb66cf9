//! The certificate that is served, and how it is replaced under way.
//!
//! Whoever gets certificates (from files, from a Secret) calls [`ServedCertificate::replace`]; every handshake from then on
//! shows the new one, connections that are open go on with what they have.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::sync::watch;

/// The certificate that new connections are shown; none at first, and then handshakes are refused. Cheap to clone: all
/// clones are the same.
#[derive(Clone, Default)]
pub struct ServedCertificate {
    current: watch::Sender<Option<Served>>,
}

/// A certificate with its key, and until when it is valid.
#[derive(Debug, Clone)]
pub struct Served {
    /// Chain and key.
    pub key: Arc<CertifiedKey>,
    /// The last moment at which clients accept it.
    pub not_after: Timestamp,
}

impl ServedCertificate {
    /// From now on this is shown.
    pub fn replace(&self, key: CertifiedKey, not_after: Timestamp) {
        self.current.send_replace(Some(Served { key: Arc::new(key), not_after }));
    }

    /// What is shown now.
    #[must_use]
    pub fn current(&self) -> Option<Served> {
        self.current.borrow().clone()
    }

    /// Returns once there is one to show.
    pub async fn served(&self) {
        // It fails only when the sender is gone, which is here.
        let _ = self.current.subscribe().wait_for(Option::is_some).await;
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.borrow().as_ref().map(|served| Arc::clone(&served.key))
    }
}

// The key must not get into a log by accident.
impl fmt::Debug for ServedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not_after = self.current.borrow().as_ref().map(|served| served.not_after);
        f.debug_struct("ServedCertificate").field("not_after", &not_after).finish_non_exhaustive()
    }
}
