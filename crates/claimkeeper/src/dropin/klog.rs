//! The flags that klog gives to every program that uses it.

use std::path::PathBuf;

use platform::logging::{KlogOptions, klog_severity};

use super::flags::{Flag, parse_int};

/// klog's flags for any program whose settings hold its options.
pub(super) fn flags<T: AsMut<KlogOptions>>() -> Vec<Flag<T>> {
    let mut flags = with_effect();
    flags.extend(without_effect());
    flags
}

fn with_effect<T: AsMut<KlogOptions>>() -> Vec<Flag<T>> {
    vec![
        Flag::value("v", "number for the log level verbosity", |settings: &mut T, value| {
            settings.as_mut().verbosity = parse_int(value)?;
            Ok(())
        }),
        Flag::switch("logtostderr", "log to standard error instead of files", |settings: &mut T, value| {
            settings.as_mut().to_stderr = value;
        })
        .default("true"),
        Flag::switch("alsologtostderr", "log to standard error as well as files", |settings: &mut T, value| {
            settings.as_mut().also_to_stderr = value;
        }),
        Flag::value("stderrthreshold", "logs at or above this threshold go to stderr", |settings: &mut T, value| {
            settings.as_mut().stderr_threshold = klog_severity(value).map_or_else(|| parse_int(value), Ok)?;
            Ok(())
        })
        .default("2"),
        Flag::text("log_file", "If non-empty, use this log file", |settings: &mut T, value| {
            settings.as_mut().log_file = named(value);
        }),
        Flag::size(
            "log_file_max_size",
            "Defines the maximum size a log file can grow to. Unit is megabytes. \
             If the value is 0, the maximum file size is unlimited.",
            |settings: &mut T, value| settings.as_mut().log_file_max_size = value,
        )
        .default("1800"),
        Flag::text("log_dir", "If non-empty, write log files in this directory", |settings: &mut T, value| {
            settings.as_mut().log_dir = named(value);
        }),
        Flag::switch(
            "one_output",
            "If true, only write logs to their native severity level (vs also writing to each lower severity level)",
            |settings: &mut T, value| settings.as_mut().one_output = value,
        ),
        Flag::switch(
            "skip_headers",
            "If true, avoid header prefixes in the log messages",
            |settings: &mut T, value| settings.as_mut().skip_headers = value,
        ),
    ]
}

/// They are about Go's source files or about headings that our log files do not have.
fn without_effect<T: AsMut<KlogOptions>>() -> Vec<Flag<T>> {
    vec![
        Flag::switch(
            "add_dir_header",
            "If true, adds the file directory to the header of the log messages",
            |settings: &mut T, value| remember(settings.as_mut(), "-add_dir_header", value),
        ),
        Flag::switch("skip_log_headers", "If true, avoid headers when opening log files", |settings: &mut T, value| {
            remember(settings.as_mut(), "-skip_log_headers", value);
        }),
        Flag::value(
            "log_backtrace_at",
            "when logging hits line file:N, emit a stack trace",
            |settings: &mut T, value| {
                remember(settings.as_mut(), "-log_backtrace_at", !value.is_empty());
                Ok(())
            },
        ),
        Flag::value(
            "vmodule",
            "comma-separated list of pattern=N settings for file-filtered logging",
            |settings: &mut T, value| {
                remember(settings.as_mut(), "-vmodule", !value.is_empty());
                Ok(())
            },
        ),
    ]
}

/// A flag that asks for nothing deserves no warning.
fn remember(options: &mut KlogOptions, flag: &'static str, asks: bool) {
    options.without_effect.retain(|other| *other != flag);
    if asks {
        options.without_effect.push(flag);
    }
}

/// klog takes an empty name for none.
fn named(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| value.into())
}
