//! From the bytes of a request to [`Request`], and from an [`Answer`] to bytes.

use std::{borrow::Cow, fmt::Write};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;

use super::review::{Answer, Request};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// What we repeat of a stranger's bytes in an answer: enough to recognize them, too little to be a burden.
const LONGEST_REPEATED: usize = 200;

/// The whole review in one pass over the bytes: how nearly all of them come.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

/// Only what tells whether it is a review at all: a second look at what could not be read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow, default)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

/// Reads a review. The error is a sentence that says what is wrong, and where.
pub(super) fn decode(body: &[u8]) -> Result<Request<'_>, String> {
    match serde_json::from_slice(body) {
        Ok(Review { api_version, kind, request: Some(request) }) if api_version == API_VERSION && kind == KIND => {
            if request.uid.is_empty() {
                Err(wrong(&"request.uid is empty"))
            } else {
                Ok(request)
            }
        }
        Ok(Review { api_version, kind, request }) => {
            Err(not_a_review(Some(&api_version), Some(&kind), request.is_some()))
        }
        Err(error) => Err(match serde_json::from_slice(body) {
            Ok(Envelope { api_version, kind, request }) => {
                let (version, kind) = (api_version.as_deref(), kind.as_deref());
                match (version, kind, request) {
                    (Some(API_VERSION), Some(KIND), Some(_)) => wrong(&error),
                    _ => not_a_review(version, kind, request.is_some()),
                }
            }
            Err(error) if error.is_data() => wrong(&error),
            Err(error) => format!("the body is not JSON: {}", repeated(&error.to_string())),
        }),
    }
}

fn not_a_review(version: Option<&str>, kind: Option<&str>, has_request: bool) -> String {
    let missing = match (version, kind) {
        (None, _) => "apiVersion",
        (_, None) => "kind",
        (Some(API_VERSION), Some(KIND)) if !has_request => "request",
        (Some(version), Some(kind)) => {
            let (version, kind) = (repeated(version), repeated(kind));
            return format!("the body is a `{kind}` of `{version}`, but only an {KIND} of {API_VERSION} is answered");
        }
    };
    format!("the body is not an {KIND} of {API_VERSION}: it has no {missing}")
}

fn wrong(error: &dyn std::fmt::Display) -> String {
    format!("the body is not an {KIND} of {API_VERSION}: {}", repeated(&error.to_string()))
}

/// What somebody sent, fit to be said in a sentence.
fn repeated(text: &str) -> String {
    let mut fit = String::new();
    for character in text.chars() {
        if fit.len() >= LONGEST_REPEATED {
            fit.push('…');
            break;
        }
        // Writing to a string cannot fail.
        let _ = if character.is_control() {
            write!(fit, "{}", character.escape_default())
        } else {
            fit.write_char(character)
        };
    }
    fit
}

/// Writes the review that carries an answer to the request with this uid.
pub(super) fn encode(uid: &str, answer: &Answer) -> Vec<u8> {
    // The API server takes no empty one for none.
    let patch = answer.patch.as_deref().filter(|patch| !patch.is_empty());
    let response = Response {
        uid,
        allowed: answer.allowed,
        // The API server reads it of refusals alone.
        status: (!answer.allowed).then(|| Status::of(answer)),
        warnings: &answer.warnings,
        audit_annotations: Pairs(&answer.audit),
        patch_type: patch.map(|_| "JSONPatch"),
        patch: patch.map(Base64),
    };
    written(&Reviewed { kind: KIND, api_version: API_VERSION, response })
}

/// The text of an answer that is no review: what the API server tells the person whose request it could not have reviewed.
pub(super) fn status(code: u16, sentence: &str) -> Vec<u8> {
    let (outcome, reason, message) = (Some("Failure"), reason_of(code), sentence);
    written(&Status { kind: Some("Status"), api_version: Some("v1"), outcome, code, reason, message, details: None })
}

fn written(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    // Nothing here can fail: all keys are strings, and memory takes what is written to it.
    let _ = serde_json::to_writer(&mut bytes, value);
    bytes
}

/// Kubernetes' word for an HTTP code.
fn reason_of(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        413 => "RequestEntityTooLarge",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reviewed<'a> {
    kind: &'static str,
    api_version: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    audit_annotations: Pairs<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Base64<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    #[serde(rename = "status", skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    code: u16,
    reason: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
}

impl<'a> Status<'a> {
    fn of(answer: &'a Answer) -> Self {
        let cause = Cause { reason: answer.reason, message: &answer.message };
        Self {
            kind: None,
            api_version: None,
            outcome: None,
            code: answer.code,
            reason: reason_of(answer.code),
            message: &answer.message,
            details: Some(Details { causes: [cause] }),
        }
    }
}

#[derive(Serialize)]
struct Details<'a> {
    causes: [Cause<'a>; 1],
}

/// Where programs find the reason: `status.reason` has room for Kubernetes' own words only.
#[derive(Serialize)]
struct Cause<'a> {
    reason: &'a str,
    message: &'a str,
}

struct Pairs<'a>(&'a [(&'static str, String)]);

impl Pairs<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(self.0))
    }
}

#[cfg(test)]
mod tests;
