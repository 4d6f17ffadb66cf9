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
