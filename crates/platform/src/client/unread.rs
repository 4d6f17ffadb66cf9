//! Writes whose answer nobody reads.
//!
//! What becomes of an object reaches us through the watch, so the copy in the answer to a create is of no use; yet the API
//! server spends a good part of its work on writing it. In the binary format that costs it much less: with claims, a server
//! whose cores are busy takes 14 % more of them. Only a refusal has to be understood, and that is one small message.

use http::{HeaderValue, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body, core::Status};
use prost::Message;

const PROTOBUF: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf");

/// What Kubernetes puts in front of every object in the binary format.
const MAGIC: &[u8] = b"k8s\0";

/// Sends a request and, if it succeeds, throws the answer away.
pub async fn send_unread(client: &Client, mut request: Request<Vec<u8>>) -> kube::Result<()> {
    request.headers_mut().insert(header::ACCEPT, PROTOBUF);
    let answer = client.send(request.map(Body::from)).await?;
    let code = answer.status();
    // Also what nobody reads must be taken off the connection, or it could not be used again.
    let body = answer.into_body().collect().await?.to_bytes();
    if code.is_success() {
        return Ok(());
    }
    Err(kube::Error::Api(Box::new(refusal(&body, code.as_u16()))))
}

/// What the API server said, in whichever format: what stands in front of it speaks JSON or plain text.
fn refusal(body: &[u8], code: u16) -> Status {
    let binary = body.strip_prefix(MAGIC).and_then(|body| Envelope::decode(body).ok());
    if let Some(BinaryStatus { message, reason, code: told }) =
        binary.and_then(|envelope| BinaryStatus::decode(envelope.raw.as_slice()).ok())
    {
        return Status::failure(&message, &reason).with_code(u16::try_from(told).unwrap_or(code));
    }
    serde_json::from_slice(body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(body);
        Status::failure(text.trim(), "Failed to parse error data").with_code(code)
    })
}

/// `k8s.io/apimachinery/pkg/runtime.Unknown`, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

/// `k8s.io/apimachinery/pkg/apis/meta/v1.Status`, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct BinaryStatus {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_understood_in_every_format() {
        let told = BinaryStatus { message: "exceeded quota: x".into(), reason: "Forbidden".into(), code: 403 };
        let binary = [MAGIC, &Envelope { raw: told.encode_to_vec() }.encode_to_vec()].concat();
        let json =
            br#"{"kind":"Status","status":"Failure","message":"exceeded quota: x","reason":"Forbidden","code":403}"#;
        for body in [&binary[..], json] {
            let status = refusal(body, 403);
            assert_eq!((status.message.as_str(), status.reason.as_str()), ("exceeded quota: x", "Forbidden"));
            assert_eq!(status.code, 403);
        }
        let status = refusal(b"upstream is away\n", 502);
        assert_eq!((status.message.as_str(), status.code), ("upstream is away", 502));
        assert_eq!(refusal(b"k8s\0\xff\xff", 500).code, 500);
    }
}
