//! Namespaces, volumes, versions and the published address.

use anyhow::Result;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use testbed::storageos::{Endpoint, MOUNT_ENDPOINT, PV_NAME, PVC_NAME, PVC_NAMESPACE, Spec, StorageOs, Volume};

use crate::{Client, ENDPOINT, paths, volume};

#[tokio::test]
async fn volumes_are_listed_by_namespace_and_got_by_id() -> Result<()> {
    let server = StorageOs::start().await?;
    let (one, two) = (server.add_volume(volume()), server.add_volume(Volume::shared("other", "data", "pvc-2")));
    let client = Client::login(&server).await?;
    let namespaces = client.get("/namespaces").await?.json()?;
    let names = namespaces.as_array().into_iter().flatten().map(|namespace| namespace["name"].clone());
    assert_eq!(names.collect::<Vec<_>>(), ["team", "other"]);
    for (name, id) in [("team", &one), ("other", &two)] {
        let (volumes, volume) = paths(&server, name, id);
        let list = client.get(&volumes).await?.json()?;
        assert_eq!(list.as_array().map(Vec::len), Some(1));
        assert_eq!(list[0], client.get(&volume).await?.json()?);
        assert_eq!(list[0]["id"], json!(id));
        assert_eq!(list[0]["namespaceID"], json!(server.add_namespace(name)));
    }
    // A volume is only found in its own namespace.
    assert_eq!(client.get(&paths(&server, "team", &two).1).await?.status, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn an_attached_volume_has_all_that_either_release_of_the_api_tells() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let path = paths(&server, "team", &id).1;
    let old = [
        "attachedOn",
        "attachmentType",
        "createdAt",
        "description",
        "fsType",
        "id",
        "labels",
        "master",
        "name",
        "namespaceID",
        "nfs",
        "replicas",
        "sizeBytes",
        "updatedAt",
        "version",
    ];
    let new = ["attachedOnHost", "parentInfo", "snapshotConfig", "snapshotVolumes", "topologyLabels"];
    for spec in [Spec::V2_4, Spec::V2_8] {
        server.speak(spec);
        let volume = client.get(&path).await?.json()?;
        for field in old {
            assert!(volume.get(field).is_some(), "{field} in {spec:?}");
        }
        for field in new {
            assert_eq!(volume.get(field).is_some(), spec == Spec::V2_8, "{field} in {spec:?}");
        }
        assert_eq!(volume["nfs"]["serviceEndpoint"], json!(ENDPOINT));
        assert!(volume["nfs"]["exports"].is_array());
        assert_eq!(volume["attachmentType"], json!("nfs"));
        assert_eq!(volume["attachedOn"], volume["master"]["nodeID"]);
        assert_eq!(volume["master"].get("hostname").is_some(), spec == Spec::V2_8);
        for (label, value) in [(PV_NAME, "pvc-1"), (PVC_NAME, "data"), (PVC_NAMESPACE, "team")] {
            assert_eq!(volume["labels"][label], json!(value));
        }
        for time in ["createdAt", "updatedAt"] {
            assert!(volume[time].as_str().unwrap_or_default().parse::<Timestamp>().is_ok(), "{}", volume[time]);
        }
        // An opaque text that is a number in base64 without padding, of 30 characters at most.
        assert_eq!(volume["version"], json!("MQ"));
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_endpoint_is_told_in_each_of_its_shapes() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let path = paths(&server, "team", &id).1;
    let nfs = async || anyhow::Ok(client.get(&path).await?.json()?["nfs"].clone());
    server.failover(&id, Endpoint::NoNfs)?;
    assert_eq!(nfs().await?, Value::Null);
    server.failover(&id, Endpoint::Null)?;
    assert_eq!(nfs().await?.get("serviceEndpoint"), Some(&Value::Null));
    server.failover(&id, Endpoint::Empty)?;
    assert_eq!(nfs().await?.get("serviceEndpoint"), Some(&json!("")));
    server.failover(&id, Endpoint::Absent)?;
    assert_eq!(nfs().await?.get("serviceEndpoint"), None);
    for odd in ["[fd00::1]:25705", "no endpoint at all", ":25705"] {
        server.failover(&id, odd)?;
        assert_eq!(nfs().await?["serviceEndpoint"], json!(odd));
    }
    assert_eq!(server.reports(&id).len(), 4, "one that is none, and three that are told: {:?}", server.reports(&id));
    Ok(())
}

#[tokio::test]
async fn nulls_unknown_fields_and_wrong_types_can_be_anywhere_in_a_volume() -> Result<()> {
    let server = StorageOs::start().await?;
    let odd = volume()
        .with("/labels", Value::Null)
        .with("/nfs/exports", Value::Null)
        .with("/aNewField", json!({ "of": ["some", "kind"] }))
        .with("/sizeBytes", json!("much"))
        .without("/replicas");
    let id = server.add_volume(odd);
    let client = Client::login(&server).await?;
    let volume = client.get(&paths(&server, "team", &id).1).await?.json()?;
    assert_eq!(volume["nfs"], json!({ "exports": null, "serviceEndpoint": ENDPOINT }));
    assert_eq!((&volume["labels"], &volume["sizeBytes"]), (&Value::Null, &json!("much")));
    assert_eq!(volume["aNewField"]["of"][1], json!("kind"));
    assert_eq!(volume.get("replicas"), None);
    server.change(&id, |volume| *volume = volume.clone().with("/labels", json!({})).without("/labels/x~1y"))?;
    assert_eq!(client.get(&paths(&server, "team", &id).1).await?.json()?["labels"], json!({}));
    Ok(())
}

#[tokio::test]
async fn a_published_address_is_a_label_and_a_new_version() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    assert_eq!(server.published(&id)?, None);
    let client = Client::login(&server).await?;
    let path = paths(&server, "team", &id).1;
    let before = client.get(&path).await?.json()?;
    let body = json!({ "mountEndpoint": "10.96.0.7:2049", "version": before["version"] });
    let answer = client.put(&format!("{path}/nfs/mount-endpoint"), body).await?;
    assert_eq!((answer.status, answer.body.len(), answer.header("content-type")), (StatusCode::OK, 0, None));
    let after = client.get(&path).await?.json()?;
    assert_eq!(after["labels"][MOUNT_ENDPOINT], json!("10.96.0.7:2049"));
    assert_ne!(after["version"], before["version"]);
    assert_ne!(after["updatedAt"], before["updatedAt"]);
    assert_eq!(server.published(&id)?.as_deref(), Some("10.96.0.7:2049"));
    let requests = server.requests_to(testbed::storageos::Route::MountEndpoint);
    assert_eq!(requests.len(), 1);
    assert_eq!((requests[0].status, requests[0].volume.as_deref()), (Some(200), Some(id.as_str())));
    assert_eq!((requests[0].namespace.as_deref(), requests[0].method.as_str()), (Some("team"), "PUT"));
    assert_eq!(requests[0].body.as_ref().map(|body| &body["mountEndpoint"]), Some(&json!("10.96.0.7:2049")));
    Ok(())
}

#[tokio::test]
async fn a_stale_version_is_refused_unless_it_is_to_be_ignored() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let path = format!("{}/nfs/mount-endpoint", paths(&server, "team", &id).1);
    let update = |version: &str| json!({ "mountEndpoint": "10.96.0.7:2049", "version": version });
    let stale = server.version(&id)?;
    for change in ["touch", "failover"] {
        match change {
            "touch" => server.touch(&id)?,
            _ => server.failover(&id, "10.0.0.2:25705")?,
        };
        let answer = client.put(&path, update(&stale)).await?;
        assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED, "after a {change}");
        assert_eq!(answer.json()?, json!({ "error": "attempting to write stale object" }));
    }
    assert_eq!(client.put(&path, json!({ "mountEndpoint": "x" })).await?.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.published(&id)?, None);
    assert_eq!(client.put(&path, update(&server.version(&id)?)).await?.status, StatusCode::OK);
    assert_eq!(client.put(&path, update(&server.version(&id)?)).await?.status, StatusCode::OK);
    assert_eq!(client.put(&format!("{path}?ignore-version=true"), update(&stale)).await?.status, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn labels_can_be_changed_but_not_those_of_storageos() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let path = paths(&server, "team", &id).1;
    let volume = client.get(&path).await?.json()?;
    let mut labels = volume["labels"].clone();
    labels["tier"] = json!("gold");
    let answer = client.put(&path, json!({ "labels": labels, "version": volume["version"] })).await?;
    assert_eq!(answer.status, StatusCode::OK);
    let changed = answer.json()?;
    assert_eq!(changed["labels"], labels);
    let stale = client.put(&path, json!({ "labels": labels, "version": volume["version"] })).await?;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    labels[PVC_NAME] = json!("another");
    let refused = client.put(&path, json!({ "labels": labels, "version": changed["version"] })).await?;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    Ok(())
}

