//! The options that control how probes are released on time.

use clap::Args;
use packetrig_probe::ReleaseMechanism;
use packetrig_units::Nanos;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Release")]
pub struct ReleaseFlags {
    /// How probes are released on time: by timers (sleep, spin), whole trains at once (ring), by BPF programs (gate,
    /// live), by queueing disciplines (fq, etf, launch), or auto (chosen by calibration)
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub mechanism: MechanismArg,
    /// Hand probes to the kernel this long before they are due; gate and live allow 950us at most [default: 500us]
    #[arg(long, value_name = "TIME")]
    pub ahead: Option<Nanos>,
    /// Timer slack: how late the kernel may wake the sender [default: 1ns; 50us with sleep, as in most programs]
    #[arg(long, value_name = "TIME")]
    pub slack: Option<Nanos>,
    /// Real-time priority of the sender, 0 for none [default: 50; 0 with sleep]
    // sched(7): real-time priorities are 1 to 99. The value 0 means that the sender is an ordinary thread.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=99))]
    pub priority: Option<i32>,
    /// Run the sender only on this CPU
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Switch from sleeping to spinning this long before the deadline [default: 120us]
    #[arg(long, value_name = "TIME")]
    pub spin_from: Option<Nanos>,
    /// Do not warm up the CPU caches over the loopback interface; the first probe after a pause
    /// is then about 20us late
    #[arg(long)]
    pub no_warm_up: bool,
    /// Mark probes that leave earlier or later than planned by more than this [default: 50us]
    #[arg(long, value_name = "TIME")]
    pub tolerance: Option<Nanos>,
    /// Do not request departure timestamps, which cost time for each probe
    #[arg(long)]
    pub no_stamps: bool,
}

/// A named release mechanism, or `auto`: packetrig then chooses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MechanismArg {
    Auto,
    Only(ReleaseMechanism),
}

impl std::str::FromStr for MechanismArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Only).map_err(|error: String| format!("{error}, or auto"))
    }
}
