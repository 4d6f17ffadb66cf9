//! Which certificate is shown, how it is replaced under way, and whose certificates are asked for.
//!
//! Whoever gets certificates (from files, from a Secret) calls [`ServedCertificate::replace`]; every handshake from then on
//! shows the new one, connections that are open go on with what they have.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, pem::PemObject},
    server::{
        ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::trouble::Trouble;

/// What HTTP/2 is called in a handshake.
pub(super) const HTTP_2: &[u8] = b"h2";

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

/// Why nobody's certificate could be checked.
#[derive(Debug, thiserror::Error)]
#[error("the certificates of webhook.clientCA {} cannot be used: {reason}", .file.display())]
pub struct ClientCaError {
    file: PathBuf,
    reason: String,
}

/// How connections are secured.
pub(super) struct Tls {
    certificate: ServedCertificate,
    config: ArcSwap<ServerConfig>,
    client_ca: Option<ClientCa>,
}

/// The bundle of CAs whose certificates clients must have.
struct ClientCa {
    file: PathBuf,
    read: Mutex<(Vec<u8>, Trouble)>,
}

impl Tls {
    pub(super) fn new(certificate: &ServedCertificate, client_ca: Option<&Path>) -> Result<Self, super::ServerError> {
        let (verifier, client_ca) = match client_ca {
            None => (None, None),
            Some(file) => {
                let error = |reason| ClientCaError { file: file.to_owned(), reason };
                let bundle = fs::read(file).map_err(|failed| error(why_unreadable(&failed)))?;
                let verifier = verifier(&bundle).map_err(error)?;
                (
                    Some(verifier),
                    Some(ClientCa { file: file.to_owned(), read: Mutex::new((bundle, Trouble::default())) }),
                )
            }
        };
        let config = ArcSwap::from_pointee(config(certificate, verifier)?);
        Ok(Self { certificate: certificate.clone(), config, client_ca })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Looks whether the bundle has changed. One that cannot be used changes nothing: it may be half written.
    pub(super) fn reread(&self) {
        let Some(ClientCa { file, read }) = &self.client_ca else { return };
        let (bundle, trouble) = &mut *read.lock();
        let news = match fs::read(file) {
            Ok(content) if content == *bundle => Ok(false),
            Ok(content) => self.trust(&content).map(|()| {
                *bundle = content;
                true
            }),
            Err(error) => Err(why_unreadable(&error)),
        };
        match news {
            Ok(changed) => {
                trouble.ends();
                if changed {
                    tracing::info!(file = %file.display(), "webhook.clientCA has changed");
                }
            }
            Err(reason) if trouble.begins(&reason) => {
                tracing::warn!(file = %file.display(), reason, "webhook.clientCA cannot be used; what it said before holds");
            }
            Err(_) => {}
        }
    }

    fn trust(&self, bundle: &[u8]) -> Result<(), String> {
        let config = config(&self.certificate, Some(verifier(bundle)?)).map_err(|error| error.to_string())?;
        self.config.store(Arc::new(config));
        Ok(())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn config(
    certificate: &ServedCertificate,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, rustls::Error> {
    // That is TLS 1.2 and 1.3; rustls knows none that is older.
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificate.clone()));
    config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
    // Who resumes a session does not look at the certificate again, nor do we at theirs.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn verifier(bundle: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        let certificate = certificate.map_err(|error| format!("it is not PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("it has a certificate that is no CA's: {error}"))?;
    }
    if roots.is_empty() {
        return Err("it has no certificate in PEM".to_owned());
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build().map_err(|error| error.to_string())
}

fn why_unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not read the file".to_owned(),
        _ => error.to_string(),
    }
}
