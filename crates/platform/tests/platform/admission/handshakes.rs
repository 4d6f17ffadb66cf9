//! Certificates: which is shown, when it is replaced, and whose is asked for.

use std::fs;

use http::StatusCode;
use platform::{
    admission::{AdmissionServer, ServedCertificate, Settings},
    metrics::Registry,
    readiness::Readiness,
};
use testbed::eventually;

use super::scene::{Authority, BOTH, Client, Http, Identity, Scene, handshake, in_a_year, settings};

#[tokio::test]
async fn there_is_neither_a_handshake_nor_readiness_before_there_is_a_certificate() {
    let scene = Scene::start_without_certificate(settings()).await;
    for version in BOTH {
        assert!(scene.try_connect(version).await.is_err());
    }
    scene.shows("claimkeeper_admission_handshake_failures_total", 2).await;
    assert_eq!(scene.readiness.report(), "[-]waiting for the webhook's certificate\nreadyz check failed\n");
    assert!(scene.certificate.current().is_none());

    let until = in_a_year();
    scene.certificate.replace(scene.authority.serving("127.0.0.1", |_| {}), until);
    assert_eq!(scene.certificate.current().unwrap().not_after, until);
    assert_eq!(scene.connect(Http::One).await.ask("something").await.0, StatusCode::OK);
    let ready = async || if scene.readiness.is_ready() { Ok(()) } else { Err(scene.readiness.report()) };
    eventually("readiness", ready).await.unwrap();
}

#[tokio::test]
async fn a_new_certificate_is_shown_at_once_and_open_connections_go_on() {
    for version in BOTH {
        let scene = Scene::start(settings()).await;
        let mut open = scene.connect(version).await;
        assert_eq!(open.ask("something").await.0, StatusCode::OK);

        let new = Authority::new("a new authority");
        scene.certificate.replace(new.serving("127.0.0.1", |_| {}), in_a_year());
        assert!(scene.try_connect(version).await.is_err_and(|error| error.contains("certificate")));
        let stream = handshake(scene.address, version, &new, None).await.unwrap();
        let mut fresh = Client::over(stream, version).await.unwrap();
        assert_eq!(fresh.ask("something").await.0, StatusCode::OK);
        assert_eq!(open.ask("something").await.0, StatusCode::OK);
    }
}

/// Whether somebody with this certificate is served. With TLS 1.3 a client learns only from the answer whether it is.
async fn is_served(scene: &Scene, version: Http, identity: Option<Identity>) -> bool {
    let Ok(stream) = handshake(scene.address, version, &scene.authority, identity).await else { return false };
    let Ok(mut client) = Client::over(stream, version).await else { return false };
    client.send(super::scene::post(super::scene::review("something"))).await.is_ok()
}

#[tokio::test]
async fn with_a_client_ca_only_its_clients_are_served_and_the_file_may_change() {
    let (ours, theirs) = (Authority::new("the API server's"), Authority::new("somebody's"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    fs::write(&file, &ours.pem).unwrap();
    let scene = Scene::start(Settings { client_ca: Some(file.clone()), ..settings() }).await;
    for version in BOTH {
        assert!(is_served(&scene, version, Some(ours.client())).await);
        assert!(!is_served(&scene, version, Some(theirs.client())).await, "with a foreign certificate");
        assert!(!is_served(&scene, version, None).await, "without a certificate");
    }
    scene.shows("claimkeeper_admission_handshake_failures_total", 4).await;
    assert_eq!(scene.webhook.seen.lock().unwrap().len(), 2);

    fs::write(&file, format!("{}{}", ours.pem, theirs.pem)).unwrap();
    let served = async || is_served(&scene, Http::One, Some(theirs.client())).await.then_some(()).ok_or("refused");
    eventually("the new bundle to be read", served).await.unwrap();
    assert!(is_served(&scene, Http::One, Some(ours.client())).await);
}

async fn why_not_bound(settings: Settings) -> String {
    let (registry, readiness) = (Registry::default(), Readiness::default());
    let bound = AdmissionServer::bind(settings, ServedCertificate::default(), &registry, &readiness).await;
    bound.err().unwrap().to_string()
}

#[tokio::test]
async fn a_client_ca_that_cannot_be_used_is_a_sentence_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    let failure = async || why_not_bound(Settings { client_ca: Some(file.clone()), ..settings() }).await;
    let begin = format!("the certificates of webhook.clientCA {} cannot be used: ", file.display());
    assert_eq!(failure().await, format!("{begin}the file does not exist"));
    fs::write(&file, "nothing\n").unwrap();
    assert_eq!(failure().await, format!("{begin}it has no certificate in PEM"));
}

#[tokio::test]
async fn a_port_in_use_is_one_clear_sentence() {
    let scene = Scene::start(settings()).await;
    assert_eq!(
        why_not_bound(Settings { listen: scene.address, ..settings() }).await,
        format!(
            "cannot listen on {} for admission requests: the port is in use by another process; choose another address with \
             webhook.listen",
            scene.address
        )
    );
}
