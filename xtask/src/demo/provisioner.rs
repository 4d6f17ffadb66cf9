//! A CI system's pod asks for its build cache by annotation, and may have it once an administrator has run what the refusal says.

use anyhow::{Context, Result};
use serde_json::json;
use testbed::BUSYBOX;

use super::{Stage, step, title};

pub(super) const NAMESPACE: &str = "ci";
const ACCOUNT: &str = "builder";
pub(super) const CLAIM: &str = "build-cache-17";
pub(super) const CLASS: &str = "testbed-wait-retain";
const TEMPLATE: &str = "\
apiVersion: v1
kind: PersistentVolumeClaim
spec:
  storageClassName: testbed-wait-retain
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
";

/// The part of the pod that matters, as a CI system would write it.
const ASKED_FOR: &str = "  $ kubectl --namespace ci apply -f build.yaml
    kind: Pod
    metadata:
      name: build
      annotations:
        claimkeeper.dev/cache.claim: |
          kind: PersistentVolumeClaim
          spec: {storageClassName: testbed-wait-retain, …, storage: 1Gi}
    spec:
      serviceAccountName: builder
      containers:
        - command: [sh, -c, \"echo 'built by the pod build' > /cache/note; …\"]
          volumeMounts: [{name: cache, mountPath: /cache}]
      volumes:
        - name: cache
          persistentVolumeClaim: {claimName: build-cache-17}
";

impl Stage {
    pub(super) async fn a_ci_pod_is_refused(&self) -> Result<()> {
        title("provisioner: a CI pod asks for its build cache, but its ServiceAccount may not create claims");
        self.kubectl(&["create", "namespace", NAMESPACE]).await?;
        self.kubectl(&["--namespace", NAMESPACE, "create", "serviceaccount", ACCOUNT]).await?;
        println!("{ASKED_FOR}");
        self.apply(&pod("build", CLAIM, "echo 'built by the pod build' > /cache/note")).await?;
        let refusals = ["--namespace", NAMESPACE, "get", "events", "--field-selector", "reason=ErrNotAuthorized", "-o"];
        let with = |output| [&refusals[..], &[output]].concat();
        self.until("the event", &with("jsonpath={.items[*].reason}"), "ErrNotAuthorized").await?;
        self.present(&with("custom-columns=TYPE:.type,REASON:.reason,POD:.involvedObject.name,MESSAGE:.message"))
            .await?;

        title("provisioner: the refusal says which commands help, so they are run");
        let message = self.kubectl(&with("jsonpath={.items[0].message}")).await?.stdout;
        let message = String::from_utf8(message)?;
        let (_, commands) = message.split_once("can allow it: ").context("the refusal says nothing that helps")?;
        for command in commands.split("; ") {
            let command: Vec<&str> = command.split_whitespace().collect();
            self.present(command.strip_prefix(&["kubectl"]).context("the refusal names a command of something else")?)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn the_ci_pod_has_its_claim(&self) -> Result<()> {
        title("provisioner: the CI pod gets its claim");
        step("Waiting until Claimkeeper asks again whether it may, as it does every five seconds");
        let phase = ["--namespace", NAMESPACE, "get", "pod", "build", "-o", "jsonpath={.status.phase}"];
        self.until("the CI pod to run", &phase, "Running").await?;
        self.present(&[
            "--namespace",
            NAMESPACE,
            "get",
            "pvc",
            CLAIM,
            "-o",
            "custom-columns=CLAIM:.metadata.name,STATUS:.status.phase,CLASS:.spec.storageClassName,\
             OWNER:.metadata.ownerReferences[0].kind,OF:.metadata.ownerReferences[0].name",
        ])
        .await?;
        if self.has_real_node {
            let inside = ["--namespace", NAMESPACE, "exec", "build", "--"];
            self.until("the file", &[&inside[..], &["ls", "/cache"]].concat(), "note").await?;
            self.present(&[&inside[..], &["cat", "/cache/note"]].concat()).await?;
        }
        Ok(())
    }
}

/// A build that does this and waits.
pub(super) fn pod(name: &str, claim: &str, script: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "annotations": {"claimkeeper.dev/cache.claim": TEMPLATE},
        },
        "spec": {
            "serviceAccountName": ACCOUNT,
            // A shell that is the first process of its container ignores SIGTERM.
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX,
                "command": ["sh", "-c", format!("{script}; sleep 1000000")],
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            }],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}
