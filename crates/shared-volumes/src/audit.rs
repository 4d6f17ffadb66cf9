//! The volumes whose address does not lead to their server, as rows: by what was noted on their claims last.

use cluster::{Finding, live};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};

use crate::{names::DECISION, why::read_note};

/// The claims whose volumes are not served, and why not. Everything is read live, with the rights of who asks; the source is not
/// asked, because who looks after a cluster need not have its credentials.
pub async fn find(client: &Client, namespace: Option<&str>) -> kube::Result<Vec<Finding>> {
    let claims: Api<PersistentVolumeClaim> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let mut findings = Vec::new();
    live::visit(&claims, |claim| findings.extend(finding(claim))).await?;
    Ok(findings)
}

fn finding(claim: PersistentVolumeClaim) -> Option<Finding> {
    let meta = claim.metadata;
    let (reason, message) = read_note(meta.annotations?.get(DECISION)?);
    (reason != "Served").then_some(())?;
    Some(Finding {
        feature: "shared-volumes",
        namespace: meta.namespace?,
        kind: "PersistentVolumeClaim",
        name: meta.name?,
        decision: "noted",
        reason,
        message: message.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn noted(note: Option<&str>) -> Option<(&'static str, String)> {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.namespace = Some("ci".into());
        claim.metadata.name = Some("files".into());
        claim.metadata.annotations = note.map(|note| BTreeMap::from([(DECISION.to_owned(), note.to_owned())]));
        finding(claim).map(|found| (found.reason, found.message.into_owned()))
    }

    #[test]
    fn only_volumes_that_are_not_served_are_rows() {
        assert_eq!(noted(None), None);
        assert_eq!(noted(Some("Served: the address of the volume leads to its server at 10.1.0.4:25705")), None);
        assert_eq!(noted(Some("EndpointGone: it is: gone")), Some(("EndpointGone", "it is: gone".to_owned())));
    }

    #[test]
    fn what_somebody_else_wrote_is_told_under_no_reason_of_ours() {
        assert_eq!(noted(Some("Hello: world")), Some(("Noted", "Hello: world".to_owned())));
        assert_eq!(noted(Some("Served")), Some(("Noted", "Served".to_owned())));
    }
}
