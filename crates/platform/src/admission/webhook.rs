//! What a feature implements to be asked.

use std::{future::Future, pin::Pin};

use super::review::{Answer, Request};

/// An answer on its way. Almost every one is ready at once; only what the caches do not know yet is read live.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// What answers the requests to one path.
pub trait Webhook: Send + Sync + 'static {
    /// The path, with its slash.
    fn path(&self) -> &'static str;

    /// Answers one request.
    fn review<'a>(&'a self, request: &'a Request<'a>) -> Answering<'a>;
}
