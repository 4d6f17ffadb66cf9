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

/// The symbolic links of an archive, by their paths, with what they lead to.
pub fn links(archive: &[u8]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut links = Vec::new();
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        if entry.header().entry_type().is_symlink() {
            let target = entry.link_name()?.context("a link leads nowhere")?.into_owned();
            links.push((entry.path()?.into_owned(), target));
        }
    }
    Ok(links)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two that are made within a second would be the same in any case.
    #[test]
    fn what_is_compressed_does_not_tell_when_and_where() {
        let compressed = compress(b"content").unwrap();
        let header = GzDecoder::new(compressed.as_slice()).header().cloned().unwrap();
        assert_eq!((header.mtime(), header.operating_system()), (0, ANY_SYSTEM));
        assert_eq!((header.filename(), header.comment(), header.extra()), (None, None, None));
        assert_eq!(uncompress(&compressed).unwrap(), b"content");
    }

    #[test]
    fn what_is_in_an_archive_is_roots_and_as_old_as_the_epoch() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/bin/program", b"content", 0o755).unwrap();
        archive.link("/bin/link", "program").unwrap();
        archive.directory("/tmp", 0o1777).unwrap();
        let archive = archive.finish().unwrap();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let header = entry.unwrap().header().clone();
            // What is not there counts as 0.
            let numbers = [header.mtime(), header.uid(), header.gid()].map(Result::unwrap_or_default);
            assert_eq!(numbers, [0, 0, 0]);
            assert_eq!((header.username().unwrap(), header.groupname().unwrap()), (Some(""), Some("")));
        }
        assert_eq!(links(&archive).unwrap(), [("bin/link".into(), "program".into())]);
        assert_eq!(files(&archive).unwrap(), [("bin/program".into(), b"content".to_vec())]);
    }
}
