//! What a watch brings, event by event, in the format in which the API server sends it.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt;
use kube::{
    Client,
    api::WatchParams,
    client::Body,
    core::{
        Request, Status, TypeMeta, WatchEvent,
        watch::{Bookmark, BookmarkMeta},
    },
};
use platform::client::binary::{self, BINARY, BinaryError};
use prost::Message;

use crate::{
    binary::{AnyObject, Meta},
    store::Slim,
};

/// Far more than the biggest object that the API server takes in.
const LONGEST_EVENT: usize = 64 << 20;

/// What is asked for where we can read it: the binary format, or what somebody in between makes of it.
const BINARY_OR_JSON: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch, application/json");

/// Why a watch or a list came to its end before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum Interruption {
    /// The API server did not answer, or said no.
    #[error(transparent)]
    Refused(kube::Error),
    /// The API server ended the watch.
    #[error("{} ({})", .0.message, .0.reason)]
    Ended(Box<Status>),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] kube::Error),
    /// Something came that is no event.
    #[error("the API server sent something that cannot be read: {0}")]
    Unreadable(String),
}

impl From<BinaryError> for Interruption {
    fn from(error: BinaryError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<prost::DecodeError> for Interruption {
    fn from(error: prost::DecodeError) -> Self {
        BinaryError::from(error).into()
    }
}

impl Interruption {
    /// Whether it makes no sense to go on where the watch stopped: the server has forgotten what happened since, or was itself set
    /// back to an earlier time.
    pub(super) fn has_missed_too_much(&self) -> bool {
        self.status().is_some_and(|status| status.code == 410 || status.message.contains("Too large resource version"))
    }

    /// Whether the server does not stream lists, which it says in several ways: "sendInitialEvents is forbidden for watch unless the
    /// `WatchList` feature gate is enabled", with status 422.
    pub(super) fn is_about_streaming(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status))
            if status.code == 422 || (status.code == 400 && status.message.contains("sendInitialEvents")))
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(kube::Error::Api(status)) | Self::Ended(status) => Some(status),
            _ => None,
        }
    }
}

/// A watch that the API server has agreed to.
pub(super) struct Events {
    body: Body,
    binary: bool,
    /// What has come and is not a whole event yet.
    rest: BytesMut,
    /// The end of a line is not looked for twice in the same bytes.
    searched: usize,
    patience: Duration,
}

impl Events {
    /// Asks for the changes of a kind since a version, the present objects first if the parameters say so.
    pub(super) async fn ask(
        client: &Client,
        path: &str,
        parameters: &WatchParams,
        since: &str,
        binary: bool,
        patience: Duration,
    ) -> Result<Self, Interruption> {
        let request = Request::new(path).watch(parameters, since);
        let mut request = request.map_err(|error| Interruption::Refused(kube::Error::BuildRequest(error)))?;
        let headers = request.headers_mut();
        // Events are compressed one by one, which is no format that the client's decompression knows.
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if binary {
            headers.insert(header::ACCEPT, BINARY_OR_JSON);
        }
        let answer = client.send(request.map(Body::from)).await.map_err(Interruption::Refused)?;
        let code = answer.status();
        if !code.is_success() {
            let body = answer.into_body().collect().await.map_err(Interruption::Refused)?.to_bytes();
            return Err(Interruption::Refused(kube::Error::Api(Box::new(binary::refusal(&body, code.as_u16())))));
        }
        let binary = is_binary(&answer);
        Ok(Self { body: answer.into_body(), binary, rest: BytesMut::new(), searched: 0, patience })
    }

    /// The next event; none if the watch is over, as every watch is after a while.
    pub(super) async fn next<T: Slim>(&mut self) -> Result<Option<WatchEvent<T::Wire>>, Interruption> {
        loop {
            if let Some(event) = self.split()? {
                return if self.binary { from_binary::<T>(event) } else { from_json::<T>(&event) }.map(Some);
            }
            // The server ends the watch in time. If not even that arrives, there is nobody any more at the other end.
            let Ok(Some(frame)) = tokio::time::timeout(self.patience, self.body.frame()).await else { return Ok(None) };
            match frame {
                Ok(frame) => self.rest.extend_from_slice(frame.data_ref().map_or(&[][..], Bytes::as_ref)),
                // So ends what is cut off on its way by those in between, or by the end of the server.
                Err(error) if is_early_end(&error) => return Ok(None),
                Err(error) => return Err(Interruption::Broken(error)),
            }
        }
    }

