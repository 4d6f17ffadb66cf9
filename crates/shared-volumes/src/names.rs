//! What the objects of a volume are called, and by which marks they are known.

use cluster::{ObjectKey, Service, service::ClusterAddress};
use sha2::{Digest, Sha256};

use crate::{
    address::remembered,
    settings::ServiceName,
    source::{SharedVolume, VolumeId},
};

/// The label that says whose a Service, a slice or an Endpoints object is. The original's, so that each finds the other's.
pub const VOLUME_ID: &str = "storageos.com/volume-id";

/// Who looks after our slices.
pub const MANAGER: &str = "shared-volumes.claimkeeper.dev";

/// Who looks after the slices that Kubernetes makes of Endpoints objects.
pub const MIRRORING: &str = "endpointslicemirroring-controller.k8s.io";

/// The label of Endpoints objects of which Kubernetes makes no slices.
pub const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// The last decision about a volume, on its claim.
pub const DECISION: &str = "claimkeeper.dev/shared-volume";

/// The port on which every address answers.
pub const NFS_PORT: u16 = 2049;

/// What that port is called.
pub const PORT_NAME: &str = "nfs";

/// The longest name of a Service.
const LONGEST: usize = 63;

/// What a new Service is called if nothing is in the way: as its claim or its volume, if Services may be called that.
#[must_use]
pub fn wanted(volume: &SharedVolume, style: ServiceName) -> String {
    let name = match style {
        ServiceName::Claim => volume.claim.as_ref().map(ObjectKey::name),
        ServiceName::Pv => volume.volume.as_deref(),
    };
    let name = name.unwrap_or_default();
    if is_label(name) { name.to_owned() } else { derived(volume, style) }
}

/// What it is called otherwise.
#[must_use]
pub fn derived(volume: &SharedVolume, style: ServiceName) -> String {
    let name = match style {
        ServiceName::Claim => volume.claim.as_ref().map(ObjectKey::name),
        ServiceName::Pv => volume.volume.as_deref(),
    };
    let safe =
        name.unwrap_or_default().chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    let digest = Sha256::digest(volume.id.as_bytes());
    let unique = digest.iter().take(5).fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let room = LONGEST - "nfs-".len() - "-".len() - unique.len();
    let safe: String = safe.take(room).collect();
    format!("nfs-{}-{unique}", safe.trim_matches('-'))
}

/// What the slice of a Service is called. A slice cannot change its family, so each has its own.
#[must_use]
pub fn slice(service: &str, family: &str) -> String {
    format!("{service}-nfs-{}", family.to_ascii_lowercase())
}

/// Whether a Service may be called that (DNS-1035).
#[must_use]
pub fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= LONGEST
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(inner)
}

/// Whether something can be labelled with it.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    value.len() <= LONGEST && value.starts_with(ends) && value.ends_with(ends) && value.chars().all(inner)
}

/// Whether a Service is this volume's: it says so; or somebody has taken its label, but it has the address that was published,
/// which no tenant can write, and is called or owned as ours are; or somebody has changed its label, but it has that address and
/// the claim of this uid, which is the volume's, owns it. The address alone is no proof: once a Service is gone, its address may
/// be given to any other.
#[must_use]
pub fn is_ours(service: &Service, volume: &SharedVolume, claim: &str) -> bool {
    match service.labels.get(VOLUME_ID) {
        Some(id) if **id == *volume.id => true,
        Some(_) => is_published(service, volume) && service.owners.iter().any(|owner| owner.uid == claim),
        None => is_published(service, volume) && is_like_ours(service, volume),
    }
}

fn is_like_ours(service: &Service, volume: &SharedVolume) -> bool {
    let claim = volume.claim.as_ref().map(ObjectKey::name);
    let owned = service
        .owners
        .iter()
        .any(|owner| owner.kind == "PersistentVolumeClaim" && claim.is_some_and(|claim| claim == owner.name));
    let styles = [ServiceName::Claim, ServiceName::Pv];
    let named = styles
        .into_iter()
        .any(|style| [wanted(volume, style), derived(volume, style)].iter().any(|name| name == service.key.name()));
    let nfs = matches!(&service.ports[..], [port] if &*port.name == PORT_NAME);
    owned || (named && nfs)
}

/// Whether clients of this volume use this Service.
#[must_use]
pub fn is_published(service: &Service, volume: &SharedVolume) -> bool {
    remembered(volume).is_some_and(|ip| service.address == ClusterAddress::Ip(ip))
}

/// The Service of a volume among those of its claim's namespace: the one that clients use, or else that is called right, or
/// else the first. One that can never have an address is nobody's.
#[must_use]
pub fn choose<'a>(
    services: &'a [Service],
    volume: &SharedVolume,
    claim: &str,
    style: ServiceName,
) -> Option<&'a Service> {
    let wanted = wanted(volume, style);
    let usable = |service: &&Service| is_ours(service, volume, claim) && service.address != ClusterAddress::Headless;
    let rank = |service: &&Service| (!is_published(service, volume), service.key.name() != wanted, service.key.clone());
    services.iter().filter(usable).min_by_key(rank)
}