#[tokio::test]
async fn what_is_gone_is_not_found_with_an_error_that_says_so() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let (volumes, path) = paths(&server, "team", &id);
    server.remove_volume(&id);
    let update = json!({ "mountEndpoint": "10.96.0.7:2049", "version": "MQ" });
    let published = client.put(&format!("{path}/nfs/mount-endpoint"), update).await?;
    for answer in [client.get(&path).await?, published, client.get("/nothing").await?] {
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert_eq!(answer.json()?, json!({ "error": "not found" }));
    }
    assert_eq!(client.get(&volumes).await?.json()?, json!([]));
    server.add_volume(volume());
    server.remove_namespace("team");
    assert_eq!(client.get(&volumes).await?.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get("/namespaces").await?.json()?, json!([]));
    assert!(server.volumes().is_empty(), "its volumes have gone with it");
    Ok(())
}

#[tokio::test]
async fn what_was_told_of_an_endpoint_is_remembered_with_its_time() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let volumes = paths(&server, "team", &id).0;
    assert!(server.reports(&id).is_empty(), "nobody has asked yet");
    let start = Timestamp::now();
    client.get(&volumes).await?;
    client.get(&volumes).await?;
    let middle = Timestamp::now();
    // Nobody hears of this one.
    server.failover(&id, "10.0.0.3:25705")?;
    server.failover(&id, Endpoint::Null)?;
    client.get(&volumes).await?;
    server.failover(&id, "10.0.0.2:25705")?;
    client.get(&volumes).await?;
    let end = Timestamp::now();
    let told = server.reports(&id).into_iter().map(|report| report.endpoint).collect::<Vec<_>>();
    let (first, last) = (Some(ENDPOINT.to_owned()), Some("10.0.0.2:25705".to_owned()));
    assert_eq!(told, [first.clone(), None, last.clone()]);
    assert_eq!(server.reported_between(&id, start, middle), std::slice::from_ref(&first));
    assert_eq!(server.reported_between(&id, middle, end), [None, last]);
    assert_eq!(server.reported_between(&id, start, end).len(), 3);
    assert!(server.reported_between(&id, end, Timestamp::now()).is_empty());
    Ok(())
}
