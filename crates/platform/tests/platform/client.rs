//! The client on a real API server.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use platform::{
    client::{self, ClientOptions},
    metrics::Registry,
};
use testbed::eventually;

#[tokio::test]
async fn the_api_server_sees_our_name_and_version_and_we_count_what_it_answered() {
    let cluster = testbed::shared().await.unwrap();
    let namespace = cluster.create_namespace("client").await.unwrap();
    let registry = Registry::default();
    let config = client::load_config(Some(cluster.admin_kubeconfig())).unwrap();
    let client = client::build(config, ClientOptions::new(&registry)).unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let mut config_map = ConfigMap::default();
    config_map.metadata.name = Some("a".into());
    let started = Timestamp::now();

    config_maps.create(&PostParams::default(), &config_map).await.unwrap();
    assert!(config_maps.create(&PostParams::default(), &config_map).await.is_err());
    assert!(config_maps.get_opt("b").await.unwrap().is_none());
    config_maps.list(&ListParams::default()).await.unwrap();
    config_maps.delete("a", &DeleteParams::default()).await.unwrap();
    client.apiserver_version().await.unwrap();

    let metrics = registry.encode();
    for series in [
        r#"{verb="create",resource="configmaps",code="201"} 1"#,
        r#"{verb="create",resource="configmaps",code="409"} 1"#,
        r#"{verb="get",resource="configmaps",code="404"} 1"#,
        r#"{verb="list",resource="configmaps",code="200"} 1"#,
        r#"{verb="delete",resource="configmaps",code="200"} 1"#,
        r#"{verb="get",resource="",code="200"} 1"#,
    ] {
        let line = format!("claimkeeper_api_requests_total{series}");
        assert!(metrics.lines().any(|printed| printed == line), "{line} is missing in\n{metrics}");
    }
    let named = async || {
        let log = cluster.audit_log().namespace(&namespace).user_agent(client::USER_AGENT_VALUE).since(started);
        let requests = log.requests().unwrap();
        if requests.len() >= 5 { Ok(()) } else { Err(format!("{} requests", requests.len())) }
    };
    eventually("our requests in the audit log", named).await.unwrap();
}
