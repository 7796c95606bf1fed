//! `packetrig probe stamp` and `packetrig probe reflect` as typed.

use super::{Asking, Bounds, ProbeTargetPort};
use clap::Args;
use packetrig_units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct Stamp {
    /// Address or name of a reflector, with a port if it is not 862
    #[arg(value_name = "TARGET", value_parser = named_target)]
    pub(crate) target: ProbeTargetPort,
    #[command(flatten)]
    pub(crate) asking: Asking,
    #[command(flatten)]
    pub(crate) session: SessionFlags,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Session with a reflector")]
pub(crate) struct SessionFlags {
    /// Authenticated mode, with the key in this file: hexadecimal digits, 16 bytes or more
    #[arg(long, value_name = "KEYFILE")]
    pub(crate) auth: Option<PathBuf>,
    /// This machine's clock is set by a source of UTC and at most so much off: for one-way delays
    #[arg(long, value_name = "TIME")]
    pub(crate) clock_bound: Option<Nanos>,
    /// Write times as NTP does [default: as PTP does]
    #[arg(long)]
    pub(crate) ntp: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Reflect {
    /// Where to listen: one address, which reflections leave from
    #[arg(value_name = "ADDRESS:PORT", default_value = "127.0.0.1:862")]
    pub(crate) address: SocketAddr,
    /// Listen in this network namespace
    #[arg(long, value_name = "NAME")]
    pub(crate) netns: Option<String>,
    /// Authenticated mode, with the key in this file: hexadecimal digits, 16 bytes or more
    #[arg(long, value_name = "KEYFILE")]
    pub(crate) auth: Option<PathBuf>,
    /// Send back the numbers of requests and keep no count: loss is then known for both directions together only
    #[arg(long)]
    pub(crate) stateless: bool,
    /// This machine's clock is set by a source of UTC and at most so much off, which is told to senders
    #[arg(long, value_name = "TIME")]
    pub(crate) clock_bound: Option<Nanos>,
    /// Reflect what an address sends no more often than this on average
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    pub(crate) interval: Nanos,
    /// Reflect so many of an address at once: at least the longest train that is to be sent here
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) burst: u32,
    /// End after so long [default: when interrupted]
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<Nanos>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    #[command(flatten)]
    pub(crate) user: crate::args::UserFlags,
}

fn named_target(text: &str) -> Result<ProbeTargetPort, String> {
    ProbeTargetPort::parse(text, packetrig_probe::session::PORT)
}

/// The address of a reflector, which cannot be a name where the name of an interface can stand, too.
pub(super) fn target(text: &str) -> Result<SocketAddr, String> {
    let plain = || text.parse().map(|ip| SocketAddr::new(ip, packetrig_probe::session::PORT));
    text.parse().or_else(|_| plain()).map_err(|_| {
        format!("`{text}` is no address of a reflector; write 192.0.2.1, 192.0.2.1:862 or [2001:db8::1]:862")
    })
}
