//! Our queue beside client-go's: the same calls at the same moments, and then the same keys and, letter by letter, the same
//! metrics. Both run on clocks that stand still between the calls; client-go's is in the testbed's `workqueue-reference`.
//!
//! All keys are of one tenant, because client-go knows none. Never more than two keys are worked on at once: client-go adds up
//! their ages in random order, and only the sum of two numbers does not depend on it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::LazyLock,
    time::Duration,
};

use futures::FutureExt as _;
use platform::{
    metrics::Registry,
    queue::{Item, Key, Queue},
};
use proptest::prelude::*;
use tokio::time::advance;

#[test]
fn a_queue_that_nobody_used_reports_the_same() {
    compare("scrape");
}

#[test]
fn a_key_added_again_while_it_is_worked_on_reports_the_same() {
    compare(
        "add a / add a / scrape / advance 50us / get / add a / add a / len / scrape / advance 25us / done a / len / scrape
         get / get / advance 1ms / scrape / done a / scrape / get",
    );
}

#[test]
fn waiting_and_working_in_every_bucket_reports_the_same() {
    compare(
        "add a / get / done a
         add a / advance 10ns / get / advance 10ns / done a / add a / advance 11ns / get / advance 99ns / done a
         add a / advance 1us / get / advance 10us / done a / add a / advance 100us / get / advance 1ms / done a
         add a / advance 123456789ns / get / advance 987654321ns / done a / scrape
         add a / advance 3s / get / advance 31s / done a / add a / advance 70000s / get / advance 1234567s / done a / scrape",
    );
}

#[test]
fn unfinished_work_reports_the_same() {
    compare(
        "add a / add b / get / advance 333ms / get / advance 123us / scrape / done a / scrape / advance 1s / scrape
         add b / advance 7ms / scrape / done b / scrape",
    );
}

#[test]
fn delayed_keys_report_the_same() {
    compare(
        "add-after a 20ms / scrape / add-after b 10ms / add-after b 30ms / add-after a 15ms / get / advance 9ms / get
         advance 4ms / scrape / get / scrape / add-after b 1ms / advance 1ms / get / scrape / advance 500ms / len / scrape
         done b / get / get / scrape / done a / done b / add-after c 0s / get / done c / add-after c -1s / get / scrape",
    );
}

#[test]
fn keys_that_are_due_before_anybody_looks_report_the_same() {
    compare(
        "add-after a 1s / add-after b 2500ms / add c / advance 10s / add a / add d / len / get / get / scrape / done c
             done a / get / get / get / scrape",
    );
}

#[test]
fn failures_report_the_same() {
    compare(
        "add a / get / rate-limited a / done a / retries a / advance 4999us / get / advance 1us / get / rate-limited a
         retries a / done a / advance 10ms / get / forget a / retries a / rate-limited a / done a / advance 5ms / get / scrape",
    );
    let until_the_cap = "rate-limited a / advance 1100s / get / done a / ".repeat(20);
    compare(&format!(
        "{until_the_cap} retries a / rate-limited a / advance 999999ms / get / advance 1ms / get / scrape"
    ));
}

