//! The cluster: API server and etcd, two classes, and the claims that everybody has in the cache, with their volumes and nodes if pods
//! are asked about.

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, api::PostParams};
use serde_json::Value;
use testbed::AuditLog;

use super::{
    contestant::Programs,
    reviews::{self, FOREIGN_CLAIMS, NODES, Webhook},
};
use crate::bench::local::{self, Bound, Ground, LOCAL, NAMESPACE};

const AT_ONCE: usize = 32;
const OPERATOR: &str = "system:serviceaccount:claimkeeper:claimkeeper";

/// The cluster.
pub(crate) struct Scene {
    pub(super) ground: Ground,
    pub(super) programs: Programs,
    /// What is asked about.
    pub(super) webhook: Webhook,
    pub(super) claims: usize,
}

impl Scene {
    /// A cluster without claims that could be asked about.
    pub(crate) async fn open(programs: Programs, webhook: Webhook) -> Result<Self> {
        let ground = Ground::open(&[webhook.feature()]).await?;
        if webhook == Webhook::Pods {
            let client = ground.control_plane.admin().await?;
            local::create_nodes(&client, NODES).await?;
            let foreign = (0..FOREIGN_CLAIMS).map(|number| Bound::foreign(number, NODES));
            local::create_claims(&client, foreign).await?;
        }
        Ok(Self { ground, programs, webhook, claims: 0 })
    }

    /// Adds claims until there are so many, not counting those of another driver.
    pub(crate) async fn fill(&mut self, wanted: usize) -> Result<()> {
        let client = self.ground.control_plane.admin().await?;
        match self.webhook {
            Webhook::Claims => self.fill_with_pending(client, wanted).await?,
            Webhook::Pods => {
                let missing = (self.claims..wanted).map(|number| Bound::local(number, NODES));
                local::create_claims(&client, missing).await?;
            }
        }
        self.claims = wanted;
        Ok(())
    }

    async fn fill_with_pending(&self, client: Client, wanted: usize) -> Result<()> {
        eprintln!("Making {wanted} claims …");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, NAMESPACE);
        let one = async |number: usize| -> Result<()> {
            let mut claim = reviews::claim(&format!("claim-{number}"), LOCAL, true);
            claim["metadata"]["managedFields"] = Value::Null;
            claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
            Ok(())
        };
        stream::iter(self.claims..wanted).map(one).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    /// What the API server is asked by the operator from now on.
    pub(crate) fn audit(&self) -> Result<AuditLog> {
        Ok(self.ground.control_plane.audit_log().from_now()?.user(OPERATOR))
    }
}
