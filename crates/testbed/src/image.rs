//! Container images from files, without a registry and without Docker.
//!
//! An image is one layer, written as an OCI archive and imported into the nodes' containerd under its full name
//! (`docker.io/…`), so that the kubelet finds it and never tries to pull. The same files make the same image, byte for byte: nothing
//! of when, where and by whom it was made is in it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::archive::{Archive, compress};

/// The image of every pod's sandbox.
pub(crate) const PAUSE: &str = "docker.io/testbed/pause:1";
/// The image with a shell and the usual small tools that every real node has.
pub const BUSYBOX: &str = "docker.io/testbed/busybox:1";

/// Other names of the operator: those of the programs that it replaces, and the one that makes it a plugin of kubectl.
pub const OPERATOR_LINKS: [&str; 4] =
    ["dynamic-pvc-provisioner", "kubectl-claimkeeper", "reclaimable-pv-releaser", "storageos-api-manager"];
/// Nobody's on any node. A number, because Kubernetes can't tell of a name that it is not root's.
const OPERATOR_USER: &str = "65532:65532";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const COMPRESSED_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An image to be made: its name, its files and what it runs.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    directories: BTreeMap<PathBuf, u32>,
    files: BTreeMap<PathBuf, PathBuf>,
    links: BTreeMap<PathBuf, PathBuf>,
    entrypoint: Vec<String>,
    user: Option<&'static str>,
    labels: BTreeMap<String, String>,
    created: Option<String>,
    compressed: bool,
}

/// An image that was written to a file.
#[derive(Debug, PartialEq, Eq)]
pub struct WrittenImage {
    /// By which registries and container runtimes know it.
    pub digest: String,
    /// In bytes, of what is pulled.
    pub size: u64,
    /// In bytes, of what is then on the node's disk.
    pub unpacked: u64,
}

