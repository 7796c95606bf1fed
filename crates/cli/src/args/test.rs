//! Arguments of `packetrig test`.

use super::method::{
    BisectArgs, CompareArgs, ConvergenceArgs, LossShareArgs, MlrsearchArgs, ResumeArgs, Rfc2544Args,
};
use super::quantities::{parse_positive_number, parse_positive_time};
use super::{BackEndName, StoreArgs};
use clap::{Args, Subcommand};
use packetrig_plan::PortLocation;
use packetrig_units::Nanos;
use std::path::PathBuf;

/// Run a test method.
#[derive(Debug, Subcommand)]
pub(crate) enum TestCommand {
    Rfc2544(Box<Rfc2544Args>),
    Mlrsearch(Box<MlrsearchArgs>),
    Bisect(Box<BisectArgs>),
    Convergence(Box<ConvergenceArgs>),
    Compare(Box<CompareArgs>),
    LossShare(Box<LossShareArgs>),
    Resume(ResumeArgs),
    /// Measure the limits of the rig itself: rate without loss, latency floor and timing error
    Calibrate(CalibrateArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig test calibrate\n  \
    packetrig test calibrate --tx eth1 --rx eth2 --size 64,1518 --time 5s")]
pub(crate) struct CalibrateArgs {
    /// Interface that sends [default: a virtual cable in a private lab]
    #[arg(long, value_name = "IF", requires = "rx")]
    pub(crate) tx: Option<PortLocation>,
    /// Interface that receives, at the other end of the cable
    #[arg(long, value_name = "IF", requires = "tx")]
    pub(crate) rx: Option<PortLocation>,
    /// Back ends to calibrate [default: packet; with enough rights also af-xdp and xdp]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) back_end: Vec<BackEndName>,
    /// Frame sizes in bytes, FCS included
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "64,512,1518",
        value_parser = clap::value_parser!(u32).range(64..=16_383))]
    pub(crate) size: Vec<u32>,
    /// Duration of one trial; a number alone is seconds
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_positive_time)]
    pub(crate) time: Nanos,
    /// Number of trials that a rate must pass
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = parse_positive_number::<u32>)]
    pub(crate) repeats: u32,
    /// Confirm that this interface may carry test traffic although it looks like part of a real network
    #[arg(long, value_name = "IF,…", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Also write every trial to this CSV file
    #[arg(long, value_name = "FILE")]
    pub(crate) trials: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
