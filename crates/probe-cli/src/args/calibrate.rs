//! The arguments of `packetrig probe calibrate`.

use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_probe::ReleaseMechanism;
use packetrig_units::Nanos;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig probe calibrate\n  \
    packetrig probe calibrate eth1 eth2 --mechanism spin gate")]
pub struct CalibrateProbes {
    /// Two connected interfaces of this machine, the sending one first [default: a veth pair created for the test]
    #[arg(value_name = "IF", num_args = 2)]
    pub interfaces: Vec<PortLocation>,
    /// Number of probes for each mechanism
    // A calibration sends trains of 50 probes, so the smallest number is one train.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(50..=1_000_000))]
    pub count: u32,
    /// Time between two probes
    #[arg(long, value_name = "TIME", default_value = "200us")]
    pub gap: Nanos,
    /// Calibrate only these mechanisms (`packetrig probe caps` lists them) [default: all that work here]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub mechanism: Vec<ReleaseMechanism>,
    /// Write the calibration to this file. `--mechanism auto` reads only
    /// the default file, $XDG_DATA_HOME/packetrig/probe.json
    #[arg(long, value_name = "FILE")]
    pub write: Option<std::path::PathBuf>,
    /// Confirm that this interface may carry probes although it looks like part of a real network
    #[arg(long, value_name = "IF,…", value_delimiter = ',')]
    pub confirm: Vec<PortLocation>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
