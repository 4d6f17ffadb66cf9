//! How many claims there are.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, api::ListParams};
use testbed::within;

/// Reading a full cluster takes a while on a machine that also runs the API server.
const DEADLINE: Duration = Duration::from_mins(15);

/// Waits until there are this many claims. Only their number is asked for, some twenty times a second, which costs next to nothing.
pub(crate) async fn wait_for(client: &Client, wanted: usize) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    within(DEADLINE, "all claims", async || {
        let page = claims.list_metadata(&ListParams::default().limit(1)).await?;
        let rest = page.metadata.remaining_item_count.unwrap_or_default();
        let seen = page.items.len() + usize::try_from(rest)?;
        ensure!(seen >= wanted, "{seen} of {wanted}");
        Ok(())
    })
    .await
}
