//! How many claims there are, and how many other things.

use std::{fmt::Debug, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use testbed::within;

/// Reading a full cluster takes a while on a machine that also runs the API server.
const DEADLINE: Duration = Duration::from_mins(15);

/// Waits until there are this many claims. Only their number is asked for, some twenty times a second, which costs next to nothing.
pub(crate) async fn wait_for(client: &Client, wanted: usize) -> Result<()> {
    within(DEADLINE, "all claims", async || {
        let seen = count::<PersistentVolumeClaim>(client).await?;
        ensure!(seen >= wanted, "{seen} of {wanted}");
        Ok(())
    })
    .await
}

/// How many objects of a kind there are in all namespaces.
pub(crate) async fn count<K>(client: &Client) -> Result<usize>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let page = Api::<K>::all(client.clone()).list_metadata(&ListParams::default().limit(1)).await?;
    let rest = page.metadata.remaining_item_count.unwrap_or_default();
    Ok(page.items.len() + usize::try_from(rest)?)
}