    /// Takes a whole event off what has come, if there is one.
    fn split(&mut self) -> Result<Option<Bytes>, Interruption> {
        let event = if self.binary { self.split_frame() } else { self.split_line() };
        if event.is_none() && self.rest.len() > LONGEST_EVENT {
            return Err(Interruption::Unreadable(format!("an event of more than {LONGEST_EVENT} bytes")));
        }
        Ok(event)
    }

    fn split_frame(&mut self) -> Option<Bytes> {
        let (length, behind) = self.rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        (behind.len() >= length).then(|| self.rest.split_to(4 + length).freeze().split_off(4))
    }

    fn split_line(&mut self) -> Option<Bytes> {
        let Some(end) = self.rest[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.rest.len();
            return None;
        };
        let line = self.rest.split_to(self.searched + end + 1).freeze();
        self.searched = 0;
        Some(line)
    }
}

fn is_binary(answer: &Response<Body>) -> bool {
    let format = answer.headers().get(header::CONTENT_TYPE);
    format.is_some_and(|format| format.as_bytes().starts_with(BINARY.as_bytes()))
}

fn is_early_end(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn from_json<T: Slim>(line: &[u8]) -> Result<WatchEvent<T::Wire>, Interruption> {
    serde_json::from_slice(line).map_err(|error| match serde_json::from_slice::<Status>(line) {
        // Somebody in between has something to say.
        Ok(status) => Interruption::Ended(Box::new(status)),
        Err(_) => Interruption::Unreadable(error.to_string()),
    })
}

fn from_binary<T: Slim>(event: Bytes) -> Result<WatchEvent<T::Wire>, Interruption> {
    let BinaryEvent { kind, object } = BinaryEvent::decode(event)?;
    let object = object.map_or_else(Bytes::new, |object| object.raw);
    let wire = |object| match T::FROM_BINARY {
        Some(read) => Ok(read(binary::open(object)?)?),
        None => Err(Interruption::Unreadable(format!("{} in a format that was not asked for", T::KIND))),
    };
    match kind.as_str() {
        "ADDED" => wire(object).map(WatchEvent::Added),
        "MODIFIED" => wire(object).map(WatchEvent::Modified),
        "DELETED" => wire(object).map(WatchEvent::Deleted),
        "BOOKMARK" => Ok(WatchEvent::Bookmark(bookmark(binary::open(object)?)?)),
        "ERROR" => Ok(WatchEvent::Error(Box::new(binary::refusal(&object, 500)))),
        _ => Err(Interruption::Unreadable(format!("an event of the unknown type {kind:?}"))),
    }
}

fn bookmark(object: Bytes) -> Result<Bookmark, prost::DecodeError> {
    let Meta { resource_version, annotations, .. } = AnyObject::decode(object)?.metadata.unwrap_or_default();
    Ok(Bookmark { types: TypeMeta::default(), metadata: BookmarkMeta { resource_version, annotations } })
}

/// `k8s.io/apimachinery/pkg/apis/meta/v1.WatchEvent`.
#[derive(Clone, PartialEq, Message)]
struct BinaryEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, tag = "2")]
    object: Option<RawExtension>,
}

