//! Container images from files, without a registry and without Docker.
//!
//! An image is one layer, written as an OCI archive and imported into the nodes' containerd under its full name
//! (`docker.io/…`), so that the kubelet finds it and never tries to pull.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The image of every pod's sandbox.
pub(crate) const PAUSE: &str = "docker.io/testbed/pause:1";
/// The image with a shell and the usual small tools that every real node has.
pub const BUSYBOX: &str = "docker.io/testbed/busybox:1";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image to be made: its name, its files and what it runs.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    files: Vec<(PathBuf, PathBuf)>,
    links: Vec<(PathBuf, PathBuf)>,
    entrypoint: Vec<String>,
}

impl Image {
    /// An empty image. The name is a full one with a tag that is not `latest`: `docker.io/me/app:1`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), files: Vec::new(), links: Vec::new(), entrypoint: Vec::new() }
    }

    /// Puts a file of this machine into the image.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>, source: impl Into<PathBuf>) -> Self {
        self.files.push((path.into(), source.into()));
        self
    }

    /// Puts a symbolic link into the image.
    #[must_use]
    pub fn link(mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        self.links.push((path.into(), target.into()));
        self
    }

    /// What a container runs unless its pod says otherwise.
    #[must_use]
    pub fn entrypoint<S: Into<String>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.entrypoint = command.into_iter().map(Into::into).collect();
        self
    }

    /// An image that runs a program of this machine, with the shared libraries that it needs.
    pub fn of_program(name: impl Into<String>, program: &Path) -> Result<Self> {
        let file_name = program.file_name().with_context(|| format!("{} is no program", program.display()))?;
        let inside = Path::new("/usr/bin").join(file_name);
        let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
        let libraries = String::from_utf8_lossy(&output.stdout);
        let mut image = Self::new(name).file(&inside, program).entrypoint([inside.display().to_string()]);
        // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and the loader itself without an arrow.
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            image = image.file(library, library);
        }
        Ok(image)
    }

    /// The image's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn busybox(name: &str, busybox: &Path) -> Result<Self> {
        let applets = Command::new(busybox).arg("--list").output().context("cannot run busybox")?;
        let applets = String::from_utf8_lossy(&applets.stdout);
        let image = Self::new(name).file("/bin/busybox", busybox).entrypoint(["/bin/sh"]);
        Ok(applets
            .lines()
            .filter(|applet| *applet != "busybox")
            .fold(image, |image, applet| image.link(Path::new("/bin").join(applet), "busybox")))
    }

    pub(crate) fn pause(busybox: &Path) -> Self {
        Self::new(PAUSE).file("/bin/busybox", busybox).entrypoint(["/bin/busybox", "sleep", "2000000000"])
    }

    /// Writes the image as an OCI archive.
    pub fn write_archive(&self, path: &Path) -> Result<()> {
        let layer = self.layer().with_context(|| format!("cannot make the image {}", self.name))?;
        let layer = Blob::new(LAYER, layer);
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint, "Env": ["PATH=/usr/bin:/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        });
        let config = Blob::new(CONFIG, config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        });
        let manifest = Blob::new(MANIFEST, manifest.to_string().into_bytes());
        let mut entry = manifest.descriptor();
        entry["annotations"] = json!({ "io.containerd.image.name": self.name });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();

        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut archive = Builder::new(file);
        append(&mut archive, Path::new("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
        append(&mut archive, Path::new("index.json"), index.as_bytes(), 0o644)?;
        for blob in [config, manifest, layer] {
            let name = Path::new("blobs").join(blob.digest.replace(':', "/"));
            append(&mut archive, &name, &blob.content, 0o644)?;
        }
        archive.into_inner()?.flush().with_context(|| format!("cannot write {}", path.display()))
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Builder::new(Vec::new());
        // Programs expect a place for temporary files.
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o1777);
        header.set_size(0);
        layer.append_data(&mut header, "tmp/", std::io::empty())?;
        for (path, source) in &self.files {
            let content = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
            append(&mut layer, relative(path), &content, 0o755)?;
        }
        for (path, target) in &self.links {
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Symlink);
            header.set_mode(0o777);
            header.set_size(0);
            layer.append_link(&mut header, relative(path), target)?;
        }
        Ok(layer.into_inner()?)
    }
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn append(archive: &mut Builder<impl Write>, path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, path, content).with_context(|| format!("cannot add {}", path.display()))
}

/// A part of an image, known by its hash.
struct Blob {
    media_type: &'static str,
    content: Vec<u8>,
    digest: String,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        let digest = format!("sha256:{:x}", Sha256::digest(&content));
        Self { media_type, content, digest }
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.content.len() })
    }
}

/// In the words of Go, which OCI images use.
fn architecture() -> &'static str {
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
