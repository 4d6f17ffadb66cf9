//! The floor: a server with the same TLS and HTTP that reads what it is asked and answers constant bytes.
//!
//! It is a process of its own, compiled as the operator is. No webhook made of the same parts can be cheaper.

use std::{convert::Infallible, fs, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

const ANSWER: &[u8] = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"6f2c1d8e-0000-4000-8000-000000000000","allowed":true,"status":{"code":200,"message":"constant"}}}"#;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where it listens
    #[arg(long)]
    address: SocketAddr,
    /// The directory with tls.crt and tls.key
    #[arg(long)]
    certificates: PathBuf,
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    // One thread, like the operator.
    let serving = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(serve(arguments))
    });
    serving.await?
}

async fn serve(Arguments { address, certificates }: Arguments) -> Result<()> {
    let certificate = CertificateDer::from_pem_slice(&fs::read(certificates.join("tls.crt"))?)?;
    let key = PrivateKeyDer::from_pem_slice(&fs::read(certificates.join("tls.key"))?)?;
    let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
    loop {
        let (stream, _) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            // How a connection ends is the load generator's business.
            drop(answer_on(stream, tls).await);
        });
    }
}

async fn answer_on(stream: TcpStream, tls: TlsAcceptor) -> Result<()> {
    stream.set_nodelay(true)?;
    let stream = tls.accept(stream).await?;
    let http_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let (stream, service) = (TokioIo::new(stream), service_fn(answer));
    Ok(if http_2 {
        http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
    } else {
        http1::Builder::new().serve_connection(stream, service).await
    }?)
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // What cannot be read ends its connection by itself.
    drop(request.into_body().collect().await);
    let mut answer = Response::new(Full::new(Bytes::from_static(ANSWER)));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(answer)
}
