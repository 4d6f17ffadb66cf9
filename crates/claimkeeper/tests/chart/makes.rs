//! What the chart makes.

use std::{collections::BTreeSet, process::Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::Cluster;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::documents::{Documents, over, profiles};

/// Whether every label that is selected is one of these.
fn selects(selector: &Value, labels: &Value) -> bool {
    selector
        .as_object()
        .is_some_and(|wanted| !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

fn template(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]
}

#[tokio::test]
async fn each_webhook_is_switched_alone() -> Result<()> {
    let cluster = testbed::shared().await?;
    for (claims, pods) in [(true, true), (true, false), (false, true), (false, false)] {
        let values = json!({"webhook": {"enforceEphemeral": {"enabled": claims}, "hyperconverged": {"enabled": pods}}});
        let documents = Documents::render(&cluster, "storage", &values).await?;
        assert_eq!(documents.get("ValidatingWebhookConfiguration", "claimkeeper-enforcement").is_some(), claims);
        assert_eq!(documents.get("MutatingWebhookConfiguration", "claimkeeper-placement").is_some(), pods);
        assert_eq!(documents.get("Service", "claimkeeper-webhook").is_some(), claims || pods);
        assert_eq!(documents.get("Role", "claimkeeper-certificates").is_some(), claims || pods);
        let config = config(&documents, "claimkeeper")?;
        assert_eq!(config["enforcement"]["claimWebhook"], claims);
        assert_eq!(config["placement"]["podWebhook"], pods);
        let named = config["webhook"]["certificates"]["configurations"].as_array().map_or(0, Vec::len);
        assert_eq!(named, usize::from(claims) + usize::from(pods), "{config}");
        let ports = template(documents.of("Deployment")[0])["spec"]["containers"][0]["ports"].to_string();
        assert_eq!(ports.contains("webhook"), claims || pods, "{ports}");
    }
    Ok(())
}

fn config(documents: &Documents, name: &str) -> Result<Value> {
    let file = documents.get("ConfigMap", name).and_then(|map| map["data"]["config.yaml"].as_str());
    Ok(serde_saphyr::from_str(file.with_context(|| format!("no configuration in {name}"))?)?)
}

/// Values under which everything is there that can be; the rest needs kinds that others define.
fn everything() -> Value {
    json!({
        "features": ["ephemeral", "provisioner", "releaser", "enforcement", "placement", "shared-volumes"],
        "split": true,
        "ephemeral": {"authorize": "use", "reclaimCompleted": "delete"},
        "releaser": {"scrub": true},
        "enforcement": {"policies": true},
        "placement": {"deletes": true},
        "image": {"pullSecrets": ["registry"]},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]},
        ]}}},
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {}}], "webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "egress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
        },
        "podLabels": {"team": "storage"}, "podAnnotations": {"team": "storage"},
        "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
        "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": true}],
    })
}

#[tokio::test]
async fn the_api_server_takes_every_document_without_a_warning_where_pods_are_restricted() -> Result<()> {
    let cluster = testbed::shared().await?;
    let mut all = profiles()?;
    all.push(("everything".to_owned(), everything()));
    all.push(("without policies of its own".to_owned(), json!({"webhook": {"certificates": {"mode": "files"}}})));
    for (profile, values) in all {
        let namespace = restricted(&cluster).await?;
        let documents = Documents::render(&cluster, &namespace, &values).await?;
        let list = json!({"apiVersion": "v1", "kind": "List", "items": documents.0});
        let told = kubectl_apply(&cluster, &list).await.with_context(|| profile.clone())?;
        ensure!(!told.contains("Warning"), "{profile}: {told}");
        for deployment in documents.of("Deployment") {
            admit(&cluster, &namespace, template(deployment)).await.with_context(|| profile.clone())?;
        }
    }
    Ok(())
}

/// A namespace where only restricted pods may run.
async fn restricted(cluster: &Cluster) -> Result<String> {
    let namespace = cluster.create_namespace("restricted").await?;
    let level = |what: &str| (format!("pod-security.kubernetes.io/{what}"), json!("restricted"));
    let labels: serde_json::Map<_, _> = ["enforce", "warn", "audit"].map(level).into_iter().collect();
    let labels = Patch::Merge(json!({"metadata": {"labels": labels}}));
    Api::<Namespace>::all(cluster.admin().await?).patch(&namespace, &PatchParams::default(), &labels).await?;
    Ok(namespace)
}

/// As it would be, but nothing is kept. Returns what was said about it.
async fn kubectl_apply(cluster: &Cluster, list: &Value) -> Result<String> {
    let mut kubectl = Command::from(cluster.kubectl());
    kubectl.args(["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"]);
    kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut kubectl = kubectl.spawn()?;
    let mut input = kubectl.stdin.take().context("kubectl takes nothing")?;
    input.write_all(list.to_string().as_bytes()).await?;
    drop(input);
    let output = kubectl.wait_with_output().await?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{told}");
    Ok(told)
}

/// Whether a pod of this template would be let in: of Deployments the API server only warns.
async fn admit(cluster: &Cluster, namespace: &str, template: &Value) -> Result<()> {
    let admin = cluster.admin().await?;
    let account = json!({"metadata": {"name": template["spec"]["serviceAccountName"]}});
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    accounts.create(&PostParams::default(), &serde_json::from_value(account)?).await?;
    let mut pod = template.clone();
    pod["metadata"]["name"] = "replica".into();
    let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
    Api::<Pod>::namespaced(admin, namespace).create(&rehearsal, &serde_json::from_value(pod)?).await?;
    Ok(())
}

