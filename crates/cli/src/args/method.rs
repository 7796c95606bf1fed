//! Arguments of the test methods: the common arguments, and the arguments of each method.

use super::quantities::{
    parse_load_rate, parse_positive_number, parse_positive_time, parse_time_with_unit, parse_vlan_id,
};
use super::{
    BackEndName, FleetPlace, HostArgs, PageFlags, PatternArg, PercentArg, PortText, SizeArg, StoreArgs,
};
use clap::{Args, ValueEnum};
use packetrig_method::mlrsearch::SearchGoal;
use packetrig_plan::PortLocation;
use packetrig_units::{BitRate, FrameSize, Nanos, Rate};
use std::path::PathBuf;

/// Arguments for the traffic of a test method, and for the ports that carry it.
// The user gives either a plan or `--tx`, never both: a plan names its ports itself.
#[derive(Args, Clone, Debug)]
#[command(group(clap::ArgGroup::new("traffic").args(["plan", "tx"]).required(true)))]
pub(crate) struct MethodTraffic {
    /// OTG document (YAML or JSON). Its flows share each load of the method in proportion to their rates
    #[arg(value_name = "PLAN", conflicts_with_all = ["HostAddressArgs", "dst_mac", "both_ways"])]
    pub(crate) plan: Option<PathBuf>,
    /// Interfaces that send, written as for `packetrig run`
    #[arg(long, value_name = "IF,…", value_delimiter = ',', conflicts_with = "plan", requires = "rx")]
    pub(crate) tx: Vec<PortText>,
    /// Interfaces that receive
    #[arg(long, value_name = "IF,…", value_delimiter = ',', conflicts_with = "plan", requires = "tx")]
    pub(crate) rx: Vec<PortText>,
    /// Which senders send to which receivers [default: each sender to all receivers]
    #[arg(long, value_name = "PATTERN", requires = "tx", conflicts_with = "plan")]
    pub(crate) pattern: Option<PatternArg>,
    /// Number of streams that share the load of each sender [default: 1]
    #[arg(long, value_name = "N", requires = "tx", conflicts_with = "plan",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) streams: Option<u32>,
    /// Tag frames with this VLAN ID, 1 to 4094
    #[arg(long, value_name = "ID", requires = "tx", conflicts_with = "plan", value_parser = parse_vlan_id)]
    pub(crate) vlan: Option<u16>,
    /// Send IPv6 instead of IPv4
    #[arg(long, requires = "tx", conflicts_with = "plan")]
    pub(crate) ipv6: bool,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Speed of the link of each sender, such as 1Gbit/s [default: what its driver reports]
    #[arg(long, value_name = "RATE", value_parser = parse_link_speed)]
    pub(crate) link: Option<BitRate>,
    /// Highest load of each sender: 500Mbit/s (layer 2), 200kpps, or 50% (of the link, layer 1). The rates of a plan
    /// are a limit, too [default: the rates of the plan, or what the link carries]
    #[arg(long, value_name = "RATE", value_parser = parse_load_rate)]
    pub(crate) max_rate: Option<Rate>,
}

/// The frames that a method sends.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MethodFrames {
    /// Frame size in bytes, FCS included: 64, a range 64..1518, or imix [default: 128, or the sizes of the plan]
    #[arg(long, value_name = "SIZE", conflicts_with = "plan")]
    pub(crate) size: Option<SizeArg>,
}

/// Options of a method's execution and of its results.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch the user may set, not a state")]
pub(crate) struct MethodRunOptions {
    /// Print the trials that the method would run and the time that they take, and stop
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Name of the test in the catalogue
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Also write the files of the test to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) page: PageFlags,
    /// Confirm that this interface may carry test traffic although it looks like part of a real network
    #[arg(long, value_name = "IF,…", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Use this back end instead of choosing one: packet, xdp or af-xdp [default: chosen for each trial by
    /// calibration, load and rights]
    #[arg(long, value_name = "NAME")]
    pub(crate) back_end: Option<BackEndName>,
    #[command(flatten)]
    pub(crate) fleet: FleetPlace,
    /// On a fleet: wait until other runs have released the nodes [default: refuse the test]
    #[arg(long)]
    pub(crate) wait_for_nodes: bool,
    /// Print the result as JSON instead of tables
    // At most one of the four formats is possible, because standard output gets one document.
    #[arg(long, group = "form")]
    pub(crate) json: bool,
    /// Print the tables as CSV
    #[arg(long, group = "form")]
    pub(crate) csv: bool,
    /// Print the verdict as JUnit XML
    #[arg(long, group = "form")]
    pub(crate) junit: bool,
    /// Print the tables as Markdown
    #[arg(long, group = "form")]
    pub(crate) markdown: bool,
    /// Do not show progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Show the trials as `packetrig watch` does, until the test ends or `q` is pressed
    #[arg(long, conflicts_with_all = ["quiet", "form"])]
    pub(crate) watch: bool,
}

