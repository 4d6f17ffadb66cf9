//! A server, a certificate authority, a webhook that does what requests are called, and a client for both versions of HTTP.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{Timestamp, ToSpan};
use platform::{
    admission::{self, AdmissionServer, Answer, Answering, ServedCertificate, ServerError, Settings, Webhook},
    metrics::Registry,
    readiness::Readiness,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    sign::CertifiedKey,
};
use serde_json::{Value, json};
use testbed::eventually;
use tokio::{net::TcpStream, sync::Semaphore, task::JoinHandle};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

pub(crate) const PATH: &str = "/validate-pvc";

/// Who signs.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let pem = certificate.pem();
        Self { issuer: Issuer::new(params, key), certificate: certificate.der().clone(), pem }
    }

    /// A certificate for a server under this name, with a chance to spoil it.
    pub(crate) fn serving(&self, name: &str, spoil: impl FnOnce(&mut CertificateParams)) -> CertifiedKey {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        spoil(&mut params);
        let (chain, key) = self.sign(&params);
        CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).unwrap()
    }

    pub(crate) fn client(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        (vec![certificate.der().clone()], key)
    }
}

pub(crate) fn in_a_year() -> Timestamp {
    Timestamp::now() + 8760.hours()
}

/// Does what the object is called.
pub(crate) struct Obedient {
    /// How many of the requests called `wait` may be answered.
    pub(crate) released: Semaphore,
    pub(crate) seen: Mutex<Vec<String>>,
}

impl Obedient {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { released: Semaphore::new(0), seen: Mutex::default() })
    }

    pub(crate) fn has_seen(&self, name: &str) -> bool {
        self.seen.lock().unwrap().iter().any(|seen| seen == name)
    }
}

impl Webhook for Obedient {
    fn path(&self) -> &'static str {
        PATH
    }

    fn review<'a>(&'a self, request: &'a admission::Request<'a>) -> Answering<'a> {
        self.seen.lock().unwrap().push(request.name.clone().into_owned());
        Box::pin(async move {
            match &*request.name {
                "deny" => Answer::deny("NotEphemeral", "it is not ephemeral; do this"),
                "panic" => panic!("a webhook has an error"),
                "wait" => {
                    self.released.acquire().await.unwrap().forget();
                    Answer::allow("Waited", "")
                }
                "warn" => Answer {
                    warnings: vec!["mind the gap".to_owned()],
                    audit: vec![("reason", "Warned".to_owned())],
                    ..Answer::allow("Warned", "")
                },
                "patch" => {
                    let patch = br#"[{"op": "add", "path": "/data", "value": {"patched": "yes"}}]"#;
                    Answer { patch: Some(patch.to_vec()), ..Answer::allow("Patched", "") }
                }
                "forever" => std::future::pending().await,
                _ => Answer::allow("Fine", ""),
            }
        })
    }
}

/// A server that runs.
pub(crate) struct Scene {
    pub(crate) address: SocketAddr,
    pub(crate) authority: Authority,
    pub(crate) certificate: ServedCertificate,
    pub(crate) registry: Registry,
    pub(crate) readiness: Readiness,
    pub(crate) webhook: Arc<Obedient>,
    pub(crate) stop: CancellationToken,
    pub(crate) ended: JoinHandle<Result<(), ServerError>>,
}

/// The defaults, but for a time limit that a busy machine does not meet.
pub(crate) fn settings() -> Settings {
    let request_timeout = Duration::from_secs(20);
    Settings { listen: ([127, 0, 0, 1], 0).into(), request_timeout, ..Settings::default() }
}

impl Scene {
    pub(crate) async fn start(settings: Settings) -> Self {
        let scene = Self::start_without_certificate(settings).await;
        scene.certificate.replace(scene.authority.serving("127.0.0.1", |_| {}), in_a_year());
        scene
    }

