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
            return format!(
                "the body has the kind `{kind}` of `{version}`, but only {KIND} of {API_VERSION} is answered"
            );
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
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::admission::Operation;

    fn text() -> impl Strategy<Value = String> {
        // What needs an escape and what does not, for both are read differently.
        prop_oneof!["[a-z0-9.:-]{0,20}", r#"[\\"/\n\t\u{0}é雪🦀 ]{1,8}"#]
    }

    fn operation() -> impl Strategy<Value = (&'static str, Operation)> {
        prop_oneof![
            Just(("CREATE", Operation::Create)),
            Just(("UPDATE", Operation::Update)),
            Just(("DELETE", Operation::Delete)),
            Just(("CONNECT", Operation::Connect)),
        ]
    }

    fn answer() -> impl Strategy<Value = Answer> {
        let patch = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
        let texts = || proptest::collection::vec(text(), 0..3);
        (any::<bool>(), 400_u16..600, text(), texts(), texts(), patch).prop_map(
            |(allowed, code, message, warnings, audit, patch)| {
                let audit = ["first", "second", "third"].into_iter().zip(audit).collect();
                Answer { allowed, code, reason: "Reason", message: message.into(), warnings, audit, patch }
            },
        )
    }

    proptest! {
        #[test]
        fn what_the_api_server_says_is_what_we_read(
            uid in text().prop_filter("there is always one", |uid| !uid.is_empty()),
            name in text(), namespace in text(), username in text(), (spelling, operation) in operation(), dry_run: bool,
            object in proptest::option::of(text()),
        ) {
            let object = object.map(|note| json!({"metadata": {"annotations": {"note": note}}}));
            let review = json!({
                "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "unknown": [1, {"a": null}],
                "request": {
                    "uid": uid, "kind": {"group": "", "version": "v1", "kind": "PersistentVolumeClaim"},
                    "resource": {"group": "", "version": "v1", "resource": "persistentvolumeclaims"},
                    "name": name, "namespace": namespace, "operation": spelling, "dryRun": dry_run,
                    "userInfo": {"username": username, "groups": ["a"], "extra": {}},
                    "object": object, "oldObject": null, "options": {"kind": "CreateOptions"},
                },
            });
            for bytes in [serde_json::to_vec(&review).unwrap(), serde_json::to_vec_pretty(&review).unwrap()] {
                let request = decode(&bytes).unwrap();
                prop_assert_eq!(&*request.uid, &uid);
                prop_assert_eq!((&*request.name, &*request.namespace), (&*name, &*namespace));
                prop_assert_eq!(&*request.user_info.username, &username);
                prop_assert_eq!((request.operation, request.dry_run), (operation, dry_run));
                let read = request.object.map(|object| serde_json::from_str::<Value>(object.get()).unwrap());
                prop_assert_eq!(&read, &object);
                prop_assert!(request.old_object.is_none());
            }
        }

        #[test]
        fn what_we_answer_is_what_the_api_server_reads(uid in text(), answer in answer()) {
            let bytes = encode(&uid, &answer);
            let review: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!((&review["kind"], &review["apiVersion"]), (&json!("AdmissionReview"), &json!("admission.k8s.io/v1")));
            let response = &review["response"];
            prop_assert_eq!((&response["uid"], &response["allowed"]), (&json!(uid), &json!(answer.allowed)));
            prop_assert_eq!(response.get("status").is_some(), !answer.allowed);
            if !answer.allowed {
                let status = &response["status"];
                prop_assert_eq!((&status["code"], &status["message"]), (&json!(answer.code), &json!(answer.message)));
                prop_assert_eq!(&status["details"]["causes"][0]["reason"], "Reason");
            }
            prop_assert_eq!(response.get("warnings").is_some(), !answer.warnings.is_empty());
            for (key, value) in &answer.audit {
                prop_assert_eq!(&response["auditAnnotations"][key], value);
            }
            // It takes a patch only with its type, and no type without a patch.
            let patch = answer.patch.filter(|patch| !patch.is_empty());
            prop_assert_eq!(response.get("patchType").and_then(Value::as_str), patch.as_ref().map(|_| "JSONPatch"));
            let sent = response.get("patch").map(|patch| BASE64_STANDARD.decode(patch.as_str().unwrap()).unwrap());
            prop_assert_eq!(sent, patch);
        }

        #[test]
        fn whatever_comes_is_read_or_refused_in_a_short_sentence(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Err(sentence) = decode(&bytes) {
                prop_assert!(sentence.len() < 700 && !sentence.chars().any(char::is_control), "{sentence:?}");
            }
        }
    }
}
