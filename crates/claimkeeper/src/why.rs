//! `claimkeeper why`: which checks passed, which one decided, and what to do.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use anyhow::{Context, bail};
use cluster::{ObjectKey, Pod, decision::Account, store::Slim};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as FullPod};
use kube::{Api, Client, api::ListParams};
use platform::{
    client::{self, ClientOptions, Fence, FencedClient},
    metrics::Registry,
    trouble::causes,
};

use shared_volumes::{StorageOs, source::Source};

use crate::config::{Config, Feature};

#[derive(clap::Args)]
pub(crate) struct WhyArguments {
    /// What to explain: pod/NAME, pvc/NAME, pv/NAME or node/NAME
    #[arg(value_name = "KIND/NAME", required_unless_present = "file")]
    object: Option<Object>,
    /// Its namespace; that of the kubeconfig's context if absent
    #[arg(short, long)]
    namespace: Option<String>,
    /// Explains a pod or a claim that does not exist yet, from its manifest
    #[arg(short, long, value_name = "FILE", conflicts_with = "object")]
    file: Option<PathBuf>,
    /// The configuration of the operator, where it differs from the defaults
    #[arg(long, value_name = "FILE", env = "CLAIMKEEPER_CONFIG")]
    config: Option<PathBuf>,
    /// How to tell it
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Which cluster; found as for `run` if absent
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

/// What somebody asks about.
#[derive(Clone)]
enum Object {
    Pod(String),
    Claim(String),
    Volume(String),
    Node(String),
}

impl FromStr for Object {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((_, "")) | None => Err("it must be written as KIND/NAME, such as pod/web".to_owned()),
            Some(("pod" | "pods" | "po", name)) => Ok(Self::Pod(name.to_owned())),
            Some(("pvc" | "claim" | "persistentvolumeclaim" | "persistentvolumeclaims", name)) => {
                Ok(Self::Claim(name.to_owned()))
            }
            Some(("pv" | "volume" | "persistentvolume" | "persistentvolumes", name)) => {
                Ok(Self::Volume(name.to_owned()))
            }
            Some(("node" | "nodes" | "no", name)) => Ok(Self::Node(name.to_owned())),
            Some((kind, _)) => Err(format!("nothing is decided about a `{kind}`; known: pod, pvc, pv, node")),
        }
    }
}

