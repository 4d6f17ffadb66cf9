use cluster::store::Slim;
use k8s_openapi::api::core::v1::EndpointAddress;

use super::*;
use crate::sample;

const ENDPOINT: &str = "10.1.0.4:25705";

fn endpoint() -> SocketAddr {
    ENDPOINT.parse().unwrap()
}

fn owner() -> Owner {
    Owner { key: ObjectKey::new("ci", "files"), uid: "c1".into(), leaving: false }
}

fn reference(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        ..Default::default()
    }
}

fn good_service() -> Service {
    let owners = vec![reference("PersistentVolumeClaim", "files", "c1")];
    Service { owners, ..sample::service("files", "10.0.0.7", &[(VOLUME_ID, "v1")]) }
}

fn repaired(change: impl FnOnce(&mut Service)) -> Option<Repair> {
    let mut service = good_service();
    change(&mut service);
    repair_service(&service, &sample::volume("v1"), &owner(), Some(endpoint()))
}

#[test]
fn a_service_that_is_right_is_left_alone() {
    assert_eq!(repaired(|_| {}), None);
    let others = |service: &mut Service| {
        service.labels.insert("team".into(), "a".into());
        service.owners.push(reference("ConfigMap", "x", "m1"));
    };
    assert_eq!(repaired(others), None, "what others add does not harm");
    let withdrawn = repair_service(&good_service(), &sample::volume("v1"), &owner(), None);
    assert_eq!(withdrawn, None);
}

#[test]
fn all_that_can_drift_about_a_service_is_repaired_for_its_version() {
    let spec = |change: fn(&mut Service)| {
        let repair = repaired(change).unwrap();
        assert_eq!(
            (&repair.patch["metadata"]["uid"], &repair.patch["metadata"]["resourceVersion"]),
            (&json!("uid-of-files"), &json!("1"))
        );
        (repair.urgent, repair.patch["spec"].clone())
    };
    let ports = json!([{"name": "nfs", "port": 2049, "protocol": "TCP", "targetPort": 25_705}]);
    let all_ports = json!({"ports": ports});
    assert_eq!(spec(|service| service.ports[0].port = 2050), (true, all_ports.clone()));
    assert_eq!(spec(|service| service.ports[0].name = "web".into()), (true, all_ports.clone()));
    assert_eq!(spec(|service| service.ports[0].protocol = "UDP".into()), (true, all_ports.clone()));
    assert_eq!(spec(|service| service.ports.clear()), (true, all_ports.clone()));
    assert_eq!(spec(|service| service.ports.push(service.ports[0].clone())), (true, all_ports.clone()));
    assert_eq!(spec(|service| service.ports[0].target = Some(IntOrString::Int(1))), (false, all_ports.clone()));
    assert_eq!(spec(|service| service.ports[0].target = Some(IntOrString::String("a".into()))), (false, all_ports));
    assert_eq!(spec(|service| service.has_selector = true), (true, json!({"selector": null})));
    assert_eq!(spec(|service| service.node_local = true), (true, json!({"internalTrafficPolicy": "Cluster"})));
    let node_port = json!({"type": "ClusterIP", "externalName": null, "ports": ports});
    assert_eq!(spec(|service| service.kind = "NodePort".into()), (true, node_port.clone()));
    let elsewhere = spec(|service| (service.kind, service.address) = ("ExternalName".into(), ClusterAddress::None));
    let mut with_address = node_port;
    with_address["clusterIP"] = "10.0.0.7".into();
    assert_eq!(elsewhere, (true, with_address), "it gets its address again");
}

#[test]
fn a_service_gets_its_mark_and_its_owner_again() {
    let metadata = |change: fn(&mut Service)| {
        let Repair { patch, urgent } = repaired(change).unwrap();
        assert!(!urgent);
        patch["metadata"].clone()
    };
    assert_eq!(metadata(|service| service.labels.clear())["labels"], json!({VOLUME_ID: "v1"}));
    let ours = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "files", "uid": "c1"});
    assert_eq!(metadata(|service| service.owners.clear())["ownerReferences"], json!([ours]));
    let rebound = metadata(|service| {
        service.owners = vec![reference("ConfigMap", "x", "m1"), reference("PersistentVolumeClaim", "files", "c0")];
    });
    let kept = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "m1"});
    assert_eq!(
        rebound["ownerReferences"],
        json!([kept, ours]),
        "the claim that it had is gone, and would take it along"
    );
}

#[test]
fn a_claim_that_is_being_deleted_is_not_made_an_owner() {
    let orphan = Service { owners: Vec::new(), ..good_service() };
    let leaving = Owner { leaving: true, ..owner() };
    assert_eq!(repair_service(&orphan, &sample::volume("v1"), &leaving, Some(endpoint())), None);
}

fn good_slice() -> Slice {
    let owners = vec![reference("Service", "files", "uid-of-files")];
    Slice { owners, ..sample::slice("files", "10.1.0.4", 25_705) }
}

fn slice_repair(change: impl FnOnce(&mut Slice), endpoint: Option<SocketAddr>) -> Option<Value> {
    let mut slice = good_slice();
    change(&mut slice);
    repair_slice(&slice, &sample::volume("v1"), &good_service(), endpoint)
}

