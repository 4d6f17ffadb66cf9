use super::*;
use crate::{
    names::VOLUME_ID,
    sample::{service, slice, volume},
};

fn seen() -> Observation {
    Observation {
        id: "v1".into(),
        endpoint: "10.1.0.4:25705".parse().unwrap(),
        service: None,
        free_name: Some("files".to_owned()),
        remembered: Some("10.0.0.7".parse().unwrap()),
        refused: false,
    }
}

fn ours(ip: &str) -> Service {
    service("files", ip, &[(VOLUME_ID, "v1")])
}

#[test]
fn each_row_about_the_service_decides_as_it_says() {
    let leaving = Service { being_deleted: true, ..ours("10.0.0.7") };
    let six = "[fd00::4]:25705".parse().unwrap();
    let table = [
        (seen(), "create", "ServiceMissing"),
        (Observation { id: "a b".into(), ..seen() }, "refuse", "IdUnusable"),
        (Observation { service: Some(ours("fd00::7")), ..seen() }, "refuse", "FamilyMismatch"),
        (Observation { service: Some(leaving), ..seen() }, "wait", "ServiceBeingDeleted"),
        (Observation { service: Some(ours("10.0.0.7")), ..seen() }, "use", "ServiceThere"),
        (Observation { free_name: None, ..seen() }, "refuse", "NameTaken"),
        (Observation { endpoint: six, ..seen() }, "create", "AddressOfOtherFamily"),
        (Observation { refused: true, ..seen() }, "create", "AddressTaken"),
    ];
    for (seen, action, reason) in table {
        let decision = ADDRESS.decide(&seen);
        assert_eq!((decision.action.name(), decision.reason), (action, reason), "{seen:?}");
    }
}

#[test]
fn a_service_that_was_deleted_gets_its_address_again() {
    let asked = |seen: Observation| match ADDRESS.decide(&seen).action {
        Action::Create { address, .. } => address.map(|ip| ip.to_string()),
        action => panic!("{action:?}"),
    };
    assert_eq!(asked(seen()).as_deref(), Some("10.0.0.7"));
    assert_eq!(asked(Observation { remembered: None, ..seen() }), None);
    assert_eq!(asked(Observation { refused: true, ..seen() }), None);
}

#[test]
fn the_published_address_is_remembered_however_it_was_written() {
    let remembered = |text: &str| {
        let volume = SharedVolume { published: Some(text.into()), ..volume("v1") };
        remembered(&volume).map(|ip| ip.to_string())
    };
    assert_eq!(remembered("10.0.0.7:2049").as_deref(), Some("10.0.0.7"));
    assert_eq!(remembered("[fd00::7]:2049").as_deref(), Some("fd00::7"));
    assert_eq!(remembered("fd00::7:2049").as_deref(), Some("fd00::7"), "as the original writes it");
    // What it published when the Service had drifted.
    assert_eq!(remembered("10.0.0.7:9999").as_deref(), Some("10.0.0.7"));
    for useless in ["None:2049", ":2049", "2049", "", "0.0.0.0:2049", "files:2049"] {
        assert_eq!(remembered(useless), None, "{useless}");
    }
}

fn ready() -> Ready {
    Ready {
        endpoint: Some("10.1.0.4:25705".parse().unwrap()),
        service: Some(ours("10.0.0.7")),
        slices: Some(vec![slice("files", "10.1.0.4", 25_705)]),
        published: None,
        answers: None,
    }
}

fn changed(change: impl FnOnce(&mut Service)) -> Ready {
    let mut service = ours("10.0.0.7");
    change(&mut service);
    Ready { service: Some(service), ..ready() }
}

#[test]
fn each_row_about_the_publication_decides_as_it_says() {
    let two = vec![slice("files", "10.1.0.4", 25_705), slice("files", "10.1.0.5", 25_705)];
    let twice = vec![slice("files", "10.1.0.4", 25_705), slice("files", "10.1.0.4", 25_705)];
    let table = [
        (ready(), "publish", "Published"),
        (Ready { endpoint: None, ..ready() }, "leave", "NotServed"),
        (Ready { service: None, ..ready() }, "wait", "ServiceUnverified"),
        (changed(|service| service.being_deleted = true), "wait", "ServiceUnverified"),
        (changed(|service| service.address = ClusterAddress::None), "wait", "NoAddress"),
        (changed(|service| service.address = ClusterAddress::Headless), "wait", "NoAddress"),
        (changed(|service| service.ports[0].port = 2050), "wait", "WrongPort"),
        (changed(|service| service.ports[0].name = "web".into()), "wait", "WrongPort"),
        (changed(|service| service.ports[0].protocol = "UDP".into()), "wait", "WrongPort"),
        (changed(|service| service.ports.clear()), "wait", "WrongPort"),
        (changed(|service| service.ports.push(service.ports[0].clone())), "wait", "WrongPort"),
        (changed(|service| service.has_selector = true), "wait", "WrongKind"),
        (changed(|service| service.kind = "NodePort".into()), "wait", "WrongKind"),
        (changed(|service| service.node_local = true), "wait", "WrongKind"),
        (Ready { slices: None, ..ready() }, "wait", "TargetUnverified"),
        (Ready { slices: Some(vec![]), ..ready() }, "wait", "TargetUnverified"),
        (Ready { slices: Some(two), ..ready() }, "wait", "TargetUnverified"),
        (Ready { slices: Some(twice), ..ready() }, "publish", "Published"),
        (Ready { slices: Some(vec![slice("files", "10.1.0.4", 1)]), ..ready() }, "wait", "TargetUnverified"),
        (Ready { published: Some("10.0.0.7:2049".into()), ..ready() }, "leave", "AlreadyPublished"),
        (Ready { published: Some("10.0.0.8:2049".into()), ..ready() }, "publish", "Published"),
        (Ready { published: Some("10.0.0.7:2050".into()), ..ready() }, "publish", "Published"),
        (Ready { answers: Some(false), ..ready() }, "wait", "NotAnswering"),
        (Ready { answers: Some(true), ..ready() }, "publish", "Published"),
    ];
    for (seen, action, reason) in table {
        let decision = PUBLISH.decide(&seen);
        assert_eq!((decision.action.name(), decision.reason), (action, reason), "{seen:?}");
    }
}

#[test]
fn an_address_of_ipv6_is_published_in_brackets() {
    let six = Ready {
        endpoint: Some("[fd00::4]:25705".parse().unwrap()),
        slices: Some(vec![slice("files", "fd00::4", 25_705)]),
        service: Some(ours("fd00::7")),
        ..ready()
    };
    let Publication::Publish(address) = PUBLISH.decide(&six).action else { panic!("nothing is published") };
    assert_eq!(address.to_string(), "[fd00::7]:2049");
    let bare = Ready { published: Some("fd00::7:2049".into()), ..six };
    assert_eq!(PUBLISH.decide(&bare).reason, "Published", "what the original wrote is no address");
}
