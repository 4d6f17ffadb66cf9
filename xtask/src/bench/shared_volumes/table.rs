//! The tables and the goals.

use anyhow::Result;

use super::{Arguments, Measured, Moved, Results, act::EVERY, contestant::Contestant, stage::NAMESPACES};
use crate::bench::report::Section;

/// How many times sooner than by the original at its defaults all volumes are published.
const GOAL_COLD: f64 = 50.0;
/// Milliseconds from when a move is told until the slice follows.
const GOAL_MOVE: f64 = 200.0;

pub(super) fn publish(results: &Results, arguments: &Arguments) -> Result<()> {
    let command = command(arguments);
    cold(results, command.clone()).publish()?;
    moves(results, arguments, command.clone()).publish()?;
    rest(results, command).publish()
}

fn command(Arguments { volumes, moves, rounds, only }: &Arguments) -> String {
    let volumes: Vec<String> = volumes.iter().map(usize::to_string).collect();
    let names: Vec<String> = only.iter().map(ToString::to_string).collect();
    format!(
        "cargo xtask bench shared-volumes --only {} --volumes {} --moves {moves} --rounds {rounds}",
        names.join(","),
        volumes.join(",")
    )
}

fn cold(results: &Results, command: String) -> Section {
    let header = ["volumes", "who", "seconds", "× the original", "volumes/s", "CPU ms/volume", "peak MiB"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(results.iter().map(|((volumes, contestant), measured)| {
        let count = *volumes as f64;
        vec![
            volumes.to_string(),
            contestant.label().to_owned(),
            precise(&measured.cold),
            times_original(results, *volumes, measured).map_or_else(|| "–".to_owned(), |times| format!("{times:.1}")),
            format!("{:.1}", count / measured.cold.median()),
            format!("{:.2}", measured.cold_processor.median() * 1e3 / count),
            measured.peak.to_string(),
        ]
    }));
    let goals = goals(results.iter().filter(|((_, who), _)| *who == Contestant::Claimkeeper), |(key, measured)| {
        let times = times_original(results, key.0, measured)?;
        Some((times >= GOAL_COLD, format!("{times:.0} with {} volumes", key.0)))
    });
    Section {
        title: "Shared volumes: from cold",
        command,
        circumstances: format!(
            "There are claims in {NAMESPACES} namespaces, and a StorageOS with a volume for each of them, whose NFS servers run; nothing is in front \
             of\nthem yet. \"Seconds\" are until the address of the last volume is published. For claimkeeper, out of the box, they count from the \
             start\nof the process. The original, `storageos/api-manager` v1.2.16, would never publish the volumes that it hears of while it starts, \
             so\nthat they appear when it has, and its seconds count from the first answer that tells of them. It runs at its defaults (measured \
             once,\nbecause it waits for two seconds per volume) and with `-k8s-create-poll-interval=50ms`; its other controllers have nothing to \
             do.\n\nEvery run has a new cluster and a new StorageOS, a server with the real one's API. All share the cores of one machine. \"CPU\" \
             is all\nprocessor time of the process until then, \"peak\" the most that it ever had in memory, in all of what follows.{goals}",
            goals = told(&format!("at least {GOAL_COLD:.0} × sooner than the original at its defaults"), &goals),
        ),
        rows,
    }
}

/// How many times sooner than by the original at its defaults.
fn times_original(results: &Results, volumes: usize, measured: &Measured) -> Option<f64> {
    let original = results.get(&(volumes, Contestant::Original))?;
    Some(original.cold.median() / measured.cold.median())
}

fn moves(results: &Results, Arguments { moves, .. }: &Arguments, command: String) -> Section {
    let header = ["volumes", "moves", "who", "p50 ms", "p99 ms", "told p50 ms", "told p99 ms", "told last ms"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let moved = results.iter().filter(|((_, contestant), _)| *contestant != Contestant::Original);
    for ((volumes, contestant), measured) in moved {
        for (how, moved) in
            [(format!("{moves} singly"), &measured.single), ("all at once".to_owned(), &measured.together)]
        {
            let Moved { p50, p99, seen_p50, seen_p99, seen_last } = moved;
            let figures =
                [p50.rounded(), p99.rounded(), seen_p50.to_string(), seen_p99.to_string(), seen_last.to_string()];
            let mut row = vec![volumes.to_string(), how, contestant.label().to_owned()];
            row.extend(figures);
            rows.push(row);
        }
    }
    let goals = goals(results.iter().filter(|((_, who), _)| *who == Contestant::Claimkeeper), |(key, measured)| {
        let worst = measured.single.seen_p99.largest();
        Some((worst <= GOAL_MOVE, format!("{worst:.0} ms in the worst round with {} volumes", key.0)))
    });
    Section {
        title: "Shared volumes: servers that move",
        command,
        circumstances: format!(
            "How long it takes from the move of an NFS server until the slice of its Service leads there, as a watch shows it. Everyone asks \
             StorageOS\nevery 5 s, so that half of that is waited for on average; \"told\" counts from the answer in which StorageOS tells of \
             the move. Servers\nmove singly, one every {} ms, and then all in the same moment. The original writes Endpoints, of which \
             kube-controller-manager makes\nslices, here with 500 requests a second; its own client allows 20 a second of a kind. At its defaults it \
             does the same once all is\npublished, and is not measured again.{}",
            EVERY.as_millis(),
            told(&format!("p99 of at most {GOAL_MOVE:.0} ms after a single move is told"), &goals),
        ),
        rows,
    }
}

fn rest(results: &Results, command: String) -> Section {
    let header = ["volumes", "who", "reads", "writes", "Lease", "StorageOS", "CPU ms", "MiB"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(results.iter().filter_map(|((volumes, contestant), measured)| {
        let rest = measured.rest.as_ref()?;
        let calls = [rest.reads, rest.writes, rest.leases, rest.storageos].map(|calls| calls.to_string());
        let mut row = vec![volumes.to_string(), contestant.label().to_owned()];
        row.extend(calls);
        row.extend([format!("{:.0}", rest.processor), format!("{:.1}", rest.memory)]);
        Some(row)
    }));
    let goals = goals(results.iter().filter(|((_, who), _)| *who == Contestant::Claimkeeper), |(key, measured)| {
        let writes = measured.rest.as_ref()?.writes;
        Some((writes == 0, format!("{writes} with {} volumes", key.0)))
    });
    Section {
        title: "Shared volumes: at rest",
        command,
        circumstances: format!(
            "A minute in which nothing happens, in the first round, after all of the above: requests to the API server by its audit log, \
             renewals\nof the leader's Lease apart, and to StorageOS; processor time; resident memory. Leader election is on in claimkeeper, as \
             by default,\nand off in the original, as by default. claimkeeper verifies each volume once a minute by live reads (`cacheExpiry`), so \
             that what\nsomebody has changed is repaired even if no watch told of it; the original v1.2.16 looks at its objects only when StorageOS \
             tells of\na change.{}",
            told("no writes at rest", &goals),
        ),
        rows,
    }
}

/// What was wanted of each row, and whether it was reached.
fn goals<T>(rows: impl Iterator<Item = T>, goal: impl Fn(T) -> Option<(bool, String)>) -> Vec<(bool, String)> {
    rows.filter_map(goal).collect()
}

/// The goal's lines, below what else is told; nothing where it was not measured.
fn told(goal: &str, outcomes: &[(bool, String)]) -> String {
    if outcomes.is_empty() {
        return String::new();
    }
    let lines = outcomes.iter().map(|(met, figure)| {
        let met = if *met { "met" } else { "missed" };
        format!("- {met}: {goal}: {figure}")
    });
    let lines: Vec<String> = lines.collect();
    let lines = format!("\n\n{}", lines.join("\n"));
    println!("{}", lines.trim_start());
    lines
}

/// Median, smallest and largest with two decimals, for small figures.
fn precise(samples: &crate::bench::sample::Samples) -> String {
    format!("{:.2} ({:.2}–{:.2})", samples.median(), samples.quantile(0.0), samples.largest())
}
