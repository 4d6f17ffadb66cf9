//! The end of the process: the first SIGTERM or SIGINT asks everybody to finish, the second one ends it at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first signal. Must be called within the runtime, once, before anything else runs:
/// from then on signals no longer kill the process by default.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let first = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let signal = next().await;
        tracing::info!(signal, "finishing what is under way; another signal ends the process at once");
        first.cancel();
        let signal = next().await;
        tracing::warn!(signal, "ending at once");
        // Skips every destructor on purpose: the person asked twice.
        std::process::exit(1);
    });
    Ok(token)
}
