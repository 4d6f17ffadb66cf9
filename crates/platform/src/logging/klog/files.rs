//! The files: one with a name of its own (`-log_file`), or one per severity in a directory (`-log_dir`), named and linked as
//! klog does:
//!
//! ```text
//! dynamic-pvc-provisioner.INFO -> dynamic-pvc-provisioner.host.user.log.INFO.20210619-120000.1
//! ```
//!
//! In a directory a line goes to the file of its severity and to those of all milder ones. A file that is full is begun anew:
//! the named one from its start, the others under a name with the new time. Unlike klog's, a new file has no heading, and
//! nothing waits in memory: a crash loses no line.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    process,
};

use jiff::{Timestamp, tz::Offset};

use super::{KlogOptions, line::Severity};

const MEGABYTE: u64 = 1024 * 1024;

/// How big files in a directory get; no flag of klog's changes it.
const LIMIT_IN_DIRECTORY: u64 = 1_800 * MEGABYTE;

/// Why there is no log file.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write the log file {}: {reason}; \
     name another place with -log_file or -log_dir, or log to standard error with -logtostderr",
    path.display()
)]
pub struct KlogError {
    path: PathBuf,
    reason: io::Error,
}

/// The log files of this process.
pub(super) struct Files {
    home: Home,
    /// Only to the file of a line's own severity, not to the milder ones.
    one_output: bool,
    limit: u64,
    /// By severity; the named file is in the place of the mildest.
    open: [Option<Open>; Severity::ALL.len()],
}

enum Home {
    Named(PathBuf),
    Directory(PathBuf, Who),
}

/// What tells the files of programs, machines and people apart.
struct Who {
    program: String,
    host: String,
    user: String,
    process: u32,
}

struct Open {
    file: File,
    /// How much is in it.
    size: u64,
}

impl Files {
    /// Opens the first file, so that what cannot work is told before anything else starts; further ones are opened when a
    /// line needs them. A directory that cannot be used is passed over for the temporary one, as klog does without a word:
    /// here the second value tells why.
    pub(super) fn open(options: &KlogOptions, now: Timestamp) -> Result<(Self, Option<KlogError>), KlogError> {
        if let Some(path) = &options.log_file {
            let limit = match options.log_file_max_size {
                0 => u64::MAX,
                megabytes => megabytes.saturating_mul(MEGABYTE),
            };
            return Ok((Self::open_in(Home::Named(path.clone()), limit, options.one_output, now)?, None));
        }
        let in_directory = |directory: PathBuf| {
            let home = Home::Directory(directory, Who::is_this(&options.program));
            Self::open_in(home, LIMIT_IN_DIRECTORY, options.one_output, now)
        };
        let Some(directory) = &options.log_dir else {
            return Ok((in_directory(env::temp_dir())?, None));
        };
        match in_directory(directory.clone()) {
            Ok(files) => Ok((files, None)),
            Err(error) => match in_directory(env::temp_dir()) {
                Ok(files) => Ok((files, Some(error))),
                Err(_) => Err(error),
            },
        }
    }

    fn open_in(home: Home, limit: u64, one_output: bool, now: Timestamp) -> Result<Self, KlogError> {
        let mut files = Self { home, one_output, limit, open: Default::default() };
        files.open[Severity::Info as usize] = Some(files.home.open(Severity::Info, now)?);
        Ok(files)
    }

    /// Writes a line wherever it belongs.
    pub(super) fn write(&mut self, severity: Severity, line: &[u8], now: Timestamp) -> Result<(), KlogError> {
        match self.home {
            Home::Named(_) => self.append(Severity::Info, line, now),
            Home::Directory(..) if self.one_output => self.append(severity, line, now),
            Home::Directory(..) => {
                let mut down = Severity::ALL.into_iter().rev().filter(|other| *other <= severity);
                down.try_for_each(|severity| self.append(severity, line, now))
            }
        }
    }

    fn append(&mut self, severity: Severity, line: &[u8], now: Timestamp) -> Result<(), KlogError> {
        let length = line.len() as u64;
        let place = &mut self.open[severity as usize];
        let open = match place {
            Some(open) if open.size.saturating_add(length) < self.limit => open,
            Some(_) => place.insert(self.home.begin_anew(severity, now)?),
            None => place.insert(self.home.open(severity, now)?),
        };
        open.file.write_all(line).map_err(|reason| KlogError { path: self.home.file(severity, now), reason })?;
        open.size += length;
        Ok(())
    }
}

