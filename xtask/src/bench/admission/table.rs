//! The table, the chart and the goals.

use anyhow::Result;

use super::{
    Load, Measured, Results,
    contestant::Contestant,
    load::OPEN_CONNECTIONS,
    reviews::{self, NODES, Webhook},
};
use crate::bench::{
    chart::{Bar, Chart},
    report::Section,
    sample::Samples,
};

/// How many times the requests of the webhook in Go are answered in a second of processor time.
const GOAL_RATIO: f64 = 4.0;

/// What is special about a webhook's part of the page.
struct Told {
    title: &'static str,
    chart: &'static str,
    chart_title: &'static str,
    /// Milliseconds at a fixed rate.
    goal_p99: f64,
    asked: String,
    contestants: &'static str,
}

impl Told {
    fn of(webhook: Webhook) -> Self {
        match webhook {
            Webhook::Claims => Self {
                title: "Admission of claims",
                chart: "admission-per-cpu-second.svg",
                chart_title: "Admission requests answered per second of processor time",
                goal_p99: 2.0,
                asked: "The creation of claims is asked for over TLS, directly at the server, with prepared reviews as large as the API \
                        server's: a third of\na class under the rule, to be denied; a third the same with the annotation that accepts the risk; \
                        a third of another driver's class.\nEvery verdict is checked."
                    .to_owned(),
                contestants: "`controller-runtime` v0.25.2 is a webhook with the library's defaults that decides as the original does, from a \
                              cache of classes and\nclaims; it writes no events and no log. The floor has the operator's TLS and HTTP and answers \
                              constant bytes. claimkeeper runs out of\nthe box, with its events, and once more with `enforcement.events: none`.",
            },
            Webhook::Pods => Self {
                title: "Admission of pods",
                chart: "admission-of-pods-per-cpu-second.svg",
                chart_title: "Pods admitted per second of processor time",
                goal_p99: 5.0,
                asked: format!(
                    "The creation of pods is asked for over TLS, directly at the server, with prepared reviews of a StatefulSet's pods as \
                     large as the API\nserver's: a third with a local volume that may be left behind, to get a preferred term; a third with one \
                     that must not be, and with two\nrequired terms of their own; a third with a volume of another driver, to be left alone. \
                     Every answer's patch is checked. The local\nvolumes, as many as claims, are on {NODES} nodes."
                ),
                contestants: "`controller-runtime` v0.25.2 is a webhook that decides and patches as the original does, from caches of claims, \
                              classes and volumes\nwithout managedFields; it writes no events and no log. For volumes that must not be left it adds \
                              a term of its own to those of the\npod, so that any of them will do; claimkeeper narrows every one of them. The floor \
                              has the operator's TLS and HTTP and answers\nconstant bytes. claimkeeper runs out of the box with the feature \
                              `placement`.",
            },
        }
    }
}

pub(super) fn publish(results: &Results, webhook: Webhook, command: String) -> Result<()> {
    let told = Told::of(webhook);
    results.draw(told.chart_title).publish(told.chart)?;
    let goals = results.goals(told.goal_p99);
    println!("\n{}", goals.join("\n"));
    Section {
        title: told.title,
        command,
        circumstances: format!(
            "{}\n\n{}\n\n{}",
            circumstances(&told, reviews::mean_size(webhook)?),
            results.told_calls(),
            goals.join("\n")
        ),
        rows: results.rows(),
    }
    .publish()
}

fn circumstances(Told { chart, asked, contestants, .. }: &Told, size: usize) -> String {
    format!(
        "![Requests per second of processor time]({chart})\n\n\
         {asked} A review has {size} bytes.\nThe load generator is a process of its own with one thread; server, generator, API server and etcd \
         share\nthe cores of one machine. \"CPU\" is the server's processor time, user and system; \"MiB\" is what it has in memory after the \
         load.\n\n\
         Connections are of HTTP/1.1 with keep-alive and ask again as soon as they have their answer, as do the streams of one HTTP/2 \
         connection,\nwhich is how the API server asks. At a fixed rate, over {OPEN_CONNECTIONS} connections, the time of an answer counts from \
         the moment at which its request\nwas due, whether the one before it was answered or not.\n\n\
         {contestants}"
    )
}

