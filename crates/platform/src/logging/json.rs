//! One JSON object a line, as `tracing-subscriber` writes it to the letter, for a fraction of its processor time: a line is written
//! for every claim that is made or refused, and was a good part of what making or refusing it takes.

use std::{
    cell::Cell,
    fmt::{self, Debug, Display, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jiff::{Timestamp, tz::Offset};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Json, Writer},
    },
    registry::LookupSpan,
};

/// Time, level, what the event says, and its target.
pub(super) struct JsonLines {
    /// Writes what is said within spans, and names them: only libraries have any, and only at levels that nobody runs with.
    within_spans: Format<Json>,
}

impl JsonLines {
    pub(super) fn new() -> Self {
        Self { within_spans: Format::default().json().flatten_event(true).with_current_span(false) }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if event.parent().is_some() || context.lookup_current().is_some() {
            return self.within_spans.format_event(context, to, event);
        }
        let metadata = event.metadata();
        to.write_str("{\"timestamp\":\"")?;
        write_time(&mut to, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())?;
        to.write_str("\",\"level\":\"")?;
        to.write_str(metadata.level().as_str())?;
        to.write_char('"')?;
        let mut fields = Fields { to: &mut to, result: Ok(()) };
        event.record(&mut fields);
        fields.result?;
        to.write_str(",\"target\":")?;
        write_text(&mut to, metadata.target())?;
        to.write_str("}\n")
    }
}

/// Writes what an event says, field by field.
struct Fields<'a, W> {
    to: &'a mut W,
    result: fmt::Result,
}

impl<W: Write> Fields<'_, W> {
    fn write(&mut self, field: &Field, value: impl FnOnce(&mut W) -> fmt::Result) {
        self.result = self.result.and_then(|()| {
            self.to.write_char(',')?;
            write_text(self.to, field.name())?;
            self.to.write_char(':')?;
            value(self.to)
        });
    }

    fn write_bare(&mut self, field: &Field, value: impl Display) {
        self.write(field, |to| write!(to, "{value}"));
    }
}

impl<W: Write> Visit for Fields<'_, W> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, |to| write_text(to, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.write(field, |to| {
            to.write_char('"')?;
            write!(Escaped(to), "{value:?}")?;
            to.write_char('"')
        });
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write_bare(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write_bare(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinity, and has numbers that Rust spells otherwise.
        self.write_bare(field, serde_json::Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write_bare(field, value);
    }
}

fn write_text(to: &mut impl Write, text: &str) -> fmt::Result {
    to.write_char('"')?;
    Escaped(to).write_str(text)?;
    to.write_char('"')
}

/// What is inside the quotes of a JSON string.
struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let special = |letter: u8| letter < 0x20 || letter == b'"' || letter == b'\\';
        let mut rest = text;
        // What is special has one byte, so a text can be cut on both sides of it.
        while let Some(at) = rest.bytes().position(special) {
            self.0.write_str(&rest[..at])?;
            match rest.as_bytes()[at] {
                b'"' => self.0.write_str("\\\""),
                b'\\' => self.0.write_str("\\\\"),
                b'\n' => self.0.write_str("\\n"),
                b'\r' => self.0.write_str("\\r"),
                b'\t' => self.0.write_str("\\t"),
                0x08 => self.0.write_str("\\b"),
                0x0c => self.0.write_str("\\f"),
                control => write!(self.0, "\\u{control:04x}"),
            }?;
            rest = &rest[at + 1..];
        }
        self.0.write_str(rest)
    }
}

/// `2026-01-02T03:04:05.`: a second, whose lines share it.
#[derive(Clone, Copy)]
struct Second {
    number: u64,
    text: [u8; 20],
}

thread_local! {
    static LAST_SECOND: Cell<Option<Second>> = const { Cell::new(None) };
}

/// Writes a time since 1970, in UTC.
fn write_time(to: &mut impl Write, time: Duration) -> fmt::Result {
    let known = LAST_SECOND.get().filter(|second| second.number == time.as_secs());
    let second = known.unwrap_or_else(|| {
        let second = Second::new(time.as_secs());
        LAST_SECOND.set(Some(second));
        second
    });
    to.write_str(str::from_utf8(&second.text).map_err(|_| fmt::Error)?)?;
    let mut micros = *b"000000Z";
    write_digits(&mut micros[..6], time.subsec_micros());
    to.write_str(str::from_utf8(&micros).map_err(|_| fmt::Error)?)
}

