//! Which rights the programs under test have used, over a whole test run, beside those that the chart grants.
//!
//! Whoever installs the chart makes accounts, and these are noted with what the chart grants them. When a control plane ends, what
//! its accounts have asked of it is written to the directory that [`RIGHTS_VARIABLE`] names. Who started the run reads it there and
//! compares.
//!
//! A refusal alone says little: releases are uninstalled while their programs still run, tests take rights away, and an API server
//! that has just started does not know the roles yet. So a right is missing only if what was refused is granted by no role that the
//! chart made for the account, name and namespace included. That does not depend on time.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{AuditedObject, AuditedRequest, Binaries, Cluster};

/// Names the directory to which control planes write what was asked of them.
pub const RIGHTS_VARIABLE: &str = "CLAIMKEEPER_RIGHTS";

const ACCOUNTS: &str = "accounts";
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/claimkeeper");
const FEATURES: [&str; 6] = ["ephemeral", "provisioner", "releaser", "enforcement", "placement", "shared-volumes"];
/// Kubernetes itself lets every account ask who it is.
const EVERYBODYS: &str = "selfsubjectreviews";
/// The role of replicas that only answer, whose account has no other.
const WEBHOOK: &str = "webhook";

/// Something that can be granted, or asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Right {
    /// Empty for the core group.
    pub group: String,
    /// The plural, with the subresource behind a slash.
    pub resource: String,
    /// What is done with it.
    pub verb: String,
}

/// What an account has asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Asked {
    /// The features for which the account was made.
    pub features: Vec<String>,
    /// What it asked for.
    pub right: Right,
    /// The path, if it was told that it may not, and the chart grants it nowhere.
    pub missing: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct Account {
    user: String,
    features: Vec<String>,
    granted: Vec<Grant>,
}

/// A right, and to what it is limited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Grant {
    right: Right,
    /// All if there are none.
    names: Vec<String>,
    /// All, and what is in none, if there is none.
    namespace: Option<String>,
}

impl Grant {
    fn covers(&self, right: &Right, object: &AuditedObject) -> bool {
        // These are the same objects in two groups, and who is refused the newer one tries the older one.
        let is_event = self.right.group == "events.k8s.io" && right.resource == "events" && right.group.is_empty();
        let same = self.right.resource == right.resource && self.right.verb == right.verb;
        same && (is_event || self.right.group == right.group)
            && (self.names.is_empty() || self.names.contains(&object.name))
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == object.namespace)
    }
}

impl Cluster {
    /// Says that a test has a program ask for what its account may not: refusals of this right are no defect of the chart.
    pub fn expect_refusals(&self, user: &str, (group, resource, verb): (&str, &str, &str)) -> Result<()> {
        let right = Right { group: group.to_owned(), resource: resource.to_owned(), verb: verb.to_owned() };
        let granted = vec![Grant { right, names: Vec::new(), namespace: None }];
        note(self.directory(), &Account { user: user.to_owned(), granted, ..Account::default() })
    }
}

/// Notes the accounts of a release.
pub(crate) fn note_accounts(directory: &Path, namespace: &str, documents: &[Value]) -> Result<()> {
    let config = documents.iter().find_map(|document| document["data"]["config.yaml"].as_str());
    let config: Value = serde_saphyr::from_str(config.context("the chart has no configuration")?)?;
    for document in documents.iter().filter(|document| document["kind"] == "ServiceAccount") {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let features = if name.ends_with("-webhook") { json!([WEBHOOK]) } else { config["features"].clone() };
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let features = serde_json::from_value(features).context("the chart names no features")?;
        note(directory, &Account { user, features, granted: granted_to(name, documents) })?;
    }
    Ok(())
}

fn note(directory: &Path, account: &Account) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(directory.join(ACCOUNTS))?;
    // One write, since other processes note theirs.
    Ok(file.write_all(format!("{}\n", serde_json::to_string(account)?).as_bytes())?)
}

/// What the roles grant that are bound to this account.
fn granted_to(account: &str, documents: &[Value]) -> Vec<Grant> {
    let of = |kind: &'static str| documents.iter().filter(move |document| document["kind"] == kind);
    let mut granted = Vec::new();
    for binding in of("RoleBinding").chain(of("ClusterRoleBinding")) {
        let mut subjects = binding["subjects"].as_array().into_iter().flatten();
        if !subjects.any(|subject| subject["name"] == account) {
            continue;
        }
        let namespace = binding["metadata"]["namespace"].as_str();
        let is_its = |role: &&Value| {
            role["kind"] == binding["roleRef"]["kind"]
                && role["metadata"]["name"] == binding["roleRef"]["name"]
                && (role["kind"] == "ClusterRole" || role["metadata"]["namespace"].as_str() == namespace)
        };
        let rules = documents.iter().filter(is_its).filter_map(|role| role["rules"].as_array()).flatten();
        for rule in rules {
            let (names, namespace) = (words(&rule["resourceNames"]), namespace.map(str::to_owned));
            let grant = |right| Grant { right, names: names.clone(), namespace: namespace.clone() };
            granted.extend(rights_of(rule).into_iter().map(grant));
        }
    }
    granted
}

/// What is done at the end of a control plane: it is written to where the environment says, if it does.
pub(crate) fn collect_at_end(directory: &Path) -> Result<()> {
    match env::var_os(RIGHTS_VARIABLE) {
        Some(into) => collect(directory, Path::new(&into)),
        None => Ok(()),
    }
}

