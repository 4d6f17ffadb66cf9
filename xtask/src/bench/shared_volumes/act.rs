//! What every contestant goes through, and what is measured meanwhile.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use testbed::{AuditLog, AuditedRequest, Progress, storageos::Route, within};
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::{
    Measured, Moved, Rest,
    contestant::{Contestant, Running},
    stage::{Begin, Move, Stage},
};
use crate::bench::{
    ephemeral::scene::delay,
    sample::{Samples, mebibytes, memory_of, processor_time_of},
};

/// The original takes two seconds for each volume.
const DEADLINE: Duration = Duration::from_hours(2);
/// A server moves this often where they move one after the other: slowly enough for the original's own limit of requests.
pub(super) const EVERY: Duration = Duration::from_millis(200);
/// Who has written nothing for longer than from one poll to the next is done.
const STILL: Duration = Duration::from_secs(6);
/// The pause between two looks at what was published.
const GLANCE: Duration = Duration::from_millis(200);
const REST: Duration = Duration::from_mins(1);

/// Lets a contestant go through all acts. Once all is published, the original is the same with or without its defaults.
pub(super) async fn play(
    mut stage: Stage,
    contestant: Contestant,
    moves: usize,
    rests: bool,
    to: &mut Measured,
) -> Result<()> {
    let log = stage.audit(contestant)?;
    let (mut running, begin) = stage.start(contestant).await?;
    let pid = running.pid()?;
    cold(&stage, &mut running, begin, to).await?;
    if contestant == Contestant::Original {
        to.peak.add(mebibytes(memory_of(pid)?.peak));
        return Ok(());
    }
    until_still(&log, &mut running).await?;

    let follower = Follower::start(&stage.client);
    move_singly(&mut stage, &mut running, moves, &follower, &mut to.single).await?;
    until_still(&log, &mut running).await?;
    move_together(&mut stage, &mut running, &follower, &mut to.together).await?;
    drop(follower);
    until_still(&log, &mut running).await?;

    if rests {
        to.rest = Some(rest(&stage, contestant, pid).await?);
    }
    running.check()?;
    to.peak.add(mebibytes(memory_of(pid)?.peak));
    Ok(())
}

/// All volumes wait to be published.
async fn cold(stage: &Stage, running: &mut Running, begin: Begin, to: &mut Measured) -> Result<()> {
    let (wanted, pid) = (stage.volumes, running.pid()?);
    let mut progress = Progress::start("  Publishing");
    let published = within(DEADLINE, "all volumes to be published", async || {
        running.check()?;
        // To look all the time would take the cores away from whom it is about.
        sleep(GLANCE).await;
        let requests = stage.storageos.requests_to(Route::MountEndpoint);
        let published = requests.into_iter().filter(|request| request.status == Some(200));
        let published: HashMap<_, _> = published.map(|request| (request.volume.clone(), request)).collect();
        progress.update(&format!("{} of {wanted}", published.len()));
        ensure!(published.len() == wanted, "{} of {wanted}", published.len());
        Ok(published)
    })
    .await?;
    let processor = processor_time_of(pid)?;
    let ends = published.values().map(|request| request.at + request.took.unwrap_or_default());
    let end = ends.max().context("nothing was published")?;
    let begin = match begin {
        Begin::At(time) => time,
        Begin::WhenTold => first_told(stage).context("nothing was told of the volumes")?,
    };
    let took = delay(begin, end).as_secs_f64();
    progress.finish(&format!("{took:.2} s"));
    to.cold.add(took);
    to.cold_processor.add(processor.as_secs_f64());
    Ok(())
}

/// When StorageOS first told of any volume.
fn first_told(stage: &Stage) -> Option<Timestamp> {
    let first = |id: &String| stage.storageos.reports(id).first().map(|report| report.first);
    stage.ids.iter().filter_map(first).min()
}

/// Waits until a contestant has nothing to write any more, but for its Lease.
async fn until_still(log: &AuditLog, running: &mut Running) -> Result<()> {
    let mut seen = (Instant::now(), 0);
    within(DEADLINE, "an end of all writes", async || {
        running.check()?;
        // The log is long.
        sleep(Duration::from_secs(1)).await;
        let writes = log.requests()?.iter().filter(|request| is_write(request) && !is_of_lease(request)).count();
        if writes != seen.1 {
            seen = (Instant::now(), writes);
        }
        ensure!(seen.0.elapsed() > STILL, "{writes} writes");
        Ok(())
    })
    .await
}

/// Servers move one after the other, at any moment between two polls.
async fn move_singly(
    stage: &mut Stage,
    running: &mut Running,
    count: usize,
    follower: &Follower,
    to: &mut Moved,
) -> Result<()> {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut moved = Vec::new();
    for number in 0..count {
        ticks.tick().await;
        moved.push(stage.move_server(number)?);
    }
    let told = follower.wait_for(stage, running, &moved, to).await?;
    eprintln!("  {count} servers moved one after the other: {told}");
    Ok(())
}

/// All servers move in the same moment.
async fn move_together(stage: &mut Stage, running: &mut Running, follower: &Follower, to: &mut Moved) -> Result<()> {
    let moved: Vec<Move> = (0..stage.volumes).map(|number| stage.move_server(number)).collect::<Result<_>>()?;
    let told = follower.wait_for(stage, running, &moved, to).await?;
    eprintln!("  {} servers moved at once: {told}", stage.volumes);
    Ok(())
}

