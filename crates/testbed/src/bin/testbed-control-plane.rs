//! Starts a control plane, prints its run directory on a line, and holds it until it is interrupted.

use testbed::{ControlPlane, Options};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    println!("{}", control_plane.directory().display());
    tokio::signal::ctrl_c().await?;
    Ok(())
}
