//! A thousand servers move while everything around them fails, and nobody is ever led to a stranger.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rand::{RngExt, seq::IndexedRandom};
use testbed::Component;
use tokio::{sync::Mutex, time::sleep};

use crate::{
    script::Script,
    stage::Stage,
    trouble::{Trouble, shuffled},
    verdict::judge,
};

/// Tells one story again, as far as that can be: the machine has a part in it.
const SEED_VARIABLE: &str = "CLAIMKEEPER_SEED";

const VOLUMES: usize = 200;
/// The others appear one by one.
const FIRST_VOLUMES: usize = 160;
const FAILOVERS: usize = 1000;
const FAILOVERS_PER_STEP: usize = 20;
/// All is well for a moment after so many steps.
const STEPS_PER_ACT: usize = 10;

/// One for each step.
const TROUBLES: [(Trouble, usize); 14] = [
    (Trouble::Nothing, 5),
    (Trouble::Errors, 5),
    (Trouble::NoNamespaces, 3),
    (Trouble::Silence, 4),
    (Trouble::LateLists, 5),
    (Trouble::BrokenLists, 4),
    (Trouble::EmptyList, 4),
    (Trouble::ExpiredTokens, 4),
    (Trouble::StaleWrites, 3),
    (Trouble::LostAnswers, 2),
    (Trouble::DeletedServices, 3),
    (Trouble::KilledOperator, 5),
    (Trouble::KilledApiServer, 2),
    (Trouble::FrozenApiServer, 1),
];

/// One after the other: each keeps the machine busy.
static TURN: Mutex<()> = Mutex::const_new(());

/// How long an API server stands still.
const FROZEN: Duration = Duration::from_secs(1);

const VOLUMES_OF_TWO: usize = 40;
const TROUBLES_OF_TWO: [(Trouble, usize); 8] = [
    (Trouble::Nothing, 1),
    (Trouble::Errors, 1),
    (Trouble::LateLists, 1),
    (Trouble::StaleWrites, 1),
    (Trouble::DeletedServices, 1),
    (Trouble::KilledOperator, 3),
    (Trouble::FrozenLeader, 2),
    (Trouble::KilledApiServer, 1),
];

fn seed() -> Result<u64> {
    let seed = match env::var(SEED_VARIABLE) {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    println!("{SEED_VARIABLE}={seed}");
    Ok(seed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_failovers_change_no_address_and_lead_nobody_to_another_volumes_server() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut script = Script::new(seed()?, VOLUMES);
    let mut stage = Stage::open("soak", VOLUMES, 1).await?;
    stage.add_volumes(&script, FIRST_VOLUMES);
    // The first addresses are not published without trouble, either.
    Trouble::StaleWrites.of_storageos(&stage.server, stage.namespace(0), script.random());
    Trouble::LostAnswers.of_storageos(&stage.server, stage.namespace(0), script.random());
    stage.start_operator(0).await?;
    stage.until_settled(&script).await?;

    play(&mut stage, &mut script, &TROUBLES).await?;
    assert!(script.failovers() >= FAILOVERS);
    conclude(&stage, &mut script, true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_that_are_killed_and_frozen_in_turns_lead_nobody_to_another_volumes_server() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut script = Script::new(seed()?, VOLUMES_OF_TWO);
    let mut stage = Stage::open("two-replicas", VOLUMES_OF_TWO, 2).await?;
    stage.add_volumes(&script, VOLUMES_OF_TWO);
    for replica in 0..2 {
        stage.start_operator(replica).await?;
    }
    stage.until_settled(&script).await?;
    play(&mut stage, &mut script, &TROUBLES_OF_TWO).await?;
    conclude(&stage, &mut script, false).await
}

async fn play(stage: &mut Stage, script: &mut Script, troubles: &[(Trouble, usize)]) -> Result<()> {
    let start = Instant::now();
    let troubles = shuffled(troubles, script.random());
    for (number, trouble) in troubles.iter().enumerate() {
        let last = &troubles[..=number];
        step(stage, script, *trouble).await.with_context(|| format!("after {last:?}"))?;
        if (number + 1) % STEPS_PER_ACT == 0 {
            end_act(stage, script).await.with_context(|| format!("after {last:?}"))?;
        }
    }
    println!("{} failovers in {:.1} s", script.failovers(), start.elapsed().as_secs_f32());
    Ok(())
}

/// Something goes wrong, and meanwhile servers move.
async fn step(stage: &mut Stage, script: &mut Script, trouble: Trouble) -> Result<()> {
    stage.add_volumes(script, 1);
    let volumes = stage.count();
    let namespace = stage.namespace(script.random().random_range(0..volumes)).to_owned();
    trouble.of_storageos(&stage.server, &namespace, script.random());
    let moves = script.step(FAILOVERS_PER_STEP, volumes);
    match trouble {
        Trouble::StaleWrites | Trouble::LostAnswers => {
            stage.apply(&moves)?;
            for _ in 0..3 {
                // Of these nobody deletes the Service: there would be nothing left to know the address by.
                stage.unpublish(script.random().random_range(0..volumes / 2) * 2)?;
            }
        }
        Trouble::DeletedServices => {
            stage.apply(&moves)?;
            let served: Vec<usize> =
                (0..volumes / 2).map(|n| n * 2 + 1).filter(|n| script.place(*n).is_some()).collect();
            for number in served.sample(script.random(), 3) {
                stage.replace_service(*number).await?;
            }
        }
        Trouble::KilledOperator => {
            stage.apply(&moves)?;
            sleep(Duration::from_millis(400).mul_f32(script.random().random())).await;
            let leader = stage.leader().await?;
            stage.kill_operator(leader).await?;
            stage.start_operator(leader).await?;
        }
        Trouble::FrozenLeader => {
            let leader = stage.leader().await?;
            stage.apply(&moves[..moves.len() / 2])?;
            stage.operator(leader)?.pause()?;
            stage.until_leader_is_not(leader).await?;
            stage.apply(&moves[moves.len() / 2..])?;
            stage.until_heard().await;
            stage.operator(leader)?.resume()?;
        }
        Trouble::KilledApiServer => {
            stage.apply(&moves[..moves.len() / 2])?;
            sleep(Duration::from_millis(400).mul_f32(script.random().random())).await;
            stage.cluster.kill(Component::ApiServer)?;
            stage.apply(&moves[moves.len() / 2..])?;
            stage.cluster.start_component(Component::ApiServer).await?;
        }
        Trouble::FrozenApiServer => {
            stage.apply(&moves[..moves.len() / 2])?;
            stage.cluster.pause(Component::ApiServer)?;
            stage.apply(&moves[moves.len() / 2..])?;
            sleep(FROZEN).await;
            stage.cluster.resume(Component::ApiServer)?;
        }
        _ => stage.apply(&moves)?,
    }
    stage.until_heard().await;
    Ok(())
}

/// Nothing goes wrong any more, until all is well.
async fn end_act(stage: &Stage, script: &Script) -> Result<()> {
    stage.server.clear_faults();
    stage.until_settled(script).await
}

async fn conclude(stage: &Stage, script: &mut Script, freshness: bool) -> Result<()> {
    stage.apply(&script.everybody_back())?;
    end_act(stage, script).await?;
    let record = stage.record(script, freshness).await?;
    let revisions = record.slices.len();
    println!("{revisions} revisions of slices, {} of Services", record.services.len());
    // On a slow machine many servers move twice before anybody asks for them.
    ensure!(revisions > script.failovers() / 4, "there are only {revisions} revisions of slices");
    let wrong = judge(&record);
    assert!(wrong.is_empty(), "{} things went wrong:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    Ok(())
}