#[test]
fn all_that_can_drift_about_a_slice_is_repaired_for_its_version() {
    assert_eq!(slice_repair(|_| {}, Some(endpoint())), None);
    let repaired = |change: fn(&mut Slice)| {
        let patch = slice_repair(change, Some(endpoint())).unwrap();
        assert_eq!((&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]), (&json!("e1"), &json!("1")));
        patch
    };
    let target =
        json!([{"addresses": ["10.1.0.4"], "conditions": {"ready": true, "serving": true, "terminating": false}}]);
    assert_eq!(repaired(|slice| slice.targets.clear())["endpoints"], target);
    assert_eq!(repaired(|slice| slice.targets.push(slice.targets[0].clone()))["endpoints"], target);
    assert_eq!(repaired(|slice| slice.targets[0].addresses.push("10.1.0.5".into()))["endpoints"], target);
    assert_eq!(repaired(|slice| slice.targets[0].ready = false)["endpoints"], target);
    assert_eq!(
        repaired(|slice| slice.ports.clear())["ports"],
        json!([{"name": "nfs", "port": 25_705, "protocol": "TCP"}])
    );
    assert!(repaired(|slice| slice.ports[0].name = "web".into())["ports"].is_array());
    assert_eq!(repaired(|slice| slice.owners.clear())["metadata"]["ownerReferences"][0]["uid"], "uid-of-files");
    assert_eq!(repaired(|slice| slice.labels.clear())["metadata"]["labels"][SERVICE_NAME], "files");
}

#[test]
fn a_slice_moves_in_one_write() {
    let moved = slice_repair(|_| {}, Some("10.1.0.9:25706".parse().unwrap())).unwrap();
    assert_eq!(moved["endpoints"][0]["addresses"], json!(["10.1.0.9"]));
    assert_eq!(moved["ports"][0]["port"], 25_706);
}

#[test]
fn a_withdrawn_slice_keeps_its_target_for_people_to_see() {
    let closed = slice_repair(|_| {}, None).unwrap();
    assert_eq!(closed["endpoints"][0]["addresses"], json!(["10.1.0.4"]));
    assert_eq!(closed["endpoints"][0]["conditions"]["ready"], false);
    assert_eq!(closed["endpoints"][0]["conditions"]["serving"], false);
    assert_eq!(closed["ports"], Value::Null);
    let shut = |slice: &mut Slice| (slice.targets[0].ready, slice.targets[0].serving) = (false, false);
    assert_eq!(slice_repair(shut, None), None);
    assert_eq!(slice_repair(|slice| slice.targets.clear(), None), None);
    let two = slice_repair(|slice| slice.targets.push(slice.targets[0].clone()), None).unwrap();
    assert_eq!(two["endpoints"], json!([]), "nobody knows which one it was");
}

fn good_endpoints() -> Endpoints {
    let mut json = endpoints(&sample::volume("v1"), &good_service(), endpoint());
    (json["metadata"]["uid"], json["metadata"]["resourceVersion"]) = ("p1".into(), "1".into());
    Endpoints::from_wire(serde_json::from_value(json).unwrap()).unwrap()
}

fn endpoints_repair(change: impl FnOnce(&mut Endpoints), endpoint: Option<SocketAddr>) -> Option<Value> {
    let mut found = good_endpoints();
    change(&mut found);
    repair_endpoints(&found, &sample::volume("v1"), &good_service(), endpoint)
}

#[test]
fn all_that_can_drift_about_an_endpoints_object_is_repaired() {
    assert_eq!(endpoints_repair(|_| {}, Some(endpoint())), None);
    let wanted =
        json!([{"addresses": [{"ip": "10.1.0.4"}], "ports": [{"name": "nfs", "port": 25_705, "protocol": "TCP"}]}]);
    let subsets = |change: fn(&mut EndpointSubset)| {
        let change = |found: &mut Endpoints| change(&mut found.subsets[0]);
        endpoints_repair(change, Some(endpoint())).unwrap()["subsets"].clone()
    };
    assert_eq!(subsets(|subset| subset.addresses.as_mut().unwrap().push(EndpointAddress::default())), wanted);
    assert_eq!(subsets(|subset| subset.ports.as_mut().unwrap()[0].name = Some("web".into())), wanted);
    assert_eq!(subsets(|subset| subset.not_ready_addresses = Some(vec![EndpointAddress::default()])), wanted);
    assert_eq!(endpoints_repair(|found| found.subsets.clear(), Some(endpoint())).unwrap()["subsets"], wanted);
    let unmarked = endpoints_repair(|found| found.labels.clear(), Some(endpoint())).unwrap();
    assert_eq!(unmarked["metadata"]["labels"], json!({VOLUME_ID: "v1", SKIP_MIRROR: "true"}));
    let orphan = endpoints_repair(|found| found.owners.clear(), Some(endpoint())).unwrap();
    assert_eq!(orphan["metadata"]["ownerReferences"][0]["kind"], "Service");
}

#[test]
fn a_withdrawn_endpoints_object_has_its_address_among_those_that_are_not_ready() {
    let closed = endpoints_repair(|_| {}, None).unwrap()["subsets"].clone();
    let ports = json!([{"name": "nfs", "port": 25_705, "protocol": "TCP"}]);
    assert_eq!(closed, json!([{"notReadyAddresses": [{"ip": "10.1.0.4"}], "ports": ports}]));
    let again = |found: &mut Endpoints| found.subsets = serde_json::from_value(closed).unwrap();
    assert_eq!(endpoints_repair(again, None), None);
    assert_eq!(endpoints_repair(|found| found.subsets.clear(), None), None);
}
