//! The same story told to two clusters, one with the original, one with the program that replaces it under its name: after every step
//! clients find the same. And one cluster in which they take turns.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};
use testbed::{
    original,
    storageos::{Endpoint, Volume},
    within,
};

use crate::side::{Seen, Side};

/// The original asks every five seconds at most, takes a second to make each Service, and tries again ever more seldom.
const SETTLING: Duration = Duration::from_mins(1);

/// What clients should find: where the address of each claim leads.
type Expected = BTreeMap<&'static str, &'static str>;

/// Waits until every address leads where it should, and returns all that there is.
async fn settle(side: &Side, expected: &Expected) -> Result<BTreeMap<String, Seen>> {
    within(SETTLING, "every address to lead where it should", async || {
        let seen = side.look().await?;
        let leads: BTreeMap<&str, &str> = seen
            .iter()
            .map(|(claim, seen)| (claim.as_str(), seen.leads.first().map_or("nowhere", String::as_str)))
            .collect();
        ensure!(leads == *expected, "{leads:?}\n{seen:#?}");
        ensure!(seen.values().all(Seen::is_settled), "{seen:#?}");
        Ok(seen)
    })
    .await
}

/// Waits until both clusters are as they should be, and so the same.
async fn settle_both(sides: [&Side; 2], expected: &Expected) -> Result<()> {
    let (originals, ours) = tokio::try_join!(settle(sides[0], expected), settle(sides[1], expected))?;
    ensure!(originals == ours, "the original has {originals:#?}\nwe have {ours:#?}");
    Ok(())
}

fn volume(claim: &str) -> Volume {
    let (namespace, name) = claim.split_once('/').unwrap_or_default();
    Volume::shared(namespace, name, format!("pv-{namespace}-{name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_find_the_same_as_with_the_original_whichever_of_them_runs() -> Result<()> {
    if let Some(reason) = original::unavailable().await {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let (mut originals, mut ours) = tokio::try_join!(Side::open("original"), Side::open("ours"))?;
    tokio::try_join!(originals.start_original(), ours.start_ours())?;
    let sides = [&originals, &ours];

    // New volumes, in several namespaces; and some that do not count.
    let mut expected = Expected::from([
        ("team-a/data-1", "10.88.0.1:25705"),
        ("team-a/data-2", "10.88.0.1:25706"),
        ("team-b/data-1", "10.88.0.2:25705"),
    ]);
    for side in sides {
        for (claim, place) in &expected {
            side.share(claim, volume(claim).at(*place)).await?;
        }
        side.share("team-a/unused", volume("team-a/unused")).await?;
        side.server.add_volume(volume("team-b/nobodys").at("10.88.0.9:25705"));
    }
    settle_both(sides, &expected).await?;

    // A server moves.
    expected.insert("team-a/data-1", "10.88.0.3:25800");
    for side in sides {
        side.fail_over("team-a/data-1", "10.88.0.3:25800")?;
    }
    settle_both(sides, &expected).await?;

    // A server is gone: its address leads where it led. That another one moves is told with it.
    expected.insert("team-a/data-1", "10.88.0.1:25900");
    for side in sides {
        side.fail_over("team-a/data-2", Endpoint::Null)?;
        side.fail_over("team-a/data-1", "10.88.0.1:25900")?;
    }
    settle_both(sides, &expected).await?;

    // It is back, and what nobody used is used.
    expected.extend([("team-a/data-2", "10.88.0.4:25706"), ("team-a/unused", "10.88.0.4:25707")]);
    for side in sides {
        side.fail_over("team-a/data-2", "10.88.0.4:25706")?;
        side.fail_over("team-a/unused", "10.88.0.4:25707")?;
    }
    settle_both(sides, &expected).await?;

    // A claim is deleted, and everything goes with it.
    expected.remove("team-b/data-1");
    for side in sides {
        side.delete_claim("team-b/data-1").await?;
    }
    settle_both(sides, &expected).await?;
    drop(ours);
    take_turns(&mut originals, expected).await
}

/// We go on where the original stopped, and it goes on where we stop.
async fn take_turns(side: &mut Side, mut expected: Expected) -> Result<()> {
    let addresses = side.addresses().await?;
    side.stop().await?;
    expected.insert("team-a/data-1", "10.88.0.5:25705");
    side.fail_over("team-a/data-1", "10.88.0.5:25705")?;
    side.start_ours().await?;
    expected.insert("team-b/of-ours", "10.88.0.5:25706");
    side.share("team-b/of-ours", volume("team-b/of-ours").at("10.88.0.5:25706")).await?;
    settle(side, &expected).await?;
    side.kept(&addresses).await?;

    let addresses = side.addresses().await?;
    side.stop().await?;
    side.go_back().await?;
    settle(side, &expected).await?;
    side.start_original().await?;
    for (claim, place) in [("team-a/data-1", "10.88.0.6:25705"), ("team-b/of-ours", "10.88.0.6:25706")] {
        expected.insert(claim, place);
        side.fail_over(claim, place)?;
    }
    expected.insert("team-b/of-original", "10.88.0.6:25707");
    side.share("team-b/of-original", volume("team-b/of-original").at("10.88.0.6:25707")).await?;
    settle(side, &expected).await?;
    side.kept(&addresses).await
}
