//! Who made which claim, for whom, and how often.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use testbed::eventually;

use crate::home::Home;

/// What the API server answers when nobody is there any more to hear it. What was asked may have been done all the same.
const GATEWAY_TIMEOUT: u16 = 504;

/// How often a claim was made.
#[derive(Debug, Default)]
struct Creations {
    answered: usize,
    unheard: usize,
}

impl Creations {
    fn is_once(&self) -> bool {
        self.answered == 1 || (self.answered == 0 && self.unheard > 0)
    }
}

/// The uid of whoever controls each claim.
pub(crate) fn owners(claims: &[PersistentVolumeClaim]) -> BTreeMap<String, String> {
    let owner = |claim: &PersistentVolumeClaim| match claim.owner_references() {
        [owner] if owner.controller == Some(true) => owner.uid.clone(),
        owners => format!("{owners:?}"),
    };
    claims.iter().map(|claim| (claim.name_any(), owner(claim))).collect()
}

/// Makes sure that each of these claims was made once, that no other ever was, and that none had to go; returns how many each
/// user was told that it had made.
pub(crate) async fn expect_made_once(home: &Home, claims: &[PersistentVolumeClaim]) -> Result<BTreeMap<String, usize>> {
    let log = home.cluster.audit_log().namespace(&home.namespace).resource("persistentvolumeclaims");
    eventually("the audit log to tell of every claim once", async || {
        let mut creations: BTreeMap<String, Creations> =
            claims.iter().map(|claim| (claim.name_any(), Creations::default())).collect();
        let mut makers: BTreeMap<String, usize> = BTreeMap::new();
        for request in log.clone().verb("create").requests()? {
            let code = request.code();
            let claim = creations.entry(request.object_ref.map(|object| object.name).unwrap_or_default()).or_default();
            if code == Some(201) {
                claim.answered += 1;
                *makers.entry(request.user.username).or_default() += 1;
            }
            claim.unheard += usize::from(code == Some(GATEWAY_TIMEOUT));
        }
        creations.retain(|_, creations| !creations.is_once());
        ensure!(creations.is_empty(), "not so {creations:?}");
        let deletions =
            log.clone().verb("delete").requests()?.len() + log.clone().verb("deletecollection").requests()?.len();
        ensure!(deletions == 0, "claims were deleted {deletions} times");
        Ok(makers)
    })
    .await
}
