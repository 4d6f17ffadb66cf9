//! The whole way of an administrator, on a real node: the image, `helm install`, pods that use every feature, `helm upgrade` and `helm
//! uninstall`, after which nothing is left but what users made.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers are tests too

mod place;
mod users;

use anyhow::{Result, ensure};
use testbed::{ControlPlane, Options, real_node_turn};

use crate::place::{Place, RELEASE};

#[tokio::test(flavor = "multi_thread")]
async fn the_image_is_installed_used_upgraded_and_removed() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let control_plane = ControlPlane::start(Options::default().name("installation").real_node()).await?;
    let place = Place::prepare(control_plane.cluster()).await?;
    place.the_image_runs_as_nobody_without_rights_or_a_disk().await?;
    let before = place.everything().await?;

    place
        .helm(&[
            "install",
            RELEASE,
            "--set-json",
            r#"features=["enforcement","placement","provisioner","releaser","ephemeral"]"#,
        ])
        .await?;
    let first = place.ready_pods().await?;
    ensure!(first.len() == 2, "two replicas are ready: {first:?}");
    place.users_are_served("before").await?;

    place.helm(&["upgrade", RELEASE, "--reuse-values", "--set", "log.level=debug"]).await?;
    let second = place.ready_pods().await?;
    ensure!(second.len() == 2 && second.is_disjoint(&first), "{second:?} took the place of {first:?}");
    place.users_are_served("after").await?;

    place.helm(&["uninstall", RELEASE]).await?;
    place.until_nothing_is_left_since(&before).await?;
    place.nobody_is_asked_about_claims().await
}
