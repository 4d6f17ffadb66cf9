//! From the bytes of a request to the bytes of its answer: everything but the network.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;

use super::{webhook::Webhook, wire};

/// What is sent back.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP code; 200 with every review, whatever it says.
    pub code: u16,
    /// A review, or a `Status` with one sentence.
    pub body: Vec<u8>,
    /// Whether the webhook broke down over it.
    pub panicked: bool,
}

impl Reply {
    /// No review, but the reason why there is none.
    #[must_use]
    pub fn sentence(code: u16, sentence: &str) -> Self {
        Self { code, body: wire::status(code, sentence), panicked: false }
    }
}

/// Has the webhook answer what the body asks. A webhook that panics fails this one request.
pub async fn answer(webhook: &dyn Webhook, body: &[u8]) -> Reply {
    let request = match wire::decode(body) {
        Ok(request) => request,
        Err(sentence) => return Reply::sentence(400, &sentence),
    };
    // A webhook keeps nothing between two requests but caches and counters, which are whole at every moment.
    let reviewed = AssertUnwindSafe(async { webhook.review(&request).await }).catch_unwind().await;
    let Ok(answer) = reviewed else {
        let sentence = "the webhook failed over this request; its log has the details";
        return Reply { panicked: true, ..Reply::sentence(500, sentence) };
    };
    Reply { code: 200, body: wire::encode(&request.uid, &answer), panicked: false }
}
