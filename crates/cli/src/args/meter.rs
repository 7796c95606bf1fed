//! Arguments of `packetrig meter`.

use super::meter_group::MeterGroupArgs;
use super::quantities::{BytesArg, ListenArg, parse_positive_number, parse_positive_time};
use clap::{Args, ValueEnum};
use packetrig_flow_io::FlowShareFilter;
use packetrig_plan::recording::ReplaySpeed;
use packetrig_units::Nanos;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags as typed, independent of each other")]
#[command(after_help = "Examples:\n  \
    packetrig meter a.pcapng.zst --top\n  \
    packetrig meter eth1 --export udp://198.18.0.9:4739 --time 60s\n  \
    packetrig meter eth1 --workers 4 --directory flows --metrics 9100\n  \
    packetrig meter eth1 --export tcp://198.18.0.9:4739 --group core --member 1 \
--peer 198.18.0.2 --peer-key group.key\n  \
    packetrig meter eth1 --source headers --export udp://198.18.0.9:4739 --format sim")]
pub(crate) struct MeterArgs {
    /// Interfaces (`eth1` or `NAMESPACE/eth1`), or capture files (pcap or pcapng, also with
    /// zstd), read one after another
    #[arg(value_name = "IF|FILE", required = true)]
    pub(crate) inputs: Vec<String>,
    /// Send records to udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or file:PATH; repeat for more targets
    #[arg(short, long, value_name = "TARGET")]
    pub(crate) export: Vec<String>,
    /// Format of exported records
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "ipfix", requires = "export")]
    pub(crate) format: MeterFormatArg,
    /// With --export, send both directions of a flow in one record (RFC 5103) [default: one record per direction];
    /// files of --directory always have both
    // Bidirectional records need a flow table that joins both directions of a flow, and `--uniflow` forbids that.
    #[arg(long, requires = "export", conflicts_with = "uniflow")]
    pub(crate) biflow: bool,
    /// Meter each direction as a separate flow
    #[arg(long)]
    pub(crate) uniflow: bool,
    /// Memory for records that wait for one slow or dead target; records that do not fit are counted as dropped. With
    /// --group, the same amount again for records that the target may lack after a restart
    #[arg(long, value_name = "SIZE", default_value = "64MiB", requires = "export")]
    pub(crate) queue: BytesArg,
    /// Observation domain ID (IPFIX) or source ID (NetFlow) in exported records
    // RFC 7011 3.1: 0 would mean that the records belong to no single observation domain.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) domain: u32,
    /// Trust these certificates for tls:// (PEM): authorities, or the collector's own
    #[arg(long, value_name = "FILE", requires = "export")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Certificate of this meter (PEM), for a collector that requires one
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Name in the collector's certificate [default: the host of the target]
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    pub(crate) tls_name: Option<String>,
    /// Active timeout: report a continuing flow this often
    #[arg(long, value_name = "TIME", default_value = "300s")]
    pub(crate) active: Nanos,
    /// Idle timeout: a flow without packets for this long has ended
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) idle: Nanos,
    /// Largest number of flows in memory, over all workers. When full, the flow that was
    /// idle longest is reported early
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(16..=1 << 28))]
    pub(crate) flows: u32,
    /// Meter one packet in N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_positive_number::<u32>)]
    pub(crate) sample: u32,
    /// Largest depth of tunnels to decode (GRE, VXLAN, Geneve, GTP-U, IP in IP); 0 meters the outermost packet
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) depth: u8,
    /// Fields that tell flows apart besides addresses, ports and protocol
    #[arg(
        long,
        value_enum,
        value_name = "WHAT,…",
        value_delimiter = ',',
        // Different VLANs and tunnels may use the same private addresses, so these fields are in the key by default.
        default_value = "icmp,vlan,tunnel"
    )]
    pub(crate) key: Vec<FlowKeyPart>,
    /// File with the secret key of flow numbers, 32 hexadecimal digits, that only its owner may read; meters with the
    /// same key give a flow the same number
    #[arg(long, value_name = "FILE")]
    pub(crate) flow_id_key: Option<PathBuf>,
    /// Meter only the K-th of N shares of the flows, and leave the rest to other meters on the same traffic
    #[arg(long, value_name = "K/N")]
    pub(crate) share: Option<FlowShareArg>,
    /// Number of worker threads, each with a ring and a flow table; they share the traffic by flow
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    /// How to read from an interface: packet (works everywhere), xdp (faster) or headers (fastest, parsed in the
    /// driver). With each of them, packets that a card or the kernel has merged count as they were on the wire
    #[arg(long, value_enum, value_name = "NAME", default_value = "packet")]
    pub(crate) source: MeterSourceArg,
    /// At interfaces, read only the first N bytes of each frame
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(64..=9600))]
    pub(crate) snap: u32,
    /// Packets to meter: only arriving ones (in), or also those that this machine sends (both; with --source packet
    /// only) [default: both; in with the other sources]
    #[arg(long, value_enum, value_name = "WHICH", hide_possible_values = true)]
    pub(crate) direction: Option<super::DirectionArg>,
    /// Do not put the interface into promiscuous mode
    #[arg(short = 'p', long)]
    pub(crate) no_promiscuous: bool,
    /// With --source packet: memory of each worker's ring
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) ring: BytesArg,
    /// Read files at this speed: 1x as recorded, 10x [default: as fast as possible]
    #[arg(long, value_name = "FACTOR")]
    pub(crate) pace: Option<ReplaySpeed>,
    /// Also write records to Parquet files in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    // `directory_limits` refuses these limits without --directory, because they would have no effect.
    #[command(flatten)]
    pub(crate) keep: super::FileRetentionArgs,
    #[command(flatten)]
    pub(crate) stores: super::RecordStoreArgs,
    #[command(flatten)]
    pub(crate) alerts: super::AlertArgs,
    /// Stop after this time; a number alone is seconds [default: when interrupted, or at the end of the files]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) time: Option<Nanos>,
    /// Serve the counters to Prometheus at /metrics on ADDRESS:PORT; a PORT alone listens on 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<ListenArg>,
    /// Show rates and the largest flows every second
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    pub(crate) top: bool,
    /// Print the result as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not show progress on standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) of_group: MeterGroupArgs,
    #[command(flatten)]
    pub(crate) user: super::UserFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeterFormatArg {
    /// IPFIX (RFC 7011)
    Ipfix,
    /// NetFlow 9 (RFC 3954)
    V9,
    /// NetFlow 5: IPv4 only
    V5,
    /// One item for every packet and every new flow
    Sim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeterSourceArg {
    Packet,
    Xdp,
    Headers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowKeyPart {
    /// ICMP type and code
    Icmp,
    /// VLAN IDs, outer and inner
    Vlan,
    /// Tunnel type and number (VNI, TEID, key)
    Tunnel,
    /// No field besides addresses, ports and protocol
    None,
}

/// A share of the flows, written `2/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowShareArg(pub(crate) FlowShareFilter);

impl FromStr for FlowShareArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        let share = parts.and_then(|(number, of)| FlowShareFilter::new(number, of));
        share
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a share of the flows; write 2/3 for the second of three"))
    }
}

/// The secret key of flow numbers: 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowIdKey(pub(crate) [u64; 2]);

impl FromStr for FlowIdKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // `from_str_radix` also accepts a sign, so the digits are checked separately.
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        let value = value.ok_or("the flow id key must have 32 hexadecimal digits")?.to_be_bytes();
        let [high, low] =
            [&value[..8], &value[8..]].map(|half| half.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
        Ok(Self([high, low]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_number_is_within_total() {
        assert_eq!("2/3".parse::<FlowShareArg>().unwrap().0, FlowShareFilter::new(2, 3).unwrap());
        for wrong in ["", "2", "0/3", "4/3", "1/0", "a/b", "1/2/3"] {
            assert!(wrong.parse::<FlowShareArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn key_is_parsed_in_two_halves() {
        let key: FlowIdKey = "0123456789abcdef00000000000000ff".parse().unwrap();
        assert_eq!(key.0, [0x0123_4567_89ab_cdef, 0xff]);
        for wrong in ["", "ff", "0123456789abcdef00000000000000fg", "+123456789abcdef00000000000000ff"] {
            assert!(wrong.parse::<FlowIdKey>().is_err(), "{wrong}");
        }
    }
}
