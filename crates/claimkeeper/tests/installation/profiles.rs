//! The stories of the installations: with all features, with more care, and in the place of each original.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::Value;
use testbed::within;

use crate::{
    place::{CAREFUL, EVERYTHING, LOCAL_CSI, PATIENCE, Place, RECLAIMABLE_PV, STORAGEOS},
    release::{Release, profile},
    shared::{ELSEWHERE, HERE, volume_of},
};

const ALL: &str =
    r#"--set-json=features=["ephemeral","provisioner","releaser","enforcement","placement","shared-volumes"]"#;
/// The id in the charts of the two that `values-reclaimable-pv.yaml` replaces.
const RECLAIMABLE: &str = "dynamic-reclaimable-pvc-controllers";
/// The id of our own.
const OURS: &str = "claimkeeper";

impl Place {
    /// The chart's own values, but for the features.
    pub(crate) async fn every_feature_is_used(&self) -> Result<()> {
        let mut release = self.install(EVERYTHING, 2, &[ALL, "--set", &self.storageos_endpoint().await?]).await?;
        let ((), shared) = tokio::try_join!(self.users_are_served("before"), self.share("footage", "footage"))?;
        release.upgrade(&["--reuse-values", "--set", "log.level=debug"]).await?;
        tokio::try_join!(self.users_are_served("after"), self.is_moved(&shared, ELSEWHERE))?;
        release.uninstall().await?;
        self.reaches(&shared, ELSEWHERE).await?;
        self.unshare(shared).await
    }

    /// Every feature but shared volumes, noticed by those whom it is for. The suffix makes names new ones.
    async fn users_are_served(&self, suffix: &str) -> Result<()> {
        self.claims_on_local_storage_are_refused().await?;
        tokio::try_join!(
            self.a_pod_follows_its_local_volume(suffix),
            self.a_pod_has_a_local_volume_of_its_own(suffix),
            self.a_volume_goes_on_to_the_next(suffix, OURS),
        )?;
        Ok(())
    }

    /// `values-ha.yaml`: three replicas on three nodes, and nobody gets anything while there is none. Its end is that of a cluster in
    /// trouble: no replica is left to answer, and still nobody is kept waiting afterwards.
    pub(crate) async fn nothing_passes_unjudged(&self) -> Result<()> {
        let mut release = self.install(CAREFUL, 3, &[&profile("ha")?]).await?;
        are_on_nodes_of_their_own(&release)?;
        self.claims_on_local_storage_are_refused().await?;
        release.upgrade(&["--reuse-values", "--set", "log.level=debug"]).await?;
        are_on_nodes_of_their_own(&release)?;
        tokio::try_join!(
            self.claims_on_local_storage_are_refused(),
            self.a_pod_follows_its_local_volume("ha"),
            self.a_volume_goes_on_to_the_next("ha", OURS),
        )?;
        release.scale(4).await?;
        until_one_finds_no_node(&release).await?;
        release.scale(0).await?;
        self.nobody_gets_anything().await?;
        release.uninstall().await
    }

    /// `values-local-csi.yaml`, and then the original's way to let claims pass, and one more feature, which has no right of another's.
    pub(crate) async fn local_volumes_are_looked_after(&self) -> Result<()> {
        let mut release = self.install(LOCAL_CSI, 2, &[&profile(LOCAL_CSI)?]).await?;
        tokio::try_join!(self.claims_on_local_storage_are_refused(), self.a_pod_follows_its_local_volume("csi"),)?;
        let more = r#"--set-json=features=["enforcement","placement","ephemeral"]"#;
        release.upgrade(&["--reuse-values", "--set", "webhook.enforceEphemeral.enabled=false", more]).await?;
        self.nobody_is_asked_about_claims().await?;
        tokio::try_join!(
            self.a_pod_follows_its_local_volume("csi-only"),
            self.a_pod_has_a_local_volume_of_its_own("csi-only"),
        )?;
        release.uninstall().await
    }

    /// `values-reclaimable-pv.yaml`, from which the administrator goes on to the chart's own values.
    pub(crate) async fn reclaimable_volumes_are_looked_after(&self) -> Result<()> {
        let mut release = self.install(RECLAIMABLE_PV, 2, &[&profile(RECLAIMABLE_PV)?]).await?;
        self.nobody_is_asked_about_claims().await?;
        self.a_volume_goes_on_to_the_next("reclaimable", RECLAIMABLE).await?;
        release.upgrade(&["--reset-values"]).await?;
        tokio::try_join!(
            self.claims_on_local_storage_are_refused(),
            self.a_volume_goes_on_to_the_next("reclaimed", OURS),
        )?;
        release.uninstall().await
    }

    /// `values-storageos.yaml`, where `StorageOS` is. What clients were told outlives the release.
    pub(crate) async fn shared_volumes_are_looked_after(&self) -> Result<()> {
        let values = [&profile(STORAGEOS)?, "--set", &self.storageos_endpoint().await?];
        let mut release = self.install(STORAGEOS, 2, &values).await?;
        let shared = self.share("models", &volume_of("models")).await?;
        self.is_moved(&shared, ELSEWHERE).await?;
        release.upgrade(&["--reuse-values", "--set", "sharedVolumes.storageos.pollInterval=1s"]).await?;
        self.is_moved(&shared, HERE).await?;
        release.uninstall().await?;
        self.reaches(&shared, HERE).await?;
        self.unshare(shared).await
    }
}

fn are_on_nodes_of_their_own(release: &Release<'_>) -> Result<()> {
    let nodes: BTreeSet<&String> = release.replicas.values().collect();
    ensure!(nodes.len() == release.replicas.len(), "replicas share a node: {:?}", release.replicas);
    Ok(())
}

/// That each has a node of its own could be chance. If it is not, one more than there are nodes has nowhere to run.
async fn until_one_finds_no_node(release: &Release<'_>) -> Result<()> {
    within(PATIENCE, "the scheduler to find no node", async || {
        let conditions: Vec<Value> =
            release.pods().await?.iter().map(|pod| pod["status"]["conditions"].clone()).collect();
        let is_apart = |condition: &Value| {
            let message = condition["message"].as_str().unwrap_or_default();
            condition["reason"] == "Unschedulable" && message.contains("anti-affinity")
        };
        let apart = conditions.iter().filter_map(Value::as_array).flatten().filter(|it| is_apart(it)).count();
        ensure!(apart == 1, "{conditions:?}");
        Ok(())
    })
    .await
}
