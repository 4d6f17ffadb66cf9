//! Pods that really run on volumes of our claims: the end-to-end cases of the original, on one cluster with a real node.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{BUSYBOX, ControlPlane, Options, real_node_turn, within};

use crate::home::{Home, Prepared};

/// Kubelet, containerd and five pods at once on a small machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
const EXPANDABLE: &str = "expandable";

#[tokio::test(flavor = "multi_thread")]
async fn real_pods_use_the_volumes_of_their_claims_as_they_asked_to() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let control_plane = ControlPlane::start(Options::default().name("real-pods").real_node()).await?;
    let home = Home::on(control_plane.cluster(), "real").await?;
    let operator = home.prepare("solo", json!({}), json!({})).await?;
    let replica = operator.start().await?;
    let stage = Stage { home: &home };
    tokio::try_join!(
        stage.a_volume_can_be_written_and_read_and_goes_with_its_pod(),
        stage.a_mount_that_is_read_only_refuses_to_be_written(),
        stage.two_pods_of_one_template_have_data_of_their_own(),
        stage.the_volumes_of_one_pod_are_different_ones(),
        stage.a_claim_that_its_user_makes_bigger_stays_that_big(),
    )?;
    drop(replica);
    stage.a_fresh_start_leaves_the_bigger_claim_alone(&operator).await?;
    stage.assert_claims_were_only_created(&operator.user)
}

struct Stage<'a> {
    home: &'a Home,
}

