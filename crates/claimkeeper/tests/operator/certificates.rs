//! The webhook's certificate in the whole program: kept by itself, or taken from files; and what the chart makes of both.

use std::{fs, process::Stdio};

use anyhow::{Result, ensure};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
};
use kube::Api;
use serde_json::{Value, json};
use testbed::PATIENCE;
use tokio::process::Command;

use crate::home::Home;

fn values(namespace: &str) -> Value {
    json!({
        "features": ["enforcement", "placement"],
        "namespace": namespace,
        "leaderElection": {"name": "shared"},
        // Nobody listens there, and nobody is asked: what is looked at is who is trusted.
        "webhook": {
            "url": "https://127.0.0.1:9",
            "enforceEphemeral": {"configuration": namespace, "objectSelector": {"matchLabels": {"asked": "never"}}},
            "hyperconverged": {"configuration": namespace, "objectSelector": {"matchLabels": {"asked": "never"}}},
            "certificates": {"secret": "shared"},
        },
    })
}

fn config(namespace: &str) -> Value {
    let configurations = [namespace.to_owned(), format!("mutating/{namespace}")];
    let certificates = json!({"secret": "shared", "names": ["127.0.0.1"], "configurations": configurations});
    json!({
        "features": ["enforcement", "placement"],
        "webhook": {"listen": "127.0.0.1:0", "drainDelay": "0s", "certificates": certificates},
    })
}

#[tokio::test]
async fn replicas_are_ready_with_one_certificate_and_leave_its_lease_free() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "certificates").await?;
    let ours = home.namespace.as_str();
    let first = home.install("first", &values(ours), config(ours)).await?.start().await?;
    let second = home.install("second", &values(ours), config(ours)).await?.start().await?;
    first.until_ready().await?;
    second.until_ready().await?;
    let admin = home.cluster.admin().await?;
    let secret = Api::<Secret>::namespaced(admin.clone(), ours).get("shared").await?;
    let authority = secret.data.unwrap_or_default().remove("ca.crt");
    let validating = Api::<ValidatingWebhookConfiguration>::all(admin.clone()).get(ours).await?;
    assert_eq!(validating.webhooks.unwrap_or_default()[0].client_config.ca_bundle, authority);
    let mutating = Api::<MutatingWebhookConfiguration>::all(admin).get(ours).await?;
    assert_eq!(mutating.webhooks.unwrap_or_default()[0].client_config.ca_bundle, authority);
    let made = r#"claimkeeper_certificate_rotations_total{certificate="ca"}"#;
    assert_eq!(first.metric(made).await? + second.metric(made).await?, 1);

    for mut replica in [first, second] {
        let user = replica.user.clone();
        let refused = home.cluster.audit_log().user(user).requests()?.into_iter();
        assert_eq!(refused.filter(|request| request.code() == Some(403)).count(), 0);
        replica.leash.terminate()?;
        ensure!(replica.leash.ended(PATIENCE).await?.success(), "a replica ended badly");
    }
    let lease = home.leases.get("shared-certificates").await?;
    assert_eq!(lease.spec.and_then(|spec| spec.holder_identity).as_deref(), Some(""), "somebody still holds it");
    Ok(())
}

#[tokio::test]
async fn a_certificate_in_files_needs_neither_secret_nor_lease() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "certificates").await?;
    let pki = home.cluster.directory().join("pki");
    let directory = tempfile::tempdir()?;
    for (from, to) in [("serving.crt", "tls.crt"), ("serving.key", "tls.key")] {
        fs::copy(pki.join(from), directory.path().join(to))?;
    }
    let mut values = values(&home.namespace);
    let authorities = fs::read_to_string(pki.join("ca.crt"))?;
    values["webhook"]["certificates"] = json!({"mode": "files", "caBundle": authorities});
    let mut config = config(&home.namespace);
    config["webhook"]["certificates"] = json!({"mode": "files", "directory": directory.path()});
    let replica = home.install("files", &values, config).await?.start().await?;
    replica.until_ready().await?;
    let (_, metrics) = replica.ask("/metrics").await?;
    assert!(metrics.contains(r#"claimkeeper_certificate_expiry_timestamp_seconds{certificate="leaf"}"#), "{metrics}");
    let admin = home.cluster.admin().await?;
    assert!(Api::<Secret>::namespaced(admin.clone(), &home.namespace).get_opt("shared").await?.is_none());
    assert!(home.leases.get_opt("shared-certificates").await?.is_none());
    let configuration = Api::<ValidatingWebhookConfiguration>::all(admin).get(&home.namespace).await?;
    let trusted = configuration.webhooks.unwrap_or_default()[0].client_config.ca_bundle.clone();
    assert_eq!(trusted, Some(ByteString(authorities.into_bytes())));
    Ok(())
}

#[tokio::test]
async fn with_cert_manager_the_chart_asks_for_a_certificate_and_grants_no_right_to_write_one() -> Result<()> {
    let cluster = testbed::shared().await?;
    let render = async |settings: &str| {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/claimkeeper");
        let mut helm = Command::new(cluster.helm());
        helm.args(["template", "keeper", chart, "--namespace", "storage", "--kube-version=v1.37.1"]);
        helm.args([
            "--set",
            "features={enforcement,placement},webhook.certificates.mode=cert-manager",
            "--set",
            settings,
        ]);
        let output = helm.stdin(Stdio::null()).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let own = render("split=false").await?;
    // One for each of the two webhook configurations.
    assert_eq!(own.matches("cert-manager.io/inject-ca-from: storage/keeper-webhook\n").count(), 2, "{own}");
    assert!(
        own.contains("secretName: keeper-webhook-tls\n") && own.contains("- keeper-webhook.storage.svc\n"),
        "{own}"
    );
    let made = |text: &str| ["\nkind: Certificate\n", "\nkind: Issuer\n"].map(|kind| text.matches(kind).count());
    assert_eq!(made(&own), [2, 2]);
    assert!(!own.contains("keeper-certificates") && !own.contains("secrets]"), "{own}");
    let named = render("webhook.certificates.issuerRef.name=corporate").await?;
    assert_eq!(made(&named), [1, 0]);
    assert!(named.contains("issuerRef:\n    name: corporate\n"), "{named}");
    Ok(())
}
