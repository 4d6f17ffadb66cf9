//! What the queue promises, one behaviour per test; the sequences that client-go is asked about are in
//! `tests/workqueue_reference.rs`.

mod adding;
mod delaying;
mod fairness;
mod load;
mod model;
mod running;

use std::time::Duration;

use futures::FutureExt as _;

use super::{Item, Key, Queue};
use crate::metrics::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Name {
    namespace: &'static str,
    number: u32,
}

impl Key for Name {
    fn tenant(&self) -> &str {
        self.namespace
    }
}

fn name(namespace: &'static str, number: u32) -> Name {
    Name { namespace, number }
}

fn queue() -> Queue<Name> {
    Queue::new("test", &Registry::default())
}

/// What `future` comes to; it must not take forever.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), future).await.unwrap()
}

/// The next key, if there is one without waiting.
fn next_ready(queue: &Queue<Name>) -> Option<Item<Name>> {
    queue.next().now_or_never().flatten()
}

fn drain(queue: &Queue<Name>) -> Vec<Name> {
    std::iter::from_fn(|| next_ready(queue).map(|item| item.clone())).collect()
}

/// The value of a metric of the queue named `test`.
fn metric(registry: &Registry, metric: &str) -> f64 {
    let text = registry.encode();
    let series = format!("{metric}{{name=\"test\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("{metric} is missing in\n{text}")).parse().unwrap()
}
