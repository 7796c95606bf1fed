//! Arguments of `packetrig replay`.

use super::quantities::parse_load_rate;
use super::{ExecutionArgs, HostAddressArgs};
use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_plan::recording::{ReplaySpeed, parse_mac};
use packetrig_units::Rate;
use packetrig_wire::foreign::{AddressMap, VlanEdit};
use std::path::PathBuf;
use std::str::FromStr;

/// Send the frames of a capture file.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig replay link.pcapng --tx eth1 --rx eth2\n  \
    packetrig replay link.pcapng --tx eth1 --rate 10kpps --loop 0 --no-tag")]
pub(crate) struct ReplayArgs {
    /// Capture file (pcap or pcapng) of any size
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Interface that sends (`eth1` or `NAMESPACE/eth1`)
    #[arg(long, value_name = "IF")]
    pub(crate) tx: PortLocation,
    /// Interfaces that receive and verify the frames
    #[arg(long, value_name = "IF,…", value_delimiter = ',')]
    pub(crate) rx: Vec<PortLocation>,
    /// Replay speed: 1x as recorded, 2x, 0.5x, or max [default: 1x]
    // `--speed` and `--rate` both set the time between frames.
    #[arg(long, value_name = "FACTOR", conflicts_with = "rate")]
    pub(crate) speed: Option<PaceArg>,
    /// Send evenly at this load instead: 10kpps, 1Gbit/s (layer 2), or 50% (of the link, layer 1); a
    /// number alone is frames/s
    #[arg(long, value_name = "RATE", value_parser = parse_load_rate)]
    pub(crate) rate: Option<Rate>,
    /// Send the file this many times; 0 repeats until interrupted
    #[arg(long = "loop", value_name = "N", default_value_t = 1)]
    pub(crate) loops: u64,
    /// Write the test tag into payloads that have room, so that receivers verify each frame [default: on with --rx]
    // Two switches instead of one, because the default depends on `--rx`.
    #[arg(long, conflicts_with = "no_tag")]
    pub(crate) tag: bool,
    /// Send every frame unchanged, without the test tag
    #[arg(long)]
    pub(crate) no_tag: bool,
    /// Replace the source MAC address of every frame
    #[arg(long, value_name = "MAC")]
    pub(crate) rewrite_src_mac: Option<MacArg>,
    /// Replace the destination MAC address of every frame
    // With a gateway, ARP or neighbour discovery finds the address, so it cannot be set as well.
    #[arg(long, value_name = "MAC", conflicts_with = "gateway")]
    pub(crate) rewrite_dst_mac: Option<MacArg>,
    /// Map source and destination IP addresses from one network to another: 10.0.0.0/8=198.18.0.0/8
    #[arg(long, value_name = "A/LEN=B/LEN,…", value_delimiter = ',')]
    pub(crate) map_ip: Vec<AddressMap>,
    /// Change the outermost VLAN tag: push:ID, set:ID or pop
    #[arg(long, value_name = "CHANGE")]
    pub(crate) vlan: Option<VlanEdit>,
    #[command(flatten)]
    pub(crate) hosts: HostAddressArgs,
    #[command(flatten)]
    pub(crate) execution: ExecutionArgs,
}

/// Speed at which a recording is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PaceArg {
    /// Sends with the recorded gaps, scaled by this factor.
    Recorded(ReplaySpeed),
    /// Sends as fast as the link carries the frames.
    Max,
}

impl FromStr for PaceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("max") { Ok(Self::Max) } else { text.parse().map(Self::Recorded) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MacArg(pub(crate) [u8; 6]);

impl FromStr for MacArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_mac(text)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a MAC address; write it like 02:00:00:00:00:01"))
    }
}
