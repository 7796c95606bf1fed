//! `packetrig flows` as typed.

use crate::protocols;
use clap::{Args, Subcommand, ValueEnum};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use packetrig_store::flows::filter::{Filter, Prefix};
use packetrig_store::flows::scan::Span;
use packetrig_store::flows::top::{By, Order};
use packetrig_units::Nanos;
use std::path::PathBuf;

/// Ask about flow records that were kept in files.
#[derive(Debug, Subcommand)]
pub(crate) enum Flows {
    /// Who has most: addresses, pairs, protocols, ports or exporters
    Top(FlowTop),
    /// The records themselves
    Show(ShowFlows),
    /// Sums: all, by protocol, in time, and what the meters say they lost
    Stats(FlowStats),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig flows top records\n  \
    packetrig flows top records --by port --order flows --most 20\n  \
    packetrig flows top records/flows/date=2026-11-21 --by pair --address 198.18.0.0/15")]
pub(crate) struct FlowTop {
    /// Directories or Parquet files
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// Group records; each direction counts for the address that sent it (source) or received it (destination)
    #[arg(long, value_enum, value_name = "WHAT", default_value = "source")]
    pub(crate) by: GroupBy,
    /// What the largest have most of
    #[arg(long, value_enum, value_name = "WHAT", default_value = "bytes")]
    pub(crate) order: OrderBy,
    /// Show at most this many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) most: usize,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    #[command(flatten)]
    pub(crate) form: FlowForm,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig flows show records --port 53 --most 5\n  \
    packetrig flows show records --from 2026-11-21T13:00 --to 2026-11-21T14:00 --protocol tcp --csv > tcp.csv")]
pub(crate) struct ShowFlows {
    /// Directories or Parquet files
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// Show at most this many [default: 50; with --json and --csv all]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) most: Option<usize>,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    #[command(flatten)]
    pub(crate) form: FlowForm,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig flows stats records\n  \
    packetrig flows stats records --bucket 10s --protocol udp --json")]
pub(crate) struct FlowStats {
    /// Directories or Parquet files
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// Length of the timeline's steps [default: one that makes about two dozen]
    #[arg(long, value_name = "TIME")]
    pub(crate) bucket: Option<Nanos>,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which records. Conditions of one kind are alternatives, those of different kinds hold together.
#[derive(Args, Debug)]
pub(crate) struct RecordFilter {
    /// Either end is this address or in this prefix
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Vec<Prefix>,
    /// Either end's port
    #[arg(long, value_name = "N")]
    pub(crate) port: Vec<u16>,
    /// Protocol, by name or number
    #[arg(long, value_name = "NAME", value_parser = protocols::parse)]
    pub(crate) protocol: Vec<u8>,
    /// Flows that began at this time or later: 2026-11-21, 2026-11-21T13:00, 2026-11-21T13:00:00.5 (UTC)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) from: Option<u64>,
    /// Flows that began before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) to: Option<u64>,
}

impl RecordFilter {
    /// What it means.
    pub(crate) fn filter(&self) -> Filter {
        Filter {
            span: Span { from_ns: self.from, to_ns: self.to },
            addresses: self.address.clone(),
            ports: self.port.clone(),
            protocols: self.protocol.clone(),
        }
    }
}

/// In which form; a table if none is named.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(crate) struct FlowForm {
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print CSV
    #[arg(long)]
    pub(crate) csv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupBy {
    Source,
    Destination,
    Pair,
    Protocol,
    /// The lower of the two ports, with its protocol
    Port,
    Exporter,
}

impl From<GroupBy> for By {
    fn from(by: GroupBy) -> Self {
        match by {
            GroupBy::Source => Self::Source,
            GroupBy::Destination => Self::Destination,
            GroupBy::Pair => Self::Pair,
            GroupBy::Protocol => Self::Protocol,
            GroupBy::Port => Self::Port,
            GroupBy::Exporter => Self::Exporter,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderBy {
    Bytes,
    Packets,
    Flows,
}

impl From<OrderBy> for Order {
    fn from(order: OrderBy) -> Self {
        match order {
            OrderBy::Bytes => Self::Bytes,
            OrderBy::Packets => Self::Packets,
            OrderBy::Flows => Self::Flows,
        }
    }
}

/// Nanoseconds since 1970 of a time in UTC.
fn moment(text: &str) -> Result<u64, String> {
    let refuse = || format!("`{text}` is no time; write it like 2026-11-21 or 2026-11-21T13:00:00 (UTC)");
    let time: DateTime = text.trim_end_matches('Z').parse().map_err(|_| refuse())?;
    let zoned = time.to_zoned(TimeZone::UTC).map_err(|_| refuse())?;
    u64::try_from(zoned.timestamp().as_nanosecond()).map_err(|_| refuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_utc() {
        assert_eq!(moment("1970-01-01"), Ok(0));
        assert_eq!(moment("1970-01-02T00:00"), Ok(86_400_000_000_000));
        assert_eq!(moment("1970-01-01T00:00:01.5"), Ok(1_500_000_000));
        assert_eq!(moment("1970-01-01T00:00:01Z"), Ok(1_000_000_000));
        for wrong in ["", "yesterday", "1969-12-31", "2026-13-01", "13:00"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
