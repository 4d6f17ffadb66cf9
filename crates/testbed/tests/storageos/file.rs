//! The server by hand.

use anyhow::Result;
use testbed::storageos::{MOUNT_ENDPOINT, PVC_NAME, StorageOs};

const FILE: &str = "
volumes:
- { namespace: team, claim: data, volume: pvc-1, endpoint: '10.0.0.1:25705' }
- { namespace: team, claim: logs, volume: pvc-2 }
";

#[tokio::test]
async fn a_file_is_the_whole_truth_but_for_what_was_published() -> Result<()> {
    let server = StorageOs::start().await?;
    let changes = server.apply(FILE)?;
    assert_eq!(
        changes,
        ["team/pvc-1 of the claim data is at 10.0.0.1:25705", "team/pvc-2 of the claim logs is at no endpoint"]
    );
    let (id, _) = server.volumes().remove(0);
    server.change(&id, |volume| *volume = volume.clone().label(MOUNT_ENDPOINT, "10.96.0.7:2049"))?;
    let version = server.version(&id)?;
    assert!(server.apply(FILE)?.is_empty());
    assert_eq!(server.version(&id)?, version, "what is the same stays untouched");

    let moved = "volumes: [{ namespace: team, claim: other, volume: pvc-1, endpoint: '10.0.0.2:25705' }]";
    let changes = server.apply(moved)?;
    assert_eq!(changes, ["team/pvc-2 is gone", "team/pvc-1 of the claim other is now at 10.0.0.2:25705"]);
    let volumes = server.volumes();
    assert_eq!(volumes.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&id]);
    assert_eq!(volumes[0].1.endpoint.text(), Some("10.0.0.2:25705"));
    assert_eq!(volumes[0].1.labels[PVC_NAME], "other");
    assert_eq!(server.published(&id)?.as_deref(), Some("10.96.0.7:2049"));
    assert_ne!(server.version(&id)?, version);
    Ok(())
}

#[tokio::test]
async fn a_file_with_an_error_changes_nothing() -> Result<()> {
    let server = StorageOs::start().await?;
    server.apply(FILE)?;
    for (text, reason) in [
        ("volumes: [{ namespace: a, claim: b, volume: c, endpint: d }]", "endpint"),
        ("volumes: [{ namespace: a, claim: b }]", "volume"),
        (
            "volumes: [{ namespace: a, claim: b, volume: c }, { namespace: a, claim: d, volume: c }]",
            "the file has the volume a/c twice",
        ),
    ] {
        let error = format!("{:#}", server.apply(text).expect_err(text));
        assert!(error.contains(reason), "{error}");
        assert_eq!(server.volumes().len(), 2);
    }
    Ok(())
}
