//! The log of programs that run for a long time: events of `tracing`, each as one line on standard error.
//!
//! Nothing is logged unless `--log-level` or [`LEVEL_VARIABLE`] asks for it. Then remarks become events, too, so that standard error
//! has one format. Events have fields instead of prose, such as `run`, `node` and `peer`. With these fields, a user can follow one run
//! through several machines. Texts of other machines are escaped and bounded like everywhere else.
//!
//! Spans are not used, because one thread of a rig works for several runs.

mod filter;
mod line;

pub use filter::LogFilter;

use clap::ValueEnum;
use packetrig_sys::clock;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Environment variable with the level, for units and containers.
pub const LEVEL_VARIABLE: &str = "PACKETRIG_LOG";

static IS_LOG_ENABLED: AtomicBool = AtomicBool::new(false);

/// Arguments for the event log. Every command has them.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct EventLogArgs {
    /// Log to standard error at this level, for example info or warn,fleet=debug [env: PACKETRIG_LOG]
    #[arg(long, value_name = "LEVEL", global = true, help_heading = "Log")]
    pub log_level: Option<LogFilter>,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", global = true, value_enum, default_value_t, help_heading = "Log")]
    pub log_format: LogFormat,
}

/// Format of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    // The values have no descriptions, because these would make every help page long.
    #[default]
    Text,
    Json,
}

/// Kind of reader of the text log: the journal needs another line format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogDestination {
    /// A file, a pipe or a terminal.
    Any,
    /// The journal of systemd. It adds the time itself, and reads the level as a number at the beginning of the line.
    Journal,
}

/// Writes events to standard error.
#[derive(Debug)]
struct LogWriter {
    filter: LogFilter,
    format: LogFormat,
    reader: LogDestination,
}

impl EventLogArgs {
    /// Starts the log if the arguments or the environment request it. Returns a remark for the user if the environment
    /// variable is used and its value is not valid; then no log starts.
    pub fn start_log(&self) -> Option<String> {
        let named = std::env::var(LEVEL_VARIABLE).ok().filter(|level| !level.is_empty());
        let filter = match (&self.log_level, named) {
            (Some(filter), _) => filter.clone(),
            (None, Some(named)) => match named.parse() {
                Ok(filter) => filter,
                Err(error) => return Some(format!("{LEVEL_VARIABLE}={named}: {error}; nothing is logged")),
            },
            (None, None) => return None,
        };
        let writer =
            LogWriter { filter, format: self.log_format, reader: LogDestination::detect_standard_error() };
        // A process has one log. In a test that runs several commands, the first one sets it.
        let is_first = tracing::subscriber::set_global_default(writer).is_ok();
        IS_LOG_ENABLED.fetch_or(is_first, Ordering::Relaxed);
        None
    }
}

/// Returns whether events are logged. If so, remarks are events, too.
pub fn is_event_log_enabled() -> bool {
    IS_LOG_ENABLED.load(Ordering::Relaxed)
}

impl LogDestination {
    fn detect_standard_error() -> Self {
        // systemd writes the device and inode of the journal's stream into this variable. They are compared, because
        // standard error may have been redirected since then.
        let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let here =
            std::fs::metadata("/proc/self/fd/2").map(|facts| format!("{}:{}", facts.dev(), facts.ino()));
        let is_journal = !io::stderr().is_terminal() && here.is_ok_and(|here| here == journal);
        if is_journal { Self::Journal } else { Self::Any }
    }
}

impl Subscriber for LogWriter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.filter.allows_event(metadata.target(), *metadata.level())
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.filter.most_verbose_level())
    }

    fn event(&self, event: &Event<'_>) {
        let text = match self.format {
            LogFormat::Text => line::format_text_line(event, clock::wall_clock_ns(), self.reader),
            LogFormat::Json => line::format_json_line(event, clock::wall_clock_ns()),
        };
        // The line is written with one call, so that lines of several threads do not mix. If standard error is
        // closed, the event is lost, and the program continues.
        drop(io::stderr().write_all(text.as_bytes()));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // `enabled` refuses all spans, so this id is never used. It must not be 0, which makes `Id::from_u64` panic.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
