//! Command lines as Go's flag package reads them, with its words: one dash or two, `-f=x` or `-f x`, and switches that need no
//! value. Flags end at the first other word or at `--`.

use std::{fmt::Write, time::Duration};

/// A flag, and where its value goes.
pub(super) struct Flag<T> {
    name: &'static str,
    usage: &'static str,
    /// As the usage shows it; empty if it is the type's zero value, which the usage does not show.
    default: &'static str,
    kind: Kind<T>,
}

enum Kind<T> {
    Switch(fn(&mut T, bool)),
    Text(fn(&mut T, &str)),
    Size(fn(&mut T, u64)),
    /// A length of time; none if it is negative.
    Duration(fn(&mut T, Option<Duration>)),
    /// A type of the program's own, which says itself what is wrong.
    Value(fn(&mut T, &str) -> Result<(), String>),
}

/// Why a program does not start.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// `-h` was given: the usage.
    Help(String),
    /// The command line is wrong: what is, and the usage.
    Wrong(String),
}

impl<T> Flag<T> {
    /// `-name` or `-name=false`.
    pub(super) fn switch(name: &'static str, usage: &'static str, set: fn(&mut T, bool)) -> Self {
        Self { name, usage, default: "", kind: Kind::Switch(set) }
    }

    /// Any text.
    pub(super) fn text(name: &'static str, usage: &'static str, set: fn(&mut T, &str)) -> Self {
        Self { name, usage, default: "", kind: Kind::Text(set) }
    }

    /// A whole number that is not negative.
    pub(super) fn size(name: &'static str, usage: &'static str, set: fn(&mut T, u64)) -> Self {
        Self { name, usage, default: "", kind: Kind::Size(set) }
    }

    /// A length of time; none if it is negative.
    pub(super) fn duration(name: &'static str, usage: &'static str, set: fn(&mut T, Option<Duration>)) -> Self {
        Self { name, usage, default: "", kind: Kind::Duration(set) }
    }

    /// What `set` understands.
    pub(super) fn value(name: &'static str, usage: &'static str, set: fn(&mut T, &str) -> Result<(), String>) -> Self {
        Self { name, usage, default: "", kind: Kind::Value(set) }
    }

    /// What the usage says of the value without the flag.
    pub(super) fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    fn set(&self, settings: &mut T, value: &str) -> Result<(), String> {
        match self.kind {
            Kind::Switch(set) => set(settings, parse_bool(value).ok_or("parse error")?),
            Kind::Text(set) => set(settings, value),
            Kind::Size(set) => set(settings, parse_uint(value)?),
            Kind::Duration(set) => set(settings, parse_duration(value)?),
            Kind::Value(set) => set(settings, value)?,
        }
        Ok(())
    }

    /// What kind of value the usage asks for; nothing for switches.
    fn placeholder(&self) -> &'static str {
        match self.kind {
            Kind::Switch(_) => "",
            Kind::Text(_) => " string",
            Kind::Size(_) => " uint",
            Kind::Duration(_) => " duration",
            Kind::Value(_) => " value",
        }
    }
}

/// Puts the values of the flags into `settings` and returns the words behind them.
pub(super) fn parse<'a, T>(
    program: &str,
    flags: &[Flag<T>],
    settings: &mut T,
    mut arguments: &'a [String],
) -> Result<&'a [String], Stop> {
    let wrong = |sentence: String| Stop::Wrong(format!("{sentence}\n{}", usage(program, flags)));
    while let [argument, rest @ ..] = arguments {
        let Some(dashed) = argument.strip_prefix('-').filter(|name| !name.is_empty()) else { break };
        let name = dashed.strip_prefix('-').unwrap_or(dashed);
        arguments = rest;
        if argument == "--" {
            break;
        }
        if name.starts_with(['-', '=']) {
            return Err(wrong(format!("bad flag syntax: {argument}")));
        }
        let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
        let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
            let help = matches!(name, "h" | "help");
            let undefined = || wrong(format!("flag provided but not defined: -{name}"));
            return Err(if help { Stop::Help(usage(program, flags)) } else { undefined() });
        };
        let is_switch = matches!(flag.kind, Kind::Switch(_));
        let value = match (value, arguments) {
            (Some(value), _) => value,
            (None, _) if is_switch => "true",
            (None, [next, rest @ ..]) => {
                arguments = rest;
                next
            }
            (None, []) => return Err(wrong(format!("flag needs an argument: -{name}"))),
        };
        flag.set(settings, value).map_err(|reason| {
            let kind = if is_switch { "boolean value" } else { "value" };
            let flag = if is_switch { "" } else { "flag " };
            wrong(format!("invalid {kind} {value:?} for {flag}-{name}: {reason}"))
        })?;
    }
    Ok(arguments)
}

fn usage<T>(program: &str, flags: &[Flag<T>]) -> String {
    let mut sorted: Vec<&Flag<T>> = flags.iter().collect();
    sorted.sort_by_key(|flag| flag.name);
    let mut text = format!("Usage of {program}:\n");
    for flag in sorted {
        let _ = write!(text, "  -{}{}\n    \t{}", flag.name, flag.placeholder(), flag.usage);
        if !flag.default.is_empty() {
            let _ = write!(text, " (default {})", flag.default);
        }
        text.push('\n');
    }
    text
}

/// Go's `strconv.ParseBool`.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A number as Go's uint flags take it: with the prefixes and the underscores of Go's own literals.
fn parse_uint(text: &str) -> Result<u64, &'static str> {
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    let has_prefix = digits.len() < lower.len();
    let digits = digits.strip_prefix('_').filter(|_| has_prefix).unwrap_or(digits);
    // Rust would accept a sign.
    if !digits.split('_').all(|group| !group.is_empty() && group.chars().all(|digit| digit.is_digit(base))) {
        return Err("parse error");
    }
    u64::from_str_radix(&digits.replace('_', ""), base).map_err(|_| "value out of range")
}

/// Go's `time.ParseDuration`: `1h30m`, `1.5s`, `-1s`, `0`. The inner value is absent if it is negative.
fn parse_duration(text: &str) -> Result<Option<Duration>, &'static str> {
    let (negative, length) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let seconds = if length == "0" { Some(0.0) } else { parse_seconds(length) };
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or("parse error")?;
    Ok(Some(duration).filter(|duration| !negative || duration.is_zero()))
}

fn parse_seconds(mut rest: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let mut seconds = None;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == &rest[..end])?;
        seconds = Some(seconds.unwrap_or(0.0) + number * unit);
        rest = &rest[end..];
    }
    seconds
}

/// A number as klog's own flags take it, with the words of Go's `strconv`.
pub(super) fn parse_int(text: &str) -> Result<i32, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_ascii_digit()) {
        return Err(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
    }
    text.parse().map_err(|_| format!("strconv.ParseInt: parsing {text:?}: value out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_as_go_reads_them() {
        let millis = |text: &str| {
            Some(parse_duration(text).ok()?.map_or(-1, |duration| i64::try_from(duration.as_millis()).unwrap()))
        };
        for (text, expected) in [
            ("5s", 5000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("100ms", 100),
            ("0", 0),
            ("-0s", 0),
            ("+1s", 1000),
            (".5s", 500),
        ] {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
        assert_eq!(millis("-1s"), Some(-1));
        for wrong in ["", "5", "s", "-", "5 s", "1d", "1s2", "soon", "."] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }
}
