//! The binary format of Kubernetes: protobuf, with a few bytes in front of every object and an envelope around it.
//!
//! Only what Kubernetes itself defines comes in it, not what others add to its API, and kube does not speak it. Where objects
//! are many or big it is worth the trouble: what nobody reads is passed over without a look.
//!
//! What is text in JSON need not be text here: the API server takes in annotations that are not UTF-8. Who reads objects of others in
//! this format must be able to do without.

use bytes::Bytes;
use kube::core::Status;
use prost::{DecodeError, Message};

/// The format's name in requests and answers.
pub const BINARY: &str = "application/vnd.kubernetes.protobuf";

/// What stands in front of every object.
const MAGIC: &[u8] = b"k8s\0";

/// Why something that should be an object in the binary format cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// It is something else.
    #[error("it does not begin as objects in the binary format do")]
    OtherFormat,
    /// It begins as one and goes on as none.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

/// Takes an object out of its envelope.
pub fn open(mut object: Bytes) -> Result<Bytes, BinaryError> {
    if !object.starts_with(MAGIC) {
        return Err(BinaryError::OtherFormat);
    }
    Ok(Envelope::decode(object.split_off(MAGIC.len()))?.raw)
}

/// Puts an object into its envelope.
#[must_use]
pub fn wrap(api_version: &str, kind: &str, object: &impl Message) -> Vec<u8> {
    let of = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let envelope = Envelope { of: Some(of), raw: object.encode_to_vec().into() };
    let mut wrapped = Vec::with_capacity(MAGIC.len() + envelope.encoded_len());
    wrapped.extend_from_slice(MAGIC);
    // A vector has room for everything.
    let _ = envelope.encode(&mut wrapped);
    wrapped
}

/// What the API server said, in whichever format: what stands in front of it speaks JSON or plain text.
#[must_use]
pub fn refusal(body: &Bytes, code: u16) -> Status {
    let binary = open(body.clone()).ok().and_then(|status| BinaryStatus::decode(status).ok());
    if let Some(BinaryStatus { message, reason, code: told }) = binary {
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
    #[prost(message, tag = "1")]
    of: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

/// `k8s.io/apimachinery/pkg/runtime.TypeMeta`.
#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
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
        let binary = wrap("v1", "Status", &told);
        let json =
            br#"{"kind":"Status","status":"Failure","message":"exceeded quota: x","reason":"Forbidden","code":403}"#;
        for body in [binary, json.to_vec()] {
            let status = refusal(&body.into(), 403);
            assert_eq!((status.message.as_str(), status.reason.as_str()), ("exceeded quota: x", "Forbidden"));
            assert_eq!(status.code, 403);
        }
        let status = refusal(&Bytes::from_static(b"upstream is away\n"), 502);
        assert_eq!((status.message.as_str(), status.code), ("upstream is away", 502));
        assert_eq!(refusal(&Bytes::from_static(b"k8s\0\xff\xff"), 500).code, 500);
    }

    #[test]
    fn what_is_wrapped_can_be_opened_and_nothing_else() {
        let object = BinaryStatus { message: "word for word".into(), ..BinaryStatus::default() };
        let wrapped = Bytes::from(wrap("v1", "Status", &object));
        assert_eq!(BinaryStatus::decode(open(wrapped.clone()).unwrap()).unwrap(), object);
        for other in [wrapped.slice(1..), wrapped.slice(..wrapped.len() - 1), Bytes::new()] {
            assert!(open(other).is_err());
        }
    }
}
