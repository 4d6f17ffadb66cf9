//! Metrics as the originals serve them: the Prometheus text format 0.0.4 in the spelling of Go programs.
//!
//! ```text
//! Registry ── get or create by name ──> Family ── with(label values) ──> Counter | Gauge | Histogram
//!    └── before_scrape(f): values that are computed when somebody looks (queue ages, process memory)
//! ```
//!
//! Written here because alerts and dashboards made for the originals must keep working to the letter: `prometheus-client`
//! prints `OpenMetrics` (`# TYPE pvc counter`, `le="1.0"`, a dot behind every help text) and lets nobody else read its
//! values; the other crates sort or spell differently. What is left to write is three small atomics and a formatter.
//!
//! Label values must come from a bounded set: reasons, verbs, resources. Never names, never error texts.

mod process;
mod text;

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

pub use process::observe_process;

/// The `Content-Type` of [`Registry::encode`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Go's `prometheus.DefBuckets`: the buckets of every histogram of the originals that does not name its own.
pub const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Buckets that start at `start` and grow by `factor`, multiplied step by step as Go does it: that is where spellings such
/// as `9.999999999999999e-06` come from, and recording rules match on them.
#[must_use]
pub fn exponential_buckets(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor)).take(count).collect()
}

/// A count that only grows.
#[derive(Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Clone, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Replaces the value.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Adds `difference`, which may be negative.
    pub fn add(&self, difference: f64) {
        add_to_bits(&self.0, difference);
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// How often a value fell below each of a few bounds.
#[derive(Clone)]
pub struct Histogram(Arc<HistogramState>);

struct HistogramState {
    bounds: Arc<[f64]>,
    /// One count for each bound and one for what lies above the last; made cumulative only when read.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: Arc<[f64]>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(HistogramState { bounds, counts, sum: AtomicU64::new(0) }))
    }

    /// Counts one value.
    pub fn observe(&self, value: f64) {
        let bucket = self.0.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        add_to_bits(&self.0.sum, value);
    }

    /// How many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The sum of all counted values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.0.sum.load(Ordering::Relaxed))
    }
}

fn add_to_bits(bits: &AtomicU64, difference: f64) {
    let add = |old| Some((f64::from_bits(old) + difference).to_bits());
    // The closure never refuses, so neither does the update.
    let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
}

