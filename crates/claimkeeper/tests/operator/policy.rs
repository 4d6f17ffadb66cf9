//! What the API server refuses by the policies that the chart installs and `claimkeeper render policy` prints.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::ReplicaSet,
    core::v1::{Namespace, PersistentVolumeClaim, Pod, ServiceAccount},
    rbac::v1::RoleBinding,
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};

use crate::home::{BINARY, file};

/// A namespace to which the chart's policies apply.
struct Scene {
    cluster: Cluster,
    namespace: String,
    admin: Client,
}

impl Scene {
    async fn open(prefix: &str, authorize: &str) -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace(prefix).await?;
        let values = json!({"features": ["ephemeral"], "namespace": namespace, "ephemeral": {"authorize": authorize}});
        cluster.install_chart("claimkeeper", &namespace, &values).await?;
        Ok(Self { admin: cluster.admin().await?, cluster, namespace })
    }

    fn pods(&self, client: &Client) -> Api<Pod> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// A user who may create pods here and nothing else.
    async fn user(&self, name: &str) -> Result<Client> {
        let user = format!("{name}-{}", self.namespace);
        self.bind("edit", &json!({"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"})).await?;
        self.cluster.client(&self.cluster.user_kubeconfig(&user, &[]).await?).await
    }

    /// Grants the right to use ephemeral volumes by the role that the chart ships for it.
    async fn let_use(&self, subject: &Value) -> Result<()> {
        self.bind(&format!("{}:claimkeeper:use-ephemeral-volumes", self.namespace), subject).await
    }

    async fn bind(&self, role: &str, subject: &Value) -> Result<()> {
        let binding = json!({
            "metadata": {"generateName": "test-"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        });
        let bindings: Api<RoleBinding> = Api::namespaced(self.admin.clone(), &self.namespace);
        bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
        Ok(())
    }

    async fn label(&self, value: Value) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.admin.clone());
        let patch = json!({"metadata": {"labels": {"claimkeeper.dev/ephemeral-volumes": value}}});
        namespaces.patch(&self.namespace, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Tries, without leaving anything behind, until the answer is a refusal, and returns its words.
    async fn refusal(&self, client: &Client, pod: &Pod) -> Result<String> {
        eventually("the pod to be refused", async || match self.try_out(client, pod).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message.clone()),
            Err(error) => Err(error.into()),
            Ok(()) => anyhow::bail!("it was admitted"),
        })
        .await
    }

    async fn until_admitted(&self, client: &Client, pod: &Pod) -> Result<()> {
        eventually("the pod to be admitted", async || self.try_out(client, pod).await).await
    }

    async fn try_out(&self, client: &Client, pod: &Pod) -> Result<(), kube::Error> {
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        self.pods(client).create(&parameters, pod).await.map(drop)
    }
}

fn pod(volumes: &[&str], account: Option<&str>) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": pod_spec(volumes, account)})).unwrap()
}

fn pod_spec(volumes: &[&str], account: Option<&str>) -> Value {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volumes: Vec<Value> = volumes
        .iter()
        .map(|name| json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}))
        .chain([json!({"name": "settings", "emptyDir": {}})])
        .collect();
    json!({
        "serviceAccountName": account,
        "containers": [{"name": "main", "image": "registry.example/main"}],
        "volumes": volumes,
    })
}

#[tokio::test]
async fn a_namespace_with_the_label_takes_no_pods_with_ephemeral_volumes() -> Result<()> {
    let scene = Scene::open("deny", "off").await?;
    let (with, without) = (pod(&["scratch", "cache"], None), pod(&[], None));
    scene.try_out(&scene.admin, &with).await?;

    scene.label(json!("deny")).await?;
    let words = scene.refusal(&scene.admin, &with).await?;
    let ns = &scene.namespace;
    let expected = format!(
        "EphemeralVolumesDenied: ephemeral volume scratch, cache: namespace {ns} does not allow generic ephemeral volumes; \
         use another kind of volume, or ask an administrator to remove the label claimkeeper.dev/ephemeral-volumes=deny \
         from the namespace"
    );
    assert!(words.ends_with(&expected), "{words}");
    scene.try_out(&scene.admin, &without).await?;
    let bare = serde_json::from_value(json!({
        "metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "image": "registry.example/main"}]}
    }))?;
    scene.try_out(&scene.admin, &bare).await?;

    scene.label(json!("anything-else")).await?;
    scene.until_admitted(&scene.admin, &with).await
}

