//! Templates of people who mean no good, or mistype.

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::ListParams;
use testbed::eventually;

use crate::{
    room::{Room, TEMPLATE},
    templates::hostile,
};

#[tokio::test]
async fn every_hostile_template_is_told_to_its_pod_and_makes_no_claim() -> Result<()> {
    let room = Room::open("hostile").await?;
    // The API server itself refuses annotations of more than 256 KiB.
    let templates: Vec<_> = hostile().into_iter().filter(|(text, _)| text.len() < 200_000).collect();
    assert!(templates.len() >= 40);
    let pods = stream::iter(templates.iter().enumerate()).map(async |(number, (text, part))| {
        let text = text.replace("namespace: ci", &format!("namespace: {}", room.namespace));
        anyhow::Ok((room.ask(&format!("pod-{number}"), &text).await?, *part))
    });
    let pods: Vec<_> = pods.buffered(8).try_collect().await?;
    for (pod, part) in &pods {
        let note = room.told(pod, "ErrInvalidPVC").await?;
        ensure!(note.starts_with("'claimkeeper.dev/cache.claim' invalid PVC: "), "{note}");
        // The namespace of this room is not the one of the table.
        ensure!(note.contains(part) || part.contains(" ci"), "{note} has no {part}");
    }
    assert!(room.claims.list(&ListParams::default()).await?.items.is_empty());

    // And whoever comes with an honest one is served as if nothing had been.
    room.ask("honest", TEMPLATE).await?;
    room.claim("honest-1").await?;
    Ok(())
}

#[tokio::test]
async fn a_template_that_is_mended_gets_its_claim() -> Result<()> {
    let room = Room::open("mended").await?;
    let pod = room.ask("web", &TEMPLATE.replace("storageClassName", "storageClasName")).await?;
    let note = room.told(&pod, "ErrInvalidPVC").await?;
    assert!(note.contains("did you mean storageClassName?"), "{note}");
    room.annotate("web", serde_json::json!({"claimkeeper.dev/cache.claim": TEMPLATE})).await?;
    eventually("the claim", async || room.claims.get("web-1").await).await?;
    Ok(())
}
