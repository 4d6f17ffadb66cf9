//! The proof that the server is like the real one: the original client works with it as its source says.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Endpoints, Event, PersistentVolumeClaim, Service};
use kube::{
    Api, Client as Kube,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Options, eventually,
    original::{self, ApiManager},
    storageos::{Route, Script, StorageOs, Volume},
};

const VOLUMES: usize = 5;

struct Published {
    id: String,
    name: String,
    claim: PersistentVolumeClaim,
    address: String,
}

#[tokio::test]
async fn the_original_publishes_volumes_and_follows_a_failover() -> Result<()> {
    if let Some(reason) = original::unavailable().await {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let cluster = ControlPlane::start(Options::default().name("original")).await?;
    let (client, server) = (cluster.admin().await?, StorageOs::start().await?);
    let namespace = cluster.create_namespace("shared").await?;
    let mut original = ApiManager::start(&cluster, &server, &["-k8s-create-poll-interval=200ms"]).await?;
    original.ready().await?;
    // Benchmarks measure this process, so it has to be the one.
    assert_eq!(fs::read_to_string(format!("/proc/{}/comm", original.process().pid()))?, "api-manager\n");
    // Someone else writes between its reading the first volume and its publishing it.
    server.run(Script::default().answered(Route::Volume, 1, |store| {
        let read = store.requests_to(Route::Volume).into_iter().find_map(|request| request.volume);
        let _ = read.map(|id| store.touch(&id));
    }));

    let mut volumes = Vec::new();
    for number in 1..=VOLUMES {
        let (claim, name) = (create_claim(&client, &namespace, number).await?, format!("pvc-{number}"));
        let volume = Volume::shared(&namespace, format!("data-{number}"), &name).at(endpoint(1, number));
        volumes.push((server.add_volume(volume), name, claim));
    }
    // An attached volume without claim is none of its business, and neither is one without NFS server.
    let stranger = server.add_volume(Volume::shared(&namespace, "nobodys", "pvc-stranger").at(endpoint(1, 100)));
    let detached = server.add_volume(Volume::shared(&namespace, "data-1", "pvc-detached"));

    let mut published = Vec::new();
    for (id, name, claim) in volumes {
        let address = eventually("the published address", async || {
            ensure!(!original.process().has_ended()?, "the original has ended: {}", original.process().output());
            server.published(&id)?.context("none yet")
        })
        .await
        .with_context(|| format!("{}\n{:#?}", original.process().output(), server.requests()))?;
        published.push(Published { id, name, claim, address });
    }
    for (number, volume) in published.iter().enumerate() {
        check_objects(&client, &namespace, volume, 1, number + 1).await?;
    }
    check_requests(&server, &published);

    let moved = &published[2];
    // Whoever is refused has to log in again before it can see anything move.
    server.expire_tokens();
    server.failover(&moved.id, endpoint(2, 3))?;
    eventually("the endpoints to follow", async || check_objects(&client, &namespace, moved, 2, 3).await).await?;
    for (number, volume) in published.iter().enumerate().filter(|(number, _)| *number != 2) {
        check_objects(&client, &namespace, volume, 1, number + 1).await?;
    }
    eventually("the event of the failover", async || {
        let events = Api::<Event>::namespaced(client.clone(), &namespace).list(&ListParams::default()).await?;
        let events = events.into_iter().filter(|event| event.involved_object.name.as_ref() == Some(&moved.name));
        let mut events = events.map(|event| (event.type_.unwrap_or_default(), event.message.unwrap_or_default()));
        let about = format!("{namespace}/{}", moved.name);
        let expected = ("Warning".to_owned(), format!("Shared volume service target changed {about}"));
        ensure!(events.any(|event| event == expected), "there is none");
        Ok(())
    })
    .await?;
    // Its address stays, so it is not published again; the two volumes that do not count never are.
    assert_eq!(server.requests_to(Route::MountEndpoint).len(), VOLUMES + 1);
    assert!(server.requests_to(Route::Login).len() > 1);
    assert_eq!((server.published(&stranger)?, server.published(&detached)?), (None, None));
    Ok(())
}

/// Where the NFS server of a volume answers on a host.
fn endpoint(host: usize, number: usize) -> String {
    format!("10.0.0.{host}:{}", 25705 + number)
}

async fn create_claim(client: &Kube, namespace: &str, number: usize) -> Result<PersistentVolumeClaim> {
    let claim = serde_json::from_value(json!({
        "metadata": { "name": format!("data-{number}") },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "storageos",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }))?;
    Ok(Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &claim).await?)
}

