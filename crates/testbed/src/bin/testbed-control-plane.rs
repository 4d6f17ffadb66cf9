//! Starts a control plane and a program on a leash, prints the run directory on a line, and holds both until it is
//! interrupted: what a test kills to see that nothing is left. With `--real-node` the cluster has one.

use std::{fs, path::Path};

use testbed::{ControlPlane, Leash, Options};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let with_real_node = std::env::args().any(|argument| argument == "--real-node");
    let options = if with_real_node { Options::default().real_node() } else { Options::default() };
    let control_plane = ControlPlane::start(options).await?;
    let directory = control_plane.directory();
    let leash = Leash::start(directory, "leashed", Path::new("sleep"), &["1000"]).await?;
    fs::write(directory.join("pids/leashed"), leash.pid().to_string())?;
    println!("{}", directory.display());
    tokio::signal::ctrl_c().await?;
    Ok(())
}
