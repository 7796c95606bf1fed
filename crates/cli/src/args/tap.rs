//! Arguments of `packetrig tap`.

use super::impair::ImpairArgs;
use super::quantities::parse_positive_time;
use super::replay::MacArg;
use clap::{Args, Subcommand, ValueEnum};
use packetrig_plan::PortLocation;
use packetrig_units::Nanos;
use std::path::PathBuf;
use std::str::FromStr;

// With the subcommands `tap status` and `tap stop`, the arguments of `tap A B` are not required.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  \
    packetrig tap eth1 eth2 --mirror eth3 --to 02:00:00:00:00:09\n  \
    packetrig tap eth1 eth2 --capture link.pcapng --snap 96 --filter 'tcp port 443'\n  \
    packetrig tap eth1 eth2 --mirror eth3 --trailer --detach\n  \
    packetrig tap status\n  \
    packetrig tap stop eth1-eth2")]
pub(crate) struct TapArgs {
    #[command(subcommand)]
    pub(crate) action: Option<TapAction>,
    #[command(flatten)]
    pub(crate) begin: BeginTap,
}

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags as typed, independent of each other")]
#[command(group(clap::ArgGroup::new("copies").multiple(true)))]
pub(crate) struct BeginTap {
    /// The first interface of the link (`eth1` or `NAMESPACE/eth1`); frames from one leave at the other
    #[arg(value_name = "IF-A", required = true)]
    pub(crate) a: Option<PortLocation>,
    /// The second interface of the link
    #[arg(value_name = "IF-B", required = true)]
    pub(crate) b: Option<PortLocation>,
    /// Send copies of both directions to this interface, with `=MAC` to the station with that address; repeat for more
    #[arg(short, long, value_name = "IF[=MAC]", group = "copies")]
    pub(crate) mirror: Vec<MirrorArg>,
    /// Destination MAC address of all copies, so that a switch carries them to the logger
    // A copy has the addresses of its original, so a switch would forward it to the original destination.
    #[arg(long, value_name = "MAC", requires = "mirror")]
    pub(crate) to: Option<MacArg>,
    /// Copy only frames that match this tcpdump expression. All frames are forwarded [default: copy all]
    #[arg(long, value_name = "EXPRESSION", requires = "copies")]
    pub(crate) filter: Option<String>,
    /// Copy only the first N bytes of each frame [default: all]
    // A copy is sent as an Ethernet frame, and the shortest one has 60 bytes without FCS.
    #[arg(short, long, value_name = "N", requires = "copies",
        value_parser = clap::value_parser!(u32).range(60..=9600))]
    pub(crate) snap: Option<u32>,
    /// Append a 24-byte trailer to every copy: direction, number, length and arrival time
    #[arg(long, requires = "mirror")]
    pub(crate) trailer: bool,
    /// Write copies of both directions to this pcapng file
    #[arg(short, long, value_name = "FILE", group = "copies")]
    pub(crate) capture: Option<PathBuf>,
    /// Back end that forwards [default: xdp if both interfaces support it, otherwise packet; the first lines
    /// of output say why]
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) back_end: Option<TapBackEndArg>,
    /// Stop forwarding when this process dies [default: with xdp, the kernel keeps forwarding]
    #[arg(long)]
    pub(crate) fail_closed: bool,
    /// Leave the forwarding to the kernel and return; `packetrig tap stop` ends it
    // The conflicting options need a process that lives as long as the tap, and a detached tap has none.
    #[arg(long, conflicts_with_all = ["fail_closed", "capture", "time"])]
    pub(crate) detach: bool,
    /// Do not take one interface down when the other loses its carrier
    #[arg(long)]
    pub(crate) no_link_state: bool,
    /// Name of the tap for `status` and `stop` [default: both interfaces, such as eth1-eth2]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Confirm that this interface may carry the link's traffic although it looks like part of a real network
    #[arg(long, value_name = "IF,…", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Stop after this time; a number alone is seconds [default: when interrupted]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) time: Option<Nanos>,
    /// Serve the counters to Prometheus at /metrics on ADDRESS:PORT; a PORT alone listens on 127.0.0.1
    #[arg(long, value_name = "ADDRESS", conflicts_with = "detach")]
    pub(crate) metrics: Option<super::quantities::ListenArg>,
    /// Print the result as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not show progress on standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) impair: ImpairArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TapAction {
    /// Show the taps of this machine and their counters, including taps whose process has died
    #[command(after_help = "Example:\n  packetrig tap status --json")]
    Status(NamedTap),
    /// Stop a tap, restore its interfaces and account for every frame
    #[command(after_help = "Example:\n  packetrig tap stop eth1-eth2")]
    Stop(NamedTap),
}

#[derive(Args, Debug)]
pub(crate) struct NamedTap {
    /// Name of the tap; not needed if there is only one
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The back ends that can forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TapBackEndArg {
    /// BPF programs in the kernel: fast, and keeps forwarding when the process dies
    Xdp,
    /// This process, with AF_PACKET rings: works on every kernel and every card
    Packet,
}

/// A mirror as typed: an interface and, optionally, the MAC address of a station behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MirrorArg {
    pub(crate) at: PortLocation,
    pub(crate) to: Option<[u8; 6]>,
}

impl FromStr for MirrorArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((at, to)) = text.split_once('=') else { return Ok(Self { at: text.parse()?, to: None }) };
        let to = to.parse::<MacArg>()?.0;
        Ok(Self { at: at.parse()?, to: Some(to) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_may_have_a_station() {
        let mirror: MirrorArg = "ns/eth3=02:00:00:00:00:09".parse().unwrap();
        assert_eq!((mirror.at.to_string().as_str(), mirror.to), ("ns/eth3", Some([2, 0, 0, 0, 0, 9])));
        assert_eq!("eth3".parse::<MirrorArg>().unwrap().to, None);
        assert!("eth3=nobody".parse::<MirrorArg>().is_err());
    }
}
