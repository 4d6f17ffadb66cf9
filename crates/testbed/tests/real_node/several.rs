//! Several real nodes in one cluster, of which one may be lost.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{Cluster, ControlPlane, Image, Options, eventually, real_node_turn, within};

use crate::{apply, expect_phase, kubectl, pod, traces::Traces};

/// Serves its own name, from a directory in which it also counts its starts.
const SERVE: &str = "echo started >> /data/starts; hostname > /data/page; echo serving; exec httpd -f -p 80 -h /data";

fn on(node: &str, mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    pod
}

/// A pod of this name on this node, and its claim, whose volume it serves.
fn server(name: &str, node: &str) -> [Value; 2] {
    let mut pod = on(node, pod(name, SERVE));
    pod["spec"]["restartPolicy"] = json!("Always");
    pod["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": name } }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    [claim(name, "testbed-wait"), pod]
}

fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": name }, "ports": [{ "port": 80 }] },
    })
}

/// One field of an object.
async fn field(cluster: &Cluster, object: &str, path: &str) -> Result<String> {
    kubectl(cluster, &["get", object, "-o", &format!("jsonpath={{{path}}}")]).await
}

async fn runs(cluster: &Cluster, pod: &str) -> Result<()> {
    eventually(&format!("the pod {pod} to run"), async || expect_phase(cluster, pod, "Running").await).await
}

/// What a pod gets from an address, asked until it gets an answer.
async fn answer(cluster: &Cluster, pod: &str, address: &str) -> Result<String> {
    let url = format!("http://{address}/page");
    let ask = ["exec", pod, "--", "timeout", "5", "wget", "-q", "-O", "-", &url];
    eventually(&format!("{address} to answer {pod}"), async || kubectl(cluster, &ask).await).await
}

/// The directory of a claim's volume and the node that it is tied to.
async fn home(cluster: &Cluster, claim: &str) -> Result<(PathBuf, String)> {
    eventually("the claim to be bound", async || {
        let phase = field(cluster, &format!("pvc/{claim}"), ".status.phase").await?;
        ensure!(phase == "Bound", "it is {phase}");
        Ok(())
    })
    .await?;
    let volume = format!("pv/{}", field(cluster, &format!("pvc/{claim}"), ".spec.volumeName").await?);
    let node = ".spec.nodeAffinity.required.nodeSelectorTerms[*].matchExpressions[*].values[*]";
    Ok((field(cluster, &volume, ".spec.local.path").await?.into(), field(cluster, &volume, node).await?))
}

#[tokio::test]
async fn pods_of_two_nodes_write_to_their_own_disks_and_reach_each_other() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let cluster = ControlPlane::start(Options::default().real_nodes(2)).await?;
    assert_eq!(cluster.real_nodes(), ["node-1", "node-2"]);
    let addresses = r#".items[*].status.addresses[?(@.type=="InternalIP")].address"#;
    assert_eq!(field(&cluster, "nodes", addresses).await?, "10.1.0.1 10.1.0.2");

    let pairs = [("one", "node-1"), ("two", "node-2")];
    let objects = pairs.iter().flat_map(|(name, node)| server(name, node).into_iter().chain([service(name)]));
    let objects = objects.chain([claim("anywhere", "testbed-immediate")]).collect::<Vec<_>>();
    apply(&cluster, &objects).await?;
    for (name, node) in pairs {
        runs(&cluster, name).await?;
        assert_eq!(field(&cluster, &format!("pod/{name}"), ".spec.nodeName").await?, node);
        eventually("the log", async || {
            let log = kubectl(&cluster, &["logs", name]).await?;
            ensure!(log == "serving\n", "{log:?}");
            Ok(())
        })
        .await?;
        assert_eq!(kubectl(&cluster, &["exec", name, "--", "hostname"]).await?, format!("{name}\n"));
        let (directory, home_node) = home(&cluster, name).await?;
        assert_eq!(home_node, node);
        assert!(directory.starts_with(cluster.directory().join("volumes").join(node)), "{directory:?}");
        assert_eq!(fs::read_to_string(directory.join("page"))?, format!("{name}\n"));
    }
    assert_eq!(home(&cluster, "anywhere").await?.1, "node-1", "where no pod is waited for");

    for (from, to) in [("one", "two"), ("two", "one")] {
        let pod = field(&cluster, &format!("pod/{to}"), ".status.podIP").await?;
        assert_eq!(answer(&cluster, from, &pod).await?, format!("{to}\n"));
        let service = field(&cluster, &format!("service/{to}"), ".spec.clusterIP").await?;
        assert_eq!(answer(&cluster, from, &service).await?, format!("{to}\n"));
    }
    Ok(())
}