#[test]
fn a_queue_that_is_shut_down_reports_the_same() {
    compare(
        "add a / add b / add-after c 1s / add-after h 1ms / advance 2ms / get / done a / scrape / shut-down / add d / add-after e 1s / add-after f 0s
         rate-limited g / advance 5s / len / get / done b / get / done h / get / get / scrape",
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_called_reports_the_same(calls in prop::collection::vec(call(), 1..150)) {
        // Every call has its own moment: client-go leaves open which of two keys comes first that are due at the same.
        compare(&format!("{} / scrape", calls.join(" / advance 1ns / ")));
    }
}

fn call() -> impl Strategy<Value = String> {
    let key = || prop::sample::select(vec!["a", "b", "c", "d", "e"]);
    let time = || (0..50_000_000_u32, 1..=100_000_u32).prop_map(|(long, scale)| long / scale);
    prop_oneof![
        4 => key().prop_map(|key| format!("add {key}")),
        2 => (key(), time()).prop_map(|(key, delay)| format!("add-after {key} {delay}ns")),
        2 => key().prop_map(|key| format!("rate-limited {key}")),
        1 => key().prop_map(|key| format!("forget {key}")),
        1 => key().prop_map(|key| format!("retries {key}")),
        5 => Just("get".to_owned()),
        4 => key().prop_map(|key| format!("done {key}")),
        3 => time().prop_map(|time| format!("advance {time}ns")),
        1 => Just("len".to_owned()),
        1 => Just("scrape".to_owned()),
    ]
}

/// Runs a script, calls separated by `/` or line ends, on both queues.
fn compare(script: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (calls, ours) = runtime.block_on(run_ours(script));
    let reference = run_reference(&calls);
    assert!(ours == reference, "{}\nafter\n{calls}", first_difference(&ours, &reference));
}

fn first_difference(ours: &str, reference: &str) -> String {
    let mut lines = ours.lines().chain(["(end)"]).zip(reference.lines().chain(["(end)"]));
    let difference = lines.find(|(our, theirs)| our != theirs);
    difference
        .map_or_else(|| "one says more".to_owned(), |(our, theirs)| format!("ours:      {our}\nclient-go: {theirs}"))
}

static CONTROLPLANE: LazyLock<PathBuf> = LazyLock::new(|| testbed::Binaries::get().unwrap().controlplane());

fn run_reference(calls: &str) -> String {
    let mut reference = Command::new(&*CONTROLPLANE)
        .arg("workqueue-reference")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // From a thread, because both pipes may be full at the same time.
    let mut input = reference.stdin.take().unwrap();
    let calls = calls.to_owned();
    let writer = std::thread::spawn(move || input.write_all(calls.as_bytes()));
    let output = reference.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "the reference ended with {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name(String);

impl Key for Name {
    fn tenant(&self) -> &'static str {
        "one"
    }
}

/// Returns the calls that made sense, one per line, and what came of them.
async fn run_ours(script: &str) -> (String, String) {
    let registry = Registry::default();
    let queue = Queue::new("reference", &registry);
    let mut working: BTreeMap<String, Item<Name>> = BTreeMap::new();
    let (mut calls, mut output) = (String::new(), String::new());
    for line in script.split(['/', '\n']) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => continue,
            ["done", key] if !working.contains_key(*key) => continue,
            ["get"] if working.len() == 2 => continue,
            ["add", key] => queue.add(Name((*key).to_owned())),
            ["add-after", key, delay] => queue.add_after(Name((*key).to_owned()), duration(delay)),
            ["rate-limited", key] => {
                queue.add_rate_limited(Name((*key).to_owned()));
            }
            ["forget", key] => queue.forget(&Name((*key).to_owned())),
            ["retries", key] => writeln!(output, "retries {}", queue.retries(&Name((*key).to_owned()))).unwrap(),
            ["len"] => writeln!(output, "len {}", queue.len()).unwrap(),
            ["get"] => match queue.next().now_or_never() {
                None => output.push_str("get nothing\n"),
                Some(None) => output.push_str("get the end\n"),
                Some(Some(item)) => {
                    writeln!(output, "get {}", item.0).unwrap();
                    working.insert(item.0.clone(), item);
                }
            },
            ["done", key] => drop(working.remove(*key)),
            ["advance", time] => advance(duration(time)).await,
            ["shut-down"] => queue.shut_down(),
            ["scrape"] => output.push_str(&queue_metrics(&registry)),
            _ => panic!("{line} is not a call"),
        }
        writeln!(calls, "{}", words.join(" ")).unwrap();
    }
    (calls, output)
}

fn queue_metrics(registry: &Registry) -> String {
    let text = registry.encode();
    let of_queues = |line: &&str| {
        ["workqueue_", "# HELP workqueue_", "# TYPE workqueue_"].iter().any(|start| line.starts_with(start))
    };
    text.lines().filter(of_queues).fold(String::new(), |metrics, line| metrics + line + "\n")
}

/// A duration as Go spells it. Less than nothing is nothing: ours can't be asked for less.
fn duration(text: &str) -> Duration {
    let unit_at = text.find(|c: char| c.is_alphabetic()).unwrap();
    let amount = u64::try_from(text[..unit_at].parse::<i64>().unwrap()).unwrap_or(0);
    match &text[unit_at..] {
        "ns" => Duration::from_nanos(amount),
        "us" => Duration::from_micros(amount),
        "ms" => Duration::from_millis(amount),
        "s" => Duration::from_secs(amount),
        unit => panic!("{unit} is no unit"),
    }
}