/// Benchmark a device as RFC 2544 and RFC 9004 describe: throughput, latency, frame loss, bursts
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig test rfc2544 --tx eth1 --rx eth2 --dry-run\n  \
    packetrig test rfc2544 --tx eth1 --rx eth2 --quick --only throughput --size 64,1518\n  \
    packetrig test rfc2544 --tx eth1 --rx eth2 --quick --min-throughput 90%")]
pub(crate) struct Rfc2544Args {
    #[command(flatten)]
    pub(crate) traffic: MethodTraffic,
    /// Frame sizes in bytes, FCS included [default: 64,128,256,512,1024,1280,1518, without sizes that have no room for
    /// the headers and the test tag]
    // The default sizes are those of RFC 2544, 9.1, for Ethernet.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = parse_single_size)]
    pub(crate) size: Vec<FrameSize>,
    /// Tests to run [default: throughput, latency, frame-loss and back-to-back]
    #[arg(long, value_name = "TEST,…", value_delimiter = ',')]
    pub(crate) only: Vec<Rfc2544TestName>,
    /// Run short trials of 1 to 2 seconds, for a first look; the RFC requires longer ones
    #[arg(long)]
    pub(crate) quick: bool,
    /// Duration of the trials that confirm the throughput [default: 60s, with --quick 2s]
    // RFC 2544, 24: the final trial lasts at least 60 seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) trial_time: Option<Nanos>,
    /// Resolution of the search for the throughput, in percent of the highest load [default: 0.1%, with --quick 1%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) resolution: Option<PercentArg>,
    /// Number of trials that measure latency, for each size [default: 20, with --quick 5]
    // RFC 2544, 26.2: the latency is the mean of at least 20 trials.
    #[arg(long, value_name = "N", value_parser = parse_positive_number::<u32>)]
    pub(crate) latency_trials: Option<u32>,
    /// Number of searches for the longest burst, for each size [default: 50, with --quick 3]
    // RFC 2544, 26.4: the burst length is the mean of at least 50 trials.
    #[arg(long, value_name = "N", value_parser = parse_positive_number::<u32>)]
    pub(crate) burst_searches: Option<u32>,
    /// Longest burst to try, as the time that it takes at the highest load [default: 30s, with --quick 2s]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) longest_burst: Option<Nanos>,
    /// Report latency from the last bit in to the first bit out, for devices that store frames before they forward them
    // RFC 1242, 3.8, defines both latencies. Which one is meant depends on the device, so the user must say.
    #[arg(long)]
    pub(crate) store_and_forward: bool,
    /// Shell command that resets the device; for the test `reset`
    #[arg(long, value_name = "COMMAND")]
    pub(crate) reset_command: Option<String>,
    /// Lowest throughput that passes, in frames/s of each sender or in percent of the line: `90%`, or
    /// `64=500kpps` for one size
    #[arg(long, value_name = "[SIZE=]RATE,…", value_delimiter = ',')]
    pub(crate) min_throughput: Vec<ThroughputBound>,
    /// Longest mean latency that passes
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_latency: Option<Nanos>,
    /// Longest recovery from overload that passes
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_recovery: Option<Nanos>,
    /// Longest reset that passes
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_reset: Option<Nanos>,
    #[command(flatten)]
    pub(crate) terms: MethodRunOptions,
}

/// The tests of RFC 2544, section 26.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rfc2544TestName {
    /// Highest rate without loss
    Throughput,
    /// Latency at the throughput
    Latency,
    /// Loss at rates from the highest down
    FrameLoss,
    /// Longest burst without loss (RFC 9004)
    BackToBack,
    /// Time to recover from overload
    Recovery,
    /// Time to recover from a reset
    Reset,
}

/// The lowest throughput that passes, for one frame size or for all sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ThroughputBound {
    pub(crate) size: Option<FrameSize>,
    pub(crate) rate: Rate,
}

impl std::str::FromStr for ThroughputBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, rate) = match text.split_once('=') {
            Some((size, rate)) => (Some(parse_single_size(size)?), rate),
            None => (None, text),
        };
        Ok(Self { size, rate: parse_load_rate(rate)? })
    }
}

