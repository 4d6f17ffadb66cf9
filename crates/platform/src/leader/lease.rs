//! The Lease object: reading it, writing it, waiting for it to change.

use std::time::Duration;

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use tokio::time::{Instant, sleep};

use super::decision::Record;

/// Shorter than the idle timeouts of common load balancers, which end quiet connections without a word.
const WATCH_SECONDS: u32 = 200;

pub(super) fn record_of(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        transitions: spec.lease_transitions.unwrap_or_default(),
        acquired: spec.acquire_time.map(|MicroTime(time)| time),
        renewed: spec.renew_time.map(|MicroTime(time)| time),
    }
}

/// `base` carries name, namespace and the resource version that makes a late write fail.
pub(super) fn lease_with(base: ObjectMeta, record: Record) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(record.holder),
        lease_duration_seconds: Some(i32::try_from(record.duration.as_secs()).unwrap_or(i32::MAX)),
        lease_transitions: Some(record.transitions),
        acquire_time: record.acquired.map(to_micros),
        renew_time: record.renewed.map(to_micros),
        ..LeaseSpec::default()
    };
    Lease { metadata: base, spec: Some(spec) }
}

/// A Lease keeps microseconds; with more, what we wrote and what we read back would differ.
fn to_micros(time: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
}

/// What a watch of the one Lease tells.
pub(super) enum Signal {
    Seen(Box<Lease>),
    Gone,
    /// The watch is not to be relied upon until something is seen again.
    Down(kube::Error),
}

/// An endless watch; `pause` is the time between tries when it does not work.
pub(super) fn signals(leases: Api<Lease>, name: &str, pause: Duration) -> BoxStream<'static, Signal> {
    let parameters = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    let connections = stream::unfold(None, move |last: Option<Connection>| {
        let (leases, parameters) = (leases.clone(), parameters.clone());
        async move {
            if let Some(last) = last
                && (last.failed || last.opened.elapsed() < pause)
            {
                sleep(pause).await;
            }
            let opened = Instant::now();
            // Without a resource version the watch begins with the lease as it is now.
            match leases.watch(&parameters, "").await {
                Ok(events) => Some((events.filter_map(signal).boxed(), Some(Connection { opened, failed: false }))),
                Err(error) => {
                    let down = stream::once(async { Signal::Down(error) });
                    Some((down.boxed(), Some(Connection { opened, failed: true })))
                }
            }
        }
    });
    connections.flatten().boxed()
}

struct Connection {
    opened: Instant,
    failed: bool,
}

async fn signal(event: Result<WatchEvent<Lease>, kube::Error>) -> Option<Signal> {
    match event {
        Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => Some(Signal::Seen(Box::new(lease))),
        Ok(WatchEvent::Deleted(_)) => Some(Signal::Gone),
        Ok(WatchEvent::Bookmark(_)) => None,
        Ok(WatchEvent::Error(status)) => Some(Signal::Down(kube::Error::Api(status))),
        Err(error) => Some(Signal::Down(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_way_through_a_lease() {
        let now = Timestamp::from_microsecond(1_763_230_000_123_456).unwrap();
        let record = Record {
            holder: "me".into(),
            duration: Duration::from_secs(15),
            transitions: 7,
            acquired: Some(now),
            renewed: Some(now),
        };
        assert_eq!(record_of(&lease_with(ObjectMeta::default(), record.clone())), record);
    }

    #[test]
    fn a_lease_without_a_spec_is_free() {
        let record = record_of(&Lease::default());
        assert_eq!((record.holder.as_str(), record.duration), ("", Duration::ZERO));
    }
}
