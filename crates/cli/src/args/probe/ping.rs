//! `packetrig probe ping` as typed.

use super::{Asking, ProbeTarget};
use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct Ping {
    /// Addresses or names of targets, which take turns
    #[arg(value_name = "TARGET", required = true)]
    pub(crate) targets: Vec<ProbeTarget>,
    /// Send datagrams to this port, which is closed or echoes, in place of echo requests
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "33434", conflicts_with = "tcp")]
    pub(crate) udp: Option<u16>,
    /// Ask for connections to this port, which are never made, in place of echo requests
    #[arg(long, value_name = "PORT")]
    pub(crate) tcp: Option<u16>,
    #[command(flatten)]
    pub(crate) asking: Asking,
}
