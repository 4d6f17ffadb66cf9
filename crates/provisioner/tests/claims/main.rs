//! Claims that pods ask for, made on a real control plane with the rights that the chart grants in one namespace.

#![allow(clippy::unwrap_used)] // helpers are tests too

mod hostile;
mod repairs;
mod room;
mod seed;
mod templates;
