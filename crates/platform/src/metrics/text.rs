//! The text format 0.0.4, letter by letter as Go's `expfmt` writes it.

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

use super::{Described, Family, Histogram, Kind, LabelValues};

pub(super) fn encode(metrics: &[Described]) -> String {
    let mut text = String::with_capacity(8 * 1024);
    for described in metrics {
        // Writing to a string cannot fail.
        let _ = write_metric(&mut text, described);
    }
    text
}

fn write_metric(text: &mut String, Described { name, help, kind }: &Described) -> fmt::Result {
    match kind {
        Kind::Counter(family) => write_family(text, name, help, "counter", family, |text, labels, counter| {
            write_sample(text, name, labels, counter.get() as f64)
        }),
        Kind::RunningTotal(family) => write_family(text, name, help, "counter", family, |text, labels, total| {
            write_sample(text, name, labels, total.get())
        }),
        Kind::Gauge(family) => write_family(text, name, help, "gauge", family, |text, labels, gauge| {
            write_sample(text, name, labels, gauge.get())
        }),
        Kind::Histogram(family) => write_family(text, name, help, "histogram", family, |text, labels, histogram| {
            write_histogram(text, name, labels, histogram)
        }),
    }
}

/// A series' labels: names beside values.
type Labels<'a> = (&'a [&'static str], &'a [Cow<'static, str>]);

fn write_family<M>(
    text: &mut String,
    name: &str,
    help: &str,
    kind: &str,
    family: &Family<M>,
    write: impl Fn(&mut String, Labels<'_>, &M) -> fmt::Result,
) -> fmt::Result {
    let series: &[(LabelValues, M)] = &family.state.series.read();
    if series.is_empty() {
        return Ok(());
    }
    writeln!(text, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"))?;
    writeln!(text, "# TYPE {name} {kind}")?;
    series.iter().try_for_each(|(values, metric)| write(text, (&family.state.labels, values), metric))
}

fn write_histogram(text: &mut String, name: &str, labels: Labels<'_>, histogram: &Histogram) -> fmt::Result {
    let state = &histogram.0;
    let mut total = 0;
    for (index, count) in state.counts.iter().enumerate() {
        total += count.load(std::sync::atomic::Ordering::Relaxed);
        let bound = state.bounds.get(index).copied().unwrap_or(f64::INFINITY);
        write!(text, "{name}_bucket")?;
        write_labels(text, labels, Some(bound))?;
        writeln!(text, " {}", GoFloat(total as f64))?;
    }
    write_sample(text, &format!("{name}_sum"), labels, histogram.sum())?;
    write_sample(text, &format!("{name}_count"), labels, total as f64)
}

fn write_sample(text: &mut String, name: &str, labels: Labels<'_>, value: f64) -> fmt::Result {
    text.push_str(name);
    write_labels(text, labels, None)?;
    writeln!(text, " {}", GoFloat(value))
}

fn write_labels(text: &mut String, (names, values): Labels<'_>, bound: Option<f64>) -> fmt::Result {
    let mut separator = '{';
    for (name, value) in names.iter().zip(values) {
        let value = value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
        write!(text, "{separator}{name}=\"{value}\"")?;
        separator = ',';
    }
    if let Some(bound) = bound {
        write!(text, "{separator}le=\"{}\"", GoFloat(bound))?;
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
    Ok(())
}

/// A float as Go's `strconv.FormatFloat(value, 'g', -1, 64)` spells it.
struct GoFloat(f64);

impl fmt::Display for GoFloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        if value.is_nan() {
            return f.write_str("NaN");
        }
        if value.is_infinite() {
            return f.write_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        }
        let scientific = format!("{value:e}");
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        // Go decides by a precision of 6 when it may choose the shortest form: 999999, but 1e+06.
        if !(-4..6).contains(&exponent) {
            let sign = if exponent < 0 { '-' } else { '+' };
            return write!(f, "{mantissa}e{sign}{:02}", exponent.abs());
        }
        write!(f, "{value}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::super::{DEFAULT_BUCKETS, Registry};
    use super::*;
    use crate::queue::{Key, Queue};

    #[test]
    fn floats_are_spelled_as_go_spells_them() {
        for (value, spelling) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (0.1, "0.1"),
            (100_000.0, "100000"),
            (999_999.0, "999999"),
            (1_000_000.0, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (1_763_230_000.123, "1.763230000123e+09"),
            (1e21, "1e+21"),
            (1e100, "1e+100"),
            (0.0001, "0.0001"),
            (0.000_123_45, "0.00012345"),
            (4.8201e-05, "4.8201e-05"),
            (0.035_308_659, "0.035308659"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(GoFloat(value).to_string(), spelling);
        }
    }

    /// As the original's documentation prints it, but for an empty line between the two.
    const ADMISSION_SAMPLE: &str = r#"# HELP pvc_duration_seconds Distribution of the length of time to handle pvc requests.
# TYPE pvc_duration_seconds histogram
pvc_duration_seconds_bucket{le="0.005"} 0
pvc_duration_seconds_bucket{le="0.01"} 0
pvc_duration_seconds_bucket{le="0.025"} 0
pvc_duration_seconds_bucket{le="0.05"} 0
pvc_duration_seconds_bucket{le="0.1"} 0
pvc_duration_seconds_bucket{le="0.25"} 0
pvc_duration_seconds_bucket{le="0.5"} 0
pvc_duration_seconds_bucket{le="1"} 0
pvc_duration_seconds_bucket{le="2.5"} 0
pvc_duration_seconds_bucket{le="5"} 0
pvc_duration_seconds_bucket{le="10"} 0
pvc_duration_seconds_bucket{le="+Inf"} 0
pvc_duration_seconds_sum 0
pvc_duration_seconds_count 0
# HELP pvc_total Number of processed pvc requests, partitioned by operation and whether it was allowed.
# TYPE pvc_total counter
pvc_total{operation="create",allowed="true"} 12
pvc_total{operation="create",allowed="false"} 3
"#;

    #[test]
    fn the_admission_webhooks_sample_is_reproduced() {
        let registry = Registry::default();
        let requests = registry.counters(
            "pvc_total",
            "Number of processed pvc requests, partitioned by operation and whether it was allowed.",
            &["operation", "allowed"],
        );
        requests.with(&["create", "true"]).add(12);
        requests.with(&["create", "false"]).add(3);
        let help = "Distribution of the length of time to handle pvc requests.";
        let durations = registry.histogram("pvc_duration_seconds", help, &DEFAULT_BUCKETS);
        assert_eq!(registry.encode(), ADMISSION_SAMPLE);

        durations.observe(0.3);
        let text = registry.encode();
        for line in
            [r#"_bucket{le="0.25"} 0"#, r#"_bucket{le="0.5"} 1"#, r#"_bucket{le="+Inf"} 1"#, "_sum 0.3", "_count 1"]
        {
            let line = format!("pvc_duration_seconds{line}");
            assert!(text.lines().any(|printed| printed == line), "{line} is missing in\n{text}");
        }
    }

    /// As the design of generic ephemeral volumes prints it after one pod, where it prints dots instead of every bucket.
    const WORK_QUEUE_SAMPLE: [&str; 16] = [
        r#"workqueue_adds_total{name="ephemeral_volume"} 1"#,
        r#"workqueue_depth{name="ephemeral_volume"} 0"#,
        r#"workqueue_longest_running_processor_seconds{name="ephemeral_volume"} 0"#,
        r#"workqueue_queue_duration_seconds_bucket{name="ephemeral_volume",le="1e-08"} 0"#,
        r#"workqueue_queue_duration_seconds_bucket{name="ephemeral_volume",le="9.999999999999999e-05"} 1"#,
        r#"workqueue_queue_duration_seconds_bucket{name="ephemeral_volume",le="0.001"} 1"#,
        r#"workqueue_queue_duration_seconds_bucket{name="ephemeral_volume",le="+Inf"} 1"#,
        r#"workqueue_queue_duration_seconds_sum{name="ephemeral_volume"} 4.8201e-05"#,
        r#"workqueue_queue_duration_seconds_count{name="ephemeral_volume"} 1"#,
        r#"workqueue_retries_total{name="ephemeral_volume"} 0"#,
        r#"workqueue_unfinished_work_seconds{name="ephemeral_volume"} 0"#,
        r#"workqueue_work_duration_seconds_bucket{name="ephemeral_volume",le="1e-08"} 0"#,
        r#"workqueue_work_duration_seconds_bucket{name="ephemeral_volume",le="0.1"} 1"#,
        r#"workqueue_work_duration_seconds_bucket{name="ephemeral_volume",le="+Inf"} 1"#,
        r#"workqueue_work_duration_seconds_sum{name="ephemeral_volume"} 0.035308659"#,
        r#"workqueue_work_duration_seconds_count{name="ephemeral_volume"} 1"#,
    ];

    #[tokio::test(start_paused = true)]
    async fn the_work_queues_sample_is_reproduced() {
        let registry = Registry::default();
        let queue = Queue::new("ephemeral_volume", &registry);
        queue.add(OnePod);
        advance(Duration::from_nanos(48_201)).await;
        let pod = queue.next().await.unwrap();
        advance(Duration::from_nanos(35_308_659)).await;
        drop(pod);
        let text = registry.encode();
        for line in WORK_QUEUE_SAMPLE {
            assert!(text.lines().any(|printed| printed == line), "{line} is missing in\n{text}");
        }
    }

    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct OnePod;

    impl Key for OnePod {
        fn tenant(&self) -> &'static str {
            "default"
        }
    }

    #[test]
    fn label_values_and_help_texts_are_escaped() {
        let registry = Registry::default();
        registry.counters("odd_total", "one\ntwo \\", &["text"]).with(&["a\"b\\c\nd"]).increment();
        assert_eq!(
            registry.encode(),
            "# HELP odd_total one\\ntwo \\\\\n# TYPE odd_total counter\nodd_total{text=\"a\\\"b\\\\c\\nd\"} 1\n"
        );
    }

    #[test]
    fn a_family_without_series_is_not_shown() {
        let registry = Registry::default();
        let _family = registry.counters("silent_total", "Nothing yet.", &["reason"]);
        assert_eq!(registry.encode(), "");
    }

    #[test]
    fn values_computed_on_demand_are_fresh_at_every_scrape() {
        let registry = Registry::default();
        let age = registry.gauge("age", "Grows.");
        registry.before_scrape(move || age.add(1.0));
        assert!(registry.encode().ends_with("age 1\n"));
        assert!(registry.encode().ends_with("age 2\n"));
    }
}
