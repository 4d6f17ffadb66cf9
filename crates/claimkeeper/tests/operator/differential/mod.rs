//! The same story told to two clusters, one with the controller of Kubernetes, one with ours: after every step both hold the
//! same claims, but for the improvements that [`Improvement`] lists.

mod script;
mod side;
mod verdict;

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use futures::future::try_join_all;
use serde_json::json;
use testbed::{Cluster, ControlPlane, Options, within};

use crate::home::{Home, Replica};
use script::Script;
use side::Side;
use verdict::{Improvement, Maker, Snapshot, View, compare};

/// Tells one story again: the error of the one that failed names it.
const SEED_VARIABLE: &str = "CLAIMKEEPER_SEED";
const SEEDS: [u64; 7] = [1, 2, 3, 4, 5, 6, 7];
const STEPS: usize = 30;
/// A scheduler that failed once takes its time, and so does the original after a quota.
const SETTLING: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread")]
async fn the_same_story_ends_in_the_same_claims_as_with_the_original() -> Result<()> {
    let seeds = match env::var(SEED_VARIABLE) {
        Ok(seed) => vec![seed.parse()?],
        // One that nobody has seen before.
        Err(_) => SEEDS.into_iter().chain([rand::random()]).collect(),
    };
    let cluster = |name: &str, controllers: &str| {
        // Pod garbage collection deletes by name, and may hit a pod that has just taken the name of the one it means.
        let controllers = format!("{controllers},-pod-garbage-collector-controller");
        ControlPlane::start(Options::default().name(name).controllers(controllers))
    };
    let originals = cluster("original", "*");
    let (originals, ours) = tokio::try_join!(originals, cluster("ours", "*,-ephemeral-volume-controller"))?;
    let start = Instant::now();
    let stories = seeds.iter().map(async |seed| {
        let story = Story::begin(ours.cluster(), originals.cluster(), *seed).await?;
        Box::pin(story.tell()).await.with_context(|| format!("{SEED_VARIABLE}={seed} tells this story again"))
    });
    let improvements: BTreeSet<Improvement> = try_join_all(stories).await?.into_iter().flatten().collect();
    println!("{} stories of {STEPS} steps in {:.1} s: {improvements:?}", seeds.len(), start.elapsed().as_secs_f32());
    if seeds.len() > 1 {
        let all = [Improvement::EndedPodsGetNoClaim, Improvement::LaterVolumesGetTheirs];
        assert_eq!(improvements, BTreeSet::from(all), "what is called an improvement was seen to be one");
    }
    Ok(())
}

/// A namespace in each cluster, and what is done to them.
struct Story {
    ours: Side,
    originals: Side,
    script: Script,
    _claimkeeper: Replica,
}

impl Story {
    async fn begin(ours: Cluster, originals: Cluster, seed: u64) -> Result<Self> {
        let home = Home::on(ours.clone(), "story").await?;
        let claimkeeper = home.start("solo", json!({"enabled": false})).await?;
        let namespace = originals.create_namespace("story").await?;
        Ok(Self {
            ours: Side::new(ours, home.namespace).await?,
            originals: Side::new(originals, namespace).await?,
            script: Script::new(seed),
            _claimkeeper: claimkeeper,
        })
    }

    async fn tell(mut self) -> Result<BTreeSet<Improvement>> {
        let (mut view, mut told, mut improvements) = (View::default(), Vec::new(), BTreeSet::new());
        for _ in 0..STEPS {
            let step = self.script.next(&view);
            told.push(format!("{step:?}"));
            let done = tokio::try_join!(self.ours.apply(&step), self.originals.apply(&step));
            let settled = match done {
                Ok(_) => self.settle(&view).await,
                Err(error) => Err(error),
            };
            view = settled.map_err(|error| anyhow!("{error:#}\nafter {}", told.join(",\n      ")))?;
            improvements.append(&mut view.improvements);
        }
        Ok(improvements)
    }

    async fn settle(&self, before: &View) -> Result<View> {
        within(SETTLING, "both clusters to be settled and the same", async || {
            let (ours, originals) = tokio::try_join!(self.ours.objects(), self.originals.objects())?;
            let ours = Snapshot::new(Maker::Claimkeeper, &ours.0, &ours.1)?;
            let originals = Snapshot::new(Maker::Original, &originals.0, &originals.1)?;
            ours.settled(self.script.is_closed())?;
            originals.settled(self.script.is_closed())?;
            compare(ours, &originals, before)
        })
        .await
    }
}
