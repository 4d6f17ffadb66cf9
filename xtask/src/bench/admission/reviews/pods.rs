//! The creation of pods of a `StatefulSet`, a third of each kind: whose local volume may be left behind, whose must not be, and whose
//! volume is another driver's.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{Asked, COUNT, Review, Rules, Webhook};
use crate::bench::local::{Bound, Kind, REQUIRED, pod};

/// On how many nodes the volumes are: a prime number, so that claims in regular distances are not all on the same.
pub(crate) const NODES: usize = 101;

/// How many claims of another driver are asked about.
pub(crate) const FOREIGN_CLAIMS: usize = COUNT / 3;

/// How many local ones.
pub(crate) const LEAST_CLAIMS: usize = COUNT - FOREIGN_CLAIMS;

pub(super) fn review(number: usize, rules: Rules, claims: usize) -> Result<Review> {
    ensure!(claims >= LEAST_CLAIMS, "there must be at least {LEAST_CLAIMS} claims to ask about");
    let bound = asked_about(number, claims);
    let object = pod(bound);
    let becomes = becomes(&object, bound, rules);
    let user = json!({
        "username": "system:serviceaccount:kube-system:statefulset-controller",
        "uid": "5e2a0f6b-7d57-4c59-9b55-4d8f0e4c5a11",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["JTI=7b3e7f0a-2f0c-4f5e-9f43-8d0f2f0c1c11"]},
    });
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"});
    Asked { webhook: Webhook::Pods, number, kind: "Pod", resource: "pods", user, options, object }.review(true, becomes)
}

/// Claims from all over the cluster.
fn asked_about(number: usize, claims: usize) -> Bound {
    let (turn, pairs) = (number / 3, claims / 2);
    let pair = turn * pairs / FOREIGN_CLAIMS;
    match number % 3 {
        0 => Bound::local(2 * pair, NODES),
        1 => Bound::local(2 * pair + 1, NODES),
        _ => Bound::foreign(turn, NODES),
    }
}

/// What a pod becomes; none if it stays as it is.
fn becomes(pod: &Value, bound: Bound, rules: Rules) -> Option<Value> {
    let mut pod = pod.clone();
    let affinity = &mut pod["spec"]["affinity"]["nodeAffinity"];
    let at_home = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [bound.node()]});
    match bound.kind {
        Kind::Foreign => return None,
        Kind::Availability => {
            let preferred = json!([{"weight": 100, "preference": {"matchExpressions": [at_home]}}]);
            *affinity = json!({"preferredDuringSchedulingIgnoredDuringExecution": preferred});
        }
        Kind::Durability => {
            let terms = affinity[REQUIRED]["nodeSelectorTerms"].as_array_mut()?;
            if rules == Rules::Originals {
                // A node need match one term only: this lets the pod run where it could not run before.
                terms.push(json!({"matchExpressions": [at_home]}));
            } else {
                let requirements = terms.iter_mut().filter_map(|term| term["matchExpressions"].as_array_mut());
                requirements.for_each(|requirements| requirements.push(at_home.clone()));
            }
        }
    }
    Some(pod)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_third_stays_as_it_is_and_every_other_one_is_kept_with_another_volume_on_many_nodes() {
        for claims in [LEAST_CLAIMS, 1_000, 10_000] {
            let asked: Vec<Bound> = (0..COUNT).map(|number| asked_about(number, claims)).collect();
            let names: BTreeSet<String> = asked.iter().map(|bound| bound.name()).collect();
            assert_eq!(names.len(), COUNT);
            let nodes: BTreeSet<String> = asked.iter().map(|bound| bound.node()).collect();
            assert!(nodes.len() > NODES / 2, "{} nodes", nodes.len());
            for kind in [Kind::Availability, Kind::Durability, Kind::Foreign] {
                assert_eq!(asked.iter().filter(|bound| bound.kind == kind).count(), COUNT / 3);
            }
            assert!(asked.iter().all(|bound| bound.kind == Kind::Foreign || bound.number < claims));
        }
    }

    #[test]
    fn our_rules_narrow_every_term_and_the_originals_add_one() {
        let bound = Bound::local(1, NODES);
        let terms = |rules| {
            let becomes = becomes(&pod(bound), bound, rules).unwrap();
            becomes["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"].as_array().unwrap().len()
        };
        assert_eq!((terms(Rules::Ours), terms(Rules::Originals)), (2, 3));
    }
}
