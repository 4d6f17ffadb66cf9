//! Which cluster, as whom: the resolution that people know from kubectl, with errors that name the file at fault.

use std::{
    env,
    ffi::OsString,
    fmt::Display,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use kube::{
    Config,
    config::{Kubeconfig, KubeconfigError},
};

const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Why there is no API client. Every text is one line that names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A file was asked for by name and is not there.
    #[error("{origin} names the kubeconfig {}, which does not exist; name an existing file", path.display())]
    Missing {
        /// Who named the file: a flag or a variable.
        origin: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// None of the files that `KUBECONFIG` lists is there.
    #[error("KUBECONFIG lists {files}, and none of them exists; name an existing file or unset KUBECONFIG")]
    AllMissing {
        /// The files, separated by commas.
        files: String,
    },
    /// A file is there and cannot be read.
    #[error("the kubeconfig {} cannot be read: {reason}; give this user read permission or name another file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
        reason: io::Error,
    },
    /// A file does not have the form of a kubeconfig.
    #[error("{} is not a kubeconfig: {reason}; check it with `kubectl --kubeconfig {} config view`", path.display(), path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser stumbled over.
        reason: String,
    },
    /// The files contradict each other or themselves.
    #[error("the kubeconfig {files} cannot be used: {reason}")]
    Inconsistent {
        /// The file, or the merged files.
        files: String,
        /// What does not fit, and what to do.
        reason: String,
    },
    /// The process runs in a pod whose service account cannot be used.
    #[error(
        "the pod's service account cannot be used: {reason}; check the mount of its token, or name a kubeconfig with --kubeconfig"
    )]
    InCluster {
        /// Which part is missing or broken.
        reason: String,
    },
    /// Nothing says which cluster to use.
    #[error(
        "no cluster is configured: there is no --kubeconfig, no KUBECONFIG, no pod service account and no {home}; name a kubeconfig with --kubeconfig"
    )]
    NothingConfigured {
        /// Where the file of the home directory would be.
        home: String,
    },
    /// The configuration is complete and yet no client can be made of it.
    #[error("no API client can be made for {server}: {reason}")]
    Unusable {
        /// The API server's URL.
        server: String,
        /// What the TLS or authentication part objected to.
        reason: String,
    },
}

/// Finds the cluster and the credentials as kubectl does: the file that a flag names, then the files in `KUBECONFIG`, then
/// the pod's service account, then `~/.kube/config`.
pub fn load_config(explicit: Option<&Path>) -> Result<Config, ClientError> {
    let in_pod = env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        && env::var_os("KUBERNETES_SERVICE_PORT").is_some()
        && Path::new(SERVICE_ACCOUNT_TOKEN).is_file();
    let environment = Environment { kubeconfig: env::var_os("KUBECONFIG"), in_pod, home: env::var_os("HOME") };
    environment.resolve(explicit)
}

/// What the process was started with; a value of its own so that tests need not change the real one.
struct Environment {
    kubeconfig: Option<OsString>,
    in_pod: bool,
    home: Option<OsString>,
}

impl Environment {
    fn resolve(&self, explicit: Option<&Path>) -> Result<Config, ClientError> {
        if let Some(path) = explicit {
            let Some(kubeconfig) = read(path)? else {
                return Err(ClientError::Missing { origin: "--kubeconfig", path: path.to_owned() });
            };
            return select(kubeconfig, path.display());
        }
        let listed: Vec<PathBuf> = self.kubeconfig.iter().flat_map(env::split_paths).collect();
        let listed: Vec<PathBuf> = listed.into_iter().filter(|path| !path.as_os_str().is_empty()).collect();
        if !listed.is_empty() {
            return merge(&listed);
        }
        if self.in_pod {
            return Config::incluster().map_err(|error| ClientError::InCluster { reason: one_line(error) });
        }
        let home = self.home.as_ref().map(|home| Path::new(home).join(".kube/config"));
        let Some(path) = home else {
            return Err(ClientError::NothingConfigured { home: "home directory".into() });
        };
        match read(&path)? {
            Some(kubeconfig) => select(kubeconfig, path.display()),
            None => Err(ClientError::NothingConfigured { home: path.display().to_string() }),
        }
    }
}

