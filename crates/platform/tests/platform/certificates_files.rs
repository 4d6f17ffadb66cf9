//! Certificates in files, replaced under way in all the ways in which that happens.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use anyhow::{Result, ensure};
use platform::{
    admission::ServedCertificate,
    certificates::{Files, Parts},
    metrics::Registry,
    readiness::Readiness,
};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use testbed::eventually;
use tokio::task::AbortHandle;

const ERRORS: &str = r#"claimkeeper_certificate_errors_total{operation="load"}"#;

struct Served {
    certificate: ServedCertificate,
    readiness: Readiness,
    registry: Registry,
    task: AbortHandle,
}

impl Served {
    fn from(directory: &Path) -> Self {
        let (certificate, readiness, registry) =
            (ServedCertificate::default(), Readiness::default(), Registry::default());
        let parts = Parts {
            served: certificate.clone(),
            ready: readiness.gate("an accepted certificate"),
            registry: registry.clone(),
        };
        let files = Files::new(directory.to_owned(), Duration::from_millis(20), parts);
        let task = tokio::spawn(async move { files.serve().await }).abort_handle();
        Self { certificate, readiness, registry, task }
    }

    fn shown(&self) -> Vec<CertificateDer<'static>> {
        self.certificate.current().map(|served| served.key.cert.clone()).unwrap_or_default()
    }

    async fn until_shown(&self, pair: &Pair) -> Result<()> {
        eventually("the certificate to be served", async || {
            ensure!(self.shown() == pair.chain, "another one is served");
            Ok(())
        })
        .await
    }

    fn errors(&self) -> u64 {
        let text = self.registry.encode();
        text.lines().find_map(|line| line.strip_prefix(ERRORS)?.trim().parse().ok()).unwrap_or(0)
    }

    async fn until_more_errors(&self) -> Result<()> {
        let before = self.errors();
        eventually("the files to be looked at", async || {
            ensure!(self.errors() > before, "no error was counted");
            Ok(())
        })
        .await
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Pair {
    chain: Vec<CertificateDer<'static>>,
    certificate: String,
    key: String,
}

impl Pair {
    /// With an intermediate certificate behind it.
    fn new() -> Self {
        Self::lasting(2_100)
    }

    fn lasting(until: i32) -> Self {
        let (above, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let intermediate = CertificateParams::default();
        let upper = intermediate.self_signed(&above).unwrap();
        let mut params = CertificateParams::new(vec!["webhook.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let lower = params.signed_by(&key, &Issuer::new(intermediate, above)).unwrap();
        let chain = vec![lower.der().clone(), upper.der().clone()];
        Self { chain, certificate: format!("{}{}", lower.pem(), upper.pem()), key: key.serialize_pem() }
    }

    fn write(&self, directory: &Path) -> Result<()> {
        fs::write(directory.join("tls.crt"), &self.certificate)?;
        fs::write(directory.join("tls.key"), &self.key)?;
        Ok(())
    }
}

#[tokio::test]
async fn files_that_come_late_are_served_with_their_chain_and_make_the_replica_ready() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let served = Served::from(directory.path());
    served.until_more_errors().await?;
    assert!(!served.readiness.is_ready());
    let pair = Pair::new();
    pair.write(directory.path())?;
    served.until_shown(&pair).await?;
    eventually("readiness", async || if served.readiness.is_ready() { Ok(()) } else { Err("not ready") }).await?;
    let metrics = served.registry.encode();
    assert!(
        metrics.contains(r#"claimkeeper_certificate_expiry_timestamp_seconds{certificate="leaf"} 4.1024448e+09"#),
        "{metrics}"
    );
    Ok(())
}

#[tokio::test]
async fn a_swapped_symbolic_link_is_noticed() -> Result<()> {
    let mount = tempfile::tempdir()?;
    let (old, new) = (Pair::new(), Pair::new());
    for (name, pair) in [("..1", &old), ("..2", &new)] {
        fs::create_dir(mount.path().join(name))?;
        pair.write(&mount.path().join(name))?;
    }
    // As kubelet does it.
    symlink("..1", mount.path().join("..data"))?;
    for file in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{file}"), mount.path().join(file))?;
    }
    let served = Served::from(mount.path());
    served.until_shown(&old).await?;
    symlink("..2", mount.path().join("..data_tmp"))?;
    fs::rename(mount.path().join("..data_tmp"), mount.path().join("..data"))?;
    fs::remove_dir_all(mount.path().join("..1"))?;
    served.until_shown(&new).await?;
    assert_eq!(served.errors(), 0);
    Ok(())
}

#[tokio::test]
async fn what_does_not_fit_is_not_served_until_it_does() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (old, new) = (Pair::new(), Pair::new());
    old.write(directory.path())?;
    let served = Served::from(directory.path());
    served.until_shown(&old).await?;
    fs::write(directory.path().join("tls.crt"), &new.certificate)?;
    served.until_more_errors().await?;
    assert_eq!(served.shown(), old.chain);
    fs::remove_file(directory.path().join("tls.key"))?;
    served.until_more_errors().await?;
    assert_eq!(served.shown(), old.chain);
    assert!(served.readiness.is_ready(), "what is served works");
    fs::write(directory.path().join("tls.key"), &new.key)?;
    served.until_shown(&new).await?;
    Ok(())
}

#[tokio::test]
async fn an_expired_certificate_is_served_so_that_callers_can_say_what_is_wrong() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let expired = Pair::lasting(2_001);
    expired.write(directory.path())?;
    let served = Served::from(directory.path());
    served.until_shown(&expired).await
}
