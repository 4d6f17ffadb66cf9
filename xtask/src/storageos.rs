//! `cargo xtask storageos`: the testbed's StorageOS control plane to play with.

use std::{collections::BTreeMap, fs, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Result, anyhow};
use testbed::storageos::{PASSWORD, StorageOs, USERNAME};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// How long a change of the file may take to be seen.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen; the password is no secret, so stay on this machine
    #[arg(long, default_value = "127.0.0.1:5705")]
    listen: SocketAddr,
    /// A YAML file with the volumes, which is read again when it changes:
    /// `volumes: [{ namespace: team, claim: data, volume: pvc-1, endpoint: "10.0.0.1:25705" }]`;
    /// without `endpoint` no NFS server runs
    #[arg(long, value_name = "FILE")]
    volumes: Option<PathBuf>,
    /// Who may log in
    #[arg(long, default_value = USERNAME)]
    username: String,
    /// With which password
    #[arg(long, default_value = PASSWORD)]
    password: String,
    /// For how long a token is good
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    token_lifetime: u64,
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let (mut interrupted, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let server = StorageOs::start_at(arguments.listen, &arguments.username, &arguments.password).await?;
    server.sessions(|sessions| sessions.lifetime = Duration::from_secs(arguments.token_lifetime));
    let mut watched = Watched { server: &server, file: arguments.volumes, seen: None, published: BTreeMap::new() };
    // A file that is wrong from the start is a mistake on the command line; later it is one in an editor.
    watched.read()?;
    println!("StorageOS listens on {}; its credentials are in {}", server.url(), server.secret_path().display());
    loop {
        watched.tell_published();
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = interrupted.recv() => return Ok(()),
            _ = terminated.recv() => return Ok(()),
        }
        if let Err(error) = watched.read() {
            eprintln!("error: {error:#}");
        }
    }
}

/// The server with what was last seen of its file and of its clients.
struct Watched<'a> {
    server: &'a StorageOs,
    file: Option<PathBuf>,
    /// The file's content, or why it has none.
    seen: Option<Result<String, String>>,
    published: BTreeMap<String, String>,
}

impl Watched<'_> {
    /// Makes the volumes those of the file, if that has changed. What is wrong with it is said once.
    fn read(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let content = fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()));
        if self.seen.as_ref() == Some(&content) {
            return Ok(());
        }
        let content = self.seen.insert(content);
        let changes = content.as_ref().map_err(|error| anyhow!("{error}")).and_then(|text| self.server.apply(text))?;
        for change in changes {
            println!("{change}");
        }
        Ok(())
    }

    fn tell_published(&mut self) {
        for (id, volume) in self.server.volumes() {
            let Ok(Some(address)) = self.server.published(&id) else { continue };
            if self.published.get(&id) != Some(&address) {
                println!("{}/{} is mounted from {address}", volume.namespace, volume.name);
                self.published.insert(id, address);
            }
        }
    }
}