/// Writes what the accounts of the control plane with this directory have asked of it into another directory.
pub fn collect(directory: &Path, into: &Path) -> Result<()> {
    let Ok(accounts) = fs::read_to_string(directory.join(ACCOUNTS)) else { return Ok(()) };
    // An account that was installed again, with other features, is that of all of them.
    let mut known: BTreeMap<String, (BTreeSet<String>, Vec<Grant>)> = BTreeMap::new();
    for line in accounts.lines() {
        let account: Account = serde_json::from_str(line)?;
        let (features, granted) = known.entry(account.user).or_default();
        features.extend(account.features);
        for grant in account.granted {
            if !granted.contains(&grant) {
                granted.push(grant);
            }
        }
    }
    let mut asked: BTreeMap<Asked, usize> = BTreeMap::new();
    for line in BufReader::new(File::open(directory.join("audit.log"))?).lines() {
        let Ok(request) = serde_json::from_str::<AuditedRequest>(&line?) else { continue };
        let Some((features, granted)) = known.get(&request.user.username) else { continue };
        if let Some(found) = asked_for(&request, features, granted) {
            *asked.entry(found).or_default() += 1;
        }
    }
    let name = format!("{:016x}.json", rand::random::<u64>());
    fs::write(into.join(name), serde_json::to_vec(&asked.iter().collect::<Vec<_>>())?)?;
    Ok(())
}

/// What a request says about rights; nothing if it was refused what the chart grants.
fn asked_for(request: &AuditedRequest, features: &BTreeSet<String>, granted: &[Grant]) -> Option<Asked> {
    let object = request.object_ref.as_ref()?;
    let resource = match object.subresource.as_str() {
        "" => object.resource.clone(),
        subresource => format!("{}/{subresource}", object.resource),
    };
    let right = Right { group: object.api_group.clone(), resource, verb: request.verb.clone() };
    // Other things than missing rights are answered with 403, too.
    let refused = request.annotations.get("authorization.k8s.io/decision").is_some_and(|decision| decision == "forbid");
    let is_granted = granted.iter().any(|grant| grant.covers(&right, object)) || right.resource == EVERYBODYS;
    if refused && is_granted {
        return None;
    }
    let missing = refused.then(|| request.request_uri.clone());
    Some(Asked { features: features.iter().cloned().collect(), right, missing })
}

/// What was written to a directory, and how often it was asked.
pub fn asked(directory: &Path) -> Result<BTreeMap<Asked, usize>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let written: Vec<(Asked, usize)> = serde_json::from_slice(&fs::read(entry?.path())?)?;
        for (asked, times) in written {
            *all.entry(asked).or_default() += times;
        }
    }
    Ok(all)
}

/// What the chart grants, by role: those of the features, and those that all of them have.
pub fn granted() -> Result<BTreeMap<String, BTreeSet<Right>>> {
    // Everything that widens a feature's rights.
    let values = json!({
        "features": FEATURES, "split": true, "ephemeral": {"reclaimCompleted": "delete"}, "releaser": {"scrub": true},
        "placement": {"deletes": true},
    });
    let helm = Binaries::get()?.helm();
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), values.to_string())?;
    let mut command = Command::new(&helm);
    command.args(["template", "keeper", CHART, "--namespace=home", "--values"]).arg(file.path());
    let output = command.output().with_context(|| format!("cannot run {}", helm.display()))?;
    ensure!(output.status.success(), "the chart cannot be rendered: {}", String::from_utf8_lossy(&output.stderr));
    let documents = serde_saphyr::from_multiple::<Value>(&String::from_utf8(output.stdout)?)?;
    let roles = documents.iter().filter(|found| found["kind"] == "Role" || found["kind"] == "ClusterRole");
    let mut granted: BTreeMap<String, BTreeSet<Right>> = BTreeMap::new();
    for role in roles {
        let name = role["metadata"]["name"].as_str().unwrap_or_default();
        let name = name.trim_start_matches("home:").trim_start_matches("keeper").trim_start_matches([':', '-']);
        for rule in role["rules"].as_array().into_iter().flatten() {
            granted.entry(name.to_owned()).or_default().extend(rights_of(rule));
        }
    }
    Ok(granted)
}

fn rights_of(rule: &Value) -> Vec<Right> {
    let (groups, resources, verbs) = (words(&rule["apiGroups"]), words(&rule["resources"]), words(&rule["verbs"]));
    let mut rights = Vec::new();
    for group in &groups {
        for resource in &resources {
            let right = |verb: &String| Right { group: group.clone(), resource: resource.clone(), verb: verb.clone() };
            rights.extend(verbs.iter().map(right));
        }
    }
    rights
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The rights with their roles, and how often they were used. Roles of features that did not run are passed over, and an account
/// with several features uses the right of a feature only if it has it from no other.
#[must_use]
pub fn uses(
    granted: &BTreeMap<String, BTreeSet<Right>>,
    asked: &BTreeMap<Asked, usize>,
) -> Vec<(String, Right, usize)> {
    let grants = |role: &str, right: &Right| granted.get(role).is_some_and(|rights| rights.contains(right));
    let mut uses = Vec::new();
    for (role, rights) in granted {
        // Scrubbing is the releaser's; certificates, events and the Lease are everybody's.
        let feature = if role == "scrub" { "releaser" } else { role.as_str() };
        let is_everybodys = feature != WEBHOOK && !FEATURES.contains(&feature);
        let its = |asked: &Asked| is_everybodys || asked.features.iter().any(|name| name == feature);
        if !asked.keys().any(its) {
            continue;
        }
        for right in rights {
            let by = |asked: &Asked| {
                let mut others = asked.features.iter().filter(|name| **name != feature);
                asked.right == *right
                    && asked.missing.is_none()
                    && its(asked)
                    && (is_everybodys || !others.any(|other| grants(other, right)))
            };
            let times = asked.iter().filter(|(asked, _)| by(asked)).map(|(_, times)| times).sum();
            uses.push((role.clone(), right.clone(), times));
        }
    }
    uses
}

#[cfg(test)]
mod tests;
