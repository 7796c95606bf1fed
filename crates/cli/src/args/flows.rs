//! Arguments of `packetrig flows`.

use super::keep::FileRetentionArgs;
use super::moments::{parse_age, parse_moment, wall_time_before_now};
use super::quantities::{BytesArg, parse_port, parse_positive_number, parse_positive_time};
use crate::error::Error;
use crate::protocols;
use clap::{Args, Subcommand, ValueEnum};
use packetrig_flow_io::export::ExportTarget;
use packetrig_flow_store::columns::{FlowColumn, find_column, flow_columns};
use packetrig_flow_store::filter::{AddressPrefix, FlowFilter};
use packetrig_flow_store::grouping::FlowGrouping;
use packetrig_flow_store::names::{FlowNames, NAME_COLUMNS, NameColumn, find_name_column};
use packetrig_flow_store::order::RecordOrder;
use packetrig_flow_store::scan::TimeSpan;
use packetrig_flow_store::top::{ChangeKind, TopOrder};
use packetrig_plan::recording::ReplaySpeed;
use packetrig_units::Nanos;
use std::path::PathBuf;
use std::sync::Arc;

/// Query stored flow records.
#[derive(Debug, Subcommand)]
pub(crate) enum FlowsCommand {
    /// Rank addresses, pairs, protocols, ports or exporters by traffic
    Top(FlowTop),
    /// Print single records, as a table, JSON or CSV
    #[command(alias = "list")]
    Show(ShowFlows),
    /// Compare two windows of time, or two directories: what is new, gone, grown or shrunk
    Compare(CompareFlows),
    /// Print totals: overall, by protocol, over time, and losses that the meters reported
    Stats(FlowStats),
    /// Complete the files that a killed collector or meter left incomplete
    Recover(RecoverFlows),
    /// Delete the oldest files beyond a size or an age
    Prune(PruneFlows),
    /// Rewrite small files as fewer large ones
    Compact(CompactFlows),
    /// Send stored records to a collector, as IPFIX
    Replay(ReplayFlows),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig flows top records\n  \
    packetrig flows top records --by port --order flows --most 20\n  \
    packetrig flows top records --by src-ip,dst-port --min-packets 10 --filter 'proto tcp and not flags A'\n  \
    packetrig flows top records --by src-country --names country.mmdb\n  \
    packetrig flows top records --by dst-port --bucket 5min --csv\n  \
    packetrig flows top records/flows/date=2026-11-21 --by pair --address 198.18.0.0/15")]
pub(crate) struct FlowTop {
    /// Directories or Parquet files with records
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// Group by these columns, comma-separated: `src-ip`, `dst-port`, any other column, `pair` (both addresses, in
    /// either direction), `port` (the lower one, with its protocol), `exporter`, or names (`src-country`,
    /// `dst-as-name`, `src-name`, `in-if-name`, `service`; see --names). Groups that separate source from destination
    /// count each direction of a record by itself
    #[arg(long, value_name = "WHAT", default_value = "src-ip")]
    pub(crate) by: FlowGrouping,
    /// Rank by this quantity, or by each of several, comma-separated
    #[arg(long, value_enum, value_name = "WHAT", default_value = "bytes", value_delimiter = ',')]
    pub(crate) order: Vec<FlowOrderArg>,
    /// Show at most this many groups
    #[arg(short = 'n', long, visible_alias = "limit", value_name = "N", default_value_t = 10)]
    pub(crate) most: usize,
    /// Print how the groups change over time, in steps of this length. A flow counts in the step in which it began
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) bucket: Option<Nanos>,
    /// Omit groups with fewer packets
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) min_packets: u64,
    /// Omit groups with fewer bytes of IP packets, without link headers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) min_bytes: u64,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    #[command(flatten)]
    pub(crate) form: FlowOutputFormat,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig flows compare records --a 2026-11-20T13:00..2026-11-20T14:00 --b 2026-11-21T13:00..2026-11-21T14:00\n  \
    packetrig flows compare before after --by dst-port,protocol --order flows --only new")]
