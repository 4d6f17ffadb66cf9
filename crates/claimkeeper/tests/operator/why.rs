//! `claimkeeper why`, as a person uses it.

use std::process::Command;

use anyhow::Result;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::home::{BINARY, Home, file};

impl Home {
    pub(crate) fn why(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(BINARY);
        command.arg("why").args(arguments).arg("--kubeconfig").arg(self.cluster.admin_kubeconfig());
        let output = command.args(["--namespace", &self.namespace]).output().unwrap();
        let text = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.code().unwrap(), String::from_utf8(text).unwrap().replace(&self.namespace, "NS"))
    }
}

/// Without what the feature has to say that is not asked about.
fn but_for_placement((code, text): (i32, String)) -> (i32, String) {
    (code, text.split("\nplacement: ").next().unwrap_or_default().to_owned())
}

const TAKEN: &str = "\
ephemeral: claim NS/web-scratch of volume scratch in pod NS/web
  refuse, FailedBinding: ephemeral volume scratch: PVC NS/web-scratch was not created for pod NS/web (pod is not owner)
    yes the pod is not being deleted
    yes the pod has not ended
    yes no claim of this name is being deleted
    yes no claim of this name belongs to the pod yet
    yes the namespace does not deny ephemeral volumes
    yes no claim of this name is left over from an earlier pod
    NO  no claim of this name belongs to somebody else
";

#[tokio::test]
async fn it_tells_the_checks_and_what_the_event_says() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    home.create_claim("web-scratch").await?;
    home.create_pod("web").await?;
    assert_eq!(but_for_placement(home.why(&["pod/web"])), (0, TAKEN.to_owned()));
    let (code, of_claim) = home.why(&["pvc/web-scratch"]);
    assert!(code == 0 && of_claim.starts_with(&format!("{TAKEN}\nenforcement: claim NS/web-scratch\n")), "{of_claim}");
    assert!(of_claim.contains("\n  allow, OtherDriver: not a class of a local driver\n"), "{of_claim}");

    let (_, json) = home.why(&["pod/web", "-o", "json"]);
    let json: Value = serde_json::from_str(&json)?;
    assert_eq!(json[0]["reason"], "FailedBinding");
    assert_eq!(json[0]["failed"], "no claim of this name belongs to somebody else");

    home.create_pod("free").await?;
    let (_, text) = but_for_placement(home.why(&["pod/free"]));
    assert!(text.contains("\n  create, ClaimMissing: "), "{text}");
    assert!(!text.contains("NO "), "{text}");
    Ok(())
}