/// The first file to set a value wins, and files that do not exist are skipped: kubectl's rules for lists.
fn merge(paths: &[PathBuf]) -> Result<Config, ClientError> {
    let files = || paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let mut merged: Option<Kubeconfig> = None;
    for path in paths {
        let Some(next) = read(path)? else { continue };
        merged = Some(match merged {
            None => next,
            Some(first) => first
                .merge(next)
                .map_err(|error| ClientError::Inconsistent { files: files(), reason: one_line(error) })?,
        });
    }
    match (merged, paths) {
        (Some(kubeconfig), _) => select(kubeconfig, files()),
        (None, [only]) => Err(ClientError::Missing { origin: "KUBECONFIG", path: only.clone() }),
        (None, _) => Err(ClientError::AllMissing { files: files() }),
    }
}

fn read(path: &Path) -> Result<Option<Kubeconfig>, ClientError> {
    match Kubeconfig::read_from(path) {
        Ok(kubeconfig) => Ok(Some(kubeconfig)),
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::InvalidData => {
            Err(ClientError::Malformed { path: path.to_owned(), reason: one_line(error) })
        }
        Err(KubeconfigError::ReadConfig(reason, _)) => Err(ClientError::Unreadable { path: path.to_owned(), reason }),
        Err(error) => Err(ClientError::Malformed { path: path.to_owned(), reason: one_line(error) }),
    }
}

/// Follows current-context to its cluster and user. kube itself does not mind an unknown user and would go on as nobody.
fn select(kubeconfig: Kubeconfig, files: impl Display) -> Result<Config, ClientError> {
    let wrong = |reason: String| ClientError::Inconsistent { files: files.to_string(), reason };
    let Some(name) = kubeconfig.current_context.as_deref().filter(|name| !name.is_empty()) else {
        return Err(wrong("no current-context is set; choose one with `kubectl config use-context NAME`".into()));
    };
    let context = kubeconfig.contexts.iter().find(|context| context.name == name);
    let Some(context) = context.and_then(|context| context.context.as_ref()) else {
        let known = list(kubeconfig.contexts.iter().map(|context| context.name.as_str()));
        return Err(wrong(format!("its current-context {name:?} is not among its contexts ({known})")));
    };
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster);
    let Some(cluster) = cluster.and_then(|cluster| cluster.cluster.as_ref()) else {
        let known = list(kubeconfig.clusters.iter().map(|cluster| cluster.name.as_str()));
        let cluster = &context.cluster;
        return Err(wrong(format!(
            "its context {name:?} names the cluster {cluster:?}, which is not among its clusters ({known})"
        )));
    };
    let user = context.user.as_deref().unwrap_or_default();
    if !user.is_empty() && !kubeconfig.auth_infos.iter().any(|known| known.name == user) {
        let known = list(kubeconfig.auth_infos.iter().map(|user| user.name.as_str()));
        return Err(wrong(format!(
            "its context {name:?} names the user {user:?}, who is not among its users ({known})"
        )));
    }
    let asks_for_proxy = cluster.proxy_url.is_some();
    let config = Config::try_from(kubeconfig).map_err(|error| wrong(one_line(error)))?;
    Ok(if asks_for_proxy { config } else { without_needless_proxy(config) })
}

/// A proxy from the environment is not meant for servers on this machine. Go knows that, kube does not.
fn without_needless_proxy(mut config: Config) -> Config {
    let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']);
    if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        config.proxy_url = None;
    }
    config
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "it has none".into() } else { names.join(", ") }
}

/// What keeps a client from being made, and what to do.
pub(super) fn why_unusable(error: &kube::Error) -> String {
    match error {
        kube::Error::ProxyProtocolDisabled { proxy_url, .. } | kube::Error::ProxyProtocolUnsupported { proxy_url } => {
            format!(
                "it would be reached through {proxy_url}, and proxies are not supported; unset HTTPS_PROXY or proxy-url"
            )
        }
        error => one_line(error),
    }
}

