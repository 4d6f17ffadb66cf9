//! The ceiling: the least that any controller has to do for the same claims, and nothing else.
//!
//! Every request is prepared before the first one is sent. Then as many connections as the operator uses send one after the
//! other and look at nothing but the status, while the two watches that a controller needs are open and what they bring is
//! thrown away. It is a process of its own, compiled as the operator is, so that nothing else disturbs it.

mod binary;

use std::{cell::RefCell, net::SocketAddr, path::PathBuf, rc::Rc, sync::Arc};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kube::{
    Config,
    client::ConfigExt,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{net::TcpStream, task::LocalSet};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use self::binary::{BINARY, Pod, WATCH_IN_BINARY};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// With whose credentials
    #[arg(long)]
    kubeconfig: PathBuf,
    /// How many requests at once, each on a connection of its own
    #[arg(long)]
    connections: usize,
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    // One thread, like the operator.
    let generating = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, generate(arguments))
    });
    generating.await?
}

async fn generate(arguments: Arguments) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(&arguments.kubeconfig)?;
    let token = serde_json::to_value(&kubeconfig)?["users"][0]["user"]["token"].as_str().map(str::to_owned);
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let host = config.cluster_url.authority().context("the server has no address")?.to_string();
    let server = Server {
        address: host.parse().context("the server's address is not one of this machine")?,
        tls: TlsConnector::from(Arc::new(config.rustls_client_config()?)),
        authorization: format!("Bearer {}", token.context("the kubeconfig has no token")?),
        host,
    };
    let list = server.connect().await?.send_request(server.request(Method::GET, "/api/v1/pods", Bytes::new())?).await?;
    ensure!(list.status() == StatusCode::OK, "the list of pods was answered with {}", list.status());
    let (pods, version) = binary::pods(&list.into_body().collect().await?.to_bytes())?;
    let requests = pods.into_iter().map(|pod| server.create_claim(pod)).collect::<Result<Vec<_>>>()?;

    for kind in ["pods", "persistentvolumeclaims"] {
        let path = format!("/api/v1/{kind}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
        let mut connection = server.connect().await?;
        let mut answer = connection.send_request(server.request(Method::GET, &path, Bytes::new())?).await?;
        ensure!(answer.status() == StatusCode::OK, "the watch of {kind} was answered with {}", answer.status());
        tokio::task::spawn_local(async move {
            let _open = connection;
            while answer.frame().await.is_some() {}
        });
    }
    let requests = Rc::new(RefCell::new(requests.into_iter()));
    let connections = try_join_all((0..arguments.connections).map(|_| server.connect())).await?;
    try_join_all(connections.into_iter().map(|connection| send(connection, Rc::clone(&requests)))).await?;
    // Whoever started us looks at what we used, and then ends us.
    std::future::pending().await
}

type Requests = Rc<RefCell<std::vec::IntoIter<Request<Full<Bytes>>>>>;

async fn send(mut connection: SendRequest<Full<Bytes>>, requests: Requests) -> Result<()> {
    loop {
        let next = requests.borrow_mut().next();
        let Some(request) = next else { return Ok(()) };
        connection.ready().await?;
        let mut answer = connection.send_request(request).await?;
        ensure!(answer.status() == StatusCode::CREATED, "a claim was answered with {}", answer.status());
        while let Some(frame) = answer.frame().await {
            frame?;
        }
    }
}

struct Server {
    host: String,
    address: SocketAddr,
    tls: TlsConnector,
    authorization: String,
}

impl Server {
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::from(self.address.ip()), stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // How a connection ends is seen by whoever uses it.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(sender)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        // As the operator has it: in the format that costs the server least.
        let accept = if path.contains("watch=true") { WATCH_IN_BINARY } else { BINARY };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::USER_AGENT, "ceiling")
            .header(header::ACCEPT, accept)
            .header(header::CONTENT_TYPE, BINARY);
        Ok(request.body(Full::new(body))?)
    }

    fn create_claim(&self, pod: Pod) -> Result<Request<Full<Bytes>>> {
        let (namespace, claim) = binary::claim(pod)?;
        self.request(Method::POST, &format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"), claim.into())
    }
}
