//! Shared volumes in the binary: a replica that is killed, and the name of the program that it replaces.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use testbed::{
    Leash, eventually,
    storageos::{StorageOs, Volume},
};

use crate::home::{BINARY, Home};

/// No other test has servers there: this one looks at all namespaces.
const HERE: &str = "10.77.0.4:25705";
const THERE: &str = "10.77.0.5:25799";

async fn until_leads(home: &Home, service: &str, endpoint: &str) -> Result<()> {
    let slices: Api<EndpointSlice> = Api::namespaced(home.cluster.admin().await?, &home.namespace);
    let its = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    eventually(&format!("Service {service} to lead to {endpoint}"), async || {
        let found = serde_json::to_value(slices.list(&its).await?.items)?;
        let [slice] = found.as_array().map(Vec::as_slice).unwrap_or_default() else { anyhow::bail!("{found}") };
        let (ip, port) = (&slice["endpoints"][0]["addresses"][0], &slice["ports"][0]["port"]);
        ensure!(format!("{}:{port}", ip.as_str().unwrap_or_default()) == endpoint, "{slice}");
        Ok(())
    })
    .await
}

async fn until_published(server: &StorageOs, volume: &str) -> Result<String> {
    eventually("the address", async || server.published(volume)?.context("nothing is published")).await
}

#[tokio::test]
async fn a_replica_that_is_killed_is_replaced_by_one_that_follows_the_server() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "shared").await?;
    let server = StorageOs::start().await?;
    home.create_claim("files").await?;
    let id = server.add_volume(Volume::shared(&home.namespace, "files", "pv-files").at(HERE));
    let values = json!({"features": ["shared-volumes"], "leaderElection": {"name": "shared"}});
    let config = json!({
        "features": ["shared-volumes"],
        "leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
        "sharedVolumes": {"storageos": {
            "endpoint": server.url(), "secretPath": server.secret_path(), "pollInterval": "200ms",
        }},
    });
    let one = home.install("one", &values, config.clone()).await?.start().await?;
    let address = until_published(&server, &id).await?;
    let other = home.install("other", &values, config.clone()).await?.start().await?;
    other.until_ready().await?;
    drop(one);
    server.failover(&id, THERE)?;
    until_leads(&home, "files", THERE).await?;
    assert_eq!(server.published(&id)?, Some(address));
    let (code, text) = home.why(&["pvc/files"]);
    assert!(code == 0 && text.contains("shared-volumes: volume of claim NS/files"), "{text}");
    Ok(())
}

#[tokio::test]
async fn it_stands_in_for_storageos_api_manager() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "api-manager").await?;
    let server = StorageOs::start().await?;
    home.create_claim("files").await?;
    let endpoint = "10.77.1.4:25705";
    let id = server.add_volume(Volume::shared(&home.namespace, "files", "pv-files").at(endpoint));
    let values = json!({"features": ["shared-volumes"], "leaderElection": {"name": "storageos-api-manager-leader"}});
    let kubeconfig = home.cluster.install_chart("api-manager", &home.namespace, &values).await?;
    let line = [
        "storageos-api-manager".to_owned(),
        "-enable-leader-election".to_owned(),
        "-metrics-addr=127.0.0.1:0".to_owned(),
        format!("-namespace={}", home.namespace),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("-api-endpoint={}", server.address()),
        format!("-api-secret-path={}", server.secret_path().display()),
        "-api-poll-interval=200ms".to_owned(),
        "-scheduler-name=".to_owned(),
        "-node-poll-interval=1h".to_owned(),
    ];
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let leash =
        Leash::start(home.cluster.directory(), &format!("{}-dropin", home.namespace), BINARY.as_ref(), &line).await?;
    let address = until_published(&server, &id).await?;
    until_leads(&home, "pv-files", endpoint).await?;
    let services: Api<Service> = Api::namespaced(home.cluster.admin().await?, &home.namespace);
    let service = services.get("pv-files").await?;
    assert_eq!(service.labels().get("storageos.com/volume-id"), Some(&id));
    assert_eq!(service.spec.and_then(|spec| spec.cluster_ip).map(|ip| format!("{ip}:2049")), Some(address));
    assert_eq!(home.leases.get("storageos-api-manager-leader").await?.name_any(), "storageos-api-manager-leader");
    let log = leash.output();
    let warnings: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(warnings.iter().any(|line| line.to_string().contains("nodes are not fenced")), "{log}");
    Ok(())
}
