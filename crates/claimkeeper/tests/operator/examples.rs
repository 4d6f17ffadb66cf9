//! The examples as they stand in their files: what a CI system makes of them gets its claim.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use regex::Regex;
use serde_json::{Value, json};
use testbed::{Cluster, eventually};

use crate::home::{Home, Replica};

const JENKINS: Example = Example("jenkins-kubernetes-plugin-with-build-cache");
const GITLAB: Example = Example("gitlab-runner-with-build-cache");

#[tokio::test(flavor = "multi_thread")]
async fn every_jenkins_build_gets_a_volume_and_the_next_one_has_it_after() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (home, _operator) = JENKINS.install(cluster, &["rbac.yaml", "storage.yaml"]).await?;
    let volumes: Api<PersistentVolume> = Api::all(home.cluster.admin().await?);
    let build = JENKINS.read("Jenkinsfile")?;
    let (first, second) = (jenkins_pod(&build)?, jenkins_pod(&build)?);
    let (first, second) = tokio::try_join!(run(&home, "build-cache", first), run(&home, "build-cache", second))?;
    let mut used = [&*first.volume, &*second.volume];
    used.sort_unstable();
    assert_eq!(used, ["build-cache-1", "build-cache-2"]);

    home.pods.delete(&first.pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    until_phase(&volumes, &first.volume, "Released").await?;
    let next = run(&home, "build-cache", jenkins_pod(&build)?).await?;
    assert_eq!(next.volume, first.volume);
    let annotations = volumes.get(&next.volume).await?.metadata.annotations.unwrap_or_default();
    let previous = annotations.get("claimkeeper.dev/previous-claim").context("nobody had it")?;
    assert!(previous.contains(&first.claim), "{previous}");
    for pod in [second.pod, next.pod] {
        home.pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_gitlab_job_gets_a_claim_of_its_own() -> Result<()> {
    let cluster = testbed::shared().await?;
    let classes: Api<StorageClass> = Api::all(cluster.admin().await?);
    // Many clusters have a class of this name; whoever uses the example puts in his own.
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "standard"},
        "provisioner": testbed::PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer",
    });
    classes.patch("standard", &PatchParams::apply("examples"), &Patch::Apply(class)).await?;
    let (home, _operator) = GITLAB.install(cluster, &["rbac.yaml"]).await?;
    let config = toml::from_str(&GITLAB.read("config.toml")?)?;
    let job = rand::random::<u32>();
    let (first, second) = (format!("build-cache-{job}"), format!("build-cache-{}", u64::from(job) + 1));
    let (first, second) = tokio::try_join!(
        run(&home, &first, gitlab_pod(&config, u64::from(job))?),
        run(&home, &second, gitlab_pod(&config, u64::from(job) + 1)?)
    )?;
    assert_ne!(first.volume, second.volume);
    for pod in [first.pod, second.pod] {
        home.pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    }
    Ok(())
}

