//! The arguments of `packetrig probe ping`.

use super::{ProbeSeriesArgs, ProbeTarget};
use clap::Args;
use packetrig_program::quantities::parse_port;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig probe ping 192.0.2.1 192.0.2.2 --allow 192.0.2.0/24 --count 10\n  \
    packetrig probe ping 192.0.2.1 --allow 192.0.2.0/24 --tcp 443 --write pings.jsonl")]
pub struct PingArgs {
    /// Addresses or names of the targets; they take turns
    #[arg(value_name = "TARGET", required = true)]
    pub targets: Vec<ProbeTarget>,
    /// Send UDP datagrams to this port, closed or an echo service, instead of echo requests (33434 if no port is given)
    // traceroute starts at port 33434, so hardly any program listens there.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "33434", conflicts_with = "tcp",
        value_parser = parse_port)]
    pub udp: Option<u16>,
    /// Send TCP SYNs to this port instead of echo requests; no connection is completed
    #[arg(long, value_name = "PORT", value_parser = parse_port)]
    pub tcp: Option<u16>,
    #[command(flatten)]
    pub asking: ProbeSeriesArgs,
}