async fn expect_ready(cluster: &Cluster, node: &str, status: &str) -> Result<()> {
    let found = field(cluster, &format!("node/{node}"), r#".status.conditions[?(@.type=="Ready")].status"#).await?;
    ensure!(found == status, "Ready is {found}");
    Ok(())
}

#[tokio::test]
async fn a_lost_node_takes_its_pods_along_but_not_its_disk_and_the_other_node_goes_on() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let temporary = tempfile::tempdir()?;
    let traces = Traces::expected_in(&temporary.path().join("run"));
    // Kubelets renew their leases every ten seconds.
    let options = Options::default().real_nodes(2).controller_manager_flag("--node-monitor-grace-period=20s");
    let cluster = ControlPlane::start(options.directory(&traces.directory)).await?;
    let traces = traces.of_network(cluster.keeper().context("no keeper")?)?;
    let pods = [server("stays", "node-1"), server("goes", "node-2")].concat();
    apply(&cluster, &pods).await?;
    runs(&cluster, "stays").await?;
    runs(&cluster, "goes").await?;
    let address = field(&cluster, "pod/goes", ".status.podIP").await?;
    assert_eq!(answer(&cluster, "stays", &address).await?, "goes\n");

    let lost = Instant::now();
    cluster.lose_node("node-2").await?;
    let ask = ["exec", "stays", "--", "timeout", "5", "wget", "-q", "-O", "-", &format!("http://{address}/page")];
    let silence = kubectl(&cluster, &ask).await.unwrap_err().to_string();
    assert!(!silence.contains("refused"), "a machine without power can't even refuse: {silence}");
    assert!(kubectl(&cluster, &["exec", "goes", "--", "true"]).await.is_err());
    within(Duration::from_mins(2), "the node to be missed", async || expect_ready(&cluster, "node-2", "Unknown").await)
        .await?;
    eprintln!("node-2 is missed {:.1} s after its end", lost.elapsed().as_secs_f32());
    eventually("the other to be Ready", async || expect_ready(&cluster, "node-1", "True").await).await?;
    apply(&cluster, &[on("node-1", pod("new", "sleep 1000"))]).await?;
    runs(&cluster, "new").await?;
    assert_eq!(kubectl(&cluster, &["exec", "stays", "--", "cat", "/data/starts"]).await?, "started\n");

    let returned = Instant::now();
    cluster.recover_node("node-2").await?;
    eventually("the pod to start again with its volume", async || {
        let starts = kubectl(&cluster, &["exec", "goes", "--", "cat", "/data/starts"]).await?;
        ensure!(starts == "started\nstarted\n", "{starts:?}");
        Ok(())
    })
    .await?;
    eprintln!("its pod runs again {:.1} s after its return", returned.elapsed().as_secs_f32());
    let address = field(&cluster, "pod/goes", ".status.podIP").await?;
    assert_eq!(answer(&cluster, "stays", &address).await?, "goes\n");

    cluster.lose_node("node-2").await?;
    tokio::task::spawn_blocking(|| drop(cluster)).await?;
    let found = traces.found();
    assert!(found.is_empty(), "everything goes before drop returns, but there is {found:?}");
    Ok(())
}

#[tokio::test]
async fn three_nodes_all_have_the_images_that_are_imported() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let started = Instant::now();
    let cluster = ControlPlane::start(Options::default().real_nodes(3).provisioner(false)).await?;
    eprintln!("three nodes are Ready {:.1} s after the start", started.elapsed().as_secs_f32());
    let image = Image::of_program("docker.io/testbed/uname:1", Path::new("/bin/uname"))?;
    cluster.import_image(&image).await?;
    let mut pods = Vec::new();
    for node in cluster.real_nodes() {
        let mut pod = on(&node, pod(&format!("on-{node}"), ""));
        pod["spec"]["containers"][0] = json!({ "name": "main", "image": image.name(), "args": ["-n"] });
        pods.push(pod);
    }
    apply(&cluster, &pods).await?;
    for node in cluster.real_nodes() {
        let pod = format!("on-{node}");
        eventually("the program to end well", async || expect_phase(&cluster, &pod, "Succeeded").await).await?;
        assert_eq!(kubectl(&cluster, &["logs", &pod]).await?, format!("{pod}\n"));
    }
    eprintln!("a pod has run on each {:.1} s after the start", started.elapsed().as_secs_f32());
    Ok(())
}

#[tokio::test]
async fn nodes_that_are_only_objects_stand_beside_a_real_one_and_leave_it_alone() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let cluster = ControlPlane::start(Options::default().real_node().nodes(2)).await?;
    assert_eq!(cluster.real_nodes(), ["node-1"]);
    assert_eq!(field(&cluster, "nodes", ".items[*].metadata.name").await?, "node-1 node-2 node-3");

    let objects = [server("real", "node-1"), server("unreal", "node-2")].concat();
    apply(&cluster, &objects).await?;
    runs(&cluster, "real").await?;
    runs(&cluster, "unreal").await?;
    let real = field(&cluster, "pod/real", ".status.podIP").await?;
    assert_eq!(answer(&cluster, "real", &real).await?, "real\n");
    let (directory, node) = home(&cluster, "unreal").await?;
    assert_eq!(node, "node-2");
    assert!(!directory.exists(), "nobody would ever remove it");

    let requests = cluster.audit_log().user("testbed:kwok").requests()?;
    let writes = requests.iter().filter(|request| !["get", "list", "watch"].contains(&request.verb.as_str()));
    let written = writes.filter_map(|request| request.object_ref.as_ref()).map(|object| object.name.as_str());
    let written = written.collect::<Vec<_>>();
    assert!(written.contains(&"node-2") && written.contains(&"unreal"), "{written:?}");
    assert!(!written.contains(&"node-1") && !written.contains(&"real"), "{written:?}");
    Ok(())
}
