//! X.509 as far as we need it: making authorities and leaves, reading them back, and telling who vouches for whom.

use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::{extensions::GeneralName, parse_x509_certificate, prelude::X509Certificate, time::ASN1Time};

use super::decision::{Id, Validity};

/// What the names of our authorities begin with: one that is called otherwise was not made here, and we cannot sign with it.
const AUTHORITY: &str = "claimkeeper webhook CA ";

/// How far the clock of an API server may be behind ours; for short lives it is a tenth of them.
const CLOCK_SKEW: Duration = Duration::from_hours(1);

/// No Secret and no caBundle of ours has more certificates; what comes after them was put there by somebody else.
const MOST_CERTIFICATES: usize = 16;

/// Why something is not what it should be, to follow "the Secret's ca.crt" or the like.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unusable(String);

impl Unusable {
    fn because(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }
}

/// The certificate of an authority.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) id: Id,
    pub(super) validity: Validity,
    name: String,
    pem: String,
}

impl Authority {
    /// All certificates in a PEM text that are authorities; what is none of that is left out.
    pub(super) fn read_all(pem: &[u8]) -> Vec<Self> {
        let certificates = CertificateDer::pem_slice_iter(pem).take(MOST_CERTIFICATES);
        let mut authorities: Vec<Self> = Vec::new();
        for authority in certificates.flatten().filter_map(|der| Self::of(&der)) {
            if !authorities.contains(&authority) {
                authorities.push(authority);
            }
        }
        authorities
    }

    fn of(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = parse_x509_certificate(der).ok()?;
        let name = certificate.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        let validity = validity(&certificate);
        certificate.is_ca().then(|| Self { id: Id::of(der), validity, name, pem: to_pem(der) })
    }

    /// Whether it was made here.
    pub(super) fn is_ours(&self) -> bool {
        self.name.starts_with(AUTHORITY)
    }

    /// The text of several, as it stands in a Secret and in a caBundle.
    pub(super) fn bundle<'a>(authorities: impl IntoIterator<Item = &'a Self>) -> String {
        authorities.into_iter().map(|authority| authority.pem.as_str()).collect()
    }

    /// Whether it signed this leaf, whatever the time is.
    pub(super) fn vouches_for(&self, leaf: &Leaf) -> bool {
        let overlap = self.validity.from.max(leaf.validity.from);
        let Some(name) = leaf.names.first().and_then(|name| ServerName::try_from(name.as_str()).ok()) else {
            return false;
        };
        let mut roots = RootCertStore::empty();
        if roots.add(CertificateDer::from(self.id.as_bytes())).is_err() {
            return false;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let moment = UnixTime::since_unix_epoch(Duration::from_secs(overlap.as_second().try_into().unwrap_or(0)));
        let Some((end, intermediates)) = leaf.key.cert.split_first() else { return false };
        verifier.is_ok_and(|verifier| verifier.verify_server_cert(end, intermediates, &name, &[], moment).is_ok())
    }
}

// The certificate is no secret, but a page of it helps nobody.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("name", &self.name).field("validity", &self.validity).finish_non_exhaustive()
    }
}

/// An authority whose key is at hand.
pub(super) struct Signer {
    pub(super) authority: Authority,
    pub(super) key_pem: String,
}