#[tokio::test]
async fn with_authorization_the_user_or_the_service_account_must_be_allowed_to_use_ephemeral_volumes() -> Result<()> {
    let scene = Scene::open("use", "use").await?;
    let alice = scene.user("alice").await?;
    let with = pod(&["scratch"], None);
    // The rights of the user take a moment to count, too.
    scene.until_admitted(&alice, &pod(&[], None)).await?;
    let words = scene.refusal(&alice, &with).await?;
    let ns = &scene.namespace;
    let expected = format!(
        "EphemeralVolumesNotAuthorized: ephemeral volume scratch: neither alice-{ns} nor the ServiceAccount {ns}/default \
         may use generic ephemeral volumes in namespace {ns}; grant one of them the verb use on \
         ephemeralvolumes.claimkeeper.dev"
    );
    assert!(words.ends_with(&expected), "{words}");

    // The ServiceAccount of the pod is enough, whoever creates it, but only that one.
    let accounts: Api<ServiceAccount> = Api::namespaced(scene.admin.clone(), ns);
    let builder = serde_json::from_value(json!({"metadata": {"name": "builder"}}))?;
    accounts.create(&PostParams::default(), &builder).await?;
    scene.let_use(&json!({"kind": "ServiceAccount", "name": "builder", "namespace": ns})).await?;
    scene.until_admitted(&alice, &pod(&["scratch"], Some("builder"))).await?;
    scene.refusal(&alice, &with).await?;

    // And so is the user.
    let user = json!({"kind": "User", "name": format!("alice-{ns}"), "apiGroup": "rbac.authorization.k8s.io"});
    scene.let_use(&user).await?;
    scene.until_admitted(&alice, &with).await
}

#[tokio::test]
async fn pods_of_a_workload_go_by_their_service_account() -> Result<()> {
    let scene = Scene::open("workload", "use").await?;
    scene.refusal(&scene.user("alice").await?, &pod(&["scratch"], None)).await?;
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod_spec(&["scratch"], None)});
    let set = json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    });
    let sets: Api<ReplicaSet> = Api::namespaced(scene.admin.clone(), &scene.namespace);
    sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    eventually("the replica set to tell why it has no pod", async || {
        let conditions = sets.get("web").await?.status.and_then(|status| status.conditions).unwrap_or_default();
        let message = conditions.into_iter().find_map(|condition| condition.message).unwrap_or_default();
        ensure!(message.contains("EphemeralVolumesNotAuthorized"), "{message:?}");
        Ok(())
    })
    .await?;

    let account = json!({"kind": "ServiceAccount", "name": "default", "namespace": scene.namespace});
    scene.let_use(&account).await?;
    eventually("the replica set to have its pod", async || {
        let replicas = sets.get("web").await?.status.map(|status| status.replicas);
        ensure!(replicas == Some(1), "{replicas:?}");
        Ok(())
    })
    .await
}

/// Applies what `claimkeeper render policy` prints, and compares each policy and binding with the chart's of the namespace.
async fn compare_rendered(cluster: &Cluster, home: &str, config: &str, policies: &[&str]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let config = file(&directory, "ck.yaml", config);
    let rendered = Command::new(BINARY).args(["render", "policy", "--config"]).arg(config).output()?;
    ensure!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let mut kubectl = cluster.kubectl();
    let mut kubectl = kubectl.args(["apply", "-f", "-"]).stdin(Stdio::piped()).spawn()?;
    std::io::Write::write_all(&mut kubectl.stdin.take().context("no input")?, &rendered.stdout)?;
    ensure!(kubectl.wait()?.success(), "kubectl refused what was rendered");

    let client = cluster.admin().await?;
    let known: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client);
    for policy in policies {
        let (ours, charts) = (format!("{policy}.claimkeeper.dev"), format!("{policy}.claimkeeper.{home}"));
        assert_eq!(known.get(&ours).await?.spec, known.get(&charts).await?.spec);
        let binding = |name: String| {
            let bindings = bindings.clone();
            async move {
                let mut spec = bindings.get(&name).await?.spec.context("a binding without spec")?;
                assert_eq!(spec.policy_name.take(), Some(name));
                anyhow::Ok(spec)
            }
        };
        assert_eq!(binding(ours).await?, binding(charts.clone()).await?);
        let warnings = eventually("the types to be checked", async || {
            let policy = known.get(&charts).await?;
            let status = policy.status.context("nobody has looked")?;
            ensure!(status.observed_generation == policy.metadata.generation, "nobody has looked at this one");
            Ok(status.type_checking.context("nobody has checked")?.expression_warnings)
        })
        .await?;
        assert_eq!(warnings, None, "{charts}");
    }
    Ok(())
}

