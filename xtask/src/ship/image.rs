//! The operator's image and the bill of what is in it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testbed::{Image, WrittenImage};

use super::{
    LICENSE, REPOSITORY, Source, VERSION, debian, megabytes, output_directory, platform_name, read, sbom, write,
};
use crate::build::{self, Profile};

/// What a node has to pull before the first claim is looked after.
const LARGEST: u64 = 25_000_000;
const REGISTRY: &str = "ghcr.io/claimkeeper/claimkeeper";
const LABEL: &str = "org.opencontainers.image";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to put it; target/ship if nothing is said
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// The name that nodes know the image by; ghcr.io/claimkeeper/claimkeeper with the version if nothing is said
    #[arg(long, value_name = "NAME:TAG")]
    name: Option<String>,
}

pub(crate) fn run(Arguments { output, name }: Arguments) -> Result<()> {
    let (_, shipped) = build(name, &output_directory(output)?)?;
    println!("{shipped}");
    Ok(())
}

/// Builds the program as it is shipped, and its image.
pub(super) fn build(name: Option<String>, output: &Path) -> Result<(PathBuf, Shipped)> {
    let program = build::claimkeeper(Profile::Release)?;
    ensure_nothing_of_this_machine(&program)?;
    let shipped = make(&program, name, &Source::of_checkout()?, output)?;
    let size = shipped.image.size;
    ensure!(
        size < LARGEST,
        "the image has grown to {}, and is meant to stay below {}: see what is new in the program, or allow more",
        megabytes(size),
        megabytes(LARGEST)
    );
    Ok((program, shipped))
}

/// The files of an image, and what it is.
pub(super) struct Shipped {
    name: String,
    pub(super) image: WrittenImage,
    pub(super) archive: PathBuf,
    pub(super) bill: PathBuf,
}

impl std::fmt::Display for Shipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, image, archive, bill } = self;
        writeln!(f, "{name}@{}", image.digest)?;
        writeln!(f, "  {} to pull, {} on disk", megabytes(image.size), megabytes(image.unpacked))?;
        writeln!(f, "  {}", archive.display())?;
        write!(f, "  {}", bill.display())
    }
}

/// Writes the image of a build of the operator, and its bill of materials.
pub(super) fn make(program: &Path, name: Option<String>, source: &Source, output: &Path) -> Result<Shipped> {
    let name = name.unwrap_or_else(|| format!("{REGISTRY}:{VERSION}"));
    let mut image = Image::of_operator(&name, program)?
        .compressed()
        .label(format!("{LABEL}.title"), "Claimkeeper")
        .label(format!("{LABEL}.description"), "Looks after a volume claim for its whole life")
        .label(format!("{LABEL}.version"), VERSION)
        .label(format!("{LABEL}.source"), REPOSITORY)
        .label(format!("{LABEL}.licenses"), LICENSE)
        .file("/usr/share/doc/claimkeeper/copyright", build::workspace()?.join("LICENSE"));
    if let Some(revision) = &source.revision {
        image = image.label(format!("{LABEL}.revision"), revision);
    }
    if let Some(time) = source.time {
        image = image.created(time.to_string());
    }
    let libraries = debian::packages(image.files().filter(|(_, source)| *source != program))?;
    for license in libraries.iter().filter_map(debian::Package::license) {
        image = image.file(&license, &license);
    }

    let archive = output.join(format!("{}.oci.tar", platform_name()));
    let written = image.write_archive(&archive)?;
    let bill = output.join(format!("{}.cdx.json", platform_name()));
    let text = serde_json::to_string_pretty(&sbom::bill(program, &libraries)?)? + "\n";
    write(&bill, text.as_bytes())?;
    Ok(Shipped { name, image: written, archive, bill })
}

/// A program that tells where it was built is another one on every machine, and tells more than it should.
pub(super) fn ensure_nothing_of_this_machine(program: &Path) -> Result<()> {
    let content = read(program)?;
    for directory in [build::workspace()?, build::cargo_home()?] {
        let name = directory.to_str().context("a directory's name is no text")?.as_bytes();
        let found = content.windows(name.len()).position(|part| part == name);
        ensure!(
            found.is_none(),
            "{} tells at byte {} that it was built in {}, so it can't be built again elsewhere: map that path away where it is compiled",
            program.display(),
            found.unwrap_or_default(),
            directory.display()
        );
    }
    Ok(())
}
