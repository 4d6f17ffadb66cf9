//! Admission requests, which anybody sends who reaches the port: from the bytes of the body to the bytes of the answer, with a
//! webhook that reads the object and repeats what it finds there.

#![no_main]

use std::collections::BTreeMap;

use futures::FutureExt;
use libfuzzer_sys::{Corpus, fuzz_target};
use serde::Deserialize;
use serde_json::Value;

use self::{
    answer::{Reply, answer},
    review::{Answer, Operation, Request},
    webhook::{Answering, Webhook},
};

// The files that lie between the bytes: all that stands around them, TLS above all, would only have to be instrumented too.
#[path = "../../crates/platform/src/admission/answer.rs"]
mod answer;
#[path = "../../crates/platform/src/admission/review.rs"]
mod review;
#[allow(dead_code)] // the path, which only the server asks for
#[path = "../../crates/platform/src/admission/webhook.rs"]
mod webhook;
#[path = "../../crates/platform/src/admission/wire.rs"]
mod wire;

#[derive(Deserialize)]
struct Claim {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<Owner>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    kind: String,
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    storage_class_name: Option<String>,
}

/// Says all that a webhook can say, in the words of whoever asks.
struct Parrot;

impl Webhook for Parrot {
    fn path(&self) -> &'static str {
        "/"
    }

    fn review<'a>(&'a self, request: &'a Request<'a>) -> Answering<'a> {
        Box::pin(async move {
            let json = request.object.map_or("null", |object| object.get());
            let old = request.old_object.map(|object| serde_json::from_str::<Claim>(object.get()).is_ok());
            let Claim { metadata, spec } = match serde_json::from_str(json) {
                Ok(claim) => claim,
                Err(error) => return Answer { code: 400, ..Answer::deny("Unreadable", error.to_string()) },
            };
            let owned = metadata.owner_references.unwrap_or_default();
            if owned.iter().any(|owner| owner.kind == "Pod" && owner.controller == Some(true)) || old == Some(true) {
                return Answer { patch: Some(json.as_bytes().to_vec()), ..Answer::allow("Owned", "") };
            }
            let class = spec.storage_class_name.unwrap_or_default();
            let audit = vec![("class", class.clone()), ("user", request.user_info.username.clone().into_owned())];
            let warnings = metadata.annotations.unwrap_or_default().into_values().collect();
            let told = format!("{} {} {class}", request.namespace, request.name);
            match request.operation {
                Operation::Create if !request.dry_run => Answer { audit, ..Answer::deny("NotEphemeral", told) },
                _ => Answer { warnings, audit, ..Answer::allow("Fine", told) },
            }
        })
    }
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let reply = answer(&Parrot, bytes).now_or_never().expect("a webhook that waits for nobody");
    assert!(!reply.panicked);
    let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
    match reply.code {
        200 => is_a_review(&body, bytes),
        400 => is_a_sentence(&body, &reply),
        code => panic!("{code}: {body}"),
    }
    Corpus::Keep
});

/// What the API server checks before it believes an answer.
fn is_a_review(body: &Value, bytes: &[u8]) {
    assert_eq!(body["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(body["kind"], "AdmissionReview");
    let response = &body["response"];
    // What it does not look at, a reader that looks at everything may refuse.
    if let Ok(asked) = serde_json::from_slice::<Value>(bytes)
        && let Some(uid) = asked.get("request").and_then(|request| request.get("uid"))
    {
        assert_eq!(&response["uid"], uid);
    }
    assert!(response["uid"].as_str().is_some_and(|uid| !uid.is_empty()), "{response}");
    assert_eq!(response["allowed"].as_bool(), Some(response.get("status").is_none()), "{response}");
    if let Some(status) = response.get("status") {
        assert!(status["code"].as_u64().is_some_and(|code| (400..600).contains(&code)), "{status}");
        assert!(status["message"].is_string() && status["details"]["causes"][0]["reason"].is_string(), "{status}");
    }
    let patch = response.get("patch").map(|patch| !patch.as_str().expect("base64").is_empty());
    assert_eq!(patch, response.get("patchType").map(|kind| kind == "JSONPatch"), "{response}");
}

/// The API server repeats it to a person.
fn is_a_sentence(body: &Value, reply: &Reply) {
    assert_eq!((body["kind"].as_str(), body["code"].as_u64()), (Some("Status"), Some(u64::from(reply.code))));
    let sentence = body["message"].as_str().expect("a sentence");
    assert!(!sentence.is_empty() && sentence.len() < 1024, "{} bytes: {sentence}", sentence.len());
    assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
}
