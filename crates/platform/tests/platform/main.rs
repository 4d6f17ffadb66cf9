//! The platform's parts against a real API server, a real kube-scheduler, the real client-go, and faults made on purpose.

#![allow(clippy::unwrap_used, clippy::panic)] // clippy knows test functions but not their helpers

mod admission;
mod certificates;
mod certificates_files;
mod certificates_load;
mod certificates_support;
mod client;
mod client_manners;
mod events;
mod events_faults;
mod leader_election;
mod leader_outage;
mod leader_support;
mod leader_with_kube_scheduler;
mod workqueue_reference;