/// Asks the cluster and prints.
pub(crate) fn run(arguments: &WhyArguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let accounts = runtime.block_on(explain(arguments))?;
    if arguments.output == Output::Json {
        println!("{}", serde_json::to_string_pretty(&accounts)?);
    } else if accounts.is_empty() {
        println!("No feature has anything to decide about it.");
    } else {
        let texts: Vec<String> = accounts.iter().map(text).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(())
}

/// What is told: about the features that the configuration names, or about all of them if it names none.
async fn explain(arguments: &WhyArguments) -> anyhow::Result<Vec<Account>> {
    let configuration = arguments.config.as_deref().map(Config::load).transpose()?.unwrap_or_default();
    let mut accounts = explain_all(arguments, &configuration).await?;
    let named: Vec<&str> = configuration.features.iter().map(|feature| feature.name()).collect();
    accounts.retain(|account| named.is_empty() || named.contains(&account.feature));
    Ok(accounts)
}

async fn explain_all(arguments: &WhyArguments, configuration: &Config) -> anyhow::Result<Vec<Account>> {
    let config = client::load_config(arguments.kubeconfig.as_deref())?;
    let namespace = arguments.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let options = ClientOptions::new(&Registry::default());
    let client = client::build(config.clone(), options.clone())?;
    // Nobody opens the fence: whoever asks why changes nothing.
    let reader = FencedClient::build(config, options, &Fence::new())?;
    if let Some(Object::Volume(name)) = &arguments.object {
        return volume(&client, configuration, name).await;
    }
    if let Some(Object::Node(name)) = &arguments.object {
        let settings = configuration.placement_settings();
        let told = placement::gone::why::explain_node(&client, &settings, name).await;
        return told.map_err(|error| unanswered(&error));
    }
    let mut steered = None;
    let pods = match (&arguments.object, &arguments.file) {
        (Some(Object::Pod(name)), _) => {
            let (pod, json) = live_pod(&client, &namespace, name).await?;
            steered = Some(json);
            vec![pod]
        }
        (Some(Object::Claim(name)), _) => pods_of_claim(&client, &namespace, name).await?,
        (None, Some(file)) => match manifest(file, &namespace)? {
            Manifest::Pod { pod, json } => {
                steered = Some(json);
                vec![pod]
            }
            Manifest::Claim { namespace, json } => {
                return Ok(vec![enforcement(&client, configuration, &namespace, &json).await?]);
            }
        },
        (Some(Object::Volume(_) | Object::Node(_)), _) | (None, None) => Vec::new(),
    };
    let mut accounts = Vec::new();
    for pod in pods {
        let pod = Arc::new(pod);
        let told = ephemeral::why::explain(&client, &pod).await;
        accounts.extend(told.map_err(|error| unanswered(&error))?);
        if let Some(settings) = configuration.ephemeral.reclaim() {
            let told = ephemeral::why::explain_reclaim(reader.clone(), settings, &pod).await;
            accounts.extend(told.map_err(|error| unanswered(&error))?);
        }
        let told = provisioner::why::explain(&client, &configuration.provisioner.settings(), &pod).await;
        accounts.extend(told.map_err(|error| unanswered(&error))?);
        if let Some(json) = &steered {
            let told = placement::why::explain(&client, &configuration.placement, pod.key.namespace(), json).await;
            accounts.extend(told.map_err(|error| unanswered(&error))?);
        }
        if let Some(Object::Pod(_)) = &arguments.object {
            let told = placement::why::explain_wait(&client, &configuration.placement, &pod.key).await;
            accounts.extend(told.map_err(|error| unanswered(&error))?);
        }
    }
    if let Some(Object::Claim(name)) = &arguments.object {
        let claim = format!("claim {namespace}/{name} ");
        accounts.retain(|account| account.about.contains(&claim));
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let found = claims.get_opt(name).await.map_err(|error| unanswered(&error))?;
        if let Some(found) = found {
            accounts.push(enforcement(&client, configuration, &namespace, &serde_json::to_string(&found)?).await?);
            accounts.extend(shared_volumes(&client, configuration, &ObjectKey::new(&namespace, name)).await?);
        }
    }
    Ok(accounts)
}

async fn volume(client: &Client, config: &Config, name: &str) -> anyhow::Result<Vec<Account>> {
    let settings = config.releaser.settings(config.namespace.as_deref());
    let told = releaser::why::explain(client, &settings, name).await.map_err(|error| unanswered(&error))?;
    let told = told.with_context(|| format!("there is no volume {name}"))?;
    let settings = config.placement_settings();
    let placed = async {
        let placed = placement::explain::volume(client, &settings, name).await?;
        kube::Result::Ok(placed.into_iter().chain(placement::gone::why::explain(client, &settings, name).await?))
    };
    // Where nobody says that it runs, neither what it leaves alone is worth a word, nor what may not be asked.
    let runs = config.features.contains(&Feature::Placement);
    let placed: Vec<Account> = match placed.await {
        Ok(accounts) => accounts.filter(|account| runs || account.decision != "leave").collect(),
        Err(kube::Error::Api(status)) if status.is_forbidden() && !runs => Vec::new(),
        Err(error) => return Err(unanswered(&error)),
    };
    Ok([told].into_iter().chain(placed).collect())
}

async fn enforcement(client: &Client, config: &Config, namespace: &str, claim: &str) -> anyhow::Result<Account> {
    let told = enforcement::why::explain(client, &config.enforcement, namespace, claim).await;
    told.map_err(|error| unanswered(&error))
}

/// The source is asked by who has its credentials.
async fn shared_volumes(client: &Client, config: &Config, claim: &ObjectKey) -> anyhow::Result<Vec<Account>> {
    let settings = config.shared_volumes.settings(config.namespace.as_deref());
    let storageos = config.shared_volumes.storageos();
    let known = storageos.secret_path.join("username").exists();
    let source = known.then(|| StorageOs::new(storageos, &Registry::default())).transpose();
    let source = source.map_err(|why| anyhow::anyhow!("sharedVolumes.storageos: {why}"))?;
    let source = source.as_ref().map(|source| source as &dyn Source);
    shared_volumes::why::explain(client, &settings, source, claim).await.map_err(|error| unanswered(&error))
}

/// The pod, and what it was made from, as far as that can be told.
async fn live_pod(client: &Client, namespace: &str, name: &str) -> anyhow::Result<(Pod, String)> {
    let pods: Api<FullPod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get_opt(name).await.map_err(|error| unanswered(&error))?;
    let mut json = serde_json::to_value(pod.with_context(|| missing(namespace, name))?)?;
    let pod = Pod::from_wire(serde_json::from_value(json.clone())?).with_context(|| missing(namespace, name))?;
    // It was the scheduler that wrote this; whoever asks wants to know why it did.
    json["spec"]["nodeName"] = serde_json::Value::Null;
    Ok((pod, json.to_string()))
}

fn missing(namespace: &str, pod: &str) -> String {
    format!("there is no pod {pod} in namespace {namespace}")
}

async fn pods_of_claim(client: &Client, namespace: &str, claim: &str) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<<Pod as Slim>::Wire> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await.map_err(|error| unanswered(&error))?;
    let pods = pods.items.into_iter().filter_map(Pod::from_wire);
    let concerned = |pod: &Pod| {
        pod.used_claims.iter().any(|used| **used == *claim)
            || pod.ephemeral_volumes.iter().any(|volume| pod.claim_key(volume).name() == claim)
    };
    Ok(pods.filter(concerned).collect())
}

