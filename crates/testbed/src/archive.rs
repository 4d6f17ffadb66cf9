//! Archives that are the same, byte for byte, for the same content: nothing of when, where and by whom they were made is in them.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder, read::GzDecoder};
use tar::{Builder, EntryType, Header};

/// In the header of gzip: the system that it was made on, which does not matter.
const ANY_SYSTEM: u8 = 255;

/// A tar archive under construction. All is owned by root and as old as the epoch.
pub struct Archive<W: Write> {
    builder: Builder<W>,
}

impl<W: Write> Archive<W> {
    /// An empty one.
    pub fn new(output: W) -> Self {
        Self { builder: Builder::new(output) }
    }

    /// Adds a file.
    pub fn file(&mut self, path: impl AsRef<Path>, content: &[u8], mode: u32) -> Result<()> {
        let mut header = header(EntryType::Regular, mode);
        header.set_size(content.len() as u64);
        let path = relative(path.as_ref());
        self.builder.append_data(&mut header, path, content).with_context(|| format!("cannot add {}", path.display()))
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<()> {
        let (mut header, path) = (header(EntryType::Symlink, 0o777), relative(path.as_ref()));
        self.builder.append_link(&mut header, path, target).with_context(|| format!("cannot add {}", path.display()))
    }

    /// Adds an empty directory. Those of files need not be named.
    pub fn directory(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let (mut header, path) = (header(EntryType::Directory, mode), relative(path.as_ref()).join(""));
        let nothing = io::empty();
        self.builder.append_data(&mut header, &path, nothing).with_context(|| format!("cannot add {}", path.display()))
    }

    /// Completes the archive.
    pub fn finish(self) -> Result<W> {
        let mut output = self.builder.into_inner()?;
        output.flush()?;
        Ok(output)
    }
}

/// A header says nothing but what it is told: owner, group and time are 0.
fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Makes something as small as gzip can.
pub fn compress(content: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().operating_system(ANY_SYSTEM).write(Vec::new(), Compression::best());
    writer.write_all(content)?;
    Ok(writer.finish()?)
}

/// Undoes [`compress`].
pub fn uncompress(content: &[u8]) -> Result<Vec<u8>> {
    let mut plain = Vec::new();
    GzDecoder::new(content).read_to_end(&mut plain)?;
    Ok(plain)
}

/// The files of an archive, by their paths.
pub fn files(archive: &[u8]) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let (path, mut content) = (entry.path()?.into_owned(), Vec::new());
            entry.read_to_end(&mut content)?;
            files.push((path, content));
        }
    }
    Ok(files)
}