impl Home {
    /// A file that is there already, as after a restart, is continued.
    fn open(&self, severity: Severity, now: Timestamp) -> Result<Open, KlogError> {
        self.link(severity, now, |path| {
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            let size = file.metadata()?.len();
            Ok(Open { file, size })
        })
    }

    fn begin_anew(&self, severity: Severity, now: Timestamp) -> Result<Open, KlogError> {
        self.link(severity, now, |path| Ok(Open { file: File::create(path)?, size: 0 }))
    }

    /// Whatever a file in a directory is called, the newest of its severity can be found under the same short name.
    fn link(
        &self,
        severity: Severity,
        now: Timestamp,
        open: impl FnOnce(&Path) -> io::Result<Open>,
    ) -> Result<Open, KlogError> {
        let path = self.file(severity, now);
        let opened = open(&path).map_err(|reason| KlogError { path: path.clone(), reason })?;
        if let (Self::Directory(directory, who), Some(name)) = (self, path.file_name()) {
            let short = directory.join(format!("{}.{}", who.program, severity.name()));
            // The link is a help for people; a log without it is still a log.
            let _ = fs::remove_file(&short);
            let _ = symlink(name, &short);
        }
        Ok(opened)
    }

    fn file(&self, severity: Severity, now: Timestamp) -> PathBuf {
        match self {
            Self::Named(path) => path.clone(),
            Self::Directory(directory, Who { program, host, user, process }) => {
                let time = Offset::UTC.to_datetime(now).strftime("%Y%m%d-%H%M%S");
                directory.join(format!("{program}.{host}.{user}.log.{}.{time}.{process}", severity.name()))
            }
        }
    }
}

impl Who {
    fn is_this(program: &str) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim().split('.').next().filter(|host| !host.is_empty()).unwrap_or("unknownhost").to_owned();
        let user = user().or_else(|| env::var("USER").ok()).unwrap_or_else(|| "unknownuser".to_owned());
        Self { program: program.to_owned(), host, user, process: process::id() }
    }
}

