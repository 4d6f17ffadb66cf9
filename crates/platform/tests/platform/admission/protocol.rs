//! What is answered, and what is said to those who ask for something else.

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::json;

use super::scene::{BOTH, PATH, Scene, post, review, sentence, settings};

#[tokio::test]
async fn a_review_is_answered_with_its_uid_and_the_decision() {
    let scene = Scene::start(settings()).await;
    for version in BOTH {
        let mut client = scene.connect(version).await;
        let (code, headers, body) = client.ask("something").await;
        assert_eq!((code, &headers[header::CONTENT_TYPE]), (StatusCode::OK, &"application/json".parse().unwrap()));
        let allowed = json!({"uid": "uid-of-something", "allowed": true});
        assert_eq!(body, json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": allowed}));
        let (code, _, body) = client.ask("deny").await;
        let sentence = "it is not ephemeral; do this";
        let status = json!({"code": 403, "reason": "Forbidden", "message": sentence,
            "details": {"causes": [{"reason": "NotEphemeral", "message": sentence}]}});
        assert_eq!((code, &body["response"]["status"]), (StatusCode::OK, &status));
        assert_eq!(body["response"]["allowed"], false);
    }
    scene.shows("claimkeeper_admission_duration_seconds_count{webhook=\"validate-pvc\"}", 4).await;
}

#[tokio::test]
async fn only_posts_of_json_to_known_paths_are_answered_and_nobody_is_sent_elsewhere() {
    let scene = Scene::start(settings()).await;
    let slash = format!("{PATH}/");
    let cases = [
        (
            Method::POST,
            "/",
            Some("application/json"),
            404,
            "there is nothing at this path; what is answered: /validate-pvc",
        ),
        (Method::POST, "/mutate-pod", Some("application/json"), 404, "there is nothing at this path"),
        (Method::POST, &slash, Some("application/json"), 404, "there is nothing at this path"),
        (Method::POST, "//validate-pvc", Some("application/json"), 404, "there is nothing at this path"),
        (Method::GET, PATH, None, 405, "/validate-pvc is asked with POST only"),
        (Method::PUT, PATH, Some("application/json"), 405, "/validate-pvc is asked with POST only"),
        (Method::POST, PATH, None, 415, "the Content-Type must be application/json"),
        (Method::POST, PATH, Some("application/yaml"), 415, "the Content-Type must be application/json"),
        (Method::POST, PATH, Some("application/jsonx"), 415, "the Content-Type must be application/json"),
    ];
    for version in BOTH {
        let mut client = scene.connect(version).await;
        for (method, path, kind, code, said) in &cases {
            let mut request = Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
            if let Some(kind) = kind {
                request = request.header(header::CONTENT_TYPE, *kind);
            }
            let answered = client.send(request.body(Full::new(review("x").into()).boxed()).unwrap()).await.unwrap();
            assert_eq!(answered.0.as_u16(), *code, "{method} {path} as {kind:?}");
            assert!(sentence(&answered).starts_with(said), "{method} {path} as {kind:?} gave {answered:?}");
            assert!(!answered.1.contains_key(header::LOCATION));
            assert_eq!(answered.1.contains_key(header::ALLOW), *code == 405);
        }
        let mut request = post(review("x"));
        request.headers_mut().insert(header::CONTENT_TYPE, "Application/JSON; charset=utf-8".parse().unwrap());
        assert_eq!(client.send(request).await.unwrap().0, StatusCode::OK);
    }
}

#[tokio::test]
async fn what_is_no_review_gets_a_sentence_that_says_what_is_wrong_and_where() {
    let scene = Scene::start(settings()).await;
    let long = format!(r#"{{"apiVersion": "{}", "kind": "AdmissionReview", "request": {{}}}}"#, "x".repeat(10_000));
    let cases = [
        ("", "the body is not JSON: EOF while parsing a value at line 1 column 0"),
        ("{\n  nonsense", "the body is not JSON: key must be a string at line 2 column 3"),
        ("[]", "the body is not an AdmissionReview of admission.k8s.io/v1: it has no apiVersion"),
        ("{}", "the body is not an AdmissionReview of admission.k8s.io/v1: it has no apiVersion"),
        (r#"{"apiVersion": "v1"}"#, "the body is not an AdmissionReview of admission.k8s.io/v1: it has no kind"),
        (
            r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#,
            "the body is not an AdmissionReview of admission.k8s.io/v1: it has no request",
        ),
        (
            r#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": 5}}"#,
            "the body has the kind `AdmissionReview` of `admission.k8s.io/v1beta1`, but only AdmissionReview of admission.k8s.io/v1",
        ),
        (r#"{"apiVersion": "v1", "kind": "Pod", "request": null}"#, "the body has the kind `Pod` of `v1`, but only "),
        (r#"{"apiVersion": "v1", "kind": "a\nb"}"#, r"the body has the kind `a\nb` of `v1`, but only "),
        (
            &review("x").replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1"),
            "the body has the kind `AdmissionReview` of `admission.k8s.io/v1beta1`, but only ",
        ),
        (&long, "the body has the kind `AdmissionReview` of `xxxxxxx"),
        (
            r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": 5}}"#,
            "the body is not an AdmissionReview of admission.k8s.io/v1: invalid type: integer `5`, expected a string at line 1 column 85",
        ),
        (
            r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}}"#,
            "the body is not an AdmissionReview of admission.k8s.io/v1: missing field `kind` at line 1 column 88",
        ),
        (
            &review("x").replace("uid-of-x", ""),
            "the body is not an AdmissionReview of admission.k8s.io/v1: request.uid is empty",
        ),
        (
            &review("x").replace("CREATE", "GET"),
            "the body is not an AdmissionReview of admission.k8s.io/v1: unknown variant `GET`",
        ),
    ];
    for version in BOTH {
        let mut client = scene.connect(version).await;
        for (body, said) in &cases {
            let answered = client.send(post((*body).to_owned())).await.unwrap();
            assert_eq!(answered.0, StatusCode::BAD_REQUEST, "{body}");
            let sentence = sentence(&answered);
            assert!(sentence.starts_with(said), "{body} gave {sentence:?}");
            assert!(sentence.len() < 700 && !sentence.chars().any(char::is_control), "{sentence:?}");
        }
    }
    assert!(scene.webhook.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_webhook_that_panics_fails_one_request_and_nothing_else() {
    let scene = Scene::start(settings()).await;
    for version in BOTH {
        let mut client = scene.connect(version).await;
        let answered = client.ask("panic").await;
        assert_eq!(answered.0, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(sentence(&answered), "the webhook failed over this request; its log has the details");
        assert_eq!(client.ask("something").await.0, StatusCode::OK, "on the same connection");
    }
    scene.shows("claimkeeper_admission_panics_total", 2).await;
    scene.shows("claimkeeper_admission_in_flight", 0).await;
}
