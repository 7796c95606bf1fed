//! Formats an event of the log as one line, in text or JSON.

use super::LogDestination;
use super::filter::OWN_CRATE_PREFIX;
use crate::identity;
use packetrig_units::text::one_line;
use serde_json::{Map, Value};
use std::fmt::Debug;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// Maximum number of characters of one value. Texts of other machines have their own limits, but an event
/// may have several texts.
const MAX_LOG_VALUE_CHARACTERS: usize = 2000;

/// Name and value of each field; the message is called `message`.
#[derive(Debug, Default)]
struct EventFields(Map<String, Value>);

impl EventFields {
    fn from_event(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn take_message(&mut self) -> String {
        self.0.remove("message").and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, one_line(&format!("{value:?}"), MAX_LOG_VALUE_CHARACTERS));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, one_line(value, MAX_LOG_VALUE_CHARACTERS));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}

/// Formats an event as `2026-11-28T15:04:05.123456Z INFO fleet_io: lease expired run=… node=…`. For the journal,
/// which adds time and level itself, the line begins with the syslog priority.
pub(super) fn format_text_line(event: &Event<'_>, at_ns: u64, reader: LogDestination) -> String {
    let mut fields = EventFields::from_event(event);
    let metadata = event.metadata();
    let begin = match reader {
        LogDestination::Any => format!("{} {:5} ", identity::format_utc_instant(at_ns), metadata.level()),
        LogDestination::Journal => format!("<{}>", syslog_priority(*metadata.level())),
    };
    let message = fields.take_message();
    let fields =
        fields.0.iter().map(|(name, value)| match value.as_str().filter(|text| is_plain_word(text)) {
            Some(word) => format!(" {name}={word}"),
            None => format!(" {name}={value}"),
        });
    format!("{begin}{}: {message}{}\n", crate_of_target(metadata.target()), fields.collect::<String>())
}

/// Returns whether the text of a value can be written without quotes.
fn is_plain_word(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '"', '='])
}

/// Formats an event as a JSON object; `part` is the crate.
pub(super) fn format_json_line(event: &Event<'_>, at_ns: u64) -> String {
    let mut fields = EventFields::from_event(event);
    let metadata = event.metadata();
    let mut object = Map::new();
    object.insert("time".into(), identity::format_utc_instant(at_ns).into());
    object.insert("level".into(), metadata.level().as_str().to_ascii_lowercase().into());
    object.insert("part".into(), crate_of_target(metadata.target()).into());
    object.insert("message".into(), fields.take_message().into());
    // The members above are fixed: a field of the same name must not replace the time or the level.
    for (name, value) in fields.0 {
        object.entry(name).or_insert(value);
    }
    Value::Object(object).to_string() + "\n"
}

/// Returns the crate of a target without our prefix: `fleet_io` for `packetrig_fleet_io::agent`.
fn crate_of_target(target: &str) -> &str {
    let own = target.strip_prefix(OWN_CRATE_PREFIX).unwrap_or(target);
    own.split(':').next().unwrap_or(own)
}

/// Returns the syslog priority that the journal reads at the beginning of a line; see `sd-daemon(3)`.
const fn syslog_priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        // 5 is `notice`, which tracing does not have. 7 is the most detailed level of syslog, so `trace` and `debug`
        // share it.
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing::Subscriber;
    use tracing::span::{Attributes, Id, Record};

    const AT_NS: u64 = 1_790_000_000_123_456_789;

    /// Keeps the lines of an event in each format.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Kept {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &Event<'_>) {
            let lines = [LogDestination::Any, LogDestination::Journal]
                .map(|reader| format_text_line(event, AT_NS, reader));
            self.0.lock().unwrap().extend(lines.into_iter().chain([format_json_line(event, AT_NS)]));
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn event_line_has_fields_and_no_controls() {
        let kept = Kept::default();
        tracing::subscriber::with_default(kept.clone(), || {
            let node = "a\nb";
            tracing::warn!(target: "packetrig_fleet_io::agent", run = "r1", node, sent = 7, why = "no answer", "lease expired");
        });
        let [text, journal, json] = &kept.0.lock().unwrap()[..] else { panic!("three lines") };
        let rest = r#"fleet_io: lease expired node=a\u{a}b run=r1 sent=7 why="no answer""#;
        assert_eq!(*text, format!("2026-09-21T14:13:20.123456Z WARN  {rest}\n"));
        assert_eq!(*journal, format!("<4>{rest}\n"));
        let object: Value = serde_json::from_str(json).unwrap();
        assert_eq!(object["level"], "warn");
        assert_eq!((&object["time"], &object["sent"]), (&"2026-09-21T14:13:20.123456Z".into(), &7.into()));
        assert_eq!(json.lines().count(), 1);
    }
}
