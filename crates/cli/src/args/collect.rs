//! `packetrig collect` as typed.

use super::quantities::Bytes;
use clap::Args;
use packetrig_flow::collect::ExporterNetwork;
use packetrig_meter::collect::Listen;
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig collect --directory records\n  \
    packetrig collect --listen udp://0.0.0.0:4739 --listen udp://0.0.0.0:2055 --directory records --time 1h\n  \
    packetrig collect --listen udp://0.0.0.0:4739 --exporter 192.0.2.7 --exporter 198.51.100.0/24 --directory records\n  \
    packetrig collect --listen tls://0.0.0.0:4740 --cert c.pem --key c.key --client-ca meters.pem --directory records\n  \
    packetrig collect a.ipfix --directory records --json")]
pub(crate) struct Collect {
    /// Files of IPFIX or SIM messages to read; with files, nothing is listened to unless --listen says so
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Where to listen: udp://ADDRESS:PORT, tcp://ADDRESS:PORT or tls://ADDRESS:PORT; may be given several times
    /// [default: udp://127.0.0.1:4739]
    #[arg(short, long, value_name = "PLACE", verbatim_doc_comment)]
    pub(crate) listen: Vec<Listen>,
    /// Write records to Parquet files in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Send records to a topic: BROKER/TOPIC, or BROKER:PORT,BROKER:PORT/TOPIC
    #[arg(long, value_name = "TOPIC")]
    pub(crate) kafka: Option<String>,
    /// Send records to a table: HOST/TABLE, or in full USER@HOST:PORT/DATABASE.TABLE
    #[arg(long, value_name = "TABLE")]
    pub(crate) clickhouse: Option<String>,
    /// Read the password of the ClickHouse user from the first line of this file [default: the file that
    /// PACKETRIG_CLICKHOUSE_PASSWORD_FILE names]
    #[arg(long, value_name = "FILE", requires = "clickhouse", verbatim_doc_comment)]
    pub(crate) clickhouse_password_file: Option<PathBuf>,
    /// Certificate chain of this collector (PEM), for tls://
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Ask exporters for certificates of these authorities (PEM), on tls://
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Room of each UDP socket; more than net.core.rmem_max needs CAP_NET_ADMIN
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    pub(crate) room: Bytes,
    /// Connections of each listener at one time, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) connections: u16,
    /// Exporters known at one time, at most
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) exporters: u32,
    /// Exporters of one address at one time, at most: ports, domains and protocols make several of one sender
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) exporters_per_address: u32,
    /// Read messages of this address or network only, and drop others before anything is kept of them; may be given several
    /// times [default: anybody]
    #[arg(long, value_name = "ADDRESS/BITS", verbatim_doc_comment)]
    pub(crate) exporter: Vec<ExporterNetwork>,
    /// Memory for all that exporters make this collector hold: templates, data without a template, open flows of SIM; what
    /// is given up for want of room is counted by cause
    #[arg(long, value_name = "SIZE", default_value = "256MiB", verbatim_doc_comment)]
    pub(crate) memory: Bytes,
    /// How long a template is good over UDP that is not repeated
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) template_life: Nanos,
    /// End after this time
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<Nanos>,
    /// Serve the ledger to Prometheus at /metrics: ADDRESS:PORT, or a port of 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<super::meter::Listen>,
    /// Print the ledger as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) user: super::UserFlags,
}
