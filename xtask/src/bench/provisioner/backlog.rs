//! A backlog: the pods exist, then a controller starts. It is done when the last event is written, not the last claim.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::Event,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testbed::{AuditLog, within};
use tokio::time::Instant;

use super::Contestant;
use crate::bench::{
    claims,
    ephemeral::{
        contestant::{Programs, Running},
        scene::{STILL, Scene, created_claims, delay, span},
    },
    operator,
    pods::{Plan, Scratch},
    report::Section,
    sample::Samples,
};

/// What 5 requests a second are enough for, of which every claim takes 2: one for itself and one for its event.
const ORIGINAL_BOUND: f64 = 2.5;

/// This many take a client with the original's limits half a minute, and the rest would not tell more.
const CLAIMS_OF_THE_ORIGINAL: usize = 60;

/// Events are written after their claims, and some are dropped if they are too many.
const EVENTS_DEADLINE: Duration = Duration::from_mins(5);

const PROVISIONED: &str = "PVCProvisioned";

const EMPTY: &str = "empty";
const ANNOTATED: &str = "annotated";
const EPHEMERAL: &str = "ephemeral";

/// What was measured of one contestant.
#[derive(Default)]
struct Measured {
    /// Claims per second.
    claims: Samples,
    /// Events per second, from the first claim on.
    events: Samples,
    /// Claims whose pod was not told.
    missing: Samples,
    /// Seconds from the start of the process to the last claim.
    wall: Samples,
    /// MiB at the most.
    memory: Samples,
    /// Microseconds of processor time per claim, its event included, from the start of the process.
    processor: Samples,
    /// The same from the first claim on.
    processor_busy: Samples,
    /// What API server and etcd used for it.
    server: Samples,
}

/// The cluster with both backlogs.
struct Stage {
    scene: Scene,
    operator: PathBuf,
    provisioner: Vec<String>,
    original: Option<PathBuf>,
    pods: usize,
}

pub(crate) async fn run(
    programs: &Programs,
    original: Option<PathBuf>,
    only: &[Contestant],
    pods: usize,
    rounds: usize,
    command: String,
) -> Result<()> {
    let stage = Stage::set(programs, original, pods).await?;
    let mut measured: Vec<(Contestant, Measured)> = [Contestant::Provisioner, Contestant::Ephemeral]
        .into_iter()
        .filter(|contestant| only.contains(contestant))
        .map(|contestant| (contestant, Measured::default()))
        .collect();
    let contestants = measured.len();
    for round in 0..rounds {
        // Each is the first once, should that make a difference.
        for turn in 0..contestants {
            let (contestant, measured) = &mut measured[(round + turn) % contestants];
            eprintln!("{pods} pods, round {} of {rounds}: {}", round + 1, contestant.label());
            stage.measure(*contestant, measured).await?;
        }
    }
    if only.contains(&Contestant::Original) {
        let mut once = Measured::default();
        eprintln!("{pods} pods: {}", Contestant::Original.label());
        stage.measure(Contestant::Original, &mut once).await?;
        measured.push((Contestant::Original, once));
    }
    publish(&measured, pods, command)
}

impl Stage {
    /// The pods that ask by annotation and those with an ephemeral volume are never in the cluster together.
    async fn set(programs: &Programs, original: Option<PathBuf>, pods: usize) -> Result<Self> {
        let scene = Scene::open(programs).await?;
        let provisioner = operator::install(&scene.control_plane, "provisioner").await?.arguments;
        scene.save(EMPTY).await?;
        for (state, scratch) in [(ANNOTATED, Scratch::Annotated), (EPHEMERAL, Scratch::Ephemeral)] {
            scene.restore(EMPTY).await?;
            let client = scene.client().await?;
            let plan = Plan { scratch, phase: "Pending", ..Plan::new(pods, 1) };
            plan.create(&client).await?;
            for namespace in plan.namespaces() {
                let_create_claims(&client, &namespace).await?;
            }
            scene.save(state).await?;
        }
        Ok(Self { scene, operator: programs.operator.clone(), provisioner, original, pods })
    }

