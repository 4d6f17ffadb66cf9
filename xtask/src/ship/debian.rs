//! Which packages of the system a shared library comes from. On systems without dpkg that is not known, and not said.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{read, sha256};

/// What an image has of one package of the system.
pub(super) struct Package {
    /// None for files of which no package is known.
    pub(super) identity: Option<Identity>,
    /// Its files in the image, and their hashes.
    pub(super) files: BTreeMap<PathBuf, String>,
}

/// By what a package is known, to those who look for its weaknesses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) architecture: String,
    /// The system it is for, such as `debian` and `12`.
    pub(super) system: (String, String),
}

impl Package {
    /// The file with its license, which has to be where the package is.
    pub(super) fn license(&self) -> Option<PathBuf> {
        let file = Path::new("/usr/share/doc").join(&self.identity.as_ref()?.name).join("copyright");
        file.is_file().then_some(file)
    }
}

impl Identity {
    /// As a package URL.
    pub(super) fn url(&self) -> String {
        let Self { name, version, architecture, system: (system, release) } = self;
        let version = version.replace('+', "%2B").replace(':', "%3A");
        format!("pkg:deb/{system}/{name}@{version}?arch={architecture}&distro={system}-{release}")
    }

    fn of(file: &Path) -> Option<Self> {
        let owner = owner(file)?;
        let output = dpkg_query(&["--show", "--showformat=${Package} ${Version} ${Architecture}", &owner])?;
        let mut words = output.split_whitespace().map(str::to_owned);
        let (name, version, architecture) = (words.next()?, words.next()?, words.next()?);
        Some(Self { name, version, architecture, system: system()? })
    }
}

/// The packages that these files are of: where they are in the image, and which of this machine they are.
pub(super) fn packages<'a>(files: impl Iterator<Item = (&'a Path, &'a Path)>) -> Result<Vec<Package>> {
    let mut packages: BTreeMap<Option<Identity>, BTreeMap<PathBuf, String>> = BTreeMap::new();
    for (path, source) in files {
        // Our own license is none of a package.
        if path.starts_with("/usr/share/doc") {
            continue;
        }
        packages.entry(Identity::of(source)).or_default().insert(path.to_owned(), sha256(&read(source)?));
    }
    Ok(packages.into_iter().map(|(identity, files)| Package { identity, files }).collect())
}

/// The name of the package that a file came with. `/lib` has become a link to `/usr/lib`, which not every package has heard of.
fn owner(file: &Path) -> Option<String> {
    let real = fs::canonicalize(file).ok()?;
    let before = real.strip_prefix("/usr").ok().map(|rest| Path::new("/").join(rest));
    let candidates = [Some(file.to_owned()), Some(real), before];
    candidates.into_iter().flatten().find_map(|candidate| {
        let output = dpkg_query(&["--search", candidate.to_str()?])?;
        // `libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6`
        let (owner, _) = output.lines().next()?.split_once(": ")?;
        Some(owner.to_owned())
    })
}

fn dpkg_query(arguments: &[&str]) -> Option<String> {
    let output = Command::new("dpkg-query").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn system() -> Option<(String, String)> {
    let release = fs::read_to_string("/etc/os-release").ok()?;
    let value = |key: &str| {
        let mut lines = release.lines().filter_map(|line| line.split_once('='));
        lines.find(|(found, _)| *found == key).map(|(_, value)| value.trim_matches('"').to_owned())
    };
    Some((value("ID")?, value("VERSION_ID")?))
}
