//! Which rights the programs under test have used, over a whole test run, beside those that the chart grants.
//!
//! Whoever installs the chart makes accounts, and these are noted. When a control plane ends, what its accounts have asked of it is
//! written to the directory that [`RIGHTS_VARIABLE`] names. Who started the run reads it there and compares.

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

use crate::{AuditedRequest, Binaries};

/// Names the directory to which control planes write what was asked of them.
pub const RIGHTS_VARIABLE: &str = "CLAIMKEEPER_RIGHTS";

const ACCOUNTS: &str = "accounts";
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/claimkeeper");
const FEATURES: [&str; 6] = ["ephemeral", "provisioner", "releaser", "enforcement", "placement", "shared-volumes"];
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
    /// Whether it was told that it may not.
    pub denied: bool,
}

#[derive(Serialize, Deserialize)]
struct Account {
    user: String,
    features: Vec<String>,
}

/// Notes the accounts of a release.
pub(crate) fn note_accounts(directory: &Path, namespace: &str, documents: &[Value]) -> Result<()> {
    let config = documents.iter().find_map(|document| document["data"]["config.yaml"].as_str());
    let config: Value = serde_saphyr::from_str(config.context("the chart has no configuration")?)?;
    let mut file = OpenOptions::new().create(true).append(true).open(directory.join(ACCOUNTS))?;
    for document in documents.iter().filter(|document| document["kind"] == "ServiceAccount") {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let features = if name.ends_with("-webhook") { json!([WEBHOOK]) } else { config["features"].clone() };
        let account = json!({"user": format!("system:serviceaccount:{namespace}:{name}"), "features": features});
        // One write, since other processes note theirs.
        file.write_all(format!("{account}\n").as_bytes())?;
    }
    Ok(())
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
    let mut features: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in accounts.lines() {
        let account: Account = serde_json::from_str(line)?;
        features.entry(account.user).or_default().extend(account.features);
    }
    let mut asked = BTreeSet::new();
    for line in BufReader::new(File::open(directory.join("audit.log"))?).lines() {
        let Ok(request) = serde_json::from_str::<AuditedRequest>(&line?) else { continue };
        let Some(features) = features.get(&request.user.username) else { continue };
        asked.extend(asked_for(&request, features));
    }
    let name = format!("{:016x}.json", rand::random::<u64>());
    fs::write(into.join(name), serde_json::to_vec(&asked)?)?;
    Ok(())
}

fn asked_for(request: &AuditedRequest, features: &BTreeSet<String>) -> Option<Asked> {
    let object = request.object_ref.as_ref()?;
    let resource = match object.subresource.as_str() {
        "" => object.resource.clone(),
        subresource => format!("{}/{subresource}", object.resource),
    };
    let right = Right { group: object.api_group.clone(), resource, verb: request.verb.clone() };
    // Other things than missing rights are answered with 403, too.
    let denied = request.annotations.get("authorization.k8s.io/decision").is_some_and(|decision| decision == "forbid");
    Some(Asked { features: features.iter().cloned().collect(), right, denied })
}

/// What was written to a directory.
pub fn asked(directory: &Path) -> Result<BTreeSet<Asked>> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let written: BTreeSet<Asked> = serde_json::from_slice(&fs::read(entry?.path())?)?;
        all.extend(written);
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
    let words = |key: &str| {
        let words = rule[key].as_array().into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let (groups, resources, verbs) = (words("apiGroups"), words("resources"), words("verbs"));
    let mut rights = Vec::new();
    for group in &groups {
        for resource in &resources {
            let right = |verb: &String| Right { group: group.clone(), resource: resource.clone(), verb: verb.clone() };
            rights.extend(verbs.iter().map(right));
        }
    }
    rights
}

/// The rights, with their roles, that nobody has used. Roles of features that did not run are passed over, and an account with
/// several features uses the right of a feature only if it has it from no other.
#[must_use]
pub fn unused(granted: &BTreeMap<String, BTreeSet<Right>>, asked: &BTreeSet<Asked>) -> Vec<(String, Right)> {
    let grants = |role: &str, right: &Right| granted.get(role).is_some_and(|rights| rights.contains(right));
    let mut unused = Vec::new();
    for (role, rights) in granted {
        // Scrubbing is the releaser's; certificates, events and the Lease are everybody's.
        let feature = if role == "scrub" { "releaser" } else { role.as_str() };
        let is_everybodys = feature != WEBHOOK && !FEATURES.contains(&feature);
        let its = |asked: &&Asked| is_everybodys || asked.features.iter().any(|name| name == feature);
        if !asked.iter().any(|asked| its(&asked)) {
            continue;
        }
        for right in rights {
            let by = |asked: &Asked| {
                let others = asked.features.iter().filter(|name| **name != feature);
                asked.right == *right
                    && !asked.denied
                    && its(&asked)
                    && (is_everybodys || !others.into_iter().any(|other| grants(other, right)))
            };
            if !asked.iter().any(by) {
                unused.push((role.clone(), right.clone()));
            }
        }
    }
    unused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(resource: &str, verb: &str) -> Right {
        Right { group: String::new(), resource: resource.to_owned(), verb: verb.to_owned() }
    }

    fn by(features: &[&str], right: Right) -> Asked {
        Asked { features: features.iter().map(|name| (*name).to_owned()).collect(), right, denied: false }
    }

    #[test]
    fn a_right_counts_as_used_only_if_it_is_clear_which_feature_used_it() {
        let granted = BTreeMap::from([
            ("ephemeral".to_owned(), BTreeSet::from([right("pods", "list"), right("pods", "watch")])),
            ("placement".to_owned(), BTreeSet::from([right("pods", "list"), right("nodes", "list")])),
            ("events".to_owned(), BTreeSet::from([right("events", "create")])),
            ("releaser".to_owned(), BTreeSet::from([right("pods", "delete")])),
        ]);
        let both = ["ephemeral", "placement"];
        let mut asked = BTreeSet::from([
            by(&both, right("pods", "list")),
            by(&both, right("nodes", "list")),
            by(&["ephemeral"], right("events", "create")),
        ]);
        let left = |asked: &BTreeSet<Asked>| unused(&granted, asked);
        let (of_ephemeral, of_placement) = ("ephemeral".to_owned(), "placement".to_owned());
        assert_eq!(
            left(&asked),
            [
                (of_ephemeral.clone(), right("pods", "list")),
                (of_ephemeral.clone(), right("pods", "watch")),
                (of_placement, right("pods", "list"))
            ]
        );
        asked.insert(by(&["placement"], right("pods", "list")));
        asked.insert(by(&["ephemeral"], right("pods", "list")));
        asked.insert(Asked { denied: true, ..by(&["ephemeral"], right("pods", "watch")) });
        assert_eq!(left(&asked), [(of_ephemeral, right("pods", "watch"))]);
    }

    #[test]
    fn the_rights_of_every_feature_are_known() -> Result<()> {
        let granted = granted()?;
        let roles: Vec<&str> = granted.keys().map(String::as_str).collect();
        let everybodys = ["certificates", "events", "leader", "scrub", WEBHOOK];
        let mut expected: Vec<&str> = FEATURES.into_iter().chain(everybodys).collect();
        expected.sort_unstable();
        assert_eq!(roles, expected);
        Ok(())
    }
}
