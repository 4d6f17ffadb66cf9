//! Replicas of the original and of ours beside each other, as while one replaces the other: client-go's elector, with the
//! original's settings, on one side of the Lease and ours on the other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;
use testbed::{AuditedRequest, Binaries, Leash, eventually, within};

use super::{Account, Original};

/// client-go looks at the Lease of somebody else every 5 to 11 seconds, and both wait a minute for one that is gone.
const PATIENCE: Duration = Duration::from_mins(3);

impl Original {
    /// Starts a replica with client-go's elector.
    async fn start_go(&self, identity: &str) -> Result<(Leash, Account)> {
        let account = self.account(identity).await?;
        let kubeconfig = account.kubeconfig.to_str().context("not UTF-8")?;
        let (directory, namespace) = (self.home.cluster.directory(), &self.home.namespace);
        let program = Binaries::get()?.controlplane();
        let arguments = ["elector-reference", kubeconfig, namespace, "shared", identity];
        let leash = Leash::start(directory, &format!("{namespace}-{identity}"), &program, &arguments).await?;
        Ok((leash, account))
    }

    async fn until_leader_is(&self, identity: &str) -> Result<()> {
        within(PATIENCE, &format!("{identity} to lead"), async || {
            let leader = self.home.leader().await?;
            ensure!(leader == identity, "{leader} leads");
            Ok(())
        })
        .await
    }

    /// The Lease as it is sent, with nobody's idea of it in between.
    async fn lease(&self) -> Result<Value> {
        let leases: Api<DynamicObject> =
            Api::namespaced_with(self.client().await?, &self.home.namespace, &ApiResource::erase::<Lease>(&()));
        let lease = leases.get("shared").await?;
        Ok(lease.data["spec"].clone())
    }

    /// The Lease says what client-go would have it say.
    async fn assert_held(&self, holder: &str, transitions: u64) -> Result<()> {
        let spec = self.lease().await?;
        let mut keys: Vec<&String> = spec.as_object().context("no spec")?.keys().collect();
        keys.sort();
        assert_eq!(keys, ["acquireTime", "holderIdentity", "leaseDurationSeconds", "leaseTransitions", "renewTime"]);
        assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&holder.into(), &60.into()), "{spec}");
        assert_eq!(spec["leaseTransitions"], transitions, "{spec}");
        let [acquired, renewed] = ["acquireTime", "renewTime"].map(|key| spec[key].as_str().unwrap_or_default());
        for time in [acquired, renewed] {
            assert!(time.len() == "2021-06-19T12:00:00.000000Z".len() && time.ends_with('Z'), "{spec}");
        }
        assert!(acquired.parse::<Timestamp>()? <= renewed.parse()?, "{spec}");
        Ok(())
    }

    /// Waits until the holder has renewed the Lease that often from now on.
    async fn until_renewed(&self, times: usize) -> Result<()> {
        let mut seen = vec![self.lease().await?["renewTime"].clone()];
        within(PATIENCE, "the Lease to be renewed", async || {
            let now = self.lease().await?["renewTime"].clone();
            if seen.last() != Some(&now) {
                seen.push(now);
            }
            ensure!(seen.len() > times, "{} renewals", seen.len() - 1);
            Ok(())
        })
        .await
    }

    /// When a replica did what only a leader may: to write the Lease, and to ask for claims.
    fn acts(&self, user: &str, resources: &[&str]) -> Result<Vec<Timestamp>> {
        let is_act = |request: &AuditedRequest| {
            let resource = request.object_ref.as_ref().map_or("", |object| object.resource.as_str());
            // Who loses the race for a Lease has not written it, but who asks for a claim believes to be the leader.
            let counts = resource != "leases" || request.code().is_some_and(|code| code < 300);
            ["create", "update"].contains(&request.verb.as_str()) && resources.contains(&resource) && counts
        };
        let mut requests = self.home.cluster.audit_log().user(user).requests()?;
        requests.retain(is_act);
        Ok(requests.iter().map(|request| request.request_received_timestamp).collect())
    }

    /// Who acted, from the first act to the last; only changes are counted.
    fn leaders<'a>(&self, users: &[&'a str]) -> Result<Vec<&'a str>> {
        let mut acts = Vec::new();
        for user in users {
            acts.extend(self.acts(user, &["leases", "persistentvolumeclaims"])?.into_iter().map(|time| (time, *user)));
        }
        acts.sort();
        let mut leaders: Vec<&str> = acts.into_iter().map(|(_, user)| user).collect();
        leaders.dedup();
        Ok(leaders)
    }

    async fn until_claims_are_asked_for(&self, user: &str) -> Result<()> {
        eventually("it to do a leader's work", async || {
            ensure!(!self.acts(user, &["persistentvolumeclaims"])?.is_empty(), "it asked for no claim");
            Ok(())
        })
        .await
    }

    /// The one that lives waited for as long as the Lease of the dead one said.
    fn assert_followed(&self, dead: &str, heir: &str) -> Result<()> {
        assert_eq!(self.leaders(&[dead, heir])?, [dead, heir]);
        let (last, first) = (self.acts(dead, &["leases"])?, self.acts(heir, &["leases"])?);
        let (last, first) = last.iter().max().zip(first.iter().min()).context("not both held the Lease")?;
        let gap = first.duration_since(*last);
        println!("{heir} took the Lease {gap:?} after the last renewal of {dead}");
        assert!(gap >= SignedDuration::from_mins(1), "{heir} took the Lease only {gap:?} after {dead} had renewed it");
        Ok(())
    }
}