/// The name that belongs to this process's user id, if the system knows one.
fn user() -> Option<String> {
    let id = fs::metadata("/proc/self").ok()?.uid().to_string();
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find_map(|fields| match fields[..] {
        [name, _, its_id, ..] if its_id == id => Some(name.to_owned()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use tempfile::{TempDir, tempdir};

    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-11-15T{time}Z").parse().unwrap()
    }

    fn options(directory: &TempDir) -> KlogOptions {
        KlogOptions { log_dir: Some(directory.path().into()), ..KlogOptions::new("program") }
    }

    fn open(options: &KlogOptions) -> Files {
        let (files, passed_over) = Files::open(options, at("21:52:49")).unwrap();
        assert!(passed_over.is_none(), "{passed_over:?}");
        files
    }

    fn names(directory: &TempDir) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(directory: &TempDir, name: &str) -> String {
        fs::read_to_string(directory.path().join(name)).unwrap()
    }

    #[test]
    fn files_in_a_directory_are_named_and_linked_as_klog_does() {
        let directory = tempdir().unwrap();
        let mut files = open(&options(&directory));
        files.write(Severity::Warning, b"careful\n", at("21:52:50")).unwrap();
        let who = Who::is_this("program");
        let mine = format!("{}.{}.log", who.host, who.user);
        let (info, warning) = (
            format!("program.{mine}.INFO.20261115-215249.{}", who.process),
            format!("program.{mine}.WARNING.20261115-215250.{}", who.process),
        );
        let links = ["program.INFO", "program.WARNING"];
        assert_eq!(names(&directory), [links[0], links[1], &info, &warning]);
        let targets = links.map(|link| fs::read_link(directory.path().join(link)).unwrap());
        assert_eq!(targets, [Path::new(&info), Path::new(&warning)], "relative, so that the directory can be moved");
    }

    #[test]
    fn a_line_is_in_the_files_of_all_milder_severities_unless_one_output_is_asked_for() {
        for (one_output, expected) in [
            (false, [Some("good\nbad\nworst\n"), Some("bad\nworst\n"), Some("bad\nworst\n"), Some("worst\n")]),
            (true, [Some("good\n"), None, Some("bad\n"), Some("worst\n")]),
        ] {
            let directory = tempdir().unwrap();
            let mut files = open(&KlogOptions { one_output, ..options(&directory) });
            for (severity, line) in
                [(Severity::Info, "good\n"), (Severity::Error, "bad\n"), (Severity::Fatal, "worst\n")]
            {
                files.write(severity, line.as_bytes(), at("21:52:50")).unwrap();
            }
            let link = |severity: Severity| directory.path().join(format!("program.{}", severity.name()));
            let written = Severity::ALL.map(|severity| fs::read_to_string(link(severity)).ok());
            assert_eq!(written, expected.map(|text| text.map(str::to_owned)), "one_output {one_output}");
        }
    }

    #[test]
    fn a_full_file_in_a_directory_is_followed_by_one_with_a_newer_name() {
        let directory = tempdir().unwrap();
        let mut files = Files { limit: 15, ..open(&options(&directory)) };
        for (line, time) in [("first\n", "21:52:50"), ("second\n", "21:52:51"), ("third\n", "21:52:52")] {
            files.write(Severity::Info, line.as_bytes(), at(time)).unwrap();
        }
        let [link, old, new] = &names(&directory)[..] else { panic!("{:?}", names(&directory)) };
        assert_eq!((link.as_str(), read(&directory, link).as_str()), ("program.INFO", "third\n"));
        assert!(old.contains("20261115-215249") && new.contains("20261115-215252"), "{old} {new}");
        assert_eq!([read(&directory, old), read(&directory, new)], ["first\nsecond\n", "third\n"]);
    }

    fn named(path: &Path, log_file_max_size: u64) -> KlogOptions {
        KlogOptions { log_file: Some(path.into()), log_file_max_size, ..KlogOptions::new("program") }
    }

    #[test]
    fn the_named_file_takes_every_severity_once_and_is_continued_after_a_restart() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("log");
        for line in ["first\n", "second\n"] {
            open(&named(&path, 1800)).write(Severity::Error, line.as_bytes(), at("21:52:50")).unwrap();
        }
        assert_eq!(names(&directory), ["log"]);
        assert_eq!(read(&directory, "log"), "first\nsecond\n");
    }

    #[test]
    fn the_named_file_is_emptied_when_it_would_reach_its_size_in_megabytes() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("log");
        let almost_full = "x".repeat(1024 * 1024 - 6) + "\n";
        for (megabytes, sizes) in [
            (1, [1_048_571, 1_048_575, 1]),
            (2, [1_048_571, 1_048_575, 1_048_576]),
            (0, [1_048_571, 1_048_575, 1_048_576]),
        ] {
            fs::write(&path, &almost_full).unwrap();
            let mut files = open(&named(&path, megabytes));
            let mut written = vec![fs::metadata(&path).unwrap().len()];
            for line in ["abc\n", "\n"] {
                files.write(Severity::Info, line.as_bytes(), at("21:52:50")).unwrap();
                written.push(fs::metadata(&path).unwrap().len());
            }
            assert_eq!(written, sizes, "-log_file_max_size={megabytes}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_with_what_to_do() {
        let error = Files::open(&named(Path::new("/nonexistent/log"), 1800), at("21:52:49")).err().unwrap();
        assert_eq!(
            error.to_string(),
            "cannot write the log file /nonexistent/log: No such file or directory (os error 2); \
             name another place with -log_file or -log_dir, or log to standard error with -logtostderr"
        );
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_passed_over_with_a_reason() {
        let options = KlogOptions { log_dir: Some("/nonexistent".into()), ..KlogOptions::new("passed-over") };
        let (files, passed_over) = Files::open(&options, at("21:52:49")).unwrap();
        assert!(passed_over.unwrap().to_string().contains("/nonexistent/passed-over."));
        let file = files.home.file(Severity::Info, at("21:52:49"));
        assert!(file.starts_with(env::temp_dir()) && file.exists(), "{}", file.display());
        fs::remove_file(file).unwrap();
        fs::remove_file(env::temp_dir().join("passed-over.INFO")).unwrap();
    }
}
