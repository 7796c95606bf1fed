//! The arguments of `packetrig probe stamp` and `packetrig probe reflect`.

use super::{PermittedTargetArgs, ProbeSeriesArgs, ProbeTargetWithPort};
use clap::Args;
use packetrig_program::quantities::parse_positive_time;
use packetrig_units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    packetrig probe stamp 192.0.2.1 --allow 192.0.2.0/24 --count 100 --interval 100ms")]
pub struct StampArgs {
    /// Address or name of a reflector, with its port if that is not 862
    #[arg(value_name = "TARGET", value_parser = parse_named_target)]
    pub target: ProbeTargetWithPort,
    #[command(flatten)]
    pub asking: ProbeSeriesArgs,
    #[command(flatten)]
    pub session: SessionFlags,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Session with a reflector")]
pub struct SessionFlags {
    /// Use authenticated mode with the key in this file: hexadecimal, at least 16 bytes
    #[arg(long, value_name = "KEYFILE")]
    pub auth: Option<PathBuf>,
    /// State that this machine's clock follows UTC within this bound; needed for one-way delays
    #[arg(long, value_name = "TIME")]
    pub clock_bound: Option<Nanos>,
    /// Write timestamps in NTP format [default: PTP format]
    #[arg(long)]
    pub ntp: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig probe reflect 192.0.2.1:862 --allow 192.0.2.0/24")]
pub struct ReflectArgs {
    /// Address to listen on and to answer from, with its port if that is not 862
    // The default is loopback: a reflector answers other machines only after its user has named one of its
    // addresses.
    #[arg(value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1:862", value_parser = parse_reflector_address)]
    pub address: SocketAddr,
    /// Listen in this network namespace
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
    /// Use authenticated mode with the key in this file: hexadecimal, at least 16 bytes
    #[arg(long, value_name = "KEYFILE")]
    pub auth: Option<PathBuf>,
    /// Do not count requests per sender; senders then see only the loss of both directions together
    #[arg(long)]
    pub stateless: bool,
    /// State that this machine's clock follows UTC within this bound; the reflector reports the bound to senders
    #[arg(long, value_name = "TIME")]
    pub clock_bound: Option<Nanos>,
    /// Minimum mean time between two reflections to the same address
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    pub min_interval: Nanos,
    /// Reflect up to this many packets from one address in a burst; must be at least the longest train
    /// that a sender uses
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Stop after this time; a number alone is seconds [default: when interrupted]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub time: Option<Nanos>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub bounds: PermittedTargetArgs,
    #[command(flatten)]
    pub user: packetrig_program::sandbox::UserFlags,
}

fn parse_named_target(text: &str) -> Result<ProbeTargetWithPort, String> {
    ProbeTargetWithPort::parse_with_port(text, packetrig_probe::session::STAMP_PORT)
}

/// Parses the address of a reflector. A host name is refused, because `probe oneway` also accepts the name of
/// an interface at this place.
pub(super) fn parse_reflector_address(text: &str) -> Result<SocketAddr, String> {
    let without_port = text.parse().map(|ip| SocketAddr::new(ip, packetrig_probe::session::STAMP_PORT));
    text.parse().or(without_port).map_err(|_| {
        format!(
            "`{text}` is not the address of a reflector; write 192.0.2.1, 192.0.2.1:862 or [2001:db8::1]:862"
        )
    })
}