/// Parsers like to draw the place of an error on several lines; a log line and a terminal want the first one.
fn one_line(error: impl Display) -> String {
    let text = error.to_string();
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given").to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn kubeconfig(context: &str, cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {context}\n\
             contexts: [{{name: {context}, context: {{cluster: {cluster}, user: {user}}}}}]\n\
             clusters: [{{name: {cluster}, cluster: {{server: 'https://{cluster}.example:6443'}}}}]\n\
             users: [{{name: {user}, user: {{token: secret}}}}]\n"
        )
    }

    fn nowhere() -> Environment {
        Environment { kubeconfig: None, in_pod: false, home: None }
    }

    fn listing(paths: &[&Path]) -> Environment {
        Environment { kubeconfig: Some(env::join_paths(paths).unwrap()), ..nowhere() }
    }

    #[test]
    fn the_flag_wins_over_everything_else() {
        let dir = tempfile::tempdir().unwrap();
        let (flag, variable) = (dir.path().join("flag"), dir.path().join("variable"));
        fs::write(&flag, kubeconfig("a", "one", "alice")).unwrap();
        fs::write(&variable, kubeconfig("b", "two", "bob")).unwrap();
        let config = listing(&[&variable]).resolve(Some(&flag)).unwrap();
        assert_eq!(config.cluster_url.host(), Some("one.example"));
    }

    #[test]
    fn listed_files_are_merged_first_wins_and_missing_ones_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, contexts, rest) = (dir.path().join("no"), dir.path().join("contexts"), dir.path().join("rest"));
        fs::write(&contexts, "current-context: b\ncontexts: [{name: b, context: {cluster: two, user: bob}}]\n")
            .unwrap();
        fs::write(&rest, kubeconfig("a", "two", "bob")).unwrap();
        let config = listing(&[&missing, &contexts, &rest]).resolve(None).unwrap();
        assert_eq!(config.cluster_url.host(), Some("two.example"));
    }

    #[test]
    fn an_empty_variable_is_no_variable_and_the_home_file_is_used() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".kube")).unwrap();
        fs::write(dir.path().join(".kube/config"), kubeconfig("a", "home", "alice")).unwrap();
        let environment = Environment { kubeconfig: Some("".into()), in_pod: false, home: Some(dir.path().into()) };
        assert_eq!(environment.resolve(None).unwrap().cluster_url.host(), Some("home.example"));
    }

    #[test]
    fn every_error_is_one_line_that_names_the_file_and_the_fault() {
        let dir = tempfile::tempdir().unwrap();
        let valid = kubeconfig("a", "one", "alice");
        for (content, words) in [
            ("a: [b\nc: d\n", "is not a kubeconfig"),
            ("just text", "is not a kubeconfig"),
            ("\u{0}\u{1}", "is not a kubeconfig"),
            ("", "no current-context is set; choose one"),
            (&valid.replace("name: a", "name: z"), "current-context \"a\" is not among its contexts (z)"),
            (
                &valid.replace("name: one", "name: other"),
                "the cluster \"one\", which is not among its clusters (other)",
            ),
            (&valid.replace("name: alice", "name: bob"), "the user \"alice\", who is not among its users (bob)"),
            (&valid.replace("server:", "host:"), "cluster url is missing"),
            (&valid.replace("https://one.example", "no url"), "failed to parse cluster url"),
        ] {
            let path = dir.path().join("kubeconfig");
            fs::write(&path, content).unwrap();
            let text = nowhere().resolve(Some(&path)).unwrap_err().to_string();
            assert!(text.contains(words), "{words:?} is missing in {text:?}");
            assert!(text.contains(path.to_str().unwrap()), "{text:?} does not name the file");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }

    #[test]
    fn a_proxy_of_the_environment_is_not_used_for_servers_on_this_machine() {
        for (server, proxied) in [
            ("https://127.0.0.1:6443", false),
            ("https://[::1]:6443", false),
            ("https://localhost:6443", false),
            ("https://cluster.example:6443", true),
        ] {
            let mut config = Config::new(server.parse().unwrap());
            config.proxy_url = Some("http://proxy.example:3128".parse().unwrap());
            assert_eq!(without_needless_proxy(config).proxy_url.is_some(), proxied, "{server}");
        }
    }

    #[test]
    fn files_that_are_missing_or_unreadable_are_named_with_who_asked_for_them() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        for (result, words) in [
            (nowhere().resolve(Some(&one)), "--kubeconfig names the kubeconfig"),
            (listing(&[&one]).resolve(None), "KUBECONFIG names the kubeconfig"),
            (listing(&[&one, &two]).resolve(None), "none of them exists"),
            (nowhere().resolve(Some(dir.path())), "cannot be read"),
            (nowhere().resolve(None), "no cluster is configured"),
        ] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(words), "{words:?} is missing in {text:?}");
        }
    }
}
