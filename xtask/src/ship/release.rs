//! Everything that a release consists of.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use testbed::{
    Binaries, OPERATOR_LINKS,
    archive::{self, Archive, compress, uncompress},
};

use super::{VERSION, image, megabytes, output_directory, platform_name, read, sha256, write};
use crate::build;

/// Where shells look below a prefix such as `/usr/local`.
pub(super) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/claimkeeper"),
    ("fish", "share/fish/vendor_completions.d/claimkeeper.fish"),
    ("zsh", "share/zsh/site-functions/_claimkeeper"),
];
const DOCUMENTS: [&str; 3] = ["CHANGELOG.md", "LICENSE", "README.md"];
pub(super) const CHECKSUMS: &str = "SHA256SUMS";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to put it; target/ship if nothing is said
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn run(Arguments { output }: Arguments) -> Result<()> {
    let output = output_directory(output)?;
    let (program, shipped) = image::build(None, &output)?;
    println!("{shipped}");
    let archive = output.join(format!("{}.tar.gz", platform_name()));
    write(&archive, &compress(&tarball(&program, &output)?)?)?;
    let files = [archive, chart(&output)?, shipped.archive, shipped.bill];
    let sums = checksums(&files)?;
    write(&output.join(CHECKSUMS), sums.as_bytes())?;
    println!("\n{sums}");
    for file in files {
        println!("{:>9}  {}", megabytes(fs::metadata(&file)?.len()), file.display());
    }
    Ok(())
}

/// What `sha256sum --check` reads, sorted by name.
pub(super) fn checksums(files: &[PathBuf]) -> Result<String> {
    let mut lines = Vec::new();
    for file in files {
        let name = file.file_name().with_context(|| format!("{} is no file", file.display()))?.to_string_lossy();
        lines.push((name.into_owned(), sha256(&read(file)?)));
    }
    lines.sort();
    Ok(lines.into_iter().fold(String::new(), |text, (name, sum)| text + &sum + "  " + &name + "\n"))
}

/// For people who run the program themselves: all of it below a directory that can be unpacked over `/usr/local`.
pub(super) fn tarball(program: &Path, output: &Path) -> Result<Vec<u8>> {
    let top = PathBuf::from(platform_name());
    let mut archive = Archive::new(Vec::new());
    archive.file(top.join("bin/claimkeeper"), &read(program)?, 0o755)?;
    for link in OPERATOR_LINKS {
        archive.link(top.join("bin").join(link), "claimkeeper")?;
    }
    for (shell, path) in COMPLETIONS {
        archive.file(top.join(path), &answer(program, &["completion", shell])?, 0o644)?;
    }
    let manual = output.join("manual");
    answer(program, &["manual", &manual.display().to_string()])?;
    for (name, page) in sorted_files(&manual)? {
        archive.file(top.join("share/man/man1").join(name), &page, 0o644)?;
    }
    fs::remove_dir_all(&manual).with_context(|| format!("cannot remove {}", manual.display()))?;
    for document in DOCUMENTS {
        let content = read(&build::workspace()?.join(document))?;
        archive.file(top.join("share/doc/claimkeeper").join(document), &content, 0o644)?;
    }
    archive.finish()
}

/// What the program prints.
fn answer(program: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "claimkeeper {} failed: {}", arguments.join(" "), complaint.trim());
    Ok(output.stdout)
}

fn sorted_files(directory: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, read(&path)?));
    }
    files.sort();
    Ok(files)
}

/// The chart as Helm packs it, but for the time at which it did.
pub(super) fn chart(output: &Path) -> Result<PathBuf> {
    let home = output.join("helm");
    let helm = Command::new(Binaries::get()?.helm())
        .args(["package", "--destination"])
        .arg(&home)
        .arg(build::workspace()?.join("charts/claimkeeper"))
        // Not the user's own repositories, plugins and caches.
        .env("HELM_CACHE_HOME", &home)
        .env("HELM_CONFIG_HOME", &home)
        .env("HELM_DATA_HOME", &home)
        .output()
        .context("cannot run helm")?;
    let complaint = String::from_utf8_lossy(&helm.stderr);
    ensure!(helm.status.success(), "the chart can't be packed: {}", complaint.trim());
    let name = format!("claimkeeper-{VERSION}.tgz");
    let Ok(packed) = read(&home.join(&name)) else {
        bail!("the chart's version is not {VERSION}, which the program's is: they are shipped together");
    };
    fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    let mut files = archive::files(&uncompress(&packed)?)?;
    files.sort();
    let mut repacked = Archive::new(Vec::new());
    for (path, content) in files {
        repacked.file(path, &content, 0o644)?;
    }
    let path = output.join(name);
    write(&path, &compress(&repacked.finish()?)?)?;
    Ok(path)
}
