//! Keeps one stable address in front of an NFS server that moves.

pub mod address;
pub mod decision;
pub mod endpoint;
pub mod names;
pub mod objects;
#[cfg(test)]
mod sample;
pub mod settings;
pub mod source;
pub mod storageos;
pub mod way;