    async fn start(&self, contestant: Contestant) -> Result<Running> {
        match contestant {
            Contestant::Provisioner => self.scene.launch(&self.operator, &self.provisioner).await,
            Contestant::Ephemeral => self.scene.launch(&self.operator, &self.scene.operator.arguments).await,
            Contestant::Original => {
                let program = self.original.as_deref().context("the client was not built")?;
                // Its events are in the core group, for which our chart has no right.
                let kubeconfig = self.scene.control_plane.admin_kubeconfig();
                self.scene.launch(program, &["provisioner".to_owned(), kubeconfig.display().to_string()]).await
            }
        }
    }

    async fn measure(&self, contestant: Contestant, to: &mut Measured) -> Result<()> {
        let Self { scene, pods, .. } = self;
        let (state, wanted) = match contestant {
            Contestant::Provisioner => (ANNOTATED, *pods),
            Contestant::Ephemeral => (EPHEMERAL, *pods),
            Contestant::Original => (ANNOTATED, CLAIMS_OF_THE_ORIGINAL.min(*pods)),
        };
        scene.restore(state).await?;
        let (log, client, server) = (scene.audit()?, scene.client().await?, scene.server_time()?);
        let mut running = self.start(contestant).await?;
        claims::wait_for(&client, wanted).await?;
        if contestant != Contestant::Ephemeral {
            wait_for_events(&client, wanted).await?;
        }
        running.check()?;
        let (used, server) = (running.used()?, scene.server_time()?.saturating_sub(server));
        let created = created_claims(&log, wanted).await?;
        let (first, last) = span(&created).context("no claim was created")?;
        let busy = used.processor.saturating_sub(running.processor_time_at(first));
        let made = created.len() as f64;
        let per_claim = |time: Duration| time.as_secs_f64() * 1e6 / made;
        let rate = made / delay(first, last).as_secs_f64();
        to.claims.add(rate);
        to.wall.add(delay(running.since, last).as_secs_f64());
        to.memory.add(used.memory);
        to.processor.add(per_claim(used.processor));
        to.processor_busy.add(per_claim(busy));
        to.server.add(per_claim(server));
        let told = if contestant == Contestant::Ephemeral {
            String::new()
        } else {
            let (events, missing) = (events_per_second(&log, first)?, missing_events(&client, wanted).await?);
            to.events.add(events);
            to.missing.add(missing as f64);
            format!("{events:.0} events/s with {missing} missing, ")
        };
        let (processor, server) = (per_claim(used.processor), per_claim(server));
        eprintln!(
            "  {rate:.0} claims/s, {told}{:.0} MiB, {processor:.0} µs of CPU per claim, {server:.0} in the server",
            used.memory
        );
        Ok(())
    }
}

/// Lets the pods of a namespace have claims, as the provisioner asks for by default.
async fn let_create_claims(client: &Client, namespace: &str) -> Result<()> {
    let name = "create-claims";
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["create"]}],
    }))?;
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }))?;
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &role).await?;
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// Waits until there are this many events, or until no more come.
async fn wait_for_events(client: &Client, wanted: usize) -> Result<()> {
    let mut seen = (Instant::now(), 0);
    within(EVENTS_DEADLINE, "the events", async || {
        let count = claims::count::<Event>(client).await?;
        if count != seen.1 {
            seen = (Instant::now(), count);
        }
        ensure!(count >= wanted || seen.0.elapsed() > STILL, "{count} of {wanted}");
        Ok(())
    })
    .await
}

