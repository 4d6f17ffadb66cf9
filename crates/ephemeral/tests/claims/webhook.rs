//! An admission webhook that has an objection, the way to make a real API server give any answer.

use std::{fs, sync::Arc};

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use testbed::eventually;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::room::{Room, spec};

/// Refuses the first claim of a room with this status, and no other.
pub(crate) struct Objection {
    configurations: Api<ValidatingWebhookConfiguration>,
    name: String,
    server: AbortHandle,
}

impl Objection {
    pub(crate) async fn to_first_claim_of(room: &Room, status: Value) -> Result<Self> {
        let pki = room.cluster.directory().join("pki");
        let certificate = CertificateDer::from_pem_file(pki.join("serving.crt"))?;
        let key = PrivateKeyDer::from_pem_file(pki.join("serving.key"))?;
        let tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let webhook = json!({
            "name": "objection.example.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {
                "url": format!("https://{}/", listener.local_addr()?),
                "caBundle": BASE64_STANDARD.encode(fs::read(pki.join("ca.crt"))?),
            },
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": room.namespace}},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["persistentvolumeclaims"], "operations": ["CREATE"],
            }],
        });
        let server = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), status)).abort_handle();
        let configurations = Api::all(room.cluster.admin().await?);
        let configuration = json!({"metadata": {"name": room.namespace}, "webhooks": [webhook]});
        configurations.create(&PostParams::default(), &serde_json::from_value(configuration)?).await?;
        eventually("the API server to ask", async || {
            let claim = json!({"metadata": {"name": "rehearsal"}, "spec": spec("testbed-wait")});
            let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
            let refused = room.claims.create(&rehearsal, &serde_json::from_value(claim)?).await.is_err();
            ensure!(refused, "it accepts all claims");
            Ok(())
        })
        .await?;
        Ok(Self { configurations, name: room.namespace.clone(), server })
    }

    pub(crate) async fn withdraw(self) -> Result<()> {
        self.configurations.delete(&self.name, &DeleteParams::default()).await?;
        self.server.abort();
        Ok(())
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, status: Value) -> Result<()> {
    let mut objection = Some(status);
    loop {
        let (stream, _) = listener.accept().await?;
        answer(stream, &tls, &mut objection).await?;
    }
}

async fn answer(stream: TcpStream, tls: &TlsAcceptor, objection: &mut Option<Value>) -> Result<()> {
    let mut stream = BufReader::new(tls.accept(stream).await?);
    let (mut line, mut length) = (String::new(), 0);
    while stream.read_line(&mut line).await? > 0 && line != "\r\n" {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body).context("no review")?;
    let request = &review["request"];
    // A rehearsal is how we find out whether the API server asks already.
    let status = if request["dryRun"] == true { objection.clone() } else { objection.take() };
    let response = json!({"uid": request["uid"], "allowed": status.is_none(), "status": status});
    let body =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
    stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}
