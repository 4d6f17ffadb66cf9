//! Admission: the API server asks before it writes, and a feature answers.
//!
//! ```text
//! API server ──TLS──> server ── accepts, drains        on a thread of its own, so that no burst of the controllers
//!                       └── connection ── HTTP/1.1, 2    delays an answer: the API server waits 3 s at most
//!                             └── service ── path, type, limits, time
//!                                   └── answer ── bytes in, Webhook::review, bytes out
//! ```
//!
//! A feature implements [`Webhook`] for one path; what a request says and what an answer may say is in [`review`]. The
//! certificate comes from whoever holds a [`ServedCertificate`].
//!
//! What goes wrong is answered in a sentence, as a `Status`, which the API server repeats to the person who asked. It takes
//! every answer but 200 for a call that failed, and then the webhook's `failurePolicy` decides.
//!
//! # Live reads
//!
//! A webhook runs on the admission thread. A client that it reads with must be built there, within
//! [`AdmissionServer::enter`]: a client's requests pass through a task of the runtime on which it was built, and behind the
//! controllers' work they would wait for just what this thread is meant to be spared.

mod answer;
mod connection;
mod limits;
mod metrics;
pub mod review;
mod server;
mod service;
pub mod tls;
mod webhook;
mod wire;

pub use answer::{Reply, answer};
pub use limits::{MOST_BODY, Settings};
pub use review::{Answer, Operation, Request};
pub use server::{AdmissionServer, ServerError};
pub use tls::ServedCertificate;
pub use webhook::{Answering, Webhook};
