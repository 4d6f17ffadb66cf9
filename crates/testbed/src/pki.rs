//! The control plane's own certificate authority and what it signs, all in one directory of PEM files.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// A certificate and its key as PEM text.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Signs the certificates of one control plane.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    /// Creates the authority and leaves `ca.crt`, `ca.key` and the service-account key pair in the directory.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "claimkeeper-testbed-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        write_secret(&directory.join("ca.crt"), &certificate.pem())?;
        write_secret(&directory.join("ca.key"), &key.serialize_pem())?;
        let service_accounts = KeyPair::generate()?;
        write_secret(&directory.join("service-accounts.key"), &service_accounts.serialize_pem())?;
        write_secret(&directory.join("service-accounts.pub"), &service_accounts.public_key_pem())?;
        Ok(Self { issuer: Issuer::new(params, key), directory: directory.to_owned() })
    }

    /// Writes `<name>.crt` and `<name>.key` for a server that answers under these names and addresses.
    pub(crate) fn write_serving(&self, name: &str, addresses: &[&str]) -> Result<()> {
        let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut params = CertificateParams::new(addresses)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.write(name, &self.sign(&params)?)
    }

    /// Writes `<name>.crt` and `<name>.key` for a client.
    pub(crate) fn write_client(&self, name: &str, user: &str, group: Option<&str>) -> Result<()> {
        self.write(name, &self.client(user, group)?)
    }

    /// A client certificate: Kubernetes reads the common name as the user and the organization as a group.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn write(&self, name: &str, identity: &Identity) -> Result<()> {
        write_secret(&self.directory.join(format!("{name}.crt")), &identity.certificate)?;
        write_secret(&self.directory.join(format!("{name}.key")), &identity.key)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer).context("cannot sign a certificate")?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Writes a file that only its owner may read.
pub(crate) fn write_secret(path: &Path, content: &str) -> Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}
