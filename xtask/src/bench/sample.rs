//! Figures that were measured several times.

use std::{fmt, fs, time::Duration};

use anyhow::{Context, Result};

/// What a process has in memory, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub resident: u64,
    /// The most it ever had.
    pub peak: u64,
}

/// Reads it from the kernel.
pub(crate) fn memory_of(pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let both = field("VmRSS:").zip(field("VmHWM:"));
    both.map(|(resident, peak)| Memory { resident, peak }).context("the kernel does not tell the resident memory")
}

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

/// The processor time that a process has used, in user and in system mode.
pub(crate) fn processor_time_of(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    // The name of the program, the second field, may hold anything; what follows its parenthesis does not.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("the kernel does not tell the processor time")?;
    Ok(Duration::from_secs(user + system) / u32::try_from(rustix::param::clock_ticks_per_second())?)
}

/// The processor time of the threads that a process has now, in user and in system mode, to the nanosecond: for what takes so
/// little that the kernel's ticks are too coarse.
pub(crate) fn processor_time_of_threads(pid: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?;
    let mut total = Duration::ZERO;
    for thread in threads {
        // A thread that ends meanwhile takes its time along.
        let Ok(times) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let running = times.split_whitespace().next().and_then(|time| time.parse().ok());
        total += Duration::from_nanos(running.context("the kernel does not tell the processor time of threads")?);
    }
    Ok(total)
}

/// Several measurements of one thing.
#[derive(Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    pub(crate) fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        let upper = self.0.get(middle).copied().unwrap_or(f64::NAN);
        if self.0.len() % 2 == 1 {
            upper
        } else {
            f64::midpoint(upper, self.0.get(middle.wrapping_sub(1)).copied().unwrap_or(upper))
        }
    }
}

impl Samples {
    /// The value that this share of the measurements does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.0.len() as f64 * share).ceil();
        let below = self.0.iter().zip(1u32..).find(|(_, rank)| f64::from(*rank) >= wanted);
        below.map_or(f64::NAN, |(value, _)| *value)
    }

    pub(crate) fn largest(&self) -> f64 {
        self.0.last().copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Median, smallest and largest without decimals, for large figures.
    pub(crate) fn rounded(&self) -> String {
        let smallest = self.0.first().copied().unwrap_or(f64::NAN);
        format!("{:.0} ({smallest:.0}–{:.0})", self.median(), self.largest())
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.0.first().copied().unwrap_or(f64::NAN), self.0.last().copied().unwrap_or(f64::NAN));
        write!(f, "{:.1} ({least:.1}–{most:.1})", self.median())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_median_stands_between_the_extremes() {
        let mut samples = Samples::default();
        for value in [3.0, 1.0, 10.0, 2.0] {
            samples.add(value);
        }
        assert_eq!(samples.to_string(), "2.5 (1.0–10.0)");
    }

    #[test]
    fn a_quantile_is_a_value_that_was_measured() {
        let samples: Samples = (1..=200).rev().map(f64::from).collect();
        assert_eq!(samples.quantile(0.5).to_string(), "100");
        assert_eq!(samples.quantile(0.99).to_string(), "198");
        assert_eq!(samples.quantile(1.0).to_string(), "200");
        assert_eq!(samples.largest().to_string(), "200");
    }

    #[test]
    fn a_process_that_computes_uses_processor_time() {
        let (started, before) = (Instant::now(), processor_time_of(std::process::id()).unwrap());
        while processor_time_of(std::process::id()).unwrap() == before {
            assert!(started.elapsed() < Duration::from_secs(30), "none was used");
        }
        assert!(processor_time_of_threads(std::process::id()).unwrap() > Duration::ZERO);
    }
}