/// Search the highest load for several loss goals at once, with MLRsearch (RFC 9971)
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig test mlrsearch --tx eth1 --rx eth2\n  \
    packetrig test mlrsearch --tx eth1 --rx eth2 --size imix --goal ndr --goal loss=0.5%,duration=1s,sum=21s,exceed=50%\n  \
    packetrig test mlrsearch plan.yaml --goal rfc2544")]
pub(crate) struct MlrsearchArgs {
    #[command(flatten)]
    pub(crate) traffic: MethodTraffic,
    #[command(flatten)]
    pub(crate) frames: MethodFrames,
    /// A goal: ndr, pdr, rfc2544, tst009, or `loss=0.1%,duration=1s,sum=21s,exceed=50%,width=0.5%,initial=1s`; may be
    /// given several times [default: ndr and pdr]
    #[arg(long, value_name = "GOAL")]
    pub(crate) goal: Vec<SearchGoal>,
    /// Lowest load of each sender [default: a thousandth of the highest]
    #[arg(long, value_name = "RATE", value_parser = parse_load_rate)]
    pub(crate) min_rate: Option<Rate>,
    /// Lowest conditional throughput that passes, for every goal
    #[arg(long, value_name = "RATE", value_parser = parse_load_rate)]
    pub(crate) min_throughput: Option<Rate>,
    #[command(flatten)]
    pub(crate) terms: MethodRunOptions,
}

/// Search the highest load by bisection, with loss verification (ETSI TST 009)
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig test bisect --tx eth1 --rx eth2 --time 10s\n  \
    packetrig test bisect plan.yaml --accept-loss 0.1% --min-throughput 80%")]
pub(crate) struct BisectArgs {
    #[command(flatten)]
    pub(crate) traffic: MethodTraffic,
    #[command(flatten)]
    pub(crate) frames: MethodFrames,
    /// Duration of each trial
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_positive_time)]
    pub(crate) time: Nanos,
    /// Largest share of lost frames with which a load passes
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    pub(crate) accept_loss: PercentArg,
    /// Number of failed trials after which a load counts as too high; 1 is plain bisection
    // TST 009: with loss verification, a load that failed is tried again, because a loss may be transient.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = parse_positive_number::<u32>)]
    pub(crate) tries: u32,
    /// Loss beyond which a load is not tried again [default: none]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) give_up_at: Option<PercentArg>,
    /// Resolution of the search, in percent of the highest load
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    pub(crate) resolution: PercentArg,
    /// Lowest throughput that passes
    #[arg(long, value_name = "RATE", value_parser = parse_load_rate)]
    pub(crate) min_throughput: Option<Rate>,
    #[command(flatten)]
    pub(crate) terms: MethodRunOptions,
}

/// Measure the loss of connectivity while a link or a route changes (RFC 6413)
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig test convergence --tx eth1 --rx eth2 --rate 10kpps --event 'ip -n dut link set eth3 down'\n  \
    packetrig test convergence plan.yaml --event ./cut.sh --undo ./mend.sh --repetitions 5 --max-outage 50ms")]
pub(crate) struct ConvergenceArgs {
    #[command(flatten)]
    pub(crate) traffic: MethodTraffic,
    #[command(flatten)]
    pub(crate) frames: MethodFrames,
    /// Load of each sender; the outage of a stream is measured with a resolution of one frame interval [default:
    /// 10kpps, or the rates of the plan]
    #[arg(long, value_name = "RATE", value_parser = parse_load_rate, conflicts_with = "plan")]
    pub(crate) rate: Option<Rate>,
    /// Shell command that causes the change
    // The argument is a shell command, so that several steps need no script file.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) event: String,
    /// Time from the first frame to the start of the command
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_positive_time)]
    pub(crate) event_at: Nanos,
    /// Shell command that undoes the change before the next repetition
    #[arg(long, value_name = "COMMAND")]
    pub(crate) undo: Option<String>,
    /// Duration of each repetition
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_positive_time)]
    pub(crate) time: Nanos,
    /// Number of repetitions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_positive_number::<u32>)]
    pub(crate) repetitions: u32,
    /// Longest loss of connectivity that passes, for every stream
    #[arg(long, value_name = "TIME", value_parser = parse_time_with_unit)]
    pub(crate) max_outage: Option<Nanos>,
    #[command(flatten)]
    pub(crate) terms: MethodRunOptions,
}

