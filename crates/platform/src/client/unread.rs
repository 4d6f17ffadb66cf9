//! Writes whose answer nobody reads.
//!
//! What becomes of an object reaches us through the watch, so the copy in the answer to a create is of no use; yet the API
//! server spends a good part of its work on writing it. In the binary format that costs it much less: with claims, a server
//! whose cores are busy takes 14 % more of them. Only a refusal has to be understood, and that is one small message.

use http::{HeaderValue, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};

use super::binary::{BINARY, refusal};

/// Sends a request and, if it succeeds, throws the answer away.
pub async fn send_unread(client: &Client, mut request: Request<Vec<u8>>) -> kube::Result<()> {
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(BINARY));
    let answer = client.send(request.map(Body::from)).await?;
    let code = answer.status();
    // Also what nobody reads must be taken off the connection, or it could not be used again.
    let body = answer.into_body().collect().await?.to_bytes();
    if code.is_success() {
        return Ok(());
    }
    Err(kube::Error::Api(Box::new(refusal(&body, code.as_u16()))))
}
