//! The webhook's certificate on a real API server, with the chart's rights.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::{ByteString, api::events::v1::Event};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use platform::certificates::Settings;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use testbed::{PATIENCE, eventually, within};

use crate::certificates_support::{DAY, Handshakes, SECRET, Stage, count, handshake};

/// How far behind the API servers are that make connections.
const MOMENT: Duration = Duration::from_millis(50);

const LEAVES: &str = r#"claimkeeper_certificate_rotations_total{certificate="leaf"}"#;
const AUTHORITIES: &str = r#"claimkeeper_certificate_rotations_total{certificate="ca"}"#;

#[tokio::test]
async fn from_nothing_a_replica_gets_ready_with_the_charts_rights_alone() -> Result<()> {
    let stage = Stage::new().await?;
    eventually("the API server to ask in vain", async || match stage.ask().await {
        Ok(()) => Err("it does not ask yet"),
        Err(_) => Ok(()),
    })
    .await?;
    let replica = stage.start("only", stage.settings()).await?;
    replica.until_ready().await?;
    eventually("the API server to be answered", async || stage.ask().await).await?;
    assert!(replica.asked() >= 1);

    until_made(1, || (replica.metric(LEAVES), replica.metric(AUTHORITIES))).await?;
    let metrics = replica.registry.encode();
    for (certificate, days) in [("leaf", 29..=30), ("ca", 364..=365)] {
        let series = format!("claimkeeper_certificate_expiry_timestamp_seconds{{certificate=\"{certificate}\"}} ");
        let expiry = metrics.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse::<f64>()?;
        let left =
            Duration::from_secs_f64(expiry - jiff::Timestamp::now().as_second() as f64).as_secs() / DAY.as_secs();
        assert!(days.contains(&left), "{certificate} lasts {left} days");
    }
    assert_eq!(stage.entry("ca.crt").await?, stage.bundle().await?);
    assert_eq!(stage.refused()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn two_replicas_serve_the_same_and_the_second_keeps_it_when_the_first_is_gone() -> Result<()> {
    let stage = Stage::new().await?;
    let first = stage.start("first", stage.settings()).await?;
    let second = stage.start("second", stage.settings()).await?;
    first.until_ready().await?;
    second.until_ready().await?;
    let same = async || {
        ensure!(first.shown().is_some() && first.shown() == second.shown(), "they show different certificates");
        Ok(())
    };
    eventually("both to serve the same", same).await?;
    let made = |series: &str| first.metric(series) + second.metric(series);
    until_made(1, || (made(LEAVES), made(AUTHORITIES))).await?;

    first.retire().await?;
    let old = stage.entry("ca.crt").await?;
    stage.change_secret(json!({"data": {"ca.key": null}})).await?;
    stage.until_changed_over(&old).await?;
    eventually("both to serve the new one", same).await?;
    for replica in [&first, &second] {
        assert_eq!(Some(handshake(replica.address, stage.bundle().await?).await?), second.shown());
    }
    Ok(())
}

#[tokio::test]
async fn a_secret_that_is_deleted_damaged_or_replaced_heals_without_one_refused_connection() -> Result<()> {
    let stage = Stage::new().await?;
    let replica = stage.start("only", stage.settings()).await?;
    replica.until_ready().await?;
    let garbage = || ByteString(b"garbage".to_vec());
    let damages: [(&str, Option<Value>, bool); 6] = [
        ("deleted", None, true),
        ("leaf damaged", Some(json!({"data": {"tls.crt": garbage()}})), false),
        ("leaf half written", Some(json!({"data": {"tls.key": null}})), false),
        (
            "authority damaged",
            Some(json!({"data": {"ca.crt": garbage(), "notes": ByteString(b"mine".to_vec())}})),
            true,
        ),
        ("another authority's key", Some(json!({"data": {"ca.key": ByteString(key())}})), true),
        ("replaced by somebody", Some(json!({"data": foreign()})), true),
    ];
    for (damage, change, rotates) in damages {
        let (authorities, leaf) = (stage.entry("ca.crt").await?, replica.shown());
        let watch = Handshakes::begin(&stage, stage.address(), MOMENT, stage.settings().settle);
        match change {
            None => drop(stage.secrets.delete(SECRET, &DeleteParams::default()).await?),
            Some(change) => stage.change_secret(change).await?,
        }
        if rotates {
            stage.until_changed_over(&authorities).await?;
        }
        eventually("a new leaf to be served", async || {
            ensure!(replica.shown() != leaf, "the old one is served");
            ensure!(stage.entry("tls.crt").await?.starts_with(b"-----BEGIN"), "the Secret is not whole");
            Ok(())
        })
        .await?;
        let (made, failed) = watch.end().await?;
        assert!(made > 0 && failed.is_empty(), "{damage}: of {made} connections were refused: {failed:?}");
    }
    assert_eq!(stage.entry("notes").await?, b"mine", "what is not ours is left alone");
    let events: Api<Event> = Api::namespaced(stage.cluster.admin().await?, &stage.namespace);
    eventually("the damage to be told", async || {
        let events = events.list(&ListParams::default()).await?.items;
        let told = events.iter().any(|event| {
            event.reason.as_deref() == Some("AuthorityKeyUnusable")
                && event.note.as_ref().is_some_and(|note| note.contains("Left alone, because they are not ours: notes"))
        });
        ensure!(told, "{:?}", events.iter().map(|event| (&event.reason, &event.note)).collect::<Vec<_>>());
        anyhow::Ok(())
    })
    .await?;
    assert_eq!(stage.refused()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_bundle_that_is_removed_or_replaced_by_hand_is_put_back_and_strangers_keep_theirs() -> Result<()> {
    let stage = Stage::new().await?;
    let mut configuration = stage.configurations.get(&stage.namespace).await?;
    let mut strange = configuration.webhooks.as_ref().unwrap()[0].clone();
    strange.name = "strange.example.dev".into();
    strange.failure_policy = Some("Ignore".into());
    strange.rules = None;
    strange.client_config.url = Some("https://strange.example/validate".into());
    configuration.webhooks.as_mut().unwrap().insert(0, strange);
    stage.configurations.replace(&stage.namespace, &PostParams::default(), &configuration).await?;

    let replica = stage.start("only", stage.settings()).await?;
    replica.until_ready().await?;
    let foreign = foreign();
    for value in [Value::Null, json!(foreign["ca.crt"])] {
        // Otherwise it would find the damage without being told.
        stage.until_at_rest().await?;
        let patch: Patch<()> = Patch::Json(serde_json::from_value(
            json!([{"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": value}]),
        )?);
        stage.configurations.patch(&stage.namespace, &PatchParams::default(), &patch).await?;
        eventually("the bundle to be put back", async || {
            let webhooks = stage.configurations.get(&stage.namespace).await?.webhooks.unwrap_or_default();
            let ByteString(bundle) = webhooks[1].client_config.ca_bundle.clone().unwrap_or_default();
            ensure!(bundle == stage.entry("ca.crt").await?, "it has {} authorities", count(&bundle));
            ensure!(webhooks[0].client_config.ca_bundle.is_none(), "a stranger was told to trust us");
            Ok(())
        })
        .await?;
        replica.until_ready().await?;
    }
    eventually("the API server to be answered again", async || stage.ask().await).await?;
    assert_eq!(replica.metric(AUTHORITIES), 1, "nothing was made anew");
    Ok(())
}

#[tokio::test]
async fn a_keeper_that_has_served_nothing_yet_finds_in_the_bundles_what_others_serve() -> Result<()> {
    let stage = Stage::new().await?;
    // The other replica learns of its new certificate by a watch, on a machine that is busy with other things.
    let patient = || Settings { grace: Duration::from_secs(8), ..stage.settings() };
    let first = stage.start("first", patient()).await?;
    first.until_ready().await?;
    first.retire().await?;
    let (authority, leaf) = (stage.entry("ca.crt").await?, first.shown());
    let watch = Handshakes::begin(&stage, first.address, MOMENT, stage.settings().settle);
    stage.secrets.delete(SECRET, &DeleteParams::default()).await?;
    let second = stage.start("second", patient()).await?;
    eventually("both to change over", async || {
        ensure!(first.shown() != leaf && first.shown() == second.shown(), "they show different certificates");
        ensure!(count(&stage.bundle().await?) == 1 && stage.bundle().await? != authority, "the old one is trusted");
        Ok(())
    })
    .await?;
    let (made, refused) = watch.end().await?;
    assert!(made > 0 && refused.is_empty(), "of {made} connections were refused: {refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_leaf_is_renewed_when_it_gets_old() -> Result<()> {
    let stage = Stage::new().await?;
    let mut settings = stage.settings();
    settings.leaf_lifetime = Duration::from_secs(30);
    let replica = stage.start("only", settings).await?;
    replica.until_ready().await?;
    let authority = stage.entry("ca.crt").await?;
    within(3 * PATIENCE, "a leaf to be renewed", async || {
        ensure!(replica.metric(LEAVES) >= 2, "it was made {} times", replica.metric(LEAVES));
        Ok(())
    })
    .await?;
    assert_eq!(stage.entry("ca.crt").await?, authority, "the authority has nothing to do with it");
    Ok(())
}

#[tokio::test]
async fn a_leaf_is_replaced_when_the_configured_names_change() -> Result<()> {
    let stage = Stage::new().await?;
    let first = stage.start("first", stage.settings()).await?;
    first.until_ready().await?;
    first.retire().await?;
    let mut settings = stage.settings();
    settings.names.push("storage.example".to_owned());
    let second = stage.start("second", settings).await?;
    eventually("a leaf with the new name to be served by both", async || {
        ensure!(second.metric(LEAVES) == 1, "it was made {} times", second.metric(LEAVES));
        ensure!(first.shown() == second.shown(), "they show different certificates");
        Ok(())
    })
    .await?;
    assert_eq!(second.metric(AUTHORITIES), 0, "the authority has nothing to do with it");
    Ok(())
}

/// Others see what is written before the writer has its answer and counts it.
async fn until_made(wanted: u64, made: impl Fn() -> (u64, u64)) -> Result<()> {
    eventually("what was made to be counted", async || {
        let (leaves, authorities) = made();
        ensure!((leaves, authorities) == (wanted, wanted), "{leaves} leaves and {authorities} authorities were made");
        Ok(())
    })
    .await
}

fn key() -> Vec<u8> {
    KeyPair::generate().unwrap().serialize_pem().into_bytes()
}

/// What somebody else would put into the Secret.
fn foreign() -> BTreeMap<&'static str, ByteString> {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "somebody else");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (authority_key, leaf_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let certificate = authority.self_signed(&authority_key).unwrap();
    let key_pem = authority_key.serialize_pem();
    let issuer = Issuer::new(authority, authority_key);
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&leaf_key, &issuer).unwrap();
    let entries = [
        ("ca.crt", certificate.pem()),
        ("ca.key", key_pem),
        ("tls.crt", leaf.pem()),
        ("tls.key", leaf_key.serialize_pem()),
    ];
    entries.into_iter().map(|(entry, text)| (entry, ByteString(text.into_bytes()))).collect()
}
