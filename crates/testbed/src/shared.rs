//! The control plane that all tests of a run share.

use std::{
    env,
    path::Path,
    sync::{OnceLock, mpsc},
    thread,
};

use anyhow::{Context, Result, anyhow};

use crate::{Cluster, ControlPlane, Options};

/// Names the run directory of a control plane that someone else started for this test run.
pub const TESTBED_VARIABLE: &str = "CLAIMKEEPER_TESTBED";

static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();

/// The control plane of this test run: the one that `cargo xtask test` started, or else one that starts with the first
/// call and lives as long as this process.
///
/// Tests share it, so each works in a namespace of its own and leaves components, nodes and classes alone.
pub async fn shared() -> Result<Cluster> {
    let shared =
        tokio::task::spawn_blocking(|| SHARED.get_or_init(|| find_or_start().map_err(|error| format!("{error:#}"))));
    shared.await?.clone().map_err(|error| anyhow!(error))
}

fn find_or_start() -> Result<Cluster> {
    if let Some(directory) = env::var_os(TESTBED_VARIABLE) {
        return Cluster::attach(Path::new(&directory))
            .with_context(|| format!("{TESTBED_VARIABLE} does not name a running control plane"));
    }
    // Each test has a runtime that ends with it; the control plane needs a thread and a runtime that outlive them all.
    // Nothing joins it: when the process ends, the lifelines end the components.
    let (sender, started) = mpsc::channel();
    thread::Builder::new().name("shared-control-plane".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let outcome = runtime.context("cannot make a runtime").and_then(|runtime| {
            let control_plane = runtime.block_on(ControlPlane::start(Options::default().name("shared")))?;
            Ok((runtime, control_plane))
        });
        match outcome {
            Ok((runtime, control_plane)) => {
                if sender.send(Ok(control_plane.cluster())).is_ok() {
                    runtime.block_on(std::future::pending::<()>());
                }
            }
            // A receiver that is gone has nobody left to tell.
            Err(error) => drop(sender.send(Err(error))),
        }
    })?;
    started.recv().context("the thread of the shared control plane ended")?
}
