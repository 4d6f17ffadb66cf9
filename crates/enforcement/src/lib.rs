//! Admits claims on local, unreplicated storage only if they are ephemeral or if their author accepts the risk.

mod change;
pub mod claim;
pub mod decision;
pub mod governed;
mod message;
pub mod observe;
pub mod settings;

pub use settings::Settings;
