//! The real binary on a real control plane, with the rights that the chart grants.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers are tests too

mod audit;
mod bad_input;
mod certificates;
mod chart;
mod differential;
mod dropin;
mod enforcement;
mod examples;
mod home;
mod kills;
mod ledger;
mod lifetime;
mod namespace_labels;
mod outage;
mod policy;
mod real_node;
mod real_node_provisioner;
mod real_node_releaser;
mod real_node_shared_volumes;
mod recipes;
mod reclaim;
mod releaser;
mod replicas;
mod scene;
mod shared_volumes;
mod shared_volumes_page;
mod steering;
mod switching;
mod why;
