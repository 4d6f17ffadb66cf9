//! One line as klog writes it, letter by letter: header, message, and fields in the form of `klog.InfoS`.

use std::fmt::{self, Write};

use jiff::{Timestamp, tz::Offset};
use tracing::{
    Level, Metadata,
    field::{Field, Visit},
};

/// How bad it is. klog has no level below info: its verbose lines are info too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    Info,
    Warning,
    Error,
    Fatal,
}

impl Severity {
    /// From the mildest to the worst; the place in this list is klog's number of it.
    pub(super) const ALL: [Self; 4] = [Self::Info, Self::Warning, Self::Error, Self::Fatal];

    pub(super) fn of(level: Level) -> Self {
        match level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warning,
            _ => Self::Info,
        }
    }

    /// The name in flags and file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Info => 'I',
            Self::Warning => 'W',
            Self::Error => 'E',
            Self::Fatal => 'F',
        }
    }
}

/// The place in the source that a line comes from.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    file: &'a str,
    line: u32,
}

impl<'a> Place<'a> {
    pub(super) fn new(path: &'a str, line: u32) -> Self {
        Self { file: path.rsplit('/').next().unwrap_or(path), line }
    }

    pub(super) fn of(metadata: &'a Metadata<'_>) -> Self {
        // What klog says when it does not know.
        Self::new(metadata.file().unwrap_or("???"), metadata.line().unwrap_or(1))
    }
}

/// `Lmmdd hh:mm:ss.uuuuuu threadid file:line] `, where the thread is the process, as in every Go program. The time is UTC,
/// which is what the originals print in their images: those have no other time zone.
pub(super) fn header(severity: Severity, at: Timestamp, process: u32, Place { file, line }: Place<'_>) -> String {
    let at = Offset::UTC.to_datetime(at);
    format!(
        "{}{:02}{:02} {:02}:{:02}:{:02}.{:06} {process:>7} {file}:{line}] ",
        severity.letter(),
        at.month(),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.subsec_nanosecond() / 1_000,
    )
}

/// Collects what an event says.
#[derive(Default)]
pub(super) struct Body {
    message: String,
    fields: String,
}

impl Body {
    /// A message alone stands as `klog.Info` writes it; with fields it is quoted, as `klog.InfoS` does. So is a message of
    /// several lines: what pretends to be a line of the log must not become one.
    pub(super) fn text(self) -> String {
        let Self { message, fields } = self;
        if fields.is_empty() && !message.contains(char::is_control) {
            return message;
        }
        quote(&message) + &fields
    }

    fn push(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else if value.contains('\n') {
            let _ = write!(self.fields, " {}={}", field.name(), block(value));
        } else {
            let _ = write!(self.fields, " {}={}", field.name(), quote(value));
        }
    }

    fn push_bare(&mut self, field: &Field, value: impl fmt::Display) {
        let _ = write!(self.fields, " {}={value}", field.name());
    }
}

impl From<&str> for Body {
    fn from(message: &str) -> Self {
        Self { message: message.to_owned(), fields: String::new() }
    }
}

impl Visit for Body {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, &format!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_bare(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_bare(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push_bare(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_bare(field, value);
    }
}

/// Go's `strconv.Quote`.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        let _ = match letter {
            '"' | '\\' => write!(quoted, "\\{letter}"),
            '\u{7}' => quoted.write_str("\\a"),
            '\u{8}' => quoted.write_str("\\b"),
            '\u{c}' => quoted.write_str("\\f"),
            '\n' => quoted.write_str("\\n"),
            '\r' => quoted.write_str("\\r"),
            '\t' => quoted.write_str("\\t"),
            '\u{b}' => quoted.write_str("\\v"),
            '\0'..'\u{20}' | '\u{7f}' => write!(quoted, "\\x{:02x}", u32::from(letter)),
            // Of what is neither a quote nor a backslash, Rust's own escape touches only what cannot be printed.
            '\u{80}'.. if letter.escape_debug().len() > 1 => match u32::from(letter) {
                number @ ..0x1_0000 => write!(quoted, "\\u{number:04x}"),
                number => write!(quoted, "\\U{number:08x}"),
            },
            printable => quoted.write_char(printable),
        };
    }
    quoted.push('"');
    quoted
}

/// A value of several lines, each behind a tab: the end, behind a space, cannot be mistaken for one of them.
fn block(text: &str) -> String {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    lines.split('\n').fold("<\n".to_owned(), |block, line| block + "\t" + line + "\n") + " >"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_klogs_header() {
        let at: Timestamp = "2026-01-02T03:04:05.000678999Z".parse().unwrap();
        let place = Place::new("crates/claimkeeper/src/run.rs", 16);
        assert_eq!(header(Severity::Info, at, 1, place), "I0102 03:04:05.000678       1 run.rs:16] ");
        let at: Timestamp = "2026-11-15T21:52:49.63857Z".parse().unwrap();
        let lines = Severity::ALL.map(|severity| header(severity, at, 4_194_304, place));
        assert_eq!(
            lines,
            ["I", "W", "E", "F"].map(|letter| format!("{letter}1115 21:52:49.638570 4194304 run.rs:16] "))
        );
    }

    #[test]
    fn text_is_quoted_as_go_quotes_it() {
        // The right sides are what klog v2.140.0 printed.
        for (text, quoted) in [
            ("", r#""""#),
            ("default/web-scratch", r#""default/web-scratch""#),
            (r#"boom "quoted" \ back"#, r#""boom \"quoted\" \\ back""#),
            ("a\tb\u{1b}[0m\0\u{200b}é\u{a0}😀", r#""a\tb\x1b[0m\x00\u200bé\u00a0😀""#),
            ("several\nlines\r\u{7}\u{8}\u{b}\u{c}\u{7f}", r#""several\nlines\r\a\b\v\f\x7f""#),
            ("it's \u{e0001}", r#""it's \U000e0001""#),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }

    #[test]
    fn a_value_of_several_lines_is_a_block() {
        assert_eq!(block("one\ntwo"), "<\n\tone\n\ttwo\n >");
        assert_eq!(block("one\n"), "<\n\tone\n >");
        assert_eq!(block("\n\n"), "<\n\t\n\t\n >");
    }
}