#[tokio::test]
async fn the_rendered_policies_are_those_of_the_chart() -> Result<()> {
    let scene = Scene::open("render", "use").await?;
    let ns = &scene.namespace;
    let config = format!("features: [ephemeral]\nnamespace: {ns}\nephemeral: {{authorize: use}}\n");
    compare_rendered(&scene.cluster, ns, &config, &["ephemeral-volumes-denied", "ephemeral-volumes-authorized"]).await
}

#[tokio::test]
async fn the_rendered_policies_of_enforcement_are_those_of_the_chart_whatever_is_configured() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (home, ns) = (cluster.create_namespace("render").await?, cluster.create_namespace("rendered").await?);
    let drivers = json!([
        {"preset": "localdisk"},
        {"preset": "topolvm", "ephemeralPools": ["nvme", ""]},
        {"name": "local.csi.openebs.io", "acceptAnnotation": "example.dev/i-know"},
        {"preset": "openebs-zfs", "poolParameter": "pool"},
        {"preset": "local-path", "name": "example.dev/local-path"},
        {"preset": "directpv"},
        {"name": "disks.example.dev", "poolParameter": "pool", "ephemeralPools": ["a"], "replicasParameter": "copies"},
    ]);
    let own = format!("system:serviceaccount:{home}:claimkeeper");
    let settings = [
        json!({}),
        json!({"action": "warn", "podOwner": "seed", "drivers": drivers, "trustedCreators": ["carol's \"own\" \\ <b>&é"]}),
        json!({"action": "audit", "drivers": []}),
    ];
    for settings in settings {
        let mut values = json!({"features": ["enforcement"], "namespace": ns, "enforcement": settings});
        values["enforcement"]["policies"] = true.into();
        cluster.install_chart("claimkeeper", &home, &values).await?;
        let mut config = json!({
            "features": ["enforcement"], "namespace": ns, "leaderElection": {"namespace": home}, "enforcement": settings,
        });
        // Only the chart knows the operator's own account.
        let kubernetes =
            ["system:serviceaccount:kube-system:ephemeral-volume-controller", "system:kube-controller-manager"];
        let trusted =
            settings["trustedCreators"].as_array().cloned().unwrap_or_else(|| kubernetes.map(Value::from).into());
        config["enforcement"]["trustedCreators"] = trusted.into_iter().chain([own.as_str().into()]).collect();
        let policies = ["namespace-labels", "claims-deny", "claims-warn", "claims-audit"];
        compare_rendered(&cluster, &home, &config.to_string(), &policies).await?;
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.admin().await?);
        let binding = serde_json::to_value(bindings.get(&format!("claims-deny.claimkeeper.{home}")).await?)?;
        let spared = &binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"];
        assert_eq!(*spared, json!([{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [home]}]));
    }
    Ok(())
}

#[tokio::test]
async fn the_api_server_keeps_the_rule_without_the_operator() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (home, ns) = (cluster.create_namespace("ruler").await?, cluster.create_namespace("ruled").await?);
    let admin = cluster.admin().await?;
    let class = json!({"metadata": {"name": ns}, "provisioner": "localdisk.csi.acstor.io"});
    Api::<StorageClass>::all(admin.clone()).create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    let values = json!({"features": ["enforcement"], "namespace": ns, "enforcement": {"policies": true}});
    cluster.install_chart("claimkeeper", &home, &values).await?;

    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "storageClassName": ns, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim)?;
    let try_out = async |namespace: &str| {
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        Api::<PersistentVolumeClaim>::namespaced(admin.clone(), namespace).create(&parameters, &claim).await
    };
    let words = eventually("the claim to be refused", async || match try_out(&ns).await {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message),
        other => anyhow::bail!("{other:?}"),
    })
    .await?;
    let expected =
        "denied request: only generic ephemeral volumes are allowed for localdisk.csi.acstor.io provisioner: class ";
    assert!(words.contains(expected), "{words}");
    // It holds where the operator looks after claims, and nowhere else.
    try_out(&home).await?;
    Ok(())
}
