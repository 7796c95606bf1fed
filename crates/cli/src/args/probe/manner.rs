//! How probes are held back until their instants, as typed.

use clap::Args;
use packetrig_probe::ReleaseMechanism;
use packetrig_units::Nanos;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Release")]
pub(crate) struct MannerFlags {
    /// Who lets a probe go at its instant: sleep, spin, ring, gate, live, fq, etf, launch, or auto, which goes by calibration
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) mechanism: Wish,
    /// Hand probes to the kernel so long before their instants (gate and live: 950us at most) [default: 500us]
    #[arg(long, value_name = "TIME")]
    pub(crate) ahead: Option<Nanos>,
    /// How much later than asked the kernel may wake the sender [default: 1ns; of sleep 50us, as most programs have it]
    #[arg(long, value_name = "TIME")]
    pub(crate) slack: Option<Nanos>,
    /// Real-time priority of the sender; 0: ordinary [default: 50; of sleep 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=99))]
    pub(crate) priority: Option<i32>,
    /// Keep the sender on this processor
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Stop sleeping so long before an instant and spin to it [default: 120us]
    #[arg(long, value_name = "TIME")]
    pub(crate) spin_from: Option<Nanos>,
    /// Send nothing over the loopback interface before an instant: the first probe after a pause is then some 20us late
    #[arg(long)]
    pub(crate) no_warm_up: bool,
    /// Flag probes that are later or earlier than this [default: 50us]
    #[arg(long, value_name = "TIME")]
    pub(crate) tolerance: Option<Nanos>,
    /// Do not ask for stamps of departure, which cost time for each probe
    #[arg(long)]
    pub(crate) no_stamps: bool,
}

/// A mechanism, or whichever suits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Whichever suits.
    Auto,
    /// This one.
    Only(ReleaseMechanism),
}

impl std::str::FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Only) }
    }
}
