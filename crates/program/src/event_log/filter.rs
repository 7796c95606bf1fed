//! The level filter of the event log: a general level, and levels for single crates.

use std::str::FromStr;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// Prefix of the names of the crates of packetrig.
pub(super) const OWN_CRATE_PREFIX: &str = "packetrig_";

/// Selects the events that are logged, by level. Events of other libraries are logged only if their crate is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    level: LevelFilter,
    /// Levels of single crates or modules. If several entries match, the last one counts.
    parts: Vec<(String, LevelFilter)>,
}

impl LogFilter {
    pub(super) fn allows_event(&self, target: &str, level: Level) -> bool {
        let own = target.strip_prefix(OWN_CRATE_PREFIX);
        let of_part =
            self.parts.iter().rev().find(|(part, _)| is_target_part_of(part, own.unwrap_or(target)));
        let usual = if own.is_some() || target == "packetrig" { self.level } else { LevelFilter::OFF };
        // tracing orders levels by their detail: ERROR is the smallest, and TRACE the greatest.
        level <= of_part.map_or(usual, |(_, level)| *level)
    }

    pub(super) fn most_verbose_level(&self) -> LevelFilter {
        self.parts.iter().map(|(_, level)| *level).fold(self.level, Ord::max)
    }
}

/// Returns whether the target of an event belongs to a named part: `fleet` includes `fleet_io::agent` and
/// `fleet` itself, but not `fleetness`.
fn is_target_part_of(part: &str, target: &str) -> bool {
    let behind = target.strip_prefix(part);
    behind.is_some_and(|behind| behind.is_empty() || behind.starts_with(['_', ':']))
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // If the text names only crates, all other crates log errors only.
        let mut filter = Self { level: LevelFilter::ERROR, parts: Vec::new() };
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                Some((part, level)) => filter.parts.push((part.replace('-', "_"), parse_log_level(level)?)),
                None => filter.level = parse_log_level(word)?,
            }
        }
        Ok(filter)
    }
}

fn parse_log_level(text: &str) -> Result<LevelFilter, String> {
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        other => Err(format!("`{other}` is not a log level; use error, warn, info, debug, trace or off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_has_levels_of_parts() {
        let filter: LogFilter = "info,fleet=debug,fleet_io::agent=warn,async-nats=info".parse().unwrap();
        let passes = |target, level| filter.allows_event(target, level);
        assert!(passes("packetrig_flow_io::run", Level::INFO) && !passes("packetrig_flow_io", Level::DEBUG));
        assert!(passes("packetrig_fleet::plan", Level::DEBUG) && passes("packetrig_fleet_io", Level::DEBUG));
        assert!(
            !passes("packetrig_fleet_io::agent", Level::INFO) && !passes("packetrig_fleetness", Level::DEBUG)
        );
        assert!(passes("async_nats", Level::INFO) && !passes("h2::proto", Level::ERROR));
        assert_eq!(filter.most_verbose_level(), LevelFilter::DEBUG);
        assert!("loud".parse::<LogFilter>().is_err() && "fleet=".parse::<LogFilter>().is_err());
    }

    #[test]
    fn parts_alone_leave_errors_of_the_rest() {
        let filter: LogFilter = "meter=trace".parse().unwrap();
        assert!(
            filter.allows_event("packetrig", Level::ERROR) && !filter.allows_event("packetrig", Level::WARN)
        );
    }
}