/// The volume that an object is labelled as belonging to.
#[must_use]
pub fn volume_of(labels: &std::collections::BTreeMap<String, String>) -> Option<VolumeId> {
    labels.get(VOLUME_ID).filter(|id| !id.is_empty()).map(|id| id.as_str().into())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{service, volume};

    proptest! {
        #[test]
        fn whatever_a_claim_or_a_volume_is_called_its_service_has_a_name(name in "\\PC{0,80}", id in "\\PC{1,80}") {
            let claim = Some(ObjectKey::new("ci", &name.replace('/', ".")));
            let volume = SharedVolume { claim, volume: Some(name.as_str().into()), ..volume(&id) };
            for style in [ServiceName::Claim, ServiceName::Pv] {
                prop_assert!(is_label(&wanted(&volume, style)), "{}", wanted(&volume, style));
                prop_assert!(is_label(&derived(&volume, style)), "{}", derived(&volume, style));
            }
        }
    }

    #[test]
    fn a_service_is_called_as_its_claim_or_its_volume_if_it_can_be() {
        let mut volume = volume("v1");
        assert_eq!(wanted(&volume, ServiceName::Claim), "files");
        assert_eq!(wanted(&volume, ServiceName::Pv), "pvc-1");
        for odd in ["my.claim", "1st", "a".repeat(64).as_str(), "x-"] {
            volume.claim = Some(ObjectKey::new("ci", odd));
            let name = wanted(&volume, ServiceName::Claim);
            assert!(is_label(&name), "{odd} became {name}");
            assert_eq!(name, derived(&volume, ServiceName::Claim));
        }
        volume.claim = Some(ObjectKey::new("ci", "my.claim"));
        assert!(wanted(&volume, ServiceName::Claim).starts_with("nfs-my-claim-"));
    }

    #[test]
    fn derived_names_of_two_volumes_differ_and_never_change() {
        let name = |id: &str| derived(&volume(id), ServiceName::Claim);
        assert_ne!(name("v1"), name("v2"));
        assert_eq!(name("v1"), "nfs-files-3bfc269594");
    }

    #[test]
    fn the_service_that_clients_use_is_chosen_before_any_other() {
        let labelled = |name: &str, ip: &str| service(name, ip, &[(VOLUME_ID, "v1")]);
        let published = service("pvc-1", "10.0.0.7", &[]);
        let volume = volume("v1");
        let chosen = |services: &[Service]| {
            choose(services, &volume, "c1", ServiceName::Claim).map(|service| service.key.name().to_owned())
        };
        let all = [labelled("other", "10.0.0.8"), labelled("files", "10.0.0.9"), published];
        assert_eq!(chosen(&all).as_deref(), Some("pvc-1"));
        assert_eq!(chosen(&all[..2]).as_deref(), Some("files"));
        assert_eq!(chosen(&all[..1]).as_deref(), Some("other"));
        let strangers = [service("files", "10.0.0.9", &[]), service("other", "10.0.0.8", &[(VOLUME_ID, "v2")])];
        assert_eq!(chosen(&strangers), None);
        assert_eq!(chosen(&[labelled("files", "None")]), None, "it can never have an address");
    }

    #[test]
    fn a_service_that_merely_got_the_address_is_not_ours() {
        let volume = volume("v1");
        let mut thief = service("thief", "10.0.0.7", &[]);
        assert!(!is_ours(&thief, &volume, "c1"));
        thief.owners = vec![OwnerReference {
            kind: "PersistentVolumeClaim".into(),
            name: "files".into(),
            ..OwnerReference::default()
        }];
        assert!(is_ours(&thief, &volume, "c1"), "it has only lost its label");
        assert!(is_ours(&service("files", "10.0.0.7", &[]), &volume, "c1"));
        let mut other = service("files", "10.0.0.7", &[]);
        other.ports[0].name = "web".into();
        assert!(!is_ours(&other, &volume, "c1"));
        let mut relabelled = service("files", "10.0.0.7", &[(VOLUME_ID, "v2")]);
        assert!(!is_ours(&relabelled, &volume, "c1"));
        relabelled.owners = vec![OwnerReference { uid: "c1".into(), ..OwnerReference::default() }];
        assert!(is_ours(&relabelled, &volume, "c1"), "somebody has changed its label");
        assert!(!is_ours(&relabelled, &volume, "c2") && !is_ours(&relabelled, &volume, ""));
        relabelled.address = ClusterAddress::Ip("10.0.0.8".parse().unwrap());
        assert!(!is_ours(&relabelled, &volume, "c1"));
    }

    #[test]
    fn only_what_fits_into_a_label_is_looked_for_by_label() {
        assert!(is_label_value("aad1e4ab-23d2-4a45-9a9b-0305885997ff"));
        for odd in ["", "a,b", "a b", "-a", "a-", "ü", "a".repeat(64).as_str(), "a=b"] {
            assert!(!is_label_value(odd), "{odd}");
        }
    }
}