impl Image {
    /// An empty image. The name is a full one with a tag that is not `latest`: `docker.io/me/app:1`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            directories: BTreeMap::new(),
            files: BTreeMap::new(),
            links: BTreeMap::new(),
            entrypoint: Vec::new(),
            user: None,
            labels: BTreeMap::new(),
            created: None,
            compressed: false,
        }
    }

    /// Puts a file of this machine into the image.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>, source: impl Into<PathBuf>) -> Self {
        self.files.insert(path.into(), source.into());
        self
    }

    /// Puts a symbolic link into the image.
    #[must_use]
    pub fn link(mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        self.links.insert(path.into(), target.into());
        self
    }

    /// What a container runs unless its pod says otherwise.
    #[must_use]
    pub fn entrypoint<S: Into<String>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.entrypoint = command.into_iter().map(Into::into).collect();
        self
    }

    /// Says something about the image to those who look at it.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// When it was made, or what it was made of. Nothing is said of this otherwise.
    #[must_use]
    pub fn created(mut self, time: impl Into<String>) -> Self {
        self.created = Some(time.into());
        self
    }

    /// Makes it as small as what is pulled should be. An image for this machine's own nodes is made sooner without.
    #[must_use]
    pub fn compressed(mut self) -> Self {
        self.compressed = true;
        self
    }

    /// An image that runs a program of this machine, with the shared libraries that it needs.
    pub fn of_program(name: impl Into<String>, program: &Path) -> Result<Self> {
        let file_name = program.file_name().with_context(|| format!("{} is no program", program.display()))?;
        Self::of_program_at(name, program, &Path::new("/usr/bin").join(file_name)).map(Self::with_temporary_files)
    }

    /// The image of the operator as it is shipped, of any build of it: the program under all its names, the shared libraries that it
    /// needs, and nothing else.
    pub fn of_operator(name: impl Into<String>, program: &Path) -> Result<Self> {
        let mut image = Self::of_program_at(name, program, Path::new("/usr/bin/claimkeeper"))?;
        image.user = Some(OPERATOR_USER);
        Ok(OPERATOR_LINKS
            .into_iter()
            .fold(image, |image, link| image.link(Path::new("/usr/bin").join(link), "claimkeeper")))
    }

    fn of_program_at(name: impl Into<String>, program: &Path, inside: &Path) -> Result<Self> {
        let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
        let libraries = String::from_utf8_lossy(&output.stdout);
        let missing = libraries.lines().find(|line| line.contains("not found"));
        ensure!(missing.is_none(), "{} would not start: {}", program.display(), missing.unwrap_or_default().trim());
        let mut image = Self::new(name).file(inside, program).entrypoint([inside.display().to_string()]);
        // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and the loader itself without an arrow.
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            image = image.file(library, library);
        }
        Ok(image)
    }

    /// Many programs expect a place for these.
    fn with_temporary_files(mut self) -> Self {
        self.directories.insert("/tmp".into(), 0o1777);
        self
    }

    /// Its files: where they are inside, and which of this machine they are.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.files.iter().map(|(path, source)| (path.as_path(), source.as_path()))
    }

    /// The image's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn busybox(name: &str, busybox: &Path) -> Result<Self> {
        let applets = Command::new(busybox).arg("--list").output().context("cannot run busybox")?;
        let applets = String::from_utf8_lossy(&applets.stdout);
        let image = Self::new(name).file("/bin/busybox", busybox).entrypoint(["/bin/sh"]).with_temporary_files();
        Ok(applets
            .lines()
            .filter(|applet| *applet != "busybox")
            .fold(image, |image, applet| image.link(Path::new("/bin").join(applet), "busybox")))
    }

    pub(crate) fn pause(busybox: &Path) -> Self {
        Self::new(PAUSE).file("/bin/busybox", busybox).entrypoint(["/bin/busybox", "sleep", "2000000000"])
    }

    /// Writes the image as an OCI archive.
    pub fn write_archive(&self, path: &Path) -> Result<WrittenImage> {
        let layer = self.layer().with_context(|| format!("cannot make the image {}", self.name))?;
        let unpacked = layer.len() as u64;
        let diff_id = digest(&layer);
        let layer =
            if self.compressed { Blob::new(COMPRESSED_LAYER, compress(&layer)?) } else { Blob::new(LAYER, layer) };
        let config = Blob::new(CONFIG, self.config(&diff_id).to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        });
        let manifest = Blob::new(MANIFEST, manifest.to_string().into_bytes());
        let tag = self.name.rsplit(':').next().unwrap_or_default();
        let mut entry = manifest.descriptor();
        entry["annotations"] =
            json!({ "io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": tag });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();
        let size = [&config, &manifest, &layer].iter().map(|blob| blob.content.len() as u64).sum();
        let written = WrittenImage { digest: manifest.digest.clone(), size, unpacked };

        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut archive = Archive::new(file);
        archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
        archive.file("index.json", index.as_bytes(), 0o644)?;
        for blob in [config, manifest, layer] {
            archive.file(Path::new("blobs").join(blob.digest.replace(':', "/")), &blob.content, 0o644)?;
        }
        archive.finish().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(written)
    }

    fn config(&self, diff_id: &str) -> Value {
        let mut config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint, "Env": ["PATH=/usr/bin:/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        });
        if let Some(user) = self.user {
            config["config"]["User"] = json!(user);
        }
        if !self.labels.is_empty() {
            config["config"]["Labels"] = json!(self.labels);
        }
        if let Some(time) = &self.created {
            config["created"] = json!(time);
        }
        config
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Archive::new(Vec::new());
        for (path, mode) in &self.directories {
            layer.directory(path, *mode)?;
        }
        for (path, source) in &self.files {
            let content = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
            // Of the source's mode only what matters: the rest is the umask of whoever made it.
            let is_program = fs::metadata(source)?.permissions().mode() & 0o111 != 0;
            layer.file(path, &content, if is_program { 0o755 } else { 0o644 })?;
        }
        for (path, target) in &self.links {
            layer.link(path, target)?;
        }
        layer.finish()
    }
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(content))
}

/// A part of an image, known by its hash.
struct Blob {
    media_type: &'static str,
    content: Vec<u8>,
    digest: String,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        Self { media_type, digest: digest(&content), content }
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.content.len() })
    }
}

/// The architecture of this machine, in the words of Go, which OCI images and downloads use.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Runs `ctr images import` with each of these, which are given ready for their arguments.
pub(crate) async fn import(clients: Vec<Command>, image: &Image, directory: &Path) -> Result<()> {
    let archive = directory.join(format!("image-{:08x}.tar", rand::random::<u32>()));
    let (written, path) = (image.clone(), archive.clone());
    tokio::task::spawn_blocking(move || written.write_archive(&path)).await??;
    let imports = clients.into_iter().map(|client| import_archive(client, image, &archive));
    let outcome = try_join_all(imports).await;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    outcome.map(drop)
}

async fn import_archive(mut ctr: Command, image: &Image, archive: &Path) -> Result<()> {
    ctr.args(["images", "import"]).arg(archive);
    let output = tokio::process::Command::from(ctr).kill_on_drop(true).output().await.context("cannot run ctr")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot import the image {}: {}", image.name, complaint.trim());
    Ok(())
}
