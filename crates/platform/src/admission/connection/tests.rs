//! How long a connection is waited for, on a clock that runs ahead while nothing happens.

use http::{Request, StatusCode};
use hyper::client::conn;
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    sign::CertifiedKey,
};
use tokio::{
    io::{AsyncWriteExt, DuplexStream, duplex},
    task::JoinHandle,
    time::sleep,
};
use tokio_rustls::{TlsConnector, client};

use super::*;
use crate::{
    admission::{Answer, Answering, ServedCertificate, Webhook, metrics::ServerMetrics, review, tls::Tls},
    metrics::Registry,
};

/// Takes as long as a request is called.
struct Slow;

const PATH: &str = "/slow";

impl Webhook for Slow {
    fn path(&self) -> &'static str {
        PATH
    }

    fn review<'a>(&'a self, request: &'a review::Request<'a>) -> Answering<'a> {
        Box::pin(async move {
            sleep(Duration::from_secs(request.name.parse().unwrap())).await;
            Answer::allow("Fine", "")
        })
    }
}

const FAREWELL: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_hours(1);

/// The other end of a connection that is being served, and what it takes to secure it.
struct Line {
    stream: DuplexStream,
    certificate: CertificateDer<'static>,
    opened: Instant,
    served: JoinHandle<()>,
}

fn line() -> Line {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let certificate = certificate.der().clone();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let certified = CertifiedKey::from_der(vec![certificate.clone()], key, &aws_lc_rs::default_provider()).unwrap();
    let served = ServedCertificate::default();
    served.replace(certified, Timestamp::MAX);
    let tls = Tls::new(&served, None).unwrap();

    let connections = Connections {
        service: Service::new(vec![Arc::new(Slow)], HOUR, 10, ServerMetrics::new(&Registry::default())),
        last_call: CancellationToken::new(),
        ending: CancellationToken::new(),
        farewell: FAREWELL,
        told: Mutex::new(None),
    };
    let (stream, other_end) = duplex(64 * 1024);
    let served = tokio::spawn(Arc::new(connections).serve(other_end, tls.acceptor()));
    Line { stream, certificate, opened: Instant::now(), served }
}

/// A secured connection, and how long it was served.
async fn secured(line: Line, protocol: &[u8]) -> (client::TlsStream<DuplexStream>, impl Future<Output = Duration>) {
    let Line { stream, certificate, opened, served } = line;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    (stream, async move {
        served.await.unwrap();
        opened.elapsed()
    })
}

fn ask(seconds: u64) -> Request<Full<Bytes>> {
    let body = format!(
        r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {{"uid": "u", "name": "{seconds}",
            "kind": {{"version": "v1", "kind": "Pod"}}, "operation": "CREATE"}}}}"#
    );
    let request = Request::post(format!("https://localhost{PATH}")).header(header::CONTENT_TYPE, "application/json");
    request.body(Full::new(body.into())).unwrap()
}

/// Holds a sender, without which the client would end the connection.
fn keep(sender: impl Send + 'static) {
    tokio::spawn(async move {
        sleep(HOUR).await;
        drop(sender);
    });
}

fn about(duration: Duration) -> std::ops::Range<Duration> {
    duration..duration + Duration::from_secs(1)
}

#[tokio::test(start_paused = true)]
async fn who_does_not_shake_hands_is_hung_up_on() {
    let Line { opened, served, stream: _stream, .. } = line();
    served.await.unwrap();
    assert!(about(HANDSHAKE).contains(&opened.elapsed()), "{:?}", opened.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_asks_nothing_is_hung_up_on() {
    for protocol in [HTTP_2, b"http/1.1"] {
        let (_stream, served) = secured(line(), protocol).await;
        let served = served.await;
        // HTTP/2 says goodbye, and waits a while for an answer to that.
        assert!((FIRST_REQUEST..FIRST_REQUEST + FAREWELL + Duration::from_secs(1)).contains(&served), "{served:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_header_that_never_ends_is_not_waited_for() {
    let (mut stream, served) = secured(line(), b"http/1.1").await;
    stream.write_all(b"POST /slow HTTP/1.1\r\nhost: localhost\r\nx-endless: ").await.unwrap();
    stream.flush().await.unwrap();
    let trickle = async {
        while stream.write_all(b"x").await.is_ok() && stream.flush().await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let (served, ()) = tokio::join!(served, trickle);
    assert!(about(FIRST_REQUEST + FAREWELL).contains(&served), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_lasts_while_it_is_used_and_ends_when_it_is_not() {
    // Longer than an idle connection lasts.
    let answered = IDLE + IDLE;
    for http_2 in [true, false] {
        let (stream, served) = secured(line(), if http_2 { HTTP_2 } else { b"http/1.1" }).await;
        let (request, stream) = (ask(answered.as_secs()), TokioIo::new(stream));
        let code = if http_2 {
            let (mut sender, connection) = conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            let code = sender.send_request(request).await.unwrap().status();
            keep(sender);
            code
        } else {
            let (mut sender, connection) = conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let code = sender.send_request(request).await.unwrap().status();
            keep(sender);
            code
        };
        assert_eq!(code, StatusCode::OK);
        let served = served.await;
        assert!(about(answered + IDLE).contains(&served), "{served:?} with HTTP/2: {http_2}");
    }
}
