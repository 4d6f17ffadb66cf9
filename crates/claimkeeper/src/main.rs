//! Claimkeeper looks after a volume claim for its whole life. This crate is arguments, configuration and wiring, nothing else.

mod audit;
mod certificates;
mod cli;
mod config;
mod dropin;
mod election;
mod features;
mod manual;
mod policy;
mod run;
mod stores;
mod why;

use std::process::ExitCode;

// Only jemalloc with background threads gives the memory of a burst (a relist, a storm of pods) back to the system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Read by jemalloc when it starts. Two arenas: one thread does the work, and every further arena holds pages of its own.
#[allow(unsafe_code)] // the symbol is the only way to configure it without the environment's help
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_CONFIGURATION: &[u8] = b"background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:5000,narenas:2\0";

fn main() -> ExitCode {
    cli::main()
}