impl Results {
    fn of(&self, claims: usize, load: Load, contestant: Contestant) -> Option<&Measured> {
        self.measured.get(&(claims, load, contestant))
    }

    /// How many times cheaper than the webhook in Go.
    fn ratio(&self, claims: usize, load: Load, contestant: Contestant) -> Option<f64> {
        let go = self.of(claims, load, Contestant::Go)?.processor.median();
        Some(go / self.of(claims, load, contestant)?.processor.median())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let header = [
            "claims",
            "load",
            "who",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "CPU µs/request",
            "× controller-runtime",
            "MiB",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(self.measured.iter().map(|((claims, load, contestant), measured)| {
            let ratio = self.ratio(*claims, *load, *contestant);
            vec![
                claims.to_string(),
                load.label(),
                contestant.label().to_owned(),
                measured.rate.rounded(),
                precise(&measured.p50),
                precise(&measured.p99),
                measured.processor.to_string(),
                ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.1}")),
                measured.memory.to_string(),
            ]
        }));
        rows
    }

    /// What was wanted, and whether it was reached in the worst of all rows.
    fn goals(&self, goal_p99: f64) -> Vec<String> {
        let ours = |contestant: Contestant| self.measured.keys().filter(move |(_, _, who)| *who == contestant);
        let mut goals = Vec::new();
        for contestant in [Contestant::Claimkeeper, Contestant::Silent] {
            let ratios = ours(contestant).filter_map(|(claims, load, who)| self.ratio(*claims, *load, *who));
            let worst = ratios.fold(f64::INFINITY, f64::min);
            if worst.is_finite() {
                let met = verdict(worst >= GOAL_RATIO);
                goals.push(format!(
                    "- {met}: at least {GOAL_RATIO:.0} × controller-runtime per second of processor time ({}): {worst:.1} in the worst row",
                    contestant.label()
                ));
            }
            let tails = ours(contestant).filter(|(_, load, _)| matches!(load, Load::Rate(_)));
            let tails = tails.filter_map(|key| self.measured.get(key)).map(|measured| measured.p99.median());
            let worst = tails.fold(f64::NEG_INFINITY, f64::max);
            if worst.is_finite() {
                let met = verdict(worst <= goal_p99);
                goals.push(format!(
                    "- {met}: p99 of at most {goal_p99:.0} ms at a fixed rate ({}): {worst:.2} ms in the worst row",
                    contestant.label()
                ));
                let calls = self.calls_to_answer(contestant);
                let met = verdict(calls == 0);
                goals.push(format!("- {met}: no API call to answer ({}): {calls} calls", contestant.label()));
            }
        }
        goals
    }

    /// The leader renews its Lease and events are written whatever is asked; the rest would be for answers.
    fn calls_to_answer(&self, contestant: Contestant) -> usize {
        let others = self
            .calls
            .iter()
            .filter(|((who, call), _)| *who == contestant && !call.ends_with(" leases") && !call.ends_with(" events"));
        others.map(|(_, count)| count).sum()
    }

    fn told_calls(&self) -> String {
        let told = |contestant: Contestant| {
            let own = self.calls.iter().filter(|((who, _), _)| *who == contestant);
            let calls: Vec<String> = own.map(|((_, call), count)| format!("{count} {call}")).collect();
            let calls = if calls.is_empty() { "none".to_owned() } else { calls.join(", ") };
            format!("{}: {calls}", contestant.label())
        };
        let ours = [Contestant::Claimkeeper, Contestant::Silent].into_iter();
        let ours: Vec<String> = ours.filter(|who| self.measured.keys().any(|key| key.2 == *who)).map(told).collect();
        format!(
            "All requests to the API server in the audit log, from readiness to the end, but watches: {}.",
            ours.join("; ")
        )
    }

    fn draw(&self, title: &'static str) -> Chart {
        let bars = self.measured.iter().map(|((claims, load, contestant), measured)| Bar {
            group: format!("{claims} claims, {}", load.label()),
            label: contestant.label().to_owned(),
            value: 1e6 / measured.processor.median(),
            ours: contestant.is_ours(),
        });
        Chart { title, bars: bars.collect() }
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

/// Median, smallest and largest with two decimals, for small figures.
fn precise(samples: &Samples) -> String {
    format!("{:.2} ({:.2}–{:.2})", samples.median(), samples.quantile(0.0), samples.largest())
}