#[tokio::test]
async fn it_explains_a_pod_before_it_exists() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    home.create_claim("web-scratch").await?;
    let directory = tempfile::tempdir()?;
    let manifest = include_str!("../../../../docs/ephemeral.md");
    let manifest = manifest.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let manifest = file(&directory, "pod.yaml", manifest);
    assert_eq!(but_for_placement(home.why(&["-f", manifest.to_str().unwrap()])), (0, TAKEN.to_owned()));
    assert!(home.pods.get_opt("web").await?.is_none(), "it only asks");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_explained_is_said_in_one_line() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    let plain = home.create_plain_pod("plain").await?.name_any();
    assert_eq!(home.why(&[&format!("pod/{plain}")]), (0, "No feature has anything to decide about it.\n".to_owned()));
    let (code, error) = home.why(&["pod/missing"]);
    assert_eq!((code, error.as_str()), (1, "claimkeeper: there is no pod missing in namespace NS\n"));
    let directory = tempfile::tempdir()?;
    let service = file(&directory, "service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n");
    let (code, error) = home.why(&["-f", service.to_str().unwrap()]);
    assert!(
        code == 1
            && error
                .ends_with("service.yaml is not the manifest of a Pod or a PersistentVolumeClaim (apiVersion v1)\n"),
        "{error}"
    );
    for (object, part) in [("service/web", "known: pod, pvc, pv"), ("web", "KIND/NAME")] {
        let (code, error) = home.why(&[object]);
        assert!(code == 2 && error.contains(part), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn it_tells_why_the_claim_of_an_ended_pod_is_or_is_not_reclaimed() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    let pod = home.create_pod("job").await?;
    let owner = json!([{
        "apiVersion": "v1", "kind": "Pod", "name": "job", "uid": pod.uid(), "controller": true, "blockOwnerDeletion": true,
    }]);
    home.create_claim("job-scratch").await?;
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": owner}}));
    home.claims.patch("job-scratch", &PatchParams::default(), &patch).await?;
    home.cluster.set_pod_phase(&home.namespace, "job", "Succeeded").await?;

    let (_, text) = home.why(&["pod/job"]);
    assert!(text.contains("\n  leave, PodEnded: ") && !text.contains("reclaim"), "off unless it is configured: {text}");
    let directory = tempfile::tempdir()?;
    let config = file(&directory, "ck.yaml", "ephemeral: {reclaimCompleted: report}\n");
    let (_, text) = home.why(&["pvc/job-scratch", "--config", config.to_str().unwrap()]);
    assert!(
        text.contains("\nephemeral: reclaim of claim NS/job-scratch of ended pod NS/job\n  report, Reclaimable: "),
        "{text}"
    );
    assert!(text.contains("    NO  claims of this class are deleted, not only reported\n"), "{text}");
    assert!(home.claims.get("job-scratch").await?.metadata.deletion_timestamp.is_none(), "it only asks");
    Ok(())
}

const DENIED: &str = "\
provisioner: claim NS/build-cache-1 of volume cache in pod NS/build
  refuse, ErrNotAuthorized: ServiceAccount NS/default may not create persistentvolumeclaims, so none is made for volume 'cache'; \
an administrator can allow it: kubectl --namespace NS create role create-claims --verb=create \
--resource=persistentvolumeclaims; kubectl --namespace NS create rolebinding default-create-claims \
--role=create-claims --serviceaccount=NS:default
    yes the pod is not being deleted
    yes the pod is Pending
    yes only one annotation asks for the volume
    yes the annotation with the template is there
    yes the pod has the volume
    yes the volume uses a claim
    yes no claim of this name is being deleted
    yes no claim of this name belongs to the pod yet
    yes no claim of this name is left over from an earlier pod
    yes no claim of this name belongs to somebody else
    yes the template can be used
    yes it is known whether the pod's ServiceAccount may create claims
    NO  the pod's ServiceAccount may create claims
";

#[tokio::test]
async fn it_tells_why_a_pod_does_not_get_the_claim_that_it_asks_for() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    let directory = tempfile::tempdir()?;
    let manifest = include_str!("../../../../docs/provisioner.md");
    let manifest = manifest.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let path = file(&directory, "pod.yaml", manifest);
    assert_eq!(but_for_placement(home.why(&["-f", path.to_str().unwrap()])), (0, DENIED.to_owned()));
    home.pods.create(&PostParams::default(), &serde_saphyr::from_str(manifest)?).await?;
    assert_eq!(but_for_placement(home.why(&["pod/build"])), (0, DENIED.to_owned()));
    assert_eq!(home.why(&["pvc/build-cache-1"]), (0, DENIED.to_owned()));

    let config = file(&directory, "ck.yaml", "provisioner: {authorize: none}\n");
    let (_, text) = but_for_placement(home.why(&["pod/build", "--config", config.to_str().unwrap()]));
    assert!(text.contains("\n  create, PVCProvisioned: ") && !text.contains("NO "), "{text}");
    assert!(home.claims.get_opt("build-cache-1").await?.is_none(), "it only asks");

    let misspelt = file(&directory, "misspelt.yaml", &manifest.replace("storageClassName", "storageClass"));
    let (_, text) = home.why(&["-f", misspelt.to_str().unwrap()]);
    assert!(text.contains("spec.storageClass is not a field of a claim; did you mean storageClassName?"), "{text}");
    Ok(())
}

const REFUSED: &str = "\
enforcement: claim NS/data
  deny, NotEphemeral: only generic ephemeral volumes are allowed for testbed.claimkeeper.dev/provisioner provisioner: class testbed-wait is lost \
     with its node, and the claim is not made for a pod; either let a pod have the volume: ";

#[tokio::test]
async fn it_explains_a_claim_before_it_exists() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    let directory = tempfile::tempdir()?;
    let config =
        file(&directory, "config.yaml", "enforcement: {drivers: [{name: testbed.claimkeeper.dev/provisioner}]}");
    let claim = |annotation: &str| {
        format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: data, annotations: {{{annotation}}}}}, spec: {{accessModes: \
             [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}, storageClassName: testbed-wait}}}}"
        )
    };
    let bare = file(&directory, "bare.yaml", &claim(""));
    let (code, text) = home.why(&["-f", bare.to_str().unwrap(), "--config", config.to_str().unwrap()]);
    assert!(code == 0 && text.starts_with(REFUSED), "{text}");
    let knows = file(&directory, "knows.yaml", &claim("claimkeeper.dev/accept-ephemeral-storage: \"true\""));
    let (_, text) = home.why(&["-f", knows.to_str().unwrap(), "--config", config.to_str().unwrap()]);
    assert!(
        text.contains("\n  allow, Accepted: ") && text.contains("    NO  its author does not accept the risk\n"),
        "{text}"
    );
    Ok(())
}

const STEERED: &str = "\
placement: pod NS/web
  steer, AtHome: volume data: volume-NS is on node node-1, where the pod should run; volume scratch: its claim is made after the pod; \