impl Signer {
    /// A new one.
    pub(super) fn create(lifetime: Duration, now: Timestamp) -> Result<Self, Unusable> {
        let validity = Validity::starting(now, lifetime, backdate(lifetime));
        let key = KeyPair::generate().map_err(Unusable::because)?;
        let name = format!("{AUTHORITY}{:016x}", rand::random::<u64>());
        let mut params = named(&name, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let certificate = params.self_signed(&key).map_err(Unusable::because)?;
        let authority = Authority::of(certificate.der()).ok_or_else(|| Unusable::because("is no authority"))?;
        Ok(Self { authority, key_pem: key.serialize_pem() })
    }

    /// The authority with the key that stands beside it, if it is that authority's key and we made both.
    pub(super) fn load(authority: &Authority, key_pem: &[u8]) -> Result<Self, Unusable> {
        if !authority.is_ours() {
            return Err(Unusable(format!("belongs to `{}`, which was not made by claimkeeper", authority.name)));
        }
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| Unusable(format!("holds no key: {error}")))?;
        let chain = vec![CertificateDer::from(authority.id.as_bytes().to_vec())];
        CertifiedKey::from_der(chain, key, &provider()).map_err(|error| Unusable(format!("does not fit: {error}")))?;
        let key_pem = String::from_utf8(key_pem.to_vec()).map_err(Unusable::because)?;
        Ok(Self { authority: authority.clone(), key_pem })
    }

    /// A new leaf for these names. It does not outlive the authority: nobody would accept it then.
    pub(super) fn issue(&self, names: &BTreeSet<String>, lifetime: Duration, now: Timestamp) -> Result<Pair, Unusable> {
        let mut validity = Validity::starting(now, lifetime, backdate(lifetime));
        validity.from = validity.from.max(self.authority.validity.from);
        validity.until = validity.until.min(self.authority.validity.until);
        let ours = KeyPair::from_pem(&self.key_pem).map_err(Unusable::because)?;
        let issuer = named(&self.authority.name, self.authority.validity)?;
        let alternatives =
            CertificateParams::new(names.iter().cloned().collect::<Vec<_>>()).map_err(Unusable::because)?;
        let mut params = named("claimkeeper webhook", validity)?;
        params.subject_alt_names = alternatives.subject_alt_names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(Unusable::because)?;
        let certificate = params.signed_by(&key, &Issuer::new(issuer, ours)).map_err(Unusable::because)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// A certificate and its key as PEM text.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// A certificate that can be served.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) id: Id,
    pub(super) validity: Validity,
    pub(super) names: BTreeSet<String>,
    pub(super) key: Arc<CertifiedKey>,
}

impl Leaf {
    /// Reads a certificate, with the intermediate ones behind it if there are any, and its key.
    pub(super) fn load(certificate_pem: &[u8], key_pem: &[u8]) -> Result<Self, Unusable> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(certificate_pem).take(MOST_CERTIFICATES).collect();
        let chain = chain.map_err(|error| Unusable(format!("holds no certificate: {error}")))?;
        let Some(end) = chain.first() else { return Err(Unusable::because("holds no certificate")) };
        let (_, certificate) =
            parse_x509_certificate(end).map_err(|error| Unusable(format!("holds no certificate: {error}")))?;
        let (id, validity, names) = (Id::of(end), validity(&certificate), names(&certificate));
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|error| Unusable(format!("comes with a key that cannot be read: {error}")))?;
        let key = CertifiedKey::from_der(chain, key, &provider())
            .map_err(|error| Unusable(format!("does not fit the key beside it: {error}")))?;
        Ok(Self { id, validity, names, key: Arc::new(key) })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn backdate(lifetime: Duration) -> Duration {
    CLOCK_SKEW.min(lifetime / 10)
}

fn named(name: &str, validity: Validity) -> Result<CertificateParams, Unusable> {
    let time = |time: Timestamp| ASN1Time::from_timestamp(time.as_second()).map_err(Unusable::because);
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.not_before = time(validity.from)?.to_datetime();
    params.not_after = time(validity.until)?.to_datetime();
    Ok(params)
}

fn validity(certificate: &X509Certificate<'_>) -> Validity {
    let time = |time: ASN1Time| Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::UNIX_EPOCH);
    Validity { from: time(certificate.validity().not_before), until: time(certificate.validity().not_after) }
}

fn names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|alternatives| &alternatives.value.general_names);
    names.filter_map(name).collect()
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn to_pem(der: &CertificateDer<'_>) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let text = BASE64_STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned());
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.collect::<Vec<_>>().join("\n"))
}
