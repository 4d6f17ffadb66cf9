//! The bill of materials, in the format of `CycloneDX`: what those need who ask whether a new weakness concerns us.
//!
//! Cargo's own tree tells which packages are in the program, and which only helped to build or test it: those that generate code while
//! it is compiled, those of other systems and those of features that are off are not in it. `Cargo.lock` has their checksums.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{LICENSE, REPOSITORY, VERSION, debian, read, sha256};
use crate::build::{self, cargo};

/// What cargo is asked to tell of a package.
const FORMAT: &str = "{p}\t{l}\t{r}";
const SEEN_BEFORE: &str = " (*)";

/// A package in the program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    license: String,
    repository: String,
    /// One of ours, which no registry has.
    is_ours: bool,
}

impl Package {
    fn reference(&self) -> String {
        let Self { name, version, is_ours, .. } = self;
        if *is_ours { format!("{name}@{version}") } else { format!("pkg:cargo/{name}@{version}") }
    }
}

/// Which packages are in the program, and which of them needs which others.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tree {
    needs: BTreeMap<Package, BTreeSet<Package>>,
}

/// The bill of the image of this program with these libraries.
pub(super) fn bill(program: &Path, libraries: &[debian::Package]) -> Result<Value> {
    let tree = Tree::of_program()?;
    let checksums = Checksums::read()?;
    let hash = sha256(&read(program)?);
    let root = tree.needs.keys().find(|package| package.name == "claimkeeper");
    let root = root.context("cargo's tree has no claimkeeper")?;
    let mut components: Vec<Value> = Vec::new();
    for package in tree.needs.keys().filter(|package| *package != root) {
        components.push(component(package, &checksums)?);
    }
    components.push(standard_library()?);
    components.extend(libraries.iter().map(library));
    let dependencies = tree.needs.iter().map(|(package, needed)| {
        json!({ "ref": package.reference(), "dependsOn": needed.iter().map(Package::reference).collect::<Vec<_>>() })
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": serial_number(&hash),
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root.reference(),
                "name": "claimkeeper",
                "version": VERSION,
                "licenses": [{ "license": { "id": LICENSE } }],
                "hashes": [{ "alg": "SHA-256", "content": hash }],
                "externalReferences": [{ "type": "vcs", "url": REPOSITORY }],
            },
        },
        "components": components,
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

/// The format wants a number of its own for every bill, and we want the same bill for the same program.
fn serial_number(hash: &str) -> String {
    let part = |from: usize, to: usize| hash.get(from..to).unwrap_or_default();
    // The digits that say which kind of UUID it is: version 8, which means that only we know how it was made.
    format!("urn:uuid:{}-{}-8{}-8{}-{}", part(0, 8), part(8, 12), part(12, 15), part(15, 18), part(18, 30))
}

fn component(package: &Package, checksums: &Checksums) -> Result<Value> {
    let Package { name, version, license, repository, is_ours } = package;
    let mut component = json!({ "type": "library", "bom-ref": package.reference(), "name": name, "version": version });
    if !license.is_empty() {
        // How alternatives were written before there was a standard for it.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if !repository.is_empty() {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    if !is_ours {
        let checksum = checksums.of(name, version);
        let checksum = checksum.with_context(|| format!("Cargo.lock has no checksum of {name} {version}"))?;
        component["purl"] = json!(package.reference());
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    Ok(component)
}

/// Part of every program, and of no manifest.
fn standard_library() -> Result<Value> {
    let output = Command::new("rustc").arg("--version").current_dir(build::workspace()?).output();
    let output = output.context("cannot run rustc")?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let version = answer.split_whitespace().nth(1).context("rustc does not tell its version")?;
    Ok(json!({
        "type": "library", "bom-ref": format!("rust-std@{version}"), "name": "rust-std", "version": version,
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        "externalReferences": [{ "type": "vcs", "url": "https://github.com/rust-lang/rust" }],
    }))
}

/// A shared library of the system.
fn library(package: &debian::Package) -> Value {
    let files = package.files.iter().map(|(path, hash)| {
        json!({
            "type": "file", "bom-ref": path, "name": path,
            "hashes": [{ "alg": "SHA-256", "content": hash }],
        })
    });
    let files: Vec<Value> = files.collect();
    match &package.identity {
        Some(identity) => json!({
            "type": "library", "bom-ref": identity.url(), "name": identity.name, "version": identity.version,
            "purl": identity.url(), "components": files,
        }),
        None => {
            json!({ "type": "library", "bom-ref": "system", "name": "libraries of the system", "components": files })
        }
    }
}

impl Tree {
    fn of_program() -> Result<Self> {
        let output = cargo()
            .args(["tree", "--locked", "--package", "claimkeeper", "--edges", "normal,no-proc-macro"])
            .args(["--prefix", "depth", "--format", FORMAT])
            .current_dir(build::workspace()?)
            .output()
            .context("cannot run cargo tree")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo can't tell what is in the program: {}", complaint.trim());
        Self::parse(&String::from_utf8(output.stdout)?)
    }

    /// A line is a package behind its depth; what it needs is below it, one deeper, the first time that it is named.
    fn parse(text: &str) -> Result<Self> {
        let mut tree = Self::default();
        let mut path: Vec<Package> = Vec::new();
        for line in text.lines() {
            let unclear = || format!("cargo tree says what we don't understand: {line}");
            let digits = line.find(|c: char| !c.is_ascii_digit()).with_context(unclear)?;
            let (depth, rest) = line.split_at(digits);
            let depth: usize = depth.parse().with_context(unclear)?;
            let package = parse_package(rest).with_context(unclear)?;
            path.truncate(depth);
            ensure!(path.len() == depth, unclear());
            if let Some(parent) = path.last() {
                tree.needs.entry(parent.clone()).or_default().insert(package.clone());
            }
            tree.needs.entry(package.clone()).or_default();
            path.push(package);
        }
        Ok(tree)
    }
}

/// `clap v4.6.7⇥MIT OR Apache-2.0⇥https://…`; behind the version of one of ours is where it is.
fn parse_package(text: &str) -> Option<Package> {
    let mut columns = text.strip_suffix(SEEN_BEFORE).unwrap_or(text).split('\t');
    let (package, license, repository) = (columns.next()?, columns.next()?, columns.next()?);
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some(Package {
        name: name.to_owned(),
        version: version.to_owned(),
        license: license.to_owned(),
        repository: repository.to_owned(),
        is_ours: words.next().is_some_and(|source| source.starts_with("(/")),
    })
}

/// What the registry promised to deliver, by name and version.
struct Checksums(BTreeMap<(String, String), String>);

impl Checksums {
    fn read() -> Result<Self> {
        #[derive(Deserialize)]
        struct Lock {
            package: Vec<Locked>,
        }
        #[derive(Deserialize)]
        struct Locked {
            name: String,
            version: String,
            checksum: Option<String>,
        }
        let text = String::from_utf8(read(&build::workspace()?.join("Cargo.lock"))?)?;
        let lock: Lock = toml::from_str(&text).context("Cargo.lock can't be read")?;
        let packages = lock.package.into_iter();
        Ok(Self(packages.filter_map(|package| Some(((package.name, package.version), package.checksum?))).collect()))
    }

    fn of(&self, name: &str, version: &str) -> Option<&str> {
        self.0.get(&(name.to_owned(), version.to_owned())).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<'a>(packages: impl IntoIterator<Item = &'a Package>) -> Vec<&'a str> {
        packages.into_iter().map(|package| package.name.as_str()).collect()
    }

    #[test]
    fn who_needs_whom_is_told_although_a_package_is_shown_in_full_only_once() {
        let text = "0app v0.1.0 (/home/me/app)\tApache-2.0\t\n1tokio v1.2.3\tMIT\thttps://tokio.rs\n2libc v0.2.1\tMIT/Apache-2.0\t\n1mio v1.0.0\tMIT\t\n2tokio v1.2.3\tMIT\thttps://tokio.rs (*)\n";
        let tree = Tree::parse(text).unwrap();
        let needs: Vec<(&str, Vec<&str>)> =
            tree.needs.iter().map(|(package, needed)| (package.name.as_str(), names(needed))).collect();
        let expected =
            [("app", vec!["mio", "tokio"]), ("libc", vec![]), ("mio", vec!["tokio"]), ("tokio", vec!["libc"])];
        assert_eq!(needs, expected);
        let ours: Vec<&str> = names(tree.needs.keys().filter(|package| package.is_ours));
        assert_eq!(ours, ["app"]);
    }

    #[test]
    fn what_cargo_says_in_other_words_is_not_guessed_at() {
        for line in ["tokio v1.2.3\tMIT\t", "0tokio 1.2.3\tMIT\t", "0tokio v1.2.3 MIT", "1tokio v1.2.3\tMIT\t"] {
            assert!(Tree::parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn the_bill_has_what_is_in_the_program_with_checksums_and_nothing_that_only_builds_or_tests_it() {
        let program = std::env::current_exe().unwrap();
        let bill = bill(&program, &[]).unwrap();
        let components = bill["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|component| component["name"] == name);
        let kube = named("kube-client").expect("the client is in the program");
        assert_eq!(kube["purl"], kube["bom-ref"]);
        assert_eq!(kube["hashes"][0]["content"].as_str().map(str::len), Some(64));
        for ours in ["claimkeeper-releaser", "claimkeeper-platform"] {
            assert!(named(ours).is_some_and(|component| component["purl"].is_null()), "{ours} is of no registry");
        }
        for absent in ["claimkeeper-testbed", "proptest", "stateright", "serde_derive", "cc", "xtask", "windows-sys"] {
            assert!(named(absent).is_none(), "{absent} is not in the program");
        }
        let licensed = components.iter().all(|component| component["licenses"][0]["expression"].is_string());
        assert!(licensed, "every package has a license");
    }

    #[test]
    fn everything_that_is_needed_is_in_the_bill_once() {
        let bill = bill(&std::env::current_exe().unwrap(), &[]).unwrap();
        let root = [&bill["metadata"]["component"]["bom-ref"]];
        let components = bill["components"].as_array().unwrap().iter().map(|component| &component["bom-ref"]);
        let all: Vec<&str> = root.into_iter().chain(components).map(|reference| reference.as_str().unwrap()).collect();
        let different: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), different.len());
        for dependency in bill["dependencies"].as_array().unwrap() {
            for needed in dependency["dependsOn"].as_array().unwrap() {
                assert!(different.contains(needed.as_str().unwrap()), "{needed} is missing");
            }
        }
    }
}