pub(crate) struct CompareFlows {
    /// Directories or Parquet files with records; without --a and --b, the two to compare
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// The earlier window: flows that began in it
    #[arg(long, value_name = "FROM..TO", value_parser = parse_time_window, requires = "b")]
    pub(crate) a: Option<TimeWindow>,
    /// The later window: flows that began in it
    #[arg(long, value_name = "FROM..TO", value_parser = parse_time_window, requires = "a")]
    pub(crate) b: Option<TimeWindow>,
    /// Group by these columns, as in `flows top`
    #[arg(long, value_name = "WHAT", default_value = "src-ip")]
    pub(crate) by: FlowGrouping,
    /// Compare by this quantity per second
    #[arg(long, value_enum, value_name = "WHAT", default_value = "bytes")]
    pub(crate) order: FlowSumOrder,
    /// Show only these changes, comma-separated
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) only: Vec<ChangeKindArg>,
    /// Show at most this many changes
    #[arg(short = 'n', long, visible_alias = "limit", value_name = "N", default_value_t = 10)]
    pub(crate) most: usize,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    #[command(flatten)]
    pub(crate) form: FlowOutputFormat,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig flows show records --port 53 --most 5\n  \
    packetrig flows show records --order bytes --limit 20\n  \
    packetrig flows show records --filter 'src net 198.18.0.0/15 and packets > 1k' --columns start,src-ip,in-if,out-if\n  \
    packetrig flows show records --from 2026-11-21T13:00 --to 2026-11-21T14:00 --protocol tcp --csv > tcp.csv")]
pub(crate) struct ShowFlows {
    /// Directories or Parquet files with records
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// Show at most this many records [default: 50; all with --json or --csv, unless --order is given]
    #[arg(short = 'n', long, visible_alias = "limit", value_name = "N")]
    pub(crate) most: Option<usize>,
    /// Sort by any column, `duration`, `pps`, `bps` or `bpp` (bytes per packet) [default: order of the files]. Amounts
    /// sort largest first, everything else smallest first; append `:a` (ascending) or `:d` (descending) to choose
    #[arg(short = 'O', long, value_name = "WHAT")]
    pub(crate) order: Option<RecordOrder>,
    /// Columns to show, comma-separated, by name or short name [default: the usual ones; all with --json or --csv]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parse_shown_column)]
    pub(crate) columns: Vec<ShownColumn>,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    #[command(flatten)]
    pub(crate) form: FlowOutputFormat,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig flows stats records\n  \
    packetrig flows stats records --bucket 10s --protocol udp --json")]
pub(crate) struct FlowStats {
    /// Directories or Parquet files with records
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// Time step of the timeline [default: chosen for about 24 steps]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) bucket: Option<Nanos>,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "A collector or meter also recovers files when it starts to write into the directory.\n\nExample:\n  packetrig flows recover records"
)]
pub(crate) struct RecoverFlows {
    /// Directory that holds the records
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Only complete files that packetrig wrote are deleted, in the order of their latest records, oldest first.\n\n\
        Examples:\n  packetrig flows prune records --keep-for 720h --dry-run\n  packetrig flows prune records --keep 100GB"
)]
pub(crate) struct PruneFlows {
    /// Directory that holds the records
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) keep: FileRetentionArgs,
    /// Only list the files that would be deleted
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Queries and writers may use the directory at the same time.\n\nExample:\n  packetrig flows compact records"
)]
pub(crate) struct CompactFlows {
    /// Directory that holds the records
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Join files of an hour up to about this size
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub(crate) file_size: BytesArg,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Records keep their stored times. Without --speed and --rate they are sent as fast as possible.\n\n\
        Examples:\n  packetrig flows replay records --export tcp://198.18.0.9:4739\n  \
        packetrig flows replay records --export udp://198.18.0.9:4739 --rate 20000 --last 1h\n  \
        packetrig flows replay records --export udp://198.18.0.9:4739 --speed 10x --filter 'proto udp'\n  \
        packetrig flows replay records --export file:records.ipfix --anonymise secret.key"
)]
pub(crate) struct ReplayFlows {
    /// Directories or Parquet files with records
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) places: Vec<PathBuf>,
    /// Send to udp://HOST:PORT, tcp://HOST:PORT or file:PATH
    #[arg(short, long, value_name = "TARGET")]
    pub(crate) export: ExportTarget,
    /// Send the records at the pace of their flows' starts: 1x as metered, 10x ten times as fast
    #[arg(long, value_name = "FACTOR", conflicts_with = "rate")]
    pub(crate) speed: Option<ReplaySpeed>,
    /// Send this many records per second
    #[arg(long, value_name = "N", value_parser = parse_positive_number::<u32>)]
    pub(crate) rate: Option<u32>,
    /// Send both directions of a flow in one record (RFC 5103) [default: one record per direction]
    #[arg(long)]
    pub(crate) biflow: bool,
    /// Observation domain ID of the sent records
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) domain: u32,
    /// Replace addresses by Crypto-PAn with the key (64 hexadecimal digits) in this file, which only its owner may
    /// read. MAC addresses and fields without a column are not sent
    #[arg(long, value_name = "FILE")]
    pub(crate) anonymise: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) filter: RecordFilter,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Selects records that meet the conditions of all options. If `--address`, `--port` or `--protocol` is repeated, one
