use cluster::ObjectKey;

use super::*;

pub(crate) fn seen() -> Observation {
    Observation {
        volume: Arc::new(SharedVolume {
            id: "v1".into(),
            home: "n1".into(),
            volume: Some("pvc-1".into()),
            claim: Some(ObjectKey::new("ci", "files")),
            endpoint: Some("10.1.0.4:25705".into()),
            published: Some("10.0.0.7:2049".into()),
        }),
        gone: false,
        looked_after: None,
        allowed: Arc::new([]),
        services: Arc::new(["10.0.0.0/24".parse().unwrap()]),
        endpoint_gone: EndpointGone::Withdraw,
        rival: None,
        taken_by: None,
        holder: None,
        claim: ClaimSeen::There,
    }
}

fn told(change: impl FnOnce(&mut SharedVolume)) -> Observation {
    let mut seen = seen();
    change(Arc::make_mut(&mut seen.volume));
    seen
}

fn decided(seen: &Observation) -> (&'static str, &'static str) {
    let decision = TARGET.decide(seen);
    (decision.action.name(), decision.reason)
}

#[test]
fn each_row_of_the_table_decides_as_it_says() {
    let table = [
        (seen(), "serve", "Served"),
        (told(|volume| volume.volume = None), "withdraw", "NotOfKubernetes"),
        (told(|volume| volume.claim = None), "withdraw", "NotOfKubernetes"),
        (Observation { looked_after: Some("shop".into()), ..seen() }, "leave", "OtherNamespace"),
        (Observation { looked_after: Some("ci".into()), ..seen() }, "serve", "Served"),
        (Observation { gone: true, ..seen() }, "withdraw", "VolumeGone"),
        (told(|volume| volume.endpoint = None), "withdraw", "EndpointGone"),
        (told(|volume| (volume.endpoint, volume.published) = (None, None)), "withdraw", "NotShared"),
        (told(|volume| volume.endpoint = Some("storage:2049".into())), "withdraw", "EndpointInvalid"),
        (told(|volume| volume.endpoint = Some("127.0.0.1:2049".into())), "withdraw", "EndpointForbidden"),
        (told(|volume| volume.endpoint = Some("10.0.0.9:2049".into())), "withdraw", "EndpointForbidden"),
        (
            Observation { allowed: Arc::new(["10.2.0.0/16".parse().unwrap()]), ..seen() },
            "withdraw",
            "EndpointForbidden",
        ),
        (Observation { rival: Some("v2".into()), ..seen() }, "withdraw", "EndpointClaimedTwice"),
        (Observation { claim: ClaimSeen::Missing, ..seen() }, "withdraw", "ClaimMissing"),
        (Observation { claim: ClaimSeen::HasOtherVolume("pvc-2".into()), ..seen() }, "withdraw", "ClaimHasOtherVolume"),
        (Observation { holder: Some("v2".into()), ..seen() }, "wait", "EndpointStillServed"),
    ];
    for (seen, action, reason) in table {
        assert_eq!(decided(&seen), (action, reason), "{seen:?}");
    }
}

#[test]
fn the_way_to_a_server_that_is_gone_stays_only_where_that_is_configured_and_nobody_else_is_there() {
    let gone = |endpoint: Option<&str>, taken_by: Option<&str>| Observation {
        endpoint_gone: EndpointGone::Keep,
        taken_by: taken_by.map(Into::into),
        ..told(|volume| volume.endpoint = endpoint.map(Into::into))
    };
    for endpoint in [None, Some("storage:1"), Some("127.0.0.1:1")] {
        assert_eq!(decided(&gone(endpoint, None)).0, "leave", "{endpoint:?}");
        assert_eq!(decided(&gone(endpoint, Some("v2"))), ("withdraw", "EndpointTaken"), "{endpoint:?}");
    }
    // A server that is elsewhere is not gone.
    assert_eq!(decided(&gone(Some("10.1.0.5:1"), Some("v2"))), ("serve", "Served"));
    let twice = Observation { rival: Some("v2".into()), ..gone(Some("10.1.0.5:1"), None) };
    assert_eq!(decided(&twice), ("withdraw", "EndpointClaimedTwice"));
}

#[test]
fn every_reason_has_a_sentence() {
    let gone = Observation { gone: true, ..seen() };
    for seen in [seen(), gone, told(|volume| volume.endpoint = None), told(|volume| volume.claim = None)] {
        assert!(TARGET.decide(&seen).message.len() > 20);
    }
    let long = told(|volume| volume.endpoint = Some("x".repeat(10_000).into()));
    assert!(TARGET.decide(&long).message.len() < 200, "somebody else's text is not repeated at length");
}