volume later: there is no claim later yet
    yes a pod is made
    yes the pod can be read
    yes nobody has chosen its node
    yes no kubelet has it already
    yes its author does not want it to be left alone
    yes it has claims
    yes what the caches do not have was looked for
    yes its claims and volumes can be read
    yes volumes that must not be left are on one node
    yes no volume that must not be left is on a node that is away
    yes a volume is on a node that is there
";

/// A local volume, which claim data has.
async fn local_volume(home: &Home, volumes: &Api<PersistentVolume>, attributes: &Value) -> Result<String> {
    let name = format!("volume-{}", home.namespace);
    let storage = json!({"storage": "1Gi"});
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": storage, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": home.namespace, "name": "data"},
            "csi": {
                "driver": "localdisk.csi.acstor.io", "volumeHandle": "containerstorage#data", "volumeAttributes": attributes,
            },
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}, "storageClassName": "", "volumeName": name,
    }});
    home.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    Ok(name)
}

#[tokio::test]
async fn it_tells_where_a_pod_should_run_and_why() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    let volumes: Api<PersistentVolume> = Api::all(home.cluster.admin().await?);
    let attributes = json!({"localdisk.csi.acstor.io/selected-initial-node": "node-1"});
    let volume = local_volume(&home, &volumes, &attributes).await?;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "",
    });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "main", "image": "registry.example/main"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}},
                {"name": "later", "persistentVolumeClaim": {"claimName": "later"}},
            ],
        },
    });
    let directory = tempfile::tempdir()?;
    let manifest = file(&directory, "pod.yaml", &pod.to_string());
    let (code, text) = home.why(&["-f", manifest.to_str().unwrap()]);
    assert!(code == 0 && text.ends_with(STEERED), "{text}");
    home.pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?;
    let (code, text) = home.why(&["pod/web"]);
    assert!(code == 0 && text.ends_with(STEERED), "{text}");

    pod["metadata"]["annotations"] = json!({"claimkeeper.dev/placement": "ignore"});
    let manifest = file(&directory, "left-alone.yaml", &pod.to_string());
    let (_, text) = home.why(&["-f", manifest.to_str().unwrap()]);
    assert!(
        text.contains("\nplacement: pod NS/web\n  allow, Ignored: ") && text.contains("    NO  its author does"),
        "{text}"
    );

    let gone = json!({"metadata": {"annotations": {"localdisk.csi.acstor.io/selected-node": "no-such-node"}}});
    volumes.patch(&volume, &PatchParams::default(), &Patch::Merge(gone)).await?;
    let (_, text) = home.why(&["pod/web"]);
    assert!(
        text.contains("\n  allow, HomeGone: volume data: volume-NS was on node no-such-node, which is gone"),
        "{text}"
    );
    volumes.delete(&volume, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn it_tells_what_a_pod_waits_for_that_has_to_run_at_home() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    let volumes: Api<PersistentVolume> = Api::all(home.cluster.admin().await?);
    let attributes = json!({
        "localdisk.csi.acstor.io/selected-initial-node": "no-such-node", "localdisk.csi.acstor.io/failover-mode": "durability",
    });
    let volume = local_volume(&home, &volumes, &attributes).await?;
    let tie = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["no-such-node"]}]},
    ]}}});
    let gates = json!([{"name": "claimkeeper.dev/home-node"}]);
    let others = json!([{"name": "example.dev/other"}]);
    let steered = "placement: pod NS/POD\n  steer, WaitsForHome: ";
    let missed = "home node no-such-node of volume volume-NS (claim data) is gone";
    for (name, gates, affinity, expected) in [
        (
            "gated",
            &gates,
            &Value::Null,
            Some(format!("gate of pod NS/gated\n  wait, WaitingForHomeNode: {missed}: the pod waits")),
        ),
        (
            "tied",
            &others,
            &tie,
            Some(format!("wait of pod NS/tied\n  report, HomeNodeGone: {missed}, and the pod was made for it")),
        ),
        ("free", &others, &Value::Null, None),
    ] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "main", "image": "registry.example/main"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "schedulingGates": gates,
                "affinity": affinity,
            },
        });
        home.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let (code, text) = home.why(&[&format!("pod/{name}")]);
        let accounts: Vec<&str> = text.split("\nplacement: ").collect();
        assert!(code == 0 && accounts[0].starts_with(&steered.replace("POD", name)), "{text}");
        let waits = accounts.get(1).copied();
        match &expected {
            Some(expected) => assert!(waits.is_some_and(|waits| waits.starts_with(expected)), "{text}"),
            None => assert_eq!(waits, None, "{text}"),
        }
        assert!(accounts.len() <= 2, "{text}");
        home.pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    }
    volumes.delete(&volume, &DeleteParams::default()).await?;
    Ok(())
}