fn events_per_second(log: &AuditLog, first_claim: Timestamp) -> Result<f64> {
    let requests = log.clone().verb("create").resource("events").requests()?;
    let written: Vec<_> = requests.into_iter().filter(|request| request.code() == Some(201)).collect();
    let seconds = span(&written).map(|(_, last)| delay(first_claim, last).as_secs_f64());
    Ok(seconds.map_or(0.0, |seconds| written.len() as f64 / seconds))
}

/// How many pods got a claim and were not told: counted in the cluster, not in a log.
async fn missing_events(client: &Client, claims: usize) -> Result<usize> {
    let about = ListParams::default().fields(&format!("reason={PROVISIONED}"));
    let events: Api<Event> = Api::all(client.clone());
    let events = events.list(&about).await?.items;
    let told: BTreeSet<_> = events.into_iter().filter_map(|event| event.involved_object.uid).collect();
    Ok(claims.saturating_sub(told.len()))
}

/// Claims may run ahead of their events; only the slower of both is work that is done.
fn times_the_bound(contestant: Contestant, measured: &Measured) -> String {
    let times = measured.claims.median().min(measured.events.median()) / ORIGINAL_BOUND;
    match contestant {
        Contestant::Ephemeral => "–".to_owned(),
        Contestant::Provisioner => format!("{times:.0}"),
        Contestant::Original => format!("{times:.1}"),
    }
}

fn publish(measured: &[(Contestant, Measured)], pods: usize, command: String) -> Result<()> {
    let header = [
        "who",
        "claims/s",
        "of `ephemeral`",
        "events/s",
        "events missing",
        "× 2.5/s",
        "seconds",
        "peak MiB",
        "CPU µs/claim",
        "busy",
        "server",
    ];
    let ephemeral = measured.iter().find(|(contestant, _)| *contestant == Contestant::Ephemeral);
    let ephemeral = ephemeral.map_or(f64::NAN, |(_, measured)| measured.claims.median());
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(measured.iter().map(|(contestant, measured)| {
        let told = |figures: &Samples, shown: fn(&Samples) -> String| match contestant {
            Contestant::Ephemeral => "–".to_owned(),
            _ => shown(figures),
        };
        // The slow one has so few claims a second that decimals count.
        let rate: fn(&Samples) -> String = match contestant {
            Contestant::Original => ToString::to_string,
            _ => Samples::rounded,
        };
        let claims = measured.claims.median();
        vec![
            contestant.label().to_owned(),
            rate(&measured.claims),
            format!("{:.0} %", claims / ephemeral * 100.0),
            told(&measured.events, rate),
            told(&measured.missing, Samples::rounded),
            times_the_bound(*contestant, measured),
            measured.wall.to_string(),
            measured.memory.to_string(),
            measured.processor.rounded(),
            measured.processor_busy.rounded(),
            measured.server.rounded(),
        ]
    }));
    Section {
        title: "Claims by annotation: a backlog",
        command,
        circumstances: format!(
            "{pods} Pending pods exist, each asking for one claim by annotation or, for `ephemeral`, with an ephemeral volume of the same \
             spec;\nthen the program starts. Their ServiceAccount may create claims, which `provisioner` asks for by default. Each claim of \
             `provisioner`\nalso takes an event: \"events/s\" count from the first claim to the last event, and \"events missing\" are claims \
             whose pod has no\n`{PROVISIONED}` in the cluster when no more come. The processor time is that of claims and events. For all \
             else, see the backlog\nof ephemeral volumes.\n\n\
             The original's client allows 5 requests a second, after a burst of 10, and it makes 2 for every claim: its bound is \
             {ORIGINAL_BOUND} claims with\ntheir events a second. \"× {ORIGINAL_BOUND}/s\" compares with that bound the slower of claims and events. \
             The original's program is not measured\nhere; \"a client with the original's limits\" is a small one made of the same library at its \
             defaults, with the original's two workers\n(measured once, over its first {CLAIMS_OF_THE_ORIGINAL} claims, of which two are made while \
             one event is written)."
        ),
        rows,
    }
    .publish()
}
