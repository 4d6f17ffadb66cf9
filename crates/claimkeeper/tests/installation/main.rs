//! The whole way of an administrator, on real nodes: the image, `helm install`, pods that use every feature, `helm upgrade` and `helm
//! uninstall`, after which nothing is left but what users made. First with all features, then with each profile of the chart.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers are tests too

mod place;
mod profiles;
mod release;
mod shared;
mod users;

use std::time::Instant;

use anyhow::{Context, Result};
use testbed::{ControlPlane, Options, real_node_turn};

use crate::place::Place;

/// One after the other in one cluster, because a cluster takes longer to start than a release. Three nodes, as `values-ha.yaml` wants.
#[tokio::test(flavor = "multi_thread")]
async fn the_image_is_installed_used_upgraded_and_removed_with_all_features_and_with_each_profile() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let started = Instant::now();
    let tell = |what: &str| eprintln!("{:4.0} s: {what}", started.elapsed().as_secs_f32());
    let control_plane = ControlPlane::start(Options::default().name("installation").real_nodes(3)).await?;
    let place = Place::prepare(control_plane.cluster()).await?;
    tell("the cluster is there");
    place.the_image_runs_as_nobody_without_rights_or_a_disk().await?;
    place.every_feature_is_used().await.context("with all features")?;
    tell("all features were used");
    place.nothing_passes_unjudged().await.context("with values-ha.yaml")?;
    tell("values-ha.yaml was used");
    place.local_volumes_are_looked_after().await.context("with values-local-csi.yaml")?;
    tell("values-local-csi.yaml was used");
    place.reclaimable_volumes_are_looked_after().await.context("with values-reclaimable-pv.yaml")?;
    tell("values-reclaimable-pv.yaml was used");
    place.shared_volumes_are_looked_after().await.context("with values-storageos.yaml")?;
    tell("values-storageos.yaml was used");
    place.until_nothing_is_left().await?;
    tell("nothing is left");
    Ok(())
}