impl Stage<'_> {
    async fn a_volume_can_be_written_and_read_and_goes_with_its_pod(&self) -> Result<()> {
        self.run("writer", "testbed-wait", &[("scratch", false)]).await?;
        self.sh("writer", "echo kept > /scratch/file && sync").await?;
        assert_eq!(self.sh("writer", "cat /scratch/file").await?, "kept\n");
        self.home.pods.delete("writer", &DeleteParams::default()).await?;
        within(PATIENCE, "pod and claim to go", async || {
            let (pod, claim) =
                (self.home.pods.get_opt("writer").await?, self.home.claims.get_opt("writer-scratch").await?);
            ensure!(pod.is_none() && claim.is_none(), "the claim is {:?}", claim.map(|claim| claim.metadata));
            Ok(())
        })
        .await
    }

    async fn a_mount_that_is_read_only_refuses_to_be_written(&self) -> Result<()> {
        self.run("reader", "testbed-immediate", &[("scratch", true)]).await?;
        let refusal = self.sh("reader", "touch /scratch/file").await.err().map(|error| error.to_string());
        let refusal = refusal.context("a read-only volume was written")?;
        ensure!(refusal.contains("Read-only file system"), "{refusal}");
        let mounts = self.sh("reader", "grep ' /scratch ' /proc/mounts").await?;
        ensure!(mounts.contains(" ro,"), "{mounts}");
        Ok(())
    }

    async fn two_pods_of_one_template_have_data_of_their_own(&self) -> Result<()> {
        let volumes = [("scratch", false)];
        tokio::try_join!(self.run("first", "testbed-wait", &volumes), self.run("second", "testbed-wait", &volumes))?;
        self.sh("first", "echo mine > /scratch/file").await?;
        assert_eq!(self.sh("second", "ls /scratch").await?, "");
        assert_ne!(self.volume_of("first-scratch").await?, self.volume_of("second-scratch").await?);
        Ok(())
    }

    async fn the_volumes_of_one_pod_are_different_ones(&self) -> Result<()> {
        self.run("many", "testbed-wait", &[("one", false), ("two", false), ("three", false)]).await?;
        self.sh("many", "for v in one two three; do echo $v > /$v/file; done").await?;
        assert_eq!(self.sh("many", "cat /one/file /two/file /three/file").await?, "one\ntwo\nthree\n");
        Ok(())
    }

    async fn a_claim_that_its_user_makes_bigger_stays_that_big(&self) -> Result<()> {
        let classes: Api<StorageClass> = Api::all(self.home.cluster.admin().await?);
        let class = json!({
            "metadata": {"name": EXPANDABLE}, "provisioner": testbed::PROVISIONER, "allowVolumeExpansion": true,
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        self.run("growing", EXPANDABLE, &[("scratch", false)]).await?;
        self.expect_request("growing-scratch", "1Gi").await?;
        let bigger = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
        self.home.claims.patch("growing-scratch", &PatchParams::default(), &bigger).await?;
        // A claim that comes later is made later: by then the change has been seen, too.
        self.run("later", "testbed-wait", &[("scratch", false)]).await?;
        self.expect_request("growing-scratch", "2Gi").await
    }

    /// Whoever starts sees the claim for the first time, with a size that is not the template's.
    async fn a_fresh_start_leaves_the_bigger_claim_alone(&self, operator: &Prepared) -> Result<()> {
        let _replica = operator.start().await?;
        self.run("latest", "testbed-wait", &[("scratch", false)]).await?;
        self.expect_request("growing-scratch", "2Gi").await
    }

    fn assert_claims_were_only_created(&self, user: &str) -> Result<()> {
        let requests = self.home.cluster.audit_log().user(user).resource("persistentvolumeclaims").requests()?;
        let writes = requests.iter().map(|request| request.verb.as_str());
        let mut writes: Vec<&str> = writes.filter(|verb| !["get", "list", "watch"].contains(verb)).collect();
        let created = writes.len();
        writes.retain(|verb| *verb != "create");
        ensure!(created > 0 && writes.is_empty(), "claims were written: {writes:?}");
        Ok(())
    }

    /// Creates a pod with these volumes, each mounted under its name and perhaps read-only, and waits until it runs.
    async fn run(&self, name: &str, class: &str, volumes: &[(&str, bool)]) -> Result<()> {
        let pod = serde_json::from_value(pod(name, class, volumes))?;
        self.home.pods.create(&PostParams::default(), &pod).await?;
        until_running(self.home, name).await
    }

    async fn sh(&self, pod: &str, script: &str) -> Result<String> {
        sh(self.home, pod, script).await
    }

    async fn volume_of(&self, claim: &str) -> Result<String> {
        let spec = self.home.claims.get(claim).await?.spec.unwrap_or_default();
        spec.volume_name.context("it is not bound")
    }

    async fn expect_request(&self, claim: &str, size: &str) -> Result<()> {
        let spec = self.home.claims.get(claim).await?.spec.unwrap_or_default();
        let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
        let found = requests.get("storage").map(|quantity| quantity.0.as_str());
        ensure!(found == Some(size), "{claim} asks for {found:?}");
        Ok(())
    }
}

pub(crate) async fn until_running(home: &Home, pod: &str) -> Result<()> {
    within(PATIENCE, &format!("pod {pod} to run"), async || {
        let status = home.pods.get(pod).await?.status.unwrap_or_default();
        ensure!(status.phase.as_deref() == Some("Running"), "{:?} {:?}", status.phase, status.conditions);
        Ok(())
    })
    .await
}

/// What a script prints in the pod; its complaints are the error.
pub(crate) async fn sh(home: &Home, pod: &str, script: &str) -> Result<String> {
    let mut command = home.cluster.kubectl();
    command.args(["--namespace", &home.namespace, "exec", pod, "--", "sh", "-c", script]);
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script:?} failed in {pod}: {}", complaint.trim());
    Ok(String::from_utf8(output.stdout)?)
}

fn pod(name: &str, class: &str, volumes: &[(&str, bool)]) -> Value {
    let volume = |(name, _): &(&str, bool)| {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}},
        });
        json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
    };
    let mount = |(name, read_only): &(&str, bool)| json!({"name": name, "mountPath": format!("/{name}"), "readOnly": read_only});
    json!({
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
                "volumeMounts": volumes.iter().map(mount).collect::<Vec<_>>(),
            }],
            "volumes": volumes.iter().map(volume).collect::<Vec<_>>(),
        },
    })
}
