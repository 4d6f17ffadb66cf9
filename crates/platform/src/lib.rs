//! What a process needs, each part small and separate: work queue, leader, events, metrics, probes, API client, logs, shutdown.
//!
//! Nothing in here knows what a volume is. A feature gets its queue, its events and its metrics from here and never
//! starts a thread, opens a socket or reads the clock in another way.

pub mod admin;
pub mod admission;
pub mod certificates;
pub mod client;
pub mod events;
pub mod leader;
pub mod logging;
pub mod metrics;
pub mod queue;
pub mod readiness;
pub mod shutdown;
pub mod spelling;
pub mod trouble;