    pub(crate) async fn start_without_certificate(settings: Settings) -> Self {
        let (certificate, registry, readiness) =
            (ServedCertificate::default(), Registry::default(), Readiness::default());
        let server = AdmissionServer::bind(settings, certificate.clone(), &registry, &readiness).await.unwrap();
        let (address, webhook, stop) = (server.address().unwrap(), Obedient::new(), CancellationToken::new());
        let ended = tokio::spawn(server.serve(vec![Arc::<Obedient>::clone(&webhook)], stop.clone()));
        let authority = Authority::new("the authority of a test");
        Self { address, authority, certificate, registry, readiness, webhook, stop, ended }
    }

    pub(crate) async fn connect(&self, version: Http) -> Client {
        self.try_connect(version).await.unwrap()
    }

    pub(crate) async fn try_connect(&self, version: Http) -> Result<Client, String> {
        let stream = handshake(self.address, version, &self.authority, None).await?;
        Client::over(stream, version).await.map_err(|error| error.to_string())
    }

    /// Returns once `/metrics` shows this value: a client may see what happened before it is counted.
    pub(crate) async fn shows(&self, series: &str, expected: u64) {
        eventually(&format!("{expected} as {series}"), async || {
            let text = self.registry.encode();
            let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<u64>().ok());
            if value == Some(expected) { Ok(()) } else { Err(format!("{value:?}")) }
        })
        .await
        .unwrap();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Http {
    One,
    Two,
}

pub(crate) const BOTH: [Http; 2] = [Http::One, Http::Two];

pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A connection, secured as a client does it that trusts this authority.
pub(crate) async fn handshake(
    address: SocketAddr,
    version: Http,
    trusted: &Authority,
    identity: Option<Identity>,
) -> Result<TlsStream<TcpStream>, String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = match version {
        Http::One => vec![b"http/1.1".to_vec()],
        Http::Two => vec![b"h2".to_vec()],
    };
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| error.to_string())
}

pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// One connection of a client.
pub(crate) enum Client {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

/// An answer: code, headers, and the body as JSON.
pub(crate) type Answered = (StatusCode, HeaderMap, Value);

impl Client {
    pub(crate) async fn over(stream: TlsStream<TcpStream>, version: Http) -> hyper::Result<Self> {
        let stream = TokioIo::new(stream);
        Ok(match version {
            Http::One => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Self::One(sender)
            }
            Http::Two => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(connection);
                Self::Two(sender)
            }
        })
    }

    /// Asks for an object of this name.
    pub(crate) async fn ask(&mut self, name: &str) -> Answered {
        self.send(post(review(name))).await.unwrap()
    }

    pub(crate) async fn send(&mut self, request: Request<Body>) -> hyper::Result<Answered> {
        let response: Response<Incoming> = match self {
            Self::One(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Self::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error} in {body:?}"));
        Ok((head.status, head.headers, body))
    }

    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_closed(),
            Self::Two(sender) => sender.is_closed(),
        }
    }
}

pub(crate) fn review(name: &str) -> String {
    let kind = json!({"group": "", "version": "v1", "kind": "PersistentVolumeClaim"});
    let request = json!({"uid": format!("uid-of-{name}"), "kind": kind, "name": name, "namespace": "ns", "operation": "CREATE",
        "userInfo": {"username": "somebody"}, "object": {"metadata": {"name": name}}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

pub(crate) fn post(body: impl Into<Bytes>) -> Request<Body> {
    Request::post(format!("https://127.0.0.1{PATH}?timeout=3s"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body.into()).boxed())
        .unwrap()
}

/// The sentence of an answer that is no review.
pub(crate) fn sentence((code, _, body): &Answered) -> String {
    assert_eq!(body["kind"], "Status", "{body}");
    assert_eq!((&body["apiVersion"], &body["status"]), (&json!("v1"), &json!("Failure")), "{body}");
    assert_eq!(body["code"], code.as_u16(), "{body}");
    body["message"].as_str().unwrap().to_owned()
}
