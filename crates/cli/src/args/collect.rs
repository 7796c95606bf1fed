//! Arguments of `packetrig collect`.

use super::quantities::{BytesArg, parse_positive_time};
use clap::Args;
use packetrig_flow::collect::ExporterNetwork;
use packetrig_flow_io::collect::{ListenAddress, RelayTarget};
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig collect --directory records\n  \
    packetrig collect --listen udp://0.0.0.0:4739 --listen udp://0.0.0.0:2055 --directory records --time 1h\n  \
    packetrig collect --listen udp://0.0.0.0:4739 --allow-exporter 192.0.2.7 --allow-exporter 198.51.100.0/24 --directory records\n  \
    packetrig collect --listen tls://0.0.0.0:4740 --cert c.pem --key c.key --client-ca meters.pem --directory records\n  \
    packetrig collect --directory records --keep 100GB --keep-for 720h\n  \
    packetrig collect a.ipfix --directory records --json")]
pub(crate) struct CollectArgs {
    /// Files of IPFIX or SIM messages to read. With files, the collector listens only if --listen is given
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Listen on udp://ADDRESS:PORT, tcp://ADDRESS:PORT or tls://ADDRESS:PORT; repeat
    /// for more [default: udp://127.0.0.1:4739]
    #[arg(short, long, value_name = "PLACE")]
    pub(crate) listen: Vec<ListenAddress>,
    /// Write records to Parquet files in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    // `directory_limits` refuses these limits without --directory, because they would have no effect.
    #[command(flatten)]
    pub(crate) keep: super::FileRetentionArgs,
    #[command(flatten)]
    pub(crate) stores: super::RecordStoreArgs,
    #[command(flatten)]
    pub(crate) alerts: super::AlertArgs,
    /// Forward all received datagrams to another collector, unchanged but with this machine's source
    /// address; repeat for more
    #[arg(long, value_name = "udp://HOST:PORT")]
    pub(crate) relay: Vec<RelayTarget>,
    /// Certificate chain of this collector (PEM), for tls://
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// For tls://, require each exporter to have a certificate of one of these authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Receive buffer of each UDP socket; more than net.core.rmem_max needs CAP_NET_ADMIN
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    pub(crate) receive_buffer: BytesArg,
    // The options from here to `--memory` bound the connections and the memory that senders can make this process use.
    /// Largest number of connections to each listener at one time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_connections: u16,
    /// Largest number of exporters at one time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) max_exporters: u32,
    /// Largest number of exporters at one address; each combination of port, domain and protocol counts as an exporter
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) exporters_per_address: u32,
    /// Read messages only from this address or network and drop others on arrival; repeat for more [default: all]
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) allow_exporter: Vec<ExporterNetwork>,
    /// Memory for everything that is kept for exporters: templates, data that waits for its template, open SIM flows,
    /// flows of meter groups. Templates and data that do not fit are dropped and counted by cause
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) memory: BytesArg,
    /// Lifetime of a UDP template that is not repeated
    // RFC 7011 8.4: over UDP no template is withdrawn, so a collector must give templates a lifetime.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) template_life: Nanos,
    /// Stop after this time; a number alone is seconds [default: when interrupted, or at the end of the files]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) time: Option<Nanos>,
    /// Serve the counters to Prometheus at /metrics on ADDRESS:PORT; a PORT alone listens on 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<super::quantities::ListenArg>,
    /// Print the counters as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not show progress on standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) user: super::UserFlags,
}