impl Second {
    fn new(number: u64) -> Self {
        let time = i64::try_from(number).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        // A clock that is off by thousands of years tells no time anyway.
        let time = Offset::UTC.to_datetime(time.unwrap_or_default());
        let mut text = *b"0000-00-00T00:00:00.";
        write_digits(&mut text[0..4], time.year().unsigned_abs().into());
        let parts = [time.month(), time.day(), time.hour(), time.minute(), time.second()];
        for (place, part) in (5..).step_by(3).zip(parts) {
            write_digits(&mut text[place..place + 2], part.unsigned_abs().into());
        }
        Self { number, text }
    }
}

/// Fills the place with the last digits of a number.
fn write_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use parking_lot::Mutex;
    use tracing_subscriber::{Layer, fmt::MakeWriter, layer::SubscriberExt, registry};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// What a line says besides its time, which is checked for its form.
    fn timeless(line: &str) -> &str {
        let (time, rest) = line.strip_prefix("{\"timestamp\":\"").unwrap().split_once('"').unwrap();
        assert_eq!(time.len(), "2026-01-02T03:04:05.678901Z".len(), "{time}");
        assert!(time.parse::<Timestamp>().is_ok() && time.ends_with('Z'), "{time}");
        rest
    }

    /// The lines of both, of which each must have come in one piece.
    fn written(say: impl FnOnce()) -> (Vec<String>, Vec<String>) {
        let (ours, theirs) = (Lines::default(), Lines::default());
        let json = || tracing_subscriber::fmt::layer().json().flatten_event(true).with_current_span(false);
        let layers: Vec<Box<dyn Layer<_> + Send + Sync>> = vec![
            Box::new(json().event_format(JsonLines::new()).with_writer(ours.clone())),
            Box::new(json().with_writer(theirs.clone())),
        ];
        tracing::subscriber::with_default(registry().with(layers), say);
        let lines = |Lines(lines): Lines| lines.lock().iter().map(|line| timeless(line).to_owned()).collect();
        (lines(ours), lines(theirs))
    }

    #[test]
    fn lines_are_those_of_tracing_subscriber_to_the_letter() {
        let (ours, theirs) = written(|| {
            let (claim, user) = (format_args!("{}/{}", "default", "scratch"), "jane \"the\" \\ admin");
            tracing::info!(feature = "enforcement", %claim, %user, decision = "deny", reason = "NotEphemeral", "decided");
            tracing::warn!(text = "a\tb\r\n\u{8}\u{c}\u{1b}[0m\0\u{1f}\u{7f}\u{200b}é😀", "several\nlines");
            tracing::error!(error = ?Some("it's \"quoted\"\n"), list = ?["a", "ü"], "broken {}", "\"\u{1}\"");
            tracing::debug!(
                yes = true,
                no = false,
                most = u64::MAX,
                least = i64::MIN,
                huge = u128::MAX,
                small = i128::MIN
            );
            tracing::trace!(
                half = 0.5,
                whole = 1.0,
                tiny = 1e-9,
                vast = 1e300,
                none = f64::NAN,
                endless = f64::INFINITY
            );
            tracing::info!(target: "an \"odd\" target", absent = None::<&str>, present = Some(3), r#type = "raw", bytes = &b"\xff\0"[..]);
            tracing::info!(error = &io::Error::other("a \"cause\"") as &dyn std::error::Error, a.dotted.name = 1, "");
            let _span = tracing::info_span!("outer", name = "value").entered();
            tracing::info!("within a span");
        });
        assert_eq!(ours.len(), 8);
        assert_eq!(ours, theirs);
    }

    #[test]
    fn a_line_is_an_object_with_time_level_fields_and_target() {
        let (ours, _) = written(|| tracing::info!(claim = "default/scratch", tries = 2, "made"));
        let expected = concat!(
            r#","level":"INFO","message":"made","claim":"default/scratch","tries":2,"#,
            r#""target":"platform::logging::json::tests"}"#,
            "\n"
        );
        assert_eq!(ours, [expected]);
    }

    #[test]
    fn a_time_is_written_in_utc_with_microseconds() {
        for (time, expected) in [
            (Duration::ZERO, "1970-01-01T00:00:00.000000Z"),
            (Duration::new(951_782_400, 1_999), "2000-02-29T00:00:00.000001Z"),
            (Duration::new(951_782_400, 999_999_999), "2000-02-29T00:00:00.999999Z"),
            (Duration::new(1_767_323_045, 678_901_000), "2026-01-02T03:04:05.678901Z"),
            (Duration::new(1_767_323_046, 0), "2026-01-02T03:04:06.000000Z"),
        ] {
            let mut text = String::new();
            write_time(&mut text, time).unwrap();
            assert_eq!(text, expected);
        }
    }
}
