//! Figures that were measured several times.

use std::{fmt, fs};

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

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.0.first().copied().unwrap_or(f64::NAN), self.0.last().copied().unwrap_or(f64::NAN));
        write!(f, "{:.1} ({least:.1}–{most:.1})", self.median())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_between_the_extremes() {
        let mut samples = Samples::default();
        for value in [3.0, 1.0, 10.0, 2.0] {
            samples.add(value);
        }
        assert_eq!(samples.to_string(), "2.5 (1.0–10.0)");
    }
}
