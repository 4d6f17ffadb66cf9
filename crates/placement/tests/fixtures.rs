//! Volumes as the driver that the defaults are made for leaves them in a cluster.

#![allow(clippy::unwrap_used)] // helpers are tests too

use cluster::{ObjectKey, Volume, store::Slim};
use placement::{
    Settings,
    home::{FailoverMode, Home},
    settings::Mode,
};

const TIED: &str = include_str!("fixtures/volume-with-node-affinity.yaml");
const BESIDE_WEBHOOK: &str = include_str!("fixtures/volume-beside-webhook.yaml");

const TOPOLOGY: &str = "topology.localdisk.csi.acstor.io/node";

fn read(text: &str) -> Volume {
    let volume = Volume::from_wire(serde_saphyr::from_str(text).unwrap()).unwrap();
    assert_eq!(volume.claim.as_ref().map(|claim| claim.key.clone()), Some(ObjectKey::new("default", "my-pvc")));
    volume
}

/// Where it is, where it is tied to, and whether it may be left there.
fn placed(volume: &Volume) -> (Option<Home>, Option<Home>, FailoverMode) {
    let settings = Settings::default();
    let driver = settings.driver(&volume.driver).unwrap();
    assert_eq!(settings.mode(driver), Mode::Webhook);
    (Home::of(volume, driver, &settings), Home::tied(volume, &settings), FailoverMode::of(volume, driver, None))
}

#[test]
fn a_volume_with_node_affinity_is_at_home_where_it_is_tied_to() {
    let mut volume = read(TIED);
    let tied = Some(Home::Label(TOPOLOGY.into(), "nvme-node-0".into()));
    let made = Some(Home::Name("nvme-node-0".into()));
    assert_eq!(placed(&volume), (made, tied.clone(), FailoverMode::Availability));
    // The driver does not always say where it made such a volume.
    volume.attributes.clear();
    assert_eq!(placed(&volume), (tied.clone(), tied, FailoverMode::Availability));
}

#[test]
fn a_volume_that_was_made_again_elsewhere_is_at_home_there() {
    let volume = read(BESIDE_WEBHOOK);
    assert!(!volume.reach.is_limited);
    assert_eq!(placed(&volume), (Some(Home::Name("nvme-node-1".into())), None, FailoverMode::Availability));
}
