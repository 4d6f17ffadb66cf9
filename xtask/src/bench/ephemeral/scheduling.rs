//! Pods until they are scheduled: with ephemeral volumes, and with claims that their creator makes before each pod.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Options, within};

use super::{
    contestant::{Contestant, Programs},
    scene::{Scene, delay},
};
use crate::bench::{pods, report::Section, sample::Samples};

const NAMESPACE: &str = "scheduling";
/// Goes first and shows that everyone has begun.
const HERALD: &str = "herald";
const NODES: usize = 4;
/// How many pods their creator has under way.
const AT_ONCE: usize = 16;
const DEADLINE: Duration = Duration::from_mins(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Claims {
    Ephemeral,
    MadeBefore,
}

impl Claims {
    fn label(self) -> &'static str {
        match self {
            Self::Ephemeral => "ephemeral volumes, claims by claimkeeper",
            Self::MadeBefore => "claims made by the pods' creator",
        }
    }
}

pub(crate) async fn run(programs: &Programs, pods: usize, rounds: usize, command: String) -> Result<()> {
    let mut measured = [Claims::Ephemeral, Claims::MadeBefore].map(|claims| (claims, Samples::default()));
    for round in 0..rounds {
        for turn in 0..measured.len() {
            let (claims, rate) = &mut measured[(round + turn) % 2];
            eprintln!("scheduling, round {} of {rounds}: {}", round + 1, claims.label());
            let pods_per_second = measure(programs, *claims, pods).await?;
            eprintln!("  {pods_per_second:.1} pods/s");
            rate.add(pods_per_second);
        }
    }
    let [(_, ephemeral), (_, made_before)] = &measured;
    let ratio = ephemeral.median() / made_before.median();
    let mut rows = vec![["pods with", "pods/s until scheduled", "ratio"].map(str::to_owned).to_vec()];
    rows.extend(
        measured
            .iter()
            .zip([format!("{ratio:.2}"), "1".into()])
            .map(|((claims, rate), ratio)| vec![claims.label().to_owned(), rate.to_string(), ratio]),
    );
    Section {
        title: "Ephemeral volumes: until scheduled",
        command,
        circumstances: format!(
            "{pods} pods, {AT_ONCE} creations under way at a time, on {NODES} nodes, with a class that waits for its first consumer: from \
             the\nfirst request of the creator to the last pod's binding to a node (audit log). The cluster has all of its controllers, a\n\
             scheduler without limit of requests and a provisioner, and is a new one for every run; claimkeeper runs in all of them."
        ),
        rows,
    }
    .publish()
}

/// Pods per second.
async fn measure(programs: &Programs, claims: Claims, count: usize) -> Result<f64> {
    let options = Options::default()
        .nodes(NODES)
        .scheduler_flag("--kube-api-qps=10000")
        .scheduler_flag("--kube-api-burst=10000")
        .controller_manager_flag("--kube-api-qps=10000")
        .controller_manager_flag("--kube-api-burst=10000");
    let scene = Scene::open_with(programs, options).await?;
    let client = scene.client().await?;
    pods::create_namespace(&client, NAMESPACE).await?;
    let mut running = scene.start(Contestant::Claimkeeper).await?;
    let log = scene.audit()?.namespace(NAMESPACE).verb("create");
    create(&client, Claims::Ephemeral, HERALD.into()).await?;
    wait_until_scheduled(&client).await?;

    let names = stream::iter((0..count).map(|number| Ok(format!("pod-{number}"))));
    names.try_for_each_concurrent(AT_ONCE, |name| create(&client, claims, name)).await?;
    wait_until_scheduled(&client).await?;
    running.check()?;

    let requests = log.requests()?;
    let of = |subresource: &'static str| {
        requests.iter().filter(move |request| {
            let object = request.object_ref.as_ref().filter(|object| !object.name.starts_with(HERALD));
            object.is_some_and(|object| object.subresource == subresource)
        })
    };
    // The first request of all: of a claim, or of a pod.
    let asked = of("").map(|request| request.request_received_timestamp).min();
    let bound = of("binding").map(|request| request.stage_timestamp).max();
    let (asked, bound) = asked.zip(bound).context("the audit log has no pods")?;
    Ok(count as f64 / delay(asked, bound).as_secs_f64())
}

async fn create(client: &Client, claims: Claims, name: String) -> Result<()> {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "testbed-wait",
        "resources": {"requests": {"storage": "1Gi"}},
    });
    let volume = match claims {
        Claims::Ephemeral => json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}),
        Claims::MadeBefore => {
            let claim = json!({"metadata": {"name": format!("{name}-scratch")}, "spec": spec});
            let claim: PersistentVolumeClaim = serde_json::from_value(claim)?;
            Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &claim).await?;
            json!({"name": "scratch", "persistentVolumeClaim": {"claimName": format!("{name}-scratch")}})
        }
    };
    let pod: Pod = serde_json::from_value(pod(&name, &volume))?;
    Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &pod).await?;
    Ok(())
}

fn pod(name: &str, volume: &Value) -> Value {
    let mounts = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let container = json!({"name": "main", "image": "registry.example/main", "volumeMounts": mounts});
    json!({"metadata": {"name": name}, "spec": {"containers": [container], "volumes": [volume]}})
}

/// Returns when no pod waits for a node. Pods that wait are few at the end, so asking for them costs little.
async fn wait_until_scheduled(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    within(DEADLINE, "all pods to be scheduled", async || {
        let waiting = pods.list_metadata(&ListParams::default().fields("spec.nodeName=").limit(1)).await?;
        ensure!(waiting.items.is_empty(), "some wait");
        Ok(())
    })
    .await
}