/// What would be created now.
enum Manifest {
    Pod { pod: Pod, json: String },
    Claim { namespace: String, json: String },
}

fn manifest(file: &Path, namespace: &str) -> anyhow::Result<Manifest> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("{name} cannot be read"))?;
    let mut manifest: serde_json::Value =
        serde_saphyr::from_str(&text).map_err(|error| anyhow::anyhow!("{name} is not one YAML document: {error}"))?;
    let kind = manifest["kind"].as_str().filter(|_| manifest["apiVersion"] == "v1").unwrap_or_default().to_owned();
    let metadata = &mut manifest["metadata"];
    if metadata["namespace"].is_null() {
        metadata["namespace"] = namespace.into();
    }
    match kind.as_str() {
        "Pod" => {
            // No object has this uid, and none was created at this time: nothing that exists belongs to this pod.
            metadata["uid"] = "not-created-yet".into();
            metadata["creationTimestamp"] = serde_json::to_value(jiff::Timestamp::now())?;
            let json = manifest.to_string();
            let wire = serde_json::from_value(manifest).with_context(|| format!("{name} is not a valid Pod"))?;
            let pod = Pod::from_wire(wire).with_context(|| format!("{name} has no metadata.name"))?;
            Ok(Manifest::Pod { pod, json })
        }
        "PersistentVolumeClaim" => {
            let namespace = metadata["namespace"].as_str().unwrap_or(namespace).to_owned();
            Ok(Manifest::Claim { namespace, json: manifest.to_string() })
        }
        _ => bail!("{name} is not the manifest of a Pod or a PersistentVolumeClaim (apiVersion v1)"),
    }
}

pub(crate) fn unanswered(error: &kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("the API server refuses to tell: {}", status.message),
        error => anyhow::anyhow!("the API server cannot be asked: {}", causes(error)),
    }
}

fn text(account: &Account) -> String {
    let Account { feature, about, decision, reason, message, held, failed, not_reached } = account;
    let checks = held.iter().map(|fact| ("yes", fact)).chain(failed.iter().map(|fact| ("NO ", fact)));
    let checks = checks.chain(not_reached.iter().map(|fact| ("-  ", fact)));
    let head = format!("{feature}: {about}\n  {decision}, {reason}: {message}\n");
    checks.fold(head, |text, (answer, fact)| text + "    " + answer + " " + fact + "\n")
}