/// of its values must match. If `--filter` is repeated, all filters must match.
#[derive(Args, Debug)]
pub(crate) struct RecordFilter {
    /// Select with a filter in nfdump's language: `src ip 198.18.0.1 and (dst port 53 or packets > 1k)`. If
    /// repeated, all filters must match
    #[arg(long, value_name = "EXPRESSION")]
    // The expression is parsed in `to_flow_filter`: a parser error of clap would repeat the whole expression.
    pub(crate) filter: Vec<String>,
    /// Select flows with this address or prefix at either end. If repeated, one of them must match
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Vec<AddressPrefix>,
    /// Select flows with this port at either end. If repeated, one of them must match
    #[arg(long, value_name = "N", value_parser = parse_port)]
    pub(crate) port: Vec<u16>,
    /// Select flows of this protocol, by name or number. If repeated, one of them must match
    #[arg(long, value_name = "NAME", value_parser = protocols::parse_protocol)]
    pub(crate) protocol: Vec<u8>,
    /// Select flows that began at or after this time: 2026-11-21, 2026-11-21T13:00:00.5, or yesterday; in UTC without
    /// an offset such as +01:00
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) from: Option<u64>,
    /// Select flows that began before this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) to: Option<u64>,
    /// Select flows that began in the last TIME, such as 90min, 24h or 7d
    // `--last` ends now, so another end would contradict it.
    #[arg(long, value_name = "TIME", value_parser = parse_age, conflicts_with_all = ["from", "to"])]
    pub(crate) last: Option<Nanos>,
    /// Read names from this file: countries and autonomous systems of addresses (MMDB, or the TSV of IPtoASN), prefixes
    /// (CSV `prefix,name`), interfaces (CSV `exporter,ifindex,name`), services (IANA's CSV, or /etc/services). May be
    /// repeated; a later file overrides earlier ones
    #[arg(long, value_name = "FILE")]
    pub(crate) names: Vec<PathBuf>,
}

/// A column that `flows show` can show.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShownColumn {
    /// A column of records.
    Stored(&'static FlowColumn),
    /// A column with names that are looked up for a stored value, such as the country of an address.
    Named(&'static NameColumn),
}

impl ShownColumn {
    /// Name of the column in JSON and CSV.
    pub(crate) const fn full_name(self) -> &'static str {
        match self {
            Self::Stored(column) => column.name,
            Self::Named(column) => column.short,
        }
    }

    /// Name of the column in tables.
    pub(crate) const fn short_name(self) -> &'static str {
        match self {
            Self::Stored(column) => column.short,
            Self::Named(column) => column.short,
        }
    }
}

impl RecordFilter {
    /// Returns true if no flag restricts the selection.
    pub(crate) fn selects_all_records(&self) -> bool {
        let Self { filter, address, port, protocol, from, to, last, names: _ } = self;
        let has_words = !(filter.is_empty() && address.is_empty() && port.is_empty() && protocol.is_empty());
        !has_words && from.is_none() && to.is_none() && last.is_none()
    }

    /// Reads the files of `--names`.
    pub(crate) fn read_names(&self) -> Result<Arc<FlowNames>, Error> {
        Ok(Arc::new(FlowNames::read_files(&self.names)?))
    }

