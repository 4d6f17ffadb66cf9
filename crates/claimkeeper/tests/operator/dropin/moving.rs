//! The documented ways: the original's own command lines, and from there to `claimkeeper run`, by what the documentation says.

use std::{fs, os::unix::fs::symlink};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::{Cluster, ControlPlane, Options, PATIENCE, eventually};

use super::{DOMAIN, Original, ask, launch, owner, refused, up};
use crate::home::{BINARY, Home};

const DOCUMENTATION: &str = include_str!("../../../../../docs/provisioner.md");

/// The example of the original's documentation, to the letter.
const EXAMPLE: &str = "\
dynamic-pvc-provisioner \\
  -controller-id reclaimable-pvc-test \\
  -namespace default \\
  -lease-lock-name reclaimable-pvc-provisioner-test
";

/// Command and arguments of the original's chart with its defaults and one of its `extraArgs`, for a release `ci` in `default`.
const CHART: &str = "\
/usr/bin/dynamic-pvc-provisioner -controller-id=dynamic-reclaimable-pvc-controllers \
-lease-lock-name=ci-dynamic-pvc-provisioner -lease-lock-namespace=default -v=4";

/// The blocks of code in a section: language and content.
fn blocks(section: &str) -> Result<Vec<(&'static str, &'static str)>> {
    let (_, text) = DOCUMENTATION.split_once(&format!("\n## {section}\n")).context("there is no such section")?;
    let text = text.split("\n## ").next().unwrap_or_default();
    let code = text.split("```").skip(1).step_by(2);
    code.map(|block| block.split_once('\n').context("a block in one line")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_way_from_the_original_to_ours_works_command_by_command() -> Result<()> {
    let blocks = blocks("Moving from dynamic-pvc-provisioner")?;
    let [("sh", example), ("yaml", config), ("yaml", values), ("sh", grants), ("sh", run)] = blocks[..] else {
        panic!("{blocks:?}")
    };
    assert_eq!(example, EXAMPLE);
    // Its own, because the chart's command line is about all namespaces.
    let bare = Options::default().name("moving").without_scheduler().nodes(0).provisioner(false);
    let control_plane = ControlPlane::start(bare).await?;
    let cluster = control_plane.cluster();
    let original = Original::at(home(&cluster).await?).await?;
    everywhere(&original).await?;

    let mut old = original.start("original", example).await?;
    let before = claimed(&original, "before", "reclaimable-pvc-test").await?;

    grant(&cluster, grants)?;
    let values: Value = serde_saphyr::from_str(values)?;
    let kubeconfig = cluster.install_chart("claimkeeper", "default", &values).await?;
    let config = format!("{config}admin:\n  listen: 127.0.0.1:0\n");
    fs::write(cluster.directory().join("claimkeeper.yaml"), config)?;
    symlink(BINARY, original.programs.path().join("claimkeeper"))?;
    let leash = launch(&original.home, original.programs.path(), "ours", &kubeconfig, run).await?;
    let new = up(leash, "system:serviceaccount:default:claimkeeper".to_owned()).await?;
    new.until_ready().await?;
    old.leash.terminate()?;
    assert_eq!(old.leash.ended(PATIENCE).await?.code(), Some(0), "{}", old.leash.output());

    let after = claimed(&original, "after", "reclaimable-pvc-test").await?;
    let pod = original.home.pods.get("after").await?;
    let expected = json!([{"apiVersion": "v1", "kind": "Pod", "name": "after", "uid": pod.uid(), "controller": true,
                           "blockOwnerDeletion": true}]);
    assert_eq!(owner(&after)?, expected);
    assert_eq!(original.claim_of("before").await?.uid(), before.uid(), "what was there stays");
    until_told(&cluster, &new.user).await?;
    assert_eq!(refused(&cluster, &new.user)?, [], "our chart grants all that is needed");
    assert!(!new.leash.output().contains("provisioner.authorize is none"), "{}", new.leash.output());
    Ok(())
}

/// Where the original's documentation has its example.
async fn home(cluster: &Cluster) -> Result<Home> {
    let client = cluster.admin().await?;
    let (namespace, cluster) = ("default".to_owned(), cluster.clone());
    Ok(Home {
        pods: Api::namespaced(client.clone(), &namespace),
        claims: Api::namespaced(client.clone(), &namespace),
        leases: Api::namespaced(client, &namespace),
        cluster,
        namespace,
    })
}

/// With the arguments of the original's chart, pods of any namespace get their claims.
async fn everywhere(original: &Original) -> Result<()> {
    let mut replica = original.start("chart", CHART).await?;
    let elsewhere = original.home.cluster.create_namespace("elsewhere").await?;
    let client = original.client().await?;
    let (pods, claims): (Api<Pod>, Api<PersistentVolumeClaim>) =
        (Api::namespaced(client.clone(), &elsewhere), Api::namespaced(client, &elsewhere));
    ask(&pods, "pod").await?;
    let claim = eventually("a claim in another namespace", async || claims.get("pod-1").await).await?;
    assert_eq!(claim.labels()[&format!("{DOMAIN}/managed-by")], "dynamic-reclaimable-pvc-controllers");
    original.home.leases.get("ci-dynamic-pvc-provisioner").await?;
    replica.leash.terminate()?;
    assert_eq!(replica.leash.ended(PATIENCE).await?.code(), Some(0), "{}", replica.leash.output());
    Ok(())
}

/// A new pod gets its claim with this label.
async fn claimed(original: &Original, pod: &str, id: &str) -> Result<PersistentVolumeClaim> {
    // The ServiceAccount of the pods is made in a moment.
    eventually("a pod to be accepted", async || original.ask(pod).await).await?;
    let claim = original.claim_of(pod).await?;
    assert_eq!(claim.labels()[&format!("{DOMAIN}/managed-by")], id);
    Ok(claim)
}

/// Runs lines that begin with `kubectl`.
fn grant(cluster: &Cluster, lines: &str) -> Result<()> {
    for line in lines.lines() {
        let arguments = line.strip_prefix("kubectl ").with_context(|| format!("{line} is for something else"))?;
        let output = cluster.kubectl().args(arguments.split_whitespace()).output()?;
        ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Waits until this user has written an event.
async fn until_told(cluster: &Cluster, user: &str) -> Result<()> {
    eventually("an event", async || {
        let events = cluster.audit_log().user(user).verb("create").resource("events").requests()?;
        ensure!(events.iter().any(|request| request.code() == Some(201)), "{events:?}");
        Ok(())
    })
    .await
}