/// `k8s.io/apimachinery/pkg/runtime.RawExtension`.
#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, Namespace, binary::Moment};

    /// A claim under way, in short: what happened to it, its name and its version.
    fn told(event: WatchEvent<<Claim as Slim>::Wire>) -> String {
        use kube::ResourceExt;
        let of = |wire: <Claim as Slim>::Wire| {
            let version = wire.resource_version().unwrap_or_default();
            let claim = Claim::from_wire(wire).unwrap();
            format!("{}@{version}{}", claim.key, if claim.being_deleted { " ends" } else { "" })
        };
        match event {
            WatchEvent::Added(wire) => format!("added {}", of(wire)),
            WatchEvent::Modified(wire) => format!("modified {}", of(wire)),
            WatchEvent::Deleted(wire) => format!("deleted {}", of(wire)),
            WatchEvent::Bookmark(mark) => {
                format!("bookmark @{} {:?}", mark.metadata.resource_version, mark.metadata.annotations)
            }
            WatchEvent::Error(status) => format!("error {} {}", status.code, status.message),
        }
    }

    fn frame(kind: &str, object: Vec<u8>) -> Vec<u8> {
        let object = Some(RawExtension { raw: object.into() });
        let event = BinaryEvent { kind: kind.to_owned(), object }.encode_to_vec();
        [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
    }

    fn claim(version: &str, deleted: Option<Moment>) -> Vec<u8> {
        let metadata = Meta {
            namespace: "ci".to_owned(),
            name: "scratch".to_owned(),
            resource_version: version.to_owned(),
            deletion_timestamp: deleted,
            ..Meta::default()
        };
        binary::wrap("v1", "PersistentVolumeClaim", &AnyObject { metadata: Some(metadata) })
    }

    fn in_binary() -> Vec<u8> {
        let annotations = [("k8s.io/initial-events-end".to_owned(), "true".to_owned())].into();
        let mark = Meta { resource_version: "8".to_owned(), annotations, ..Meta::default() };
        let mark = binary::wrap("v1", "PersistentVolumeClaim", &AnyObject { metadata: Some(mark) });
        let gone = br#"{"kind":"Status","code":410,"message":"too old","reason":"Expired"}"#.to_vec();
        [
            frame("ADDED", claim("7", None)),
            frame("BOOKMARK", mark),
            frame("MODIFIED", claim("9", Some(Moment { seconds: 1_700_000_000 }))),
            frame("DELETED", claim("10", None)),
            frame("ERROR", gone),
        ]
        .concat()
    }

    fn in_json() -> Vec<u8> {
        br#"{"type":"ADDED","object":{"metadata":{"namespace":"ci","name":"scratch","resourceVersion":"7"}}}
{"type":"BOOKMARK","object":{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"resourceVersion":"8","annotations":{"k8s.io/initial-events-end":"true"}}}}
{"type":"MODIFIED","object":{"metadata":{"namespace":"ci","name":"scratch","resourceVersion":"9","deletionTimestamp":"2026-01-01T00:00:00Z"}}}
{"type":"DELETED","object":{"metadata":{"namespace":"ci","name":"scratch","resourceVersion":"10"}}}
{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old","reason":"Expired"}}
"#
        .to_vec()
    }

    fn events(binary: bool) -> Events {
        let patience = Duration::from_secs(1);
        Events { body: Body::empty(), binary, rest: BytesMut::new(), searched: 0, patience }
    }

    #[test]
    fn events_are_the_same_in_both_formats_wherever_they_are_cut() {
        for (binary, bytes) in [(true, in_binary()), (false, in_json())] {
            for size in (1..40).chain([bytes.len()]) {
                let (mut events, mut heard) = (events(binary), Vec::new());
                for chunk in bytes.chunks(size) {
                    events.rest.extend_from_slice(chunk);
                    while let Some(event) = events.split().unwrap() {
                        let event = if binary { from_binary::<Claim>(event) } else { from_json::<Claim>(&event) };
                        heard.push(told(event.unwrap()));
                    }
                }
                let expected = [
                    "added ci/scratch@7",
                    r#"bookmark @8 {"k8s.io/initial-events-end": "true"}"#,
                    "modified ci/scratch@9 ends",
                    "deleted ci/scratch@10",
                    "error 410 too old",
                ];
                assert_eq!(heard, expected, "in pieces of {size} bytes");
            }
        }
    }

    #[test]
    fn what_is_no_event_is_said_to_be_none() {
        let unreadable = |event: Vec<u8>| {
            let mut events = events(true);
            events.rest.extend_from_slice(&event);
            let event = events.split().unwrap().unwrap();
            from_binary::<Claim>(event).unwrap_err().to_string()
        };
        for (event, words) in [
            (frame("MOVED", claim("1", None)), r#"unknown type "MOVED""#),
            (frame("ADDED", b"{}".to_vec()), "does not begin as objects"),
            (frame("ADDED", b"k8s\0\xff".to_vec()), "Protobuf"),
            (vec![0, 0, 0, 1, 0xff], "Protobuf"),
        ] {
            let told = unreadable(event);
            assert!(told.contains(words), "{told}");
        }
        let other = from_binary::<Namespace>(Bytes::from(frame("ADDED", claim("1", None))).slice(4..)).unwrap_err();
        assert!(other.to_string().contains("a format that was not asked for"), "{other}");
        let said = from_json::<Claim>(br#"{"kind":"Status","status":"Failure","code":502,"message":"no backend"}"#);
        assert!(matches!(said, Err(Interruption::Ended(status)) if status.code == 502));
        assert!(matches!(from_json::<Claim>(b"<html>"), Err(Interruption::Unreadable(_))));
    }

    #[test]
    fn an_event_without_an_end_is_not_waited_for_for_ever() {
        for binary in [true, false] {
            let mut events = events(binary);
            events.rest.extend_from_slice(&u32::MAX.to_be_bytes());
            events.rest.resize(LONGEST_EVENT + 1, b'x');
            assert!(events.split().unwrap_err().to_string().contains("an event of more than"));
        }
    }
}
