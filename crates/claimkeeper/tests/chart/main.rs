//! The chart as an administrator meets it: what it accepts, what it makes, and that the program runs with exactly that.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers are tests too

mod accepts;
mod answers;
mod deploy;
mod documented;
mod documents;
#[allow(dead_code)] // shared with the tests of the operator; this takes what it needs
#[path = "../operator/home.rs"]
mod home;
mod makes;
mod pages;
mod pod;
mod release;
mod runs;