/// Compare two devices, or one before and after a change, with interleaved trials
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig test compare --tx eth1 --rx eth2 --tx-b eth3 --rx-b eth4 --rate 500kpps --time 5s\n  \
    packetrig test compare plan.yaml --set-a 'sysctl -w net.core.busy_poll=0' --set-b 'sysctl -w net.core.busy_poll=50'")]
// A and B must differ in something: the plan, the ports, or a command that changes the device.
#[command(group(clap::ArgGroup::new("second").args(["plan_b", "tx_b", "set_b"]).required(true)))]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) traffic: MethodTraffic,
    /// OTG document for device B
    #[arg(long, value_name = "PLAN", requires = "plan")]
    pub(crate) plan_b: Option<PathBuf>,
    /// Interfaces that send to device B
    #[arg(long, value_name = "IF,…", value_delimiter = ',', requires = "rx_b", conflicts_with = "plan")]
    pub(crate) tx_b: Vec<PortText>,
    /// Interfaces that receive from device B
    #[arg(long, value_name = "IF,…", value_delimiter = ',', requires = "tx_b", conflicts_with = "plan")]
    pub(crate) rx_b: Vec<PortText>,
    /// Shell command to run before each trial of A
    #[arg(long, value_name = "COMMAND", requires = "set_b")]
    pub(crate) set_a: Option<String>,
    /// Shell command to run before each trial of B, which makes the change
    #[arg(long, value_name = "COMMAND", requires = "set_a")]
    pub(crate) set_b: Option<String>,
    #[command(flatten)]
    pub(crate) frames: MethodFrames,
    /// Load of each sender [default: 1kpps, or the rates of the plan]
    #[arg(long, value_name = "RATE", value_parser = parse_load_rate, conflicts_with = "plan")]
    pub(crate) rate: Option<Rate>,
    /// Duration of each trial
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_positive_time)]
    pub(crate) time: Nanos,
    /// Number of pairs of trials, one of A and one of B; --max-worse needs at least 5 pairs whose
    /// trials the rig sustains
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = parse_positive_number::<u32>)]
    pub(crate) pairs: u32,
    /// Largest degradation of B compared with A that passes, in percent of A: in loss, latency and rate [default: any]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_worse: Option<PercentArg>,
    #[command(flatten)]
    pub(crate) terms: MethodRunOptions,
}

/// Measure in which share of runs any frame is lost, at several rates
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig test loss-share --tx eth1 --rx eth2 --rates 100kpps,200kpps,400kpps\n  \
    packetrig test loss-share --tx eth1 --rx eth2 --rates 10%,20%,50%,100% --packets 100000 --repetitions 30")]
pub(crate) struct LossShareArgs {
    #[command(flatten)]
    pub(crate) traffic: MethodTraffic,
    #[command(flatten)]
    pub(crate) frames: MethodFrames,
    /// Loads of each sender
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', required = true, value_parser = parse_load_rate)]
    pub(crate) rates: Vec<Rate>,
    /// Packets of each run
    // With a million packets, a single run can show a loss of one frame in a million.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = parse_positive_number::<u64>)]
    pub(crate) packets: u64,
    /// Number of runs at each rate
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = parse_positive_number::<u32>)]
    pub(crate) repetitions: u32,
    #[command(flatten)]
    pub(crate) terms: MethodRunOptions,
}

/// Resume an interrupted test, and keep the trials that it has completed
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  packetrig test resume\n  packetrig test resume 20261126-0102 --json")]
pub(crate) struct ResumeArgs {
    /// Id of the test, or the beginning of its id; `packetrig report unfinished` lists the ids
    #[arg(value_name = "ID", default_value = "last")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) page: PageFlags,
    /// Also write the files of the test to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print the result as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not show progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Show the trials as `packetrig watch` does, until the test ends or `q` is pressed
    #[arg(long, conflicts_with_all = ["quiet", "json"])]
    pub(crate) watch: bool,
}

fn parse_link_speed(text: &str) -> Result<BitRate, String> {
    match text.parse::<Rate>().map_err(|error| error.to_string())? {
        Rate::Bits(bits) if bits.bits_per_second() > 0 => Ok(bits),
        _ => Err(format!("`{text}` is not a link speed; write it like 1Gbit/s")),
    }
}

fn parse_single_size(text: &str) -> Result<FrameSize, String> {
    match text.parse::<SizeArg>()? {
        SizeArg::Fixed(size) => Ok(size),
        // Each size is a separate benchmark: a mix of sizes has no line rate to compare a result with.
        SizeArg::Range(..) | SizeArg::Imix => {
            Err(format!("`{text}` is not a single frame size; write it like 64"))
        }
    }
}