#[tokio::test]
async fn a_go_replica_and_ours_lead_in_turns_and_never_both() -> Result<()> {
    let original = Original::on(testbed::shared().await?, "contend").await?;
    let (mut go, go_account) = original.start_go("go").await?;
    original.until_leader_is("go").await?;
    original.assert_held("go", 0).await?;

    let mut ours = original.start("ours", &original.line("-lease-lock-id=ours")).await?;
    original.ask("waiting").await?;
    original.until_renewed(2).await?;
    let claims = original.home.claims.list(&ListParams::default()).await?.items;
    assert_eq!(claims, [], "a standby makes none");
    assert!(!go.has_ended()?, "{}", go.output());
    original.assert_held("go", 0).await?;

    go.terminate()?;
    original.claim_of("waiting").await?;
    original.assert_held("ours", 1).await?;
    assert_eq!(go.ended(PATIENCE).await?.code(), Some(0), "{}", go.output());

    let (next, next_account) = original.start_go("next").await?;
    within(PATIENCE, "client-go to understand who leads", async || {
        ensure!(next.output().contains("the leader is ours"), "{}", next.output());
        Ok(())
    })
    .await?;
    original.until_renewed(2).await?;
    original.ask("served").await?;
    original.claim_of("served").await?;
    original.assert_held("ours", 1).await?;

    ours.leash.terminate()?;
    assert_eq!(ours.leash.ended(PATIENCE).await?.code(), Some(0), "{}", ours.leash.output());
    assert_ne!(original.lease().await?["holderIdentity"], "ours", "it did not let go of the Lease");
    original.until_leader_is("next").await?;
    original.until_claims_are_asked_for(&next_account.user).await?;
    original.assert_held("next", 2).await?;

    let users = [&go_account.user, &ours.user, &next_account.user].map(String::as_str);
    assert_eq!(original.leaders(&users)?, users);
    Ok(())
}

#[tokio::test]
async fn whoever_dies_is_followed_by_the_other_kind_when_the_minute_of_its_lease_is_over() -> Result<()> {
    let cluster = testbed::shared().await?;
    tokio::try_join!(ours_follows_go(Original::on(cluster.clone(), "go-dies").await?), async {
        go_follows_ours(Original::on(cluster.clone(), "ours-dies").await?).await
    })?;
    Ok(())
}

async fn ours_follows_go(original: Original) -> Result<()> {
    let (go, go_account) = original.start_go("go").await?;
    original.until_leader_is("go").await?;
    let ours = original.start("ours", &original.line("-lease-lock-id=ours")).await?;
    original.ask("waiting").await?;
    go.kill()?;
    original.until_leader_is("ours").await?;
    original.claim_of("waiting").await?;
    original.assert_held("ours", 1).await?;
    original.assert_followed(&go_account.user, &ours.user)
}

async fn go_follows_ours(original: Original) -> Result<()> {
    let ours = original.start("ours", &original.line("-lease-lock-id=ours")).await?;
    original.ask("served").await?;
    original.claim_of("served").await?;
    let (go, go_account) = original.start_go("go").await?;
    within(PATIENCE, "client-go to see who leads", async || {
        ensure!(go.output().contains("the leader is ours"), "{}", go.output());
        Ok(())
    })
    .await?;
    ours.leash.kill()?;
    original.until_leader_is("go").await?;
    original.until_claims_are_asked_for(&go_account.user).await?;
    original.assert_held("go", 1).await?;
    original.assert_followed(&ours.user, &go_account.user)
}
