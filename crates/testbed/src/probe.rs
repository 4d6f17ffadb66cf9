//! Whether a component is ready, asked the way a kubelet would ask.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kube::{Client, Config};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::timeout,
};

/// A component that is busy starting may accept a connection long before it answers.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);

/// One health endpoint.
pub(crate) enum Probe {
    Http { port: u16, path: &'static str },
    Socket { path: PathBuf },
    Https { client: Client, path: &'static str, expected: &'static str },
}

impl Probe {
    pub(crate) fn http(port: u16, path: &'static str) -> Self {
        Self::Http { port, path }
    }

    /// A socket that someone answers at.
    pub(crate) fn socket(path: PathBuf) -> Self {
        Self::Socket { path }
    }

    /// An endpoint that anyone may ask, whose certificate our authority signed, and whose answer holds this text.
    pub(crate) fn https(port: u16, path: &'static str, expected: &'static str, ca_file: &Path) -> Result<Self> {
        let mut config = Config::new(format!("https://127.0.0.1:{port}").parse()?);
        config.root_cert = Some(certificates(ca_file)?);
        // "Not ready" is an answer here, not a failure to be retried.
        config.default_retry = false;
        Ok(Self::Https { client: Client::try_from(config)?, path, expected })
    }

    pub(crate) async fn ask(&self) -> Result<()> {
        match self {
            Self::Http { port, path } => timeout(PROBE_DEADLINE, ask_plainly(*port, path)).await?,
            Self::Socket { path } => {
                timeout(PROBE_DEADLINE, UnixStream::connect(path)).await?.map(drop).map_err(Into::into)
            }
            Self::Https { client, path, expected } => {
                let request = http::Request::get(*path).body(Vec::new())?;
                let answer = timeout(PROBE_DEADLINE, client.request_text(request)).await??;
                ensure!(answer.contains(expected), "{path} answered without {expected:?}: {answer}");
                Ok(())
            }
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<Vec<u8>>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let pem = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    CertificateDer::pem_slice_iter(&pem)
        .map(|certificate| Ok(certificate?.to_vec()))
        .collect::<Result<_>>()
        .with_context(|| format!("{} holds no certificate", file.display()))
}

async fn ask_plainly(port: u16, path: &str) -> Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "{path} answered {status:?}");
    Ok(())
}