    /// Builds the filter that the flags describe.
    pub(crate) fn to_flow_filter(&self, names: &FlowNames) -> Result<FlowFilter, Error> {
        // An empty time span is refused, because every query would return nothing.
        if self.from.zip(self.to).is_some_and(|(from, to)| from >= to) {
            return Err(Error::Usage("--from must be earlier than --to".into()));
        }
        // `--port 53 --port 853 --protocol udp`: either port, and the protocol.
        let options = FlowFilter::started_in(TimeSpan {
            // The clock is read once, when the filter is built, so that the start does not move during a long query.
            from_ns: self.from.or_else(|| self.last.map(wall_time_before_now)),
            to_ns: self.to,
        })
        .and(FlowFilter::either_address(&self.address))
        .and(FlowFilter::either_port(&self.port))
        .and(FlowFilter::any_protocol(&self.protocol));
        self.filter.iter().try_fold(options, |filter, text| {
            let more = FlowFilter::parse_with_names(text, names)
                .map_err(|error| Error::Usage(format!("--filter: {error}")))?;
            Ok(filter.and(more))
        })
    }
}

/// Output format; without a flag, a table.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(crate) struct FlowOutputFormat {
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print CSV with a header line
    #[arg(long)]
    pub(crate) csv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowOrderArg {
    Bytes,
    Packets,
    Flows,
    /// Packets per second, from the first packet of the group to its last
    Pps,
    /// Bits per second, over the same time
    Bps,
    /// Bytes per packet, on average
    Bpp,
    /// Time from the first packet to the last
    Duration,
}

/// A quantity that can be summed over flows, and compared per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowSumOrder {
    Bytes,
    Packets,
    Flows,
}

impl From<FlowSumOrder> for TopOrder {
    fn from(order: FlowSumOrder) -> Self {
        match order {
            FlowSumOrder::Bytes => Self::Bytes,
            FlowSumOrder::Packets => Self::Packets,
            FlowSumOrder::Flows => Self::Flows,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChangeKindArg {
    New,
    Gone,
    Grown,
    Shrunk,
}

impl From<ChangeKindArg> for ChangeKind {
    fn from(word: ChangeKindArg) -> Self {
        match word {
            ChangeKindArg::New => Self::New,
            ChangeKindArg::Gone => Self::Gone,
            ChangeKindArg::Grown => Self::Grown,
            ChangeKindArg::Shrunk => Self::Shrunk,
        }
    }
}

/// A time window in nanoseconds since 1970. It includes its start and excludes its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeWindow {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

fn parse_time_window(text: &str) -> Result<TimeWindow, String> {
    let (from, to) = text.split_once("..").ok_or_else(|| {
        format!("`{text}` is not a time window; write FROM..TO, as in 2026-11-21T13:00..2026-11-21T14:00")
    })?;
    let from_ns = parse_moment(from)?;
    let to_ns = parse_moment(to)?;
    if from_ns >= to_ns {
        return Err(format!("the time window `{text}` is empty: its end must be later than its start"));
    }
    Ok(TimeWindow { from_ns, to_ns })
}

impl From<FlowOrderArg> for TopOrder {
    fn from(order: FlowOrderArg) -> Self {
        match order {
            FlowOrderArg::Bytes => Self::Bytes,
            FlowOrderArg::Packets => Self::Packets,
            FlowOrderArg::Flows => Self::Flows,
            FlowOrderArg::Pps => Self::PacketRate,
            FlowOrderArg::Bps => Self::BitRate,
            FlowOrderArg::Bpp => Self::PacketSize,
            FlowOrderArg::Duration => Self::Duration,
        }
    }
}

fn parse_shown_column(word: &str) -> Result<ShownColumn, String> {
    let word = word.trim();
    let stored = find_column(word).map(ShownColumn::Stored);
    stored.or_else(|| find_name_column(word).map(ShownColumn::Named)).ok_or_else(|| {
        // The message lists the short names, because users type these.
        let all = flow_columns().iter().map(|column| column.short);
        let all: Vec<_> = all.chain(NAME_COLUMNS.iter().map(|column| column.short)).collect();
        format!("records have no column `{word}`; known columns are {}", all.join(", "))
    })
}
