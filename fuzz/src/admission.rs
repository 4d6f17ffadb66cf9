//! Admission requests, which anybody sends who reaches the port: from the bytes of the body to the bytes of the answer, with a
//! webhook that reads the object and repeats what it finds there, and with one that steers pods.

#![no_main]

use std::collections::BTreeMap;

use futures::FutureExt;
use libfuzzer_sys::{Corpus, fuzz_target};
use serde::Deserialize;
use serde_json::Value;

use self::{
    answer::{Reply, answer},
    patch::{Additions, Place, lift, patch},
    pod::AskedPod,
    review::{Answer, Operation, Request},
    webhook::{Answering, Webhook},
};

// The files that lie between the bytes: all that stands around them, TLS above all, would only have to be instrumented too.
#[path = "../../crates/platform/src/admission/answer.rs"]
mod answer;
#[path = "../../crates/placement/src/patch.rs"]
mod patch;
#[allow(dead_code)] // what only the rules ask for
#[path = "../../crates/placement/src/pod.rs"]
mod pod;
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

const GATE: &str = "claimkeeper.dev/home-node";

/// Adds to each pod all that can be added.
struct Pilot;

impl Pilot {
    fn patch(json: &str) -> serde_json::Result<Option<Vec<u8>>> {
        let home = || Place::Hostname("node-a".into());
        let required = vec![home(), Place::Name("node-b".into()), Place::Labelled("example.dev/disk".into())];
        let additions = Additions { required, preferred: vec![(100, home())], gate: Some(GATE) };
        Ok(patch(&AskedPod::read(json)?, &additions))
    }
}

impl Webhook for Pilot {
    fn path(&self) -> &'static str {
        "/mutate-pod"
    }

    fn review<'a>(&'a self, request: &'a Request<'a>) -> Answering<'a> {
        Box::pin(async move {
            let json = request.object.map_or("null", |object| object.get());
            let patch = match Self::patch(json) {
                Ok(patch) => patch,
                Err(error) => return Answer::allow("PodUnreadable", error.to_string()),
            };
            if let (Some(patch), Ok(pod)) = (&patch, serde_json::from_str(json)) {
                can_be_applied_once(pod, patch);
            }
            Answer { patch, ..Answer::allow("AtHome", "") }
        })
    }
}

/// The API server refuses a patch that does not fit, and asks again about what came of it.
fn can_be_applied_once(mut pod: Value, patch: &[u8]) {
    // What has no spec at all is no pod, and has no volumes to follow.
    if !pod["spec"].is_object() {
        return;
    }
    let operations: json_patch::Patch = serde_json::from_slice(patch).expect("a JSON patch");
    json_patch::patch(&mut pod, &operations).unwrap_or_else(|error| panic!("{error}: {pod}"));
    let json = pod.to_string();
    let again = Pilot::patch(&json).expect("a pod");
    assert_eq!(again.map(|patch| String::from_utf8_lossy(&patch).into_owned()), None, "{pod}");
    can_be_let_go(pod, &AskedPod::read(&json).expect("a pod"));
}

/// One of its gates less, whatever else there is.
fn can_be_let_go(mut pod: Value, read: &AskedPod<'_>) {
    // What does not exist yet waits for nothing.
    let Some(patch) = lift(read, &Additions::default(), GATE) else { return };
    let gates = |pod: &Value| pod["spec"]["schedulingGates"].as_array().map(Vec::len);
    let before = gates(&pod);
    let operations: json_patch::Patch = serde_json::from_slice(&patch).expect("a JSON patch");
    json_patch::patch(&mut pod, &operations).unwrap_or_else(|error| panic!("{error}: {pod}"));
    assert_eq!(gates(&pod).map(|gates| gates + 1), before, "{pod}");
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    check(bytes, &Pilot);
    check(bytes, &Parrot)
});

fn check(bytes: &[u8], webhook: &dyn Webhook) -> Corpus {
    let reply = answer(webhook, bytes).now_or_never().expect("a webhook that waits for nobody");
    assert!(!reply.panicked);
    let body: Value = serde_json::from_slice(&reply.body).expect("JSON");
    match reply.code {
        200 => is_a_review(&body, bytes),
        400 => is_a_sentence(&body, &reply),
        code => panic!("{code}: {body}"),
    }
    Corpus::Keep
}

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