async fn rest(stage: &Stage, contestant: Contestant, pid: u32) -> Result<Rest> {
    let (log, since, before) = (stage.audit(contestant)?, Timestamp::now(), processor_time_of(pid)?);
    sleep(REST).await;
    let (until, processor) = (Timestamp::now(), processor_time_of(pid)?.saturating_sub(before));
    let requests = log.since(since).until(until).requests()?;
    let (writes, reads): (Vec<_>, Vec<_>) = requests.iter().partition(|request| is_write(request));
    let leases = writes.iter().filter(|request| is_of_lease(request)).count();
    let asked = stage.storageos.requests();
    let rest = Rest {
        reads: reads.len(),
        writes: writes.len() - leases,
        leases,
        storageos: asked.iter().filter(|request| request.at >= since && request.at < until).count(),
        processor: processor.as_secs_f64() * 1e3,
        memory: mebibytes(memory_of(pid)?.resident),
    };
    let about: BTreeSet<String> = requests.iter().map(what).collect();
    eprintln!("  a minute of rest: {} reads and {} writes of {about:?}", rest.reads, rest.writes);
    Ok(rest)
}

fn is_write(request: &AuditedRequest) -> bool {
    !matches!(request.verb.as_str(), "get" | "list" | "watch")
}

fn is_of_lease(request: &AuditedRequest) -> bool {
    request.object_ref.as_ref().is_some_and(|object| object.resource == "leases")
}

fn what(request: &AuditedRequest) -> String {
    let resource = request.object_ref.as_ref().map_or("the server", |object| object.resource.as_str());
    format!("{} {resource}", request.verb)
}

/// Where Services lead, and since when: by Service and endpoint.
type Led = Arc<Mutex<HashMap<(String, String), Timestamp>>>;

/// Watches where Services lead. It ends with its owner.
struct Follower {
    led: Led,
    task: JoinHandle<()>,
}

impl Follower {
    fn start(client: &Client) -> Self {
        let led = Led::default();
        let task = tokio::spawn(follow(Api::all(client.clone()), Arc::clone(&led)));
        Self { led, task }
    }

    /// Waits until every server that has moved is followed, and notes how long each took.
    async fn wait_for(&self, stage: &Stage, running: &mut Running, moved: &[Move], to: &mut Moved) -> Result<String> {
        let key = |one: &Move| (one.service.clone(), one.endpoint.clone());
        within(DEADLINE, "all slices to follow", async || {
            running.check()?;
            let led = self.led.lock();
            let missing = moved.iter().find(|one| !led.contains_key(&key(one)));
            missing.map_or(Ok(()), |one| Err(anyhow!("{} does not lead to {}", one.service, one.endpoint)))
        })
        .await?;
        let (mut whole, mut seen) = (Vec::new(), Vec::new());
        for one in moved {
            let followed = self.led.lock().get(&key(one)).copied().context("it was there")?;
            let reports = stage.storageos.reports(&one.id);
            let told = reports.iter().find(|report| report.endpoint.as_ref() == Some(&one.endpoint));
            let told = told.context("a slice leads to what was never told")?.first;
            whole.push(delay(one.at, followed).as_secs_f64() * 1e3);
            seen.push(delay(told, followed).as_secs_f64() * 1e3);
        }
        let (whole, seen): (Samples, Samples) = (whole.into_iter().collect(), seen.into_iter().collect());
        to.p50.add(whole.quantile(0.5));
        to.p99.add(whole.quantile(0.99));
        to.seen_p50.add(seen.quantile(0.5));
        to.seen_p99.add(seen.quantile(0.99));
        to.seen_last.add(seen.largest());
        Ok(format!(
            "p50 {:.0} ms, p99 {:.0} ms; once told p50 {:.1} ms, p99 {:.1} ms",
            whole.quantile(0.5),
            whole.quantile(0.99),
            seen.quantile(0.5),
            seen.quantile(0.99)
        ))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A watch ends now and then. What it tells again when it begins anew is known, or was missed in between.
async fn follow(slices: Api<EndpointSlice>, led: Led) {
    loop {
        let events = slices.watch(&WatchParams::default(), "0").await;
        let mut events = match events {
            Ok(events) => events.boxed(),
            Err(_) => stream::empty().boxed(),
        };
        while let Some(Ok(event)) = events.next().await {
            let now = Timestamp::now();
            if let WatchEvent::Added(slice) | WatchEvent::Modified(slice) = event
                && let Some(found) = leads(&slice)
            {
                led.lock().entry(found).or_insert(now);
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// The Service of a slice and the one endpoint that it leads to.
fn leads(slice: &EndpointSlice) -> Option<(String, String)> {
    let service = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?;
    let namespace = slice.metadata.namespace.as_ref()?;
    let [endpoint] = slice.endpoints.as_slice() else { return None };
    let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
    let (ip, port) = (endpoint.addresses.first()?, slice.ports.as_ref()?.first()?.port?);
    ready.then(|| (format!("{namespace}/{service}"), format!("{ip}:{port}")))
}
