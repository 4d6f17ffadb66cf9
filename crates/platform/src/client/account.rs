//! Whose rights this process has, and so whose its belongings are.

use k8s_openapi::{api::authentication::v1::SelfSubjectReview, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, Client, api::PostParams};

/// The owner of what this process keeps for itself in a namespace: its `ServiceAccount`, if that is there too. Nobody who installs
/// us knows of our leases and secrets, so nobody would remove them; but they go with the account.
pub async fn owner_in(client: &Client, namespace: &str) -> kube::Result<Option<OwnerReference>> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
        Ok(review) => review,
        // Whoever does not let us ask has to clean up.
        Err(kube::Error::Api(status)) if status.is_forbidden() || status.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    Ok(user.username.zip(user.uid).and_then(|(user, uid)| account(&user, uid, namespace)))
}

fn account(user: &str, uid: String, namespace: &str) -> Option<OwnerReference> {
    let (home, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (home == namespace && !uid.is_empty()).then(|| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        uid,
        ..OwnerReference::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_account_of_the_same_namespace_owns_anything() {
        let owner = |user: &str, uid: &str| account(user, uid.to_owned(), "storage").map(|owner| owner.name);
        assert_eq!(owner("system:serviceaccount:storage:claimkeeper", "u1").as_deref(), Some("claimkeeper"));
        assert_eq!(owner("system:serviceaccount:storage:claimkeeper", ""), None);
        assert_eq!(owner("system:serviceaccount:shop:claimkeeper", "u1"), None);
        assert_eq!(owner("system:admin", "u1"), None);
    }
}