#[tokio::test]
async fn whatever_looks_for_pods_finds_those_that_are_made() -> Result<()> {
    let cluster = testbed::shared().await?;
    for split in [false, true] {
        let mut values = everything();
        over(
            &mut values,
            &json!({"split": split, "metrics": {"serviceMonitor": {"enabled": true}, "podMonitor": {"enabled": true}}}),
        );
        let documents = Documents::render(&cluster, "storage", &values).await?;
        let deployments = documents.of("Deployment");
        assert_eq!(deployments.len(), 1 + usize::from(split));
        let labels: Vec<&Value> = deployments.iter().map(|found| &template(found)["metadata"]["labels"]).collect();
        for (deployment, labels) in deployments.iter().zip(&labels) {
            let name = &deployment["metadata"]["name"];
            let budget = documents.get("PodDisruptionBudget", name.as_str().unwrap()).context("no budget")?;
            let affinity = &template(deployment)["spec"]["affinity"]["podAntiAffinity"];
            let apart = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
            let spread = &template(deployment)["spec"]["topologySpreadConstraints"][0];
            let selectors = [deployment, budget].map(|found| &found["spec"]["selector"]["matchLabels"]);
            for selector in
                selectors.into_iter().chain([apart, spread].map(|found| &found["labelSelector"]["matchLabels"]))
            {
                assert!(selects(selector, labels), "{selector} does not select {labels}");
                // Replicas of another kind are no reason to keep away, and no replacement.
                let selected =
                    deployments.iter().filter(|other| selects(selector, &template(other)["metadata"]["labels"]));
                assert_eq!(selected.count(), 1, "{selector}");
            }
        }
        let called = &documents.get("Service", "claimkeeper-webhook").context("no Service")?["spec"]["selector"];
        let answering: Vec<bool> = labels.iter().map(|labels| selects(called, labels)).collect();
        assert_eq!(answering, if split { vec![false, true] } else { vec![true] });
        let measured = documents.get("Service", "claimkeeper-metrics").context("no Service")?;
        let policy = &documents.of("NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"];
        let pods = &documents.of("PodMonitor")[0]["spec"]["selector"]["matchLabels"];
        for selector in [&measured["spec"]["selector"], policy, pods] {
            assert!(labels.iter().all(|labels| selects(selector, labels)), "{selector}");
        }
        let monitored = &documents.of("ServiceMonitor")[0]["spec"]["selector"]["matchLabels"];
        assert!(selects(monitored, &measured["metadata"]["labels"]), "{monitored}");
        let services =
            documents.of("Service").into_iter().filter(|found| selects(monitored, &found["metadata"]["labels"]));
        assert_eq!(services.count(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn another_configuration_makes_other_pods_and_another_budget_does_not() -> Result<()> {
    let cluster = testbed::shared().await?;
    let of = async |values: Value| {
        let documents = Documents::render(&cluster, "storage", &values).await?;
        anyhow::Ok(template(documents.of("Deployment")[0]).clone())
    };
    let before = of(json!({})).await?;
    assert_eq!(of(json!({"podDisruptionBudget": {"maxUnavailable": 2}})).await?, before);
    assert_ne!(of(json!({"log": {"level": "debug"}})).await?, before);
    Ok(())
}

#[tokio::test]
async fn no_right_is_a_wildcard_and_secrets_leases_and_webhooks_are_named() -> Result<()> {
    let cluster = testbed::shared().await?;
    let documents = Documents::render(&cluster, "storage", &everything()).await?;
    let named = ["secrets", "leases", "validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
    let mut seen = BTreeSet::new();
    for role in documents.of("Role").into_iter().chain(documents.of("ClusterRole")) {
        for rule in role["rules"].as_array().unwrap() {
            assert!(!rule.to_string().contains('*'), "{role}");
            let resources = rule["resources"].as_array().unwrap();
            for resource in resources.iter().filter_map(Value::as_str).filter(|resource| named.contains(resource)) {
                seen.insert(resource.to_owned());
                let creates = rule["verbs"] == json!(["create"]) && role["kind"] == "Role";
                let by_name = rule["resourceNames"].as_array().is_some_and(|names| !names.is_empty());
                assert!(by_name || creates, "{role}");
                assert!(role["kind"] == "ClusterRole" || role["metadata"]["namespace"] == "storage", "{role}");
            }
        }
    }
    assert_eq!(seen.len(), named.len(), "{seen:?}");
    Ok(())
}

#[tokio::test]
async fn what_answers_api_servers_apart_may_only_read_and_tell() -> Result<()> {
    let cluster = testbed::shared().await?;
    let documents = Documents::render(&cluster, "storage", &everything()).await?;
    let of_account = |kind: &str| {
        let bindings = documents.of(kind).into_iter();
        let ours = bindings.filter(|binding| binding["subjects"][0]["name"] == "claimkeeper-webhook");
        ours.map(|binding| (binding["roleRef"]["kind"].clone(), binding["roleRef"]["name"].clone())).collect::<Vec<_>>()
    };
    let roles = [of_account("RoleBinding"), of_account("ClusterRoleBinding")].concat();
    assert_eq!(roles.len(), 2, "{roles:?}");
    for (kind, name) in roles {
        let role = documents.get(kind.as_str().unwrap(), name.as_str().unwrap()).context("no such role")?;
        for rule in role["rules"].as_array().unwrap().iter().filter(|rule| rule["resources"] != json!(["events"])) {
            let verbs = rule["verbs"].as_array().unwrap();
            assert!(verbs.iter().all(|verb| ["get", "list", "watch"].iter().any(|read| verb == read)), "{rule}");
        }
    }
    Ok(())
}