async fn check_objects(client: &Kube, namespace: &str, volume: &Published, host: usize, number: usize) -> Result<()> {
    let service = Api::<Service>::namespaced(client.clone(), namespace).get(&volume.name).await?;
    let service = serde_json::to_value(service)?;
    let owner = json!([{
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "name": volume.claim.metadata.name, "uid": volume.claim.metadata.uid,
    }]);
    let port = 25705 + number;
    let labels = json!({ "storageos.com/volume-id": volume.id });
    expect(&service["metadata"]["labels"], &labels)?;
    expect(&service["metadata"]["ownerReferences"], &owner)?;
    expect(&service["spec"]["type"], &json!("ClusterIP"))?;
    expect(&service["spec"]["selector"], &Value::Null)?;
    let ports = json!([{ "name": "nfs", "port": 2049, "protocol": "TCP", "targetPort": port }]);
    expect(&service["spec"]["ports"], &ports)?;
    let address = format!("{}:2049", service["spec"]["clusterIP"].as_str().unwrap_or_default());
    ensure!(address == volume.address, "{address} is not {}, which was published", volume.address);

    let endpoints = Api::<Endpoints>::namespaced(client.clone(), namespace).get(&volume.name).await?;
    let endpoints = serde_json::to_value(endpoints)?;
    expect(&endpoints["metadata"]["labels"]["storageos.com/volume-id"], &json!(volume.id))?;
    expect(&endpoints["metadata"]["ownerReferences"], &Value::Null)?;
    let subsets = json!([{
        "addresses": [{ "ip": format!("10.0.0.{host}") }],
        "ports": [{ "name": "nfs", "port": port, "protocol": "TCP" }],
    }]);
    expect(&endpoints["subsets"], &subsets)
}

fn expect(found: &Value, expected: &Value) -> Result<()> {
    ensure!(found == expected, "{found} is not {expected}");
    Ok(())
}

/// Each volume was published once, by a client that names itself as the original does. The first time it was refused, and read
/// again at once.
fn check_requests(server: &StorageOs, published: &[Published]) {
    let writes = server.requests_to(Route::MountEndpoint);
    let statuses = writes.iter().map(|write| write.status).collect::<Vec<_>>();
    assert_eq!(statuses, [&[Some(412)], [Some(200); VOLUMES].as_slice()].concat());
    for volume in published {
        let own = writes.iter().filter(|write| write.volume.as_ref() == Some(&volume.id)).collect::<Vec<_>>();
        // The second version is the one that another writer made.
        let versions = if own.len() == 1 { ["MQ"].as_slice() } else { ["MQ", "Mg"].as_slice() };
        for (write, version) in own.iter().zip(versions) {
            let expected = json!({ "mountEndpoint": volume.address, "version": version });
            assert_eq!(write.body.as_ref(), Some(&expected));
            assert_eq!(write.user_agent.as_deref(), Some("OpenAPI-Generator/2.9.0/go"));
        }
        assert_eq!(own.len(), versions.len());
    }
    // Everything else is answered as it expects; a poll may be on its way at this moment.
    let others = server.requests().into_iter().filter(|request| request.route != Route::MountEndpoint);
    let statuses = others.filter_map(|request| request.status).collect::<Vec<_>>();
    assert!(statuses.iter().all(|status| *status == 200), "{:#?}", server.requests());
}
