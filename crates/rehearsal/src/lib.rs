//! One feature inside of a test, on a real control plane and with the rights that the chart gives it, as its process would run it: so
//! that the test can look into it, make it deaf, or end it between two instructions.

mod actors;
mod process;
mod told;
mod webhook;

pub use self::{
    actors::{Actors, Outcome, STAGEHAND},
    process::{Means, Process},
    told::{Events, Told},
    webhook::{Understudy, self_signed},
};
