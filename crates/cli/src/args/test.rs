//! Arguments of `packetrig test`.

use super::{BackEndName, Store};
use clap::{Args, Subcommand};
use packetrig_plan::PortLocation;
use packetrig_units::Nanos;
use std::path::PathBuf;

/// Test methods.
#[derive(Debug, Subcommand)]
pub(crate) enum Test {
    /// Measure the rig itself: its own zero-loss rate, latency floor and send-time error; later runs compare themselves
    Calibrate(Calibrate),
}

#[derive(Args, Debug)]
pub(crate) struct Calibrate {
    /// Interface that sends; without --tx and --rx a virtual cable in a private lab
    #[arg(long, value_name = "IF", requires = "rx")]
    pub(crate) tx: Option<PortLocation>,
    /// Interface that receives, at the other end of a cable
    #[arg(long, value_name = "IF", requires = "tx")]
    pub(crate) rx: Option<PortLocation>,
    /// Ways to send and receive [default: packet, and with the rights for it af-xdp and xdp]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) back_end: Vec<BackEndName>,
    /// Frame sizes, FCS included
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "64,512,1518")]
    pub(crate) size: Vec<u32>,
    /// Length of a trial
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) time: Nanos,
    /// How often a rate must pass
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) repeats: u32,
    /// Yes, this interface may carry test traffic although it looks like part of a real network
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Also write every trial to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) trials: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: Store,
}