type LabelValues = Box<[Cow<'static, str>]>;

/// All series of one metric name, told apart by the values of its labels; printed in the order in which they appeared.
pub struct Family<M> {
    state: Arc<FamilyState<M>>,
}

struct FamilyState<M> {
    labels: Vec<&'static str>,
    create: Box<dyn Fn() -> M + Send + Sync>,
    // Bounded by the cardinality rule above, so a scan is faster than hashing the values.
    series: RwLock<Vec<(LabelValues, M)>>,
}

impl<M> Clone for Family<M> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<M: Clone> Family<M> {
    fn new(labels: &[&'static str], create: impl Fn() -> M + Send + Sync + 'static) -> Self {
        let state = FamilyState { labels: labels.to_vec(), create: Box::new(create), series: RwLock::default() };
        Self { state: Arc::new(state) }
    }

    /// The series with these label values, in the order in which the family names its labels.
    #[must_use]
    pub fn with(&self, values: &[&str]) -> M {
        debug_assert_eq!(values.len(), self.state.labels.len(), "one value for each of {:?}", self.state.labels);
        let matches = |(known, _): &&(LabelValues, M)| known.iter().map(AsRef::as_ref).eq(values.iter().copied());
        if let Some((_, metric)) = self.state.series.read().iter().find(matches) {
            return metric.clone();
        }
        let mut series = self.state.series.write();
        if let Some((_, metric)) = series.iter().find(matches) {
            return metric.clone();
        }
        let metric = (self.state.create)();
        series.push((values.iter().map(|value| Cow::Owned((*value).to_owned())).collect(), metric.clone()));
        metric
    }
}

#[derive(Clone)]
enum Kind {
    Counter(Family<Counter>),
    RunningTotal(Family<Gauge>),
    Gauge(Family<Gauge>),
    Histogram(Family<Histogram>),
}

struct Described {
    name: &'static str,
    help: &'static str,
    kind: Kind,
}

type BeforeScrape = Box<dyn Fn() + Send + Sync>;

/// Where all metrics of the process are found. Cheap to clone.
///
/// Asking twice for the same name gives the same metric, so several queues can share one family.
#[derive(Clone, Default)]
pub struct Registry {
    state: Arc<RegistryState>,
}

#[derive(Default)]
struct RegistryState {
    metrics: Mutex<Vec<Described>>,
    before_scrape: Mutex<Vec<BeforeScrape>>,
}

impl Registry {
    /// A counter without labels, visible with 0 from the start.
    #[must_use]
    pub fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.counters(name, help, &[]).with(&[])
    }

    /// A gauge without labels, visible with 0 from the start.
    #[must_use]
    pub fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.gauges(name, help, &[]).with(&[])
    }

    /// A counter whose total somebody else keeps, such as the kernel: it is set, but shown as what it is.
    #[must_use]
    pub fn running_total(&self, name: &'static str, help: &'static str) -> Gauge {
        let family = Family::new(&[], Gauge::default);
        match self.get_or_register(name, help, || Kind::RunningTotal(family.clone())) {
            Kind::RunningTotal(registered) => registered.with(&[]),
            _ => family.with(&[]),
        }
    }

    /// A histogram without labels.
    #[must_use]
    pub fn histogram(&self, name: &'static str, help: &'static str, bounds: &[f64]) -> Histogram {
        self.histograms(name, help, &[], bounds).with(&[])
    }

    /// Counters told apart by labels.
    #[must_use]
    pub fn counters(&self, name: &'static str, help: &'static str, labels: &[&'static str]) -> Family<Counter> {
        let create = || Kind::Counter(Family::new(labels, Counter::default));
        match self.get_or_register(name, help, create) {
            Kind::Counter(family) => family,
            _ => Family::new(labels, Counter::default),
        }
    }

    /// Gauges told apart by labels.
    #[must_use]
    pub fn gauges(&self, name: &'static str, help: &'static str, labels: &[&'static str]) -> Family<Gauge> {
        let create = || Kind::Gauge(Family::new(labels, Gauge::default));
        match self.get_or_register(name, help, create) {
            Kind::Gauge(family) => family,
            _ => Family::new(labels, Gauge::default),
        }
    }

    /// Histograms told apart by labels.
    #[must_use]
    pub fn histograms(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[&'static str],
        bounds: &[f64],
    ) -> Family<Histogram> {
        let bounds: Arc<[f64]> = bounds.into();
        let family = Family::new(labels, move || Histogram::new(Arc::clone(&bounds)));
        match self.get_or_register(name, help, || Kind::Histogram(family.clone())) {
            Kind::Histogram(registered) => registered,
            _ => family,
        }
    }

    /// Runs `refresh` before every scrape, for values that are a matter of the moment.
    pub fn before_scrape(&self, refresh: impl Fn() + Send + Sync + 'static) {
        self.state.before_scrape.lock().push(Box::new(refresh));
    }

    /// The text of `/metrics`, families sorted by name as Go programs print them.
    #[must_use]
    pub fn encode(&self) -> String {
        self.state.before_scrape.lock().iter().for_each(|refresh| refresh());
        let mut metrics = self.state.metrics.lock();
        metrics.sort_by_key(|described| described.name);
        text::encode(&metrics)
    }

    // A name that is taken by another kind is a slip that the debug build catches; in production the metric is merely not shown.
    fn get_or_register(&self, name: &'static str, help: &'static str, create: impl FnOnce() -> Kind) -> Kind {
        let mut metrics = self.state.metrics.lock();
        if let Some(known) = metrics.iter().find(|known| known.name == name) {
            debug_assert_eq!(
                std::mem::discriminant(&known.kind),
                std::mem::discriminant(&create()),
                "{name} is registered as two kinds of metric"
            );
            return known.kind.clone();
        }
        let kind = create();
        metrics.push(Described { name, help, kind: kind.clone() });
        kind
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("metrics", &self.state.metrics.lock().len()).finish()
    }
}
