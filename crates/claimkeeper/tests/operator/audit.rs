//! `claimkeeper audit`, as a person uses it.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};
use testbed::eventually;

use crate::home::{BINARY, Home};

impl Home {
    pub(crate) fn audit(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(BINARY);
        command.arg("audit").args(arguments).arg("--kubeconfig").arg(self.cluster.admin_kubeconfig());
        let output = command.args(["--namespace", &self.namespace]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn create_claim_of(&self, class: &str, metadata: Value) -> Result<()> {
        let claim = json!({"metadata": metadata, "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }});
        self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        Ok(())
    }
}

/// Name and reason of everything that is found.
pub(crate) fn found(json: &str) -> Result<Vec<(String, String)>> {
    let rows: Vec<Value> = serde_json::from_str(json)?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
    rows.iter().map(|row| Ok((text(&row["name"])?, text(&row["reason"])?))).collect()
}

async fn local_class(home: &Home, name: &str) -> Result<()> {
    let class = json!({"metadata": {"name": name}, "provisioner": "localdisk.csi.acstor.io"});
    let classes: Api<StorageClass> = Api::all(home.cluster.admin().await?);
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    Ok(())
}

#[tokio::test]
async fn it_lists_the_claims_that_would_be_refused_today() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "audit").await?;
    let (class, late) = (format!("local-{}", home.namespace), format!("late-{}", home.namespace));
    assert_eq!(home.audit(&[]), "No feature objects to anything.\n");
    assert_eq!(home.audit(&["-o", "json"]), "[]\n");

    local_class(&home, &class).await?;
    home.create_claim_of(&class, json!({"name": "bare"})).await?;
    let accepted = json!({"localdisk.csi.acstor.io/accept-ephemeral-storage": "true"});
    home.create_claim_of(&class, json!({"name": "accepted", "annotations": accepted})).await?;
    home.create_claim_of("nowhere", json!({"name": "elsewhere"})).await?;
    // A class that comes after its claim.
    home.create_claim_of(&late, json!({"name": "early"})).await?;
    assert_eq!(found(&home.audit(&["-o", "json"]))?, [("bare".to_owned(), "NotEphemeral".to_owned())]);
    local_class(&home, &late).await?;

    let table = home.audit(&[]).replace(&home.namespace, "NS");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |name| vec!["enforcement", "NS", "PersistentVolumeClaim", name, "deny", "NotEphemeral"];
    let head = vec!["FEATURE", "NAMESPACE", "KIND", "NAME", "DECISION", "REASON"];
    assert_eq!(rows, [head, row("bare"), row("early")]);
    let message =
        format!("only generic ephemeral volumes are allowed for localdisk.csi.acstor.io provisioner: class {class} ");
    assert!(home.audit(&["-o", "wide"]).contains(&message));
    let csv = home.audit(&["-o", "csv"]);
    assert_eq!(csv.lines().count(), 3);
    assert!(csv.contains(&format!(",bare,deny,NotEphemeral,\"{message}")), "{csv}");
    Ok(())
}

/// A pod that uses a claim which belongs to it.
async fn pod_with_claim(home: &Home, name: &str, class: &str, finalizers: &[&str]) -> Result<()> {
    let pod = json!({"metadata": {"name": name, "finalizers": finalizers}, "spec": {
        "containers": [{"name": "main", "image": "registry.example/main"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
    }});
    let pod: Pod = home.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.uid(), "controller": true}]);
    home.create_claim_of(class, json!({"name": name, "ownerReferences": owner})).await
}

#[tokio::test]
async fn a_claim_that_was_orphaned_is_found_and_one_that_goes_with_its_pod_is_not() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "orphan").await?;
    let class = format!("local-{}", home.namespace);
    local_class(&home, &class).await?;
    pod_with_claim(&home, "web", &class, &[]).await?;
    pod_with_claim(&home, "ending", &class, &["example.dev/keep"]).await?;
    assert_eq!(found(&home.audit(&["-o", "json"]))?, []);

    let now = DeleteParams::default().grace_period(0);
    home.pods.delete("ending", &now).await?;
    assert!(home.pods.get("ending").await?.metadata.deletion_timestamp.is_some());
    assert_eq!(found(&home.audit(&["-o", "json"]))?, []);

    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..now };
    home.pods.delete("web", &orphan).await?;
    eventually("the claim to be orphaned", async || {
        let claim: PersistentVolumeClaim = home.claims.get("web").await?;
        ensure!(claim.owner_references().is_empty(), "it has its owner");
        Ok(())
    })
    .await?;
    assert_eq!(found(&home.audit(&["-o", "json"]))?, [("web".to_owned(), "NotEphemeral".to_owned())]);
    // The finalizer is the test's: nobody else would let the pod go.
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    home.pods.patch("ending", &PatchParams::default(), &free).await?;
    Ok(())
}
