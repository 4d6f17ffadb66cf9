//! What the real API server makes of our answers and of our certificates.

use std::time::Duration;

use http::{Request, StatusCode, header};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::ConfigMap,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, PostParams},
};
use platform::admission::Settings;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};

use super::scene::{Authority, PATH, Scene, in_a_year, settings};

/// A namespace in which config maps are reviewed; they have no use for anybody else.
pub(crate) struct Asked {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Asked {
    pub(crate) async fn new(name: &str) -> Self {
        let cluster: Cluster = testbed::shared().await.unwrap();
        let namespace = cluster.create_namespace(name).await.unwrap();
        Self { client: cluster.admin().await.unwrap(), namespace }
    }

    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Has the API server ask there, and take no answer for a no. A busy machine is no failure.
    pub(crate) async fn ask<K>(&self, mut client_config: Value, authority: &Authority)
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    {
        client_config["caBundle"] = json!(base64(&authority.pem));
        let webhook = json!({
            "name": "review.example.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,
            "clientConfig": client_config,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
        });
        let configuration = json!({"metadata": {"name": self.namespace}, "webhooks": [webhook]});
        let configurations: Api<K> = Api::all(self.client.clone());
        configurations.create(&PostParams::default(), &serde_json::from_value(configuration).unwrap()).await.unwrap();
    }

    pub(crate) async fn create(&self, name: &str) -> Result<ConfigMap, String> {
        let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
        let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        self.config_maps().create(&rehearsal, &object).await.map_err(|error| error.to_string())
    }

    /// The first refusal: the API server takes a moment to see a new configuration.
    pub(crate) async fn refused(&self, name: &str) -> String {
        let refused = async || self.create(name).await.err().ok_or("it was created");
        eventually("a refusal", refused).await.unwrap()
    }

    pub(crate) async fn end<K>(&self)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        Api::<K>::all(self.client.clone()).delete(&self.namespace, &DeleteParams::default()).await.unwrap();
    }
}

pub(crate) fn base64(text: &str) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(text)
}

pub(crate) fn at(scene: &Scene) -> Value {
    json!({"url": format!("https://{}{PATH}", scene.address)})
}

#[tokio::test]
async fn the_api_server_repeats_our_sentences_to_whoever_asked() {
    let scene = Scene::start(Settings { request_timeout: Duration::from_secs(5), ..settings() }).await;
    let asked = Asked::new("admission-answers").await;
    asked.ask::<ValidatingWebhookConfiguration>(at(&scene), &scene.authority).await;

    let denied = asked.refused("deny").await;
    let said = r#"admission webhook "review.example.dev" denied the request: it is not ephemeral; do this"#;
    assert!(denied.contains(said), "{denied}");
    asked.create("something").await.unwrap();
    for (name, said) in [
        ("panic", "the webhook failed over this request; its log has the details"),
        ("forever", "the request could not be answered within 5s"),
    ] {
        let failed = asked.create(name).await.unwrap_err();
        assert!(failed.contains(r#"failed calling webhook "review.example.dev""#) && failed.contains(said), "{failed}");
    }

    let uri = format!("/api/v1/namespaces/{}/configmaps", asked.namespace);
    let body = json!({"metadata": {"name": "warn"}}).to_string().into_bytes();
    let request = Request::post(uri).header(header::CONTENT_TYPE, "application/json").body(body.into()).unwrap();
    let response = asked.client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(response.headers()[header::WARNING], r#"299 - "mind the gap""#);
    asked.end::<ValidatingWebhookConfiguration>().await;
}

#[tokio::test]
async fn the_api_server_applies_our_patches() {
    let scene = Scene::start(settings()).await;
    let asked = Asked::new("admission-patches").await;
    asked.ask::<MutatingWebhookConfiguration>(at(&scene), &scene.authority).await;
    asked.refused("deny").await;
    let patched = asked.create("patch").await.unwrap();
    assert_eq!(patched.data.unwrap()["patched"], "yes");
    asked.end::<MutatingWebhookConfiguration>().await;
}

#[tokio::test]
async fn the_api_server_refuses_expired_foreign_and_misnamed_certificates() {
    type Case = (&'static str, fn(&Authority) -> rustls::sign::CertifiedKey, &'static str);
    let cases: [Case; 3] = [
        (
            "expired",
            |ours| {
                ours.serving("127.0.0.1", |params| {
                    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
                    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
                })
            },
            "certificate has expired or is not yet valid",
        ),
        (
            "foreign",
            |_| Authority::new("somebody's").serving("127.0.0.1", |_| {}),
            "certificate signed by unknown authority",
        ),
        ("misnamed", |ours| ours.serving("127.0.0.2", |_| {}), "certificate is valid for 127.0.0.2, not 127.0.0.1"),
    ];
    for (name, certificate, said) in cases {
        let scene = Scene::start_without_certificate(settings()).await;
        scene.certificate.replace(certificate(&scene.authority), in_a_year());
        let asked = Asked::new(&format!("admission-{name}")).await;
        asked.ask::<ValidatingWebhookConfiguration>(at(&scene), &scene.authority).await;
        let failed = asked.refused("something").await;
        assert!(failed.contains("failed calling webhook") && failed.contains(said), "{name}: {failed}");
        assert!(scene.webhook.seen.lock().unwrap().is_empty(), "{name}");
        asked.end::<ValidatingWebhookConfiguration>().await;
    }
}
