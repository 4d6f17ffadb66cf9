//! Questions to which both replicas have the answer: claims that must be refused, pods that must be steered. None is ever made.

use std::{
    fmt, mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    scene::{REFUSAL, Rehearsal},
    stage::{NODE, Stage},
};

/// Claims and pods by turns.
const EVERY: Duration = Duration::from_millis(10);

/// A machine that is too slow for the rate is asked as fast as it can.
const MOST_AT_ONCE: usize = 32;

/// The load, until it is told to end.
pub(crate) struct Calls {
    log: Arc<Mutex<Log>>,
    stop: CancellationToken,
    load: JoinHandle<()>,
}

/// What became of the calls of a while.
#[derive(Default)]
pub(crate) struct Log {
    answered: usize,
    longest: Duration,
    faults: Vec<Fault>,
}

/// A call that was not answered as it must be.
struct Fault {
    began: Instant,
    ended: Instant,
    /// Whether the API server was there, but not the webhook.
    is_ours: bool,
    said: String,
}

impl Calls {
    pub(crate) fn begin(stage: &Stage) -> Self {
        let (log, stop) = (Arc::<Mutex<Log>>::default(), CancellationToken::new());
        let load = load(Caller::new(stage), Arc::clone(&log), stop.clone());
        Self { log, stop, load: tokio::spawn(load) }
    }

    /// What became of those that have ended since this was asked before.
    pub(crate) fn since_last(&self) -> Log {
        mem::take(&mut *self.log.lock().unwrap())
    }

    pub(crate) async fn end(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.load.await?)
    }
}

impl Log {
    fn add(&mut self, began: Instant, answer: Result<(), (bool, String)>) {
        let ended = Instant::now();
        match answer {
            Ok(()) => {
                self.answered += 1;
                self.longest = self.longest.max(ended - began);
            }
            Err((is_ours, said)) => self.faults.push(Fault { began, ended, is_ours, said }),
        }
    }

    pub(crate) fn expect_all_answered(self) -> Result<Self> {
        self.expect_no(|_| true)
    }

    /// Those that a killed replica was asked, until the Service knew, are nobody's to answer.
    pub(crate) fn expect_all_answered_but_between(self, kill: Instant, known: Instant) -> Result<Self> {
        self.expect_no(|fault| fault.ended < kill || fault.began > known)
    }

    /// While the API server was there.
    pub(crate) fn expect_none_failed(self) -> Result<Self> {
        self.expect_no(|fault| fault.is_ours)
    }

    fn expect_no(self, bad: impl Fn(&Fault) -> bool) -> Result<Self> {
        let bad: Vec<&Fault> = self.faults.iter().filter(|fault| bad(fault)).collect();
        let first = bad.first().map(|fault| fault.said.as_str()).unwrap_or_default();
        ensure!(bad.is_empty(), "{self}; {} of them wrongly, such as: {first}", bad.len());
        ensure!(self.answered > 0, "no call was made");
        Ok(self)
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = self.faults.iter().filter(|fault| fault.is_ours).count();
        let (answered, away) = (self.answered, self.faults.len() - ours);
        write!(f, "{answered} calls were answered, the slowest after {:.2} s", self.longest.as_secs_f32())?;
        write!(f, ", {ours} failed, and {away} did not find an API server")
    }
}

async fn load(caller: Caller, log: Arc<Mutex<Log>>, stop: CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asking = JoinSet::new();
    for turn in 0_usize.. {
        if stop.is_cancelled() {
            break;
        }
        ticks.tick().await;
        while asking.len() >= MOST_AT_ONCE {
            asking.join_next().await;
        }
        let (caller, log) = (caller.clone(), Arc::clone(&log));
        asking.spawn(async move {
            let began = Instant::now();
            let answer = if turn.is_multiple_of(2) { caller.make_claim().await } else { caller.make_pod().await };
            log.lock().unwrap().add(began, answer);
        });
    }
    asking.join_all().await;
}

#[derive(Clone)]
pub(crate) struct Caller {
    claim: Rehearsal,
    pods: Api<Pod>,
    pod: Pod,
}

impl Caller {
    pub(crate) fn new(stage: &Stage) -> Self {
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
        let containers = json!([{"name": "main", "image": "registry.example/main"}]);
        let pod = json!({"metadata": {"name": "rehearsal"}, "spec": {"containers": containers, "volumes": [volume]}});
        let (claim, pods) = (stage.scene.rehearsal(), stage.scene.shop.pods.clone());
        Self { claim, pods, pod: serde_json::from_value(pod).unwrap() }
    }

    /// Whether it is refused. If not: whose fault it is, and what was said.
    pub(crate) async fn make_claim(&self) -> Result<(), (bool, String)> {
        match self.claim.make().await {
            Ok(()) => Err((true, "a claim was made about which nobody was asked".to_owned())),
            Err(said) if said.contains(REFUSAL) => Ok(()),
            Err(said) => Err((is_about_webhook(&said), said)),
        }
    }

    /// Whether it is steered to where its volume is.
    pub(crate) async fn make_pod(&self) -> Result<(), (bool, String)> {
        let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
        match self.pods.create(&rehearsal, &self.pod).await {
            Ok(pod) if required(&pod) == Some(json!([NODE])) => Ok(()),
            Ok(_) => Err((true, "a pod was made about which nobody was asked".to_owned())),
            Err(error) => Err((is_about_webhook(&error.to_string()), error.to_string())),
        }
    }
}

fn is_about_webhook(said: &str) -> bool {
    said.contains("webhook")
}

/// The host names that it must run on.
fn required(pod: &Pod) -> Option<Value> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    Some(json!(terms.first()?.match_expressions.as_ref()?.first()?.values))
}