/// The name of its directory.
struct Example(&'static str);

impl Example {
    fn file(&self, name: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "../../examples", self.0, name].iter().collect()
    }

    fn read(&self, name: &str) -> Result<String> {
        let file = self.file(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Applies the files and starts the operator with the values.
    async fn install(&self, cluster: Cluster, files: &[&str]) -> Result<(Home, Replica)> {
        for file in files {
            let mut command = cluster.kubectl();
            command.args(["apply", "-f"]).arg(self.file(file));
            let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
            ensure!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let values: Value = serde_saphyr::from_str(&self.read("values.yaml")?)?;
        let namespace = values["namespace"].as_str().context("the values name no namespace")?.to_owned();
        let home = Home::at(cluster, namespace).await?;
        // The chart's Lease has the name of its release, which is the configuration's default.
        let mut config = values.clone();
        config["leaderElection"] = json!({"name": "claimkeeper"});
        let operator = home.install("claimkeeper", &values, config).await?.start().await?;
        Ok((home, operator))
    }
}

/// A pod that runs, its claim and the claim's volume.
struct Build {
    pod: Pod,
    claim: String,
    volume: String,
}

/// Creates the pod and waits until it runs on a claim that it owns, by a volume of this name.
async fn run(home: &Home, volume: &str, pod: Value) -> Result<Build> {
    let pod: Pod = serde_json::from_value(pod)?;
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claim = volumes.filter(|found| found.name == volume).find_map(|found| found.persistent_volume_claim.as_ref());
    let claim = claim.with_context(|| format!("the pod has no claim by the name of {volume}"))?.claim_name.clone();
    let pod = home.pods.create(&PostParams::default(), &pod).await?;
    let name = pod.name_any();
    eventually(&format!("pod {name} to run"), async || {
        let status = home.pods.get(&name).await?.status.unwrap_or_default();
        ensure!(status.phase.as_deref() == Some("Running"), "{:?} {:?}", status.phase, status.conditions);
        Ok(())
    })
    .await?;
    let claim = home.claims.get(&claim).await?;
    let owners: Vec<String> = claim.owner_references().iter().map(|owner| owner.uid.clone()).collect();
    assert_eq!(owners, Vec::from_iter(pod.uid()), "the pod owns its claim");
    let name = claim.name_any();
    let volume = claim.spec.and_then(|spec| spec.volume_name).context("the claim is not bound")?;
    Ok(Build { pod, claim: name, volume })
}

async fn until_phase(volumes: &Api<PersistentVolume>, name: &str, wanted: &str) -> Result<()> {
    eventually(&format!("volume {name} to be {wanted}"), async || {
        let phase = volumes.get(name).await?.status.and_then(|status| status.phase);
        ensure!(phase.as_deref() == Some(wanted), "{phase:?}");
        Ok(())
    })
    .await
}

/// The pod that the Kubernetes plugin makes of a `podTemplate`: Groovy has put in the variable, and the plugin adds the agent.
fn jenkins_pod(jenkinsfile: &str) -> Result<Value> {
    const RANDOM: &str = "${UUID.randomUUID().toString()}";
    let random = format!("{:032x}", rand::random::<u128>());
    let claim = between(jenkinsfile, "def claim = \"", "\"\n")?.replace(RANDOM, &random);
    let yaml = between(jenkinsfile, "podTemplate(yaml: \"\"\"", "\"\"\"")?.replace("${claim}", &claim);
    ensure!(!yaml.contains(['$', '\\']), "Groovy makes something else of this: {yaml}");
    let mut pod: Value = serde_saphyr::from_str(&yaml)?;
    pod["metadata"]["name"] = json!(format!("agent-{random}"));
    let spec = &mut pod["spec"];
    spec["restartPolicy"] = json!("Never");
    spec["nodeSelector"] = json!({"kubernetes.io/os": "linux"});
    push(&mut spec["containers"], json!({"name": "jnlp", "image": "jenkins/inbound-agent"}))?;
    push(&mut spec["volumes"], json!({"name": "workspace-volume", "emptyDir": {}}))?;
    Ok(pod)
}

/// The pod that the Kubernetes executor makes for a job: it replaces variables in the names of claims and in the values of variables,
/// and those of a certain name are annotations.
fn gitlab_pod(config: &Value, job: u64) -> Result<Value> {
    let expand = |text: &str| text.replace("$CI_JOB_ID", &job.to_string());
    let runner = &config["runners"][0];
    let kubernetes = &runner["kubernetes"];
    let allowed = Regex::new(kubernetes["pod_annotations_overwrite_allowed"].as_str().context("all are forbidden")?)?;
    let mut annotations = kubernetes["pod_annotations"].as_object().cloned().unwrap_or_default();
    for variable in runner["environment"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let Some((_, pair)) =
            variable.strip_prefix("KUBERNETES_POD_ANNOTATIONS_").and_then(|rest| rest.split_once('='))
        else {
            continue;
        };
        let pair = expand(pair);
        ensure!(allowed.is_match(&pair), "the runner refuses {pair:?}");
        let (key, value) = pair.split_once('=').context("an annotation without a value")?;
        annotations.insert(key.to_owned(), json!(value));
    }
    let claims = kubernetes["volumes"]["pvc"].as_array().context("the runner mounts no claims")?;
    let name = |claim: &Value| expand(claim["name"].as_str().unwrap_or_default());
    let volume = |claim| json!({"name": name(claim), "persistentVolumeClaim": {"claimName": name(claim)}});
    let mount = |claim| json!({"name": name(claim), "mountPath": claim["mount_path"]});
    let mounts: Vec<Value> = claims.iter().map(mount).collect();
    let container = |name| json!({"name": name, "image": kubernetes["image"], "volumeMounts": mounts});
    Ok(json!({
        "metadata": {"name": format!("runner-concurrent-{job}"), "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": kubernetes["service_account"],
            "containers": [container("build"), container("helper")],
            "volumes": claims.iter().map(volume).collect::<Vec<_>>(),
        },
    }))
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Result<&'a str> {
    let found = text.split_once(start).and_then(|(_, rest)| rest.split_once(end));
    found.map(|(found, _)| found).with_context(|| format!("nothing between {start:?} and {end:?}"))
}

fn push(list: &mut Value, item: Value) -> Result<()> {
    list.as_array_mut().context("no list")?.push(item);
    Ok(())
}
