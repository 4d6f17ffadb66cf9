//! Random sequences of calls, on the queue and on a model that is too simple to be wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use tokio::time::Instant;

use super::{Name, name, next_ready};
use crate::{
    metrics::Registry,
    queue::{Item, Queue},
};

#[derive(Clone, Debug)]
enum Step {
    Add(Name),
    AddAfter(Name, Duration),
    AddRateLimited(Name),
    Forget(Name),
    Next,
    Len,
    /// Ends the work on one of the keys that are worked on, chosen by this number.
    Done(usize),
    Advance(Duration),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key =
        || (prop::sample::select(vec!["a", "b", "c"]), 0..4_u32).prop_map(|(tenant, number)| name(tenant, number));
    // Few different times, so that several keys are due at the same moment.
    let time = || (0..8_u64).prop_map(|five| Duration::from_millis(5 * five));
    let step = prop_oneof![
        3 => key().prop_map(Step::Add),
        2 => (key(), time()).prop_map(|(key, delay)| Step::AddAfter(key, delay)),
        1 => key().prop_map(Step::AddRateLimited),
        1 => key().prop_map(Step::Forget),
        4 => Just(Step::Next),
        1 => Just(Step::Len),
        3 => any::<usize>().prop_map(Step::Done),
        1 => time().prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 0..120)
}

#[derive(Default)]
struct Model {
    /// In the order in which they became ready.
    ready: Vec<Name>,
    processing: BTreeSet<Name>,
    again: BTreeSet<Name>,
    /// In the order of the adds.
    delayed: Vec<(Instant, Name)>,
    failures: BTreeMap<Name, u32>,
    adds: u64,
    /// For each tenant that waits: who had a turn since it began to wait.
    passed_by: BTreeMap<&'static str, BTreeSet<&'static str>>,
}

impl Model {
    fn add(&mut self, key: &Name) {
        if self.ready.contains(key) || self.again.contains(key) {
            return;
        }
        self.adds += 1;
        if self.processing.contains(key) {
            self.again.insert(key.clone());
        } else {
            self.make_ready(key);
        }
    }

    fn make_ready(&mut self, key: &Name) {
        self.ready.push(key.clone());
        self.passed_by.entry(key.namespace).or_default();
    }

    fn add_after(&mut self, key: &Name, delay: Duration, now: Instant) {
        if delay.is_zero() {
            return self.add(key);
        }
        let due = now + delay;
        if !self.delayed.iter().any(|(known, other)| other == key && *known <= due) {
            self.delayed.retain(|(_, other)| other != key);
            self.delayed.push((due, key.clone()));
        }
    }

    fn advance(&mut self, now: Instant) {
        self.delayed.sort_by_key(|(due, _)| *due);
        let waiting = self.delayed.partition_point(|(due, _)| *due <= now);
        let due: Vec<_> = self.delayed.drain(..waiting).collect();
        for (_, key) in &due {
            self.add(key);
        }
    }

    fn done(&mut self, key: &Name) {
        self.processing.remove(key);
        if self.again.remove(key) {
            self.make_ready(key);
        }
    }

    /// The queue handed out `key`: was it allowed to?
    fn handed_out(&mut self, key: &Name) -> Result<(), TestCaseError> {
        prop_assert!(!self.processing.contains(key), "{key:?} is worked on twice at once");
        let first = self.ready.iter().position(|ready| ready.namespace == key.namespace);
        prop_assert_eq!(first.map(|index| &self.ready[index]), Some(key), "not the first of its tenant");
        self.ready.retain(|ready| ready != key);
        self.processing.insert(key.clone());

        self.passed_by.remove(key.namespace);
        for (waiting, passed_by) in &mut self.passed_by {
            prop_assert!(passed_by.insert(key.namespace), "{} had two turns while {waiting} waited", key.namespace);
        }
        if self.ready.iter().any(|ready| ready.namespace == key.namespace) {
            self.passed_by.insert(key.namespace, BTreeSet::new());
        }
        Ok(())
    }
}

struct Both {
    registry: Registry,
    queue: Queue<Name>,
    model: Model,
    items: Vec<Item<Name>>,
}

impl Both {
    async fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        let (queue, model) = (&self.queue, &mut self.model);
        match step {
            Step::Add(key) => {
                model.add(&key);
                queue.add(key);
            }
            Step::AddAfter(key, delay) => {
                model.add_after(&key, delay, Instant::now());
                queue.add_after(key, delay);
            }
            Step::AddRateLimited(key) => {
                let failures = model.failures.entry(key.clone()).or_default();
                let delay = Duration::from_millis(5 << *failures);
                *failures += 1;
                model.add_after(&key, delay, Instant::now());
                prop_assert_eq!(queue.add_rate_limited(key), delay);
            }
            Step::Forget(key) => {
                model.failures.remove(&key);
                queue.forget(&key);
                prop_assert_eq!(queue.retries(&key), 0);
            }
            Step::Next => self.next()?,
            Step::Len => prop_assert_eq!(queue.len(), model.ready.len()),
            Step::Done(_) if self.items.is_empty() => {}
            Step::Done(choice) => {
                let item = self.items.swap_remove(choice % self.items.len());
                model.done(&item);
            }
            Step::Advance(time) => {
                tokio::time::advance(time).await;
                model.advance(Instant::now());
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<(), TestCaseError> {
        let item = next_ready(&self.queue);
        prop_assert_eq!(item.is_some(), !self.model.ready.is_empty());
        if let Some(item) = item {
            self.model.handed_out(&item)?;
            self.items.push(item);
        }
        Ok(())
    }

    /// Works until nothing is left, so that a lost key would be missed and a duplicate be found.
    async fn finish(&mut self) -> Result<(), TestCaseError> {
        self.take(Step::Advance(Duration::from_hours(1))).await?;
        while !self.items.is_empty() || !self.model.ready.is_empty() {
            self.take(Step::Next).await?;
            self.take(Step::Done(0)).await?;
        }
        self.take(Step::Next).await?;
        let failed: Vec<Name> = self.model.failures.keys().cloned().collect();
        for key in failed {
            self.take(Step::Forget(key)).await?;
        }
        prop_assert_eq!(
            super::metric(&self.registry, "workqueue_adds_total").to_bits(),
            (self.model.adds as f64).to_bits()
        );
        prop_assert_eq!(super::metric(&self.registry, "workqueue_depth").to_bits(), 0);
        prop_assert!(self.queue.shared.state.lock().remembers_nothing());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_does_what_the_model_does(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        runtime.block_on(async {
            let registry = Registry::default();
            let queue = Queue::new("test", &registry);
            let mut both = Both { registry, queue, model: Model::default(), items: Vec::new() };
            for step in steps {
                both.take(step).await?;
            }
            both.finish().await
        })?;
    }
}
