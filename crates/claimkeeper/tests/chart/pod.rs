//! A replica as the rendered Deployment describes it, run as a process: its arguments, environment, files and account, and nothing
//! else. What kubelet does is done here: files are put where the volumes say, below a directory of our own, and the address of the
//! API server comes with the account's token.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use testbed::{Cluster, Leash};

use crate::{
    documents::Documents,
    home::{BINARY, Replica},
};

/// Who put what into the Secrets that the user makes, by name.
pub(crate) type Secrets = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// A replica, and its files.
pub(crate) struct PodOfChart {
    pub(crate) replica: Replica,
    _files: TempDir,
}

/// Starts a replica of this Deployment.
pub(crate) async fn start(
    cluster: &Cluster,
    namespace: &str,
    documents: &Documents,
    deployment: &str,
    secrets: &Secrets,
) -> Result<PodOfChart> {
    let found = documents.get("Deployment", deployment).with_context(|| format!("no Deployment {deployment}"))?;
    let spec = &found["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let files = tempfile::tempdir()?;
    let mounts = list(&container["volumeMounts"]);
    let paths: Vec<&str> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
    let mapped = |text: &str| {
        let root = files.path().display();
        paths.iter().fold(text.to_owned(), |text, path| text.replace(path, &format!("{root}{path}")))
    };
    for mount in mounts {
        let volume = list(&spec["volumes"]).iter().find(|volume| volume["name"] == mount["name"]);
        let content = content(volume.context("a mount without a volume")?, documents, secrets)?;
        let path = mount["mountPath"].as_str().context("a mount without a path")?;
        let directory = files.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(&directory)?;
        for (name, bytes) in content {
            let bytes = String::from_utf8(bytes.clone()).map_or(bytes, |text| mapped(&text).into_bytes());
            fs::write(directory.join(name), bytes)?;
        }
    }

    let account = spec["serviceAccountName"].as_str().context("no account")?;
    // The account's name has colons, which would make a list of the path.
    let kubeconfig = files.path().join("kubeconfig");
    fs::copy(cluster.service_account_kubeconfig(namespace, account).await?, &kubeconfig)?;
    let mut line = vec!["-i".to_owned(), format!("KUBECONFIG={}", kubeconfig.display())];
    for variable in list(&container["env"]) {
        let [name, value] = ["name", "value"].map(|key| variable[key].as_str().unwrap_or_default());
        line.push(format!("{name}={value}"));
    }
    line.push(BINARY.to_owned());
    line.extend(list(&container["args"]).iter().filter_map(Value::as_str).map(mapped));
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let name = format!("{namespace}-{deployment}");
    let leash = Leash::start(cluster.directory(), &name, Path::new("/usr/bin/env"), &line).await?;
    let user = format!("system:serviceaccount:{namespace}:{account}");
    Ok(PodOfChart { replica: Replica::started(leash, user).await?, _files: files })
}

/// The files of a volume.
fn content(volume: &Value, documents: &Documents, secrets: &Secrets) -> Result<BTreeMap<String, Vec<u8>>> {
    if let Some(name) = volume["configMap"]["name"].as_str() {
        let map = documents.get("ConfigMap", name).with_context(|| format!("no ConfigMap {name}"))?;
        let data = map["data"].as_object().into_iter().flatten();
        return Ok(data.map(|(key, text)| (key.clone(), text.as_str().unwrap_or_default().into())).collect());
    }
    let name = volume["secret"]["secretName"].as_str().with_context(|| format!("what is {volume}?"))?;
    ensure!(documents.get("Secret", name).is_none(), "the chart must not know the secret {name}");
    secrets.get(name).cloned().with_context(|| format!("nobody made the secret {name}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
