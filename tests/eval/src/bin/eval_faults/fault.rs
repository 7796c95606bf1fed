//! What can go wrong in a trial, and the trial that a seed and a number draw. Pure.

use crate::network::{NODES, SENDERS, facing, is_sender, node_name};
use packetrig_eval::draw::Draw;
use std::fmt;

/// Machines that join at once.
pub(crate) const BURST: u64 = 12;
/// Machines that join two processors at once: with the four of the fleet they are a hundred.
const CROWD: u64 = 96;
/// Shorter than the time after which a node that nobody hears gives its run up (30 s), and longer.
const SHORT_CUT_S: u64 = 5;
const LONG_CUT_S: u64 = 35;
/// Of these lists each trial of a kind takes the next: a short campaign meets the ends and the middle.
const DELAYS_MS: [u64; 8] = [200, 1000, 60, 400, 1, 100, 600, 10];
const LOSSES_PERCENT: [u64; 5] = [10, 30, 3, 20, 1];
const JITTERS_MS: [u64; 5] = [50, 300, 20, 100, 5];
const FULL_S: [u64; 2] = [15, 60];
const FREEZES_S: [u64; 4] = [5, 1, 5, 30];
const VICTIMS: [VictimKind; 9] = [
    VictimKind::Worker(Role::Sends),
    VictimKind::Server,
    VictimKind::Supervisor(Role::Sends),
    VictimKind::Controller,
    VictimKind::Node(Role::Receives),
    VictimKind::FleetUp,
    VictimKind::Worker(Role::Receives),
    VictimKind::Supervisor(Role::Receives),
    VictimKind::Node(Role::Sends),
];
/// One trial in so many has the long form of its fault, and one has all nodes where one would do.
const RARE: u64 = 5;

/// Where the run is when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    /// Before the run is started.
    Idle,
    Preparing,
    Armed,
    Running,
    Draining,
    Collecting,
}

impl RunPhase {
    pub(crate) const ALL: [Self; 6] =
        [Self::Idle, Self::Preparing, Self::Armed, Self::Running, Self::Draining, Self::Collecting];

    /// As `packetrig run` calls it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Preparing => "preparing",
            Self::Armed => "armed",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Collecting => "collecting",
        }
    }
}

/// A process, or a machine with all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// The process of an agent that sends or receives.
    Worker(usize),
    /// The process that watches it. Killed, it takes the worker along, and is started again after a second as by systemd.
    Supervisor(usize),
    /// Both.
    Node(usize),
    /// `packetrig run`.
    Controller,
    /// The message server.
    Server,
    /// `packetrig fleet up`, with the message server.
    FleetUp,
}

/// Directions of a control link that are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutDirections {
    Both,
    ToNode,
    FromNode,
}

/// Whose disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullDisk {
    /// A node's, with its spool.
    Node(usize),
    /// The message server's.
    Server,
    /// The controller's, with the catalogue of runs.
    Controller,
}

/// Control links that a fault is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    One(usize),
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    Kill(Victim),
    /// SIGSTOP, and SIGCONT after so many seconds.
    Freeze(Victim, u64),
    Cut {
        links: Links,
        directions: CutDirections,
        seconds: u64,
    },
    /// Round trips take so many milliseconds longer, until the run has ended.
    Delay(Links, u64),
    /// So many percent of all control frames are lost, until the run has ended.
    Loss(Links, u64),
    /// Each control frame takes up to so many milliseconds longer, until the run has ended.
    Jitter(Links, u64),
    /// Until the run has ended, for so many seconds at most.
    DiskFull(FullDisk, u64),
    /// All processes of a node are killed, its directory below /run is lost, and it starts again a second later.
    Reboot(usize),
    /// So many machines join at once.
    JoinBurst(u64),
    /// Another `packetrig run` on the same fleet.
    SecondController,
    /// The controller is killed, and another process gets its number.
    NumberReused,
    /// `packetrig serve --on-fleet` beside the run, which then sets a configuration.
    ServeBeside,
}

/// What is done and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) index: u64,
    pub(crate) fault: InjectedFault,
    pub(crate) phase: RunPhase,
    /// A killed controller is followed by the next run after so many seconds: at once, or when all leases have ended.
    pub(crate) next_run_after_s: u64,
    /// In phase `running`, the fault begins when the first sender has sent this many frames.
    pub(crate) after_frames: u64,
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Sends,
    Receives,
}

impl Role {
    /// A sender, or the receiver that it faces.
    const fn node(self, sender: usize) -> usize {
        match self {
            Self::Sends => sender,
            Self::Receives => facing(sender),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum VictimKind {
    Worker(Role),
    Supervisor(Role),
    Node(Role),
    Controller,
    Server,
    FleetUp,
}

/// Gives the fault of a kind's trial number so and so.
type DrawFault = fn(&mut Draw, u64) -> InjectedFault;

/// Kinds of fault, in turn; those that had the most faults when trials were made by hand come twice.
const KINDS: [DrawFault; 13] = [
    |draw, round| InjectedFault::Kill(victim(draw, 2 * round)),
    |draw, round| InjectedFault::Freeze(victim(draw, 2 * round + 3), turn(&FREEZES_S, round)),
    |draw, _| cut(draw),
    |draw, round| InjectedFault::Delay(links(draw), turn(&DELAYS_MS, round)),
    |draw, round| InjectedFault::DiskFull(full_disk(draw), turn(&FULL_S, round)),
    |draw, round| InjectedFault::Kill(victim(draw, 2 * round + 1)),
    |draw, round| InjectedFault::Loss(links(draw), turn(&LOSSES_PERCENT, round)),
    |draw, _| InjectedFault::Reboot(node(draw)),
    |draw, _| cut(draw),
    |draw, round| InjectedFault::Freeze(victim(draw, 2 * round + 4), turn(&FREEZES_S, round + 1)),
    |draw, round| InjectedFault::Jitter(links(draw), turn(&JITTERS_MS, round)),
    |_, _| InjectedFault::SecondController,
    |_, _| InjectedFault::JoinBurst(BURST),
];

/// Trials from this number on are of kinds that users found later: the trials before keep their meaning.
pub(crate) const LATER_FROM: u64 = 300;
/// How many of them there are in a whole campaign.
pub(crate) const LATER: u64 = 40;
/// Behind them: a crowd in each phase.
pub(crate) const CROWD_FROM: u64 = LATER_FROM + LATER;
pub(crate) const CROWDS: u64 = RunPhase::ALL.len() as u64;

const LATER_KINDS: [(DrawFault, Option<RunPhase>); 4] = [
    (|_, _| InjectedFault::NumberReused, None),
    // Until the run has ended.
    (|_, _| InjectedFault::DiskFull(FullDisk::Controller, 120), Some(RunPhase::Running)),
    (|_, _| InjectedFault::ServeBeside, None),
    (|draw, round| InjectedFault::Freeze(later_victim(draw, round), turn(&FREEZES_S, round)), None),
];

/// A supervisor alone, or with its worker.
fn later_victim(draw: &mut Draw, round: u64) -> Victim {
    let node = node(draw);
    if round.is_multiple_of(2) { Victim::Supervisor(node) } else { Victim::Node(node) }
}

impl Trial {
    /// The trial with this number: the same whenever the seed is. Each kind of fault meets each phase.
    pub(crate) fn draw(seed: u64, index: u64) -> Self {
        let mut draw = Draw::of(seed, index);
        if let Some(number) = index.checked_sub(CROWD_FROM) {
            let (fault, phase) = (InjectedFault::JoinBurst(CROWD), turn(&RunPhase::ALL, number));
            return Self { index, fault, phase, next_run_after_s: 0, after_frames: draw.within(300, 2500) };
        }
        let later = index.checked_sub(LATER_FROM);
        let kinds = later.map_or(KINDS.len(), |_| LATER_KINDS.len()) as u64;
        let number = later.unwrap_or(index);
        let (kind, round) = (number % kinds, number / kinds);
        let (draw_fault, only) = match later {
            Some(_) => turn(&LATER_KINDS, kind),
            None => (turn(&KINDS, kind), None),
        };
        let fault = draw_fault(&mut draw, round);
        let phase = only.unwrap_or_else(|| turn(&RunPhase::ALL, round + kind));
        // Before the run there is no controller to kill or stop.
        let phase = match fault {
            InjectedFault::Kill(Victim::Controller)
            | InjectedFault::Freeze(Victim::Controller, _)
            | InjectedFault::SecondController
            | InjectedFault::NumberReused
                if phase == RunPhase::Idle =>
            {
                RunPhase::Running
            }
            _ => phase,
        };
        let after_frames = draw.within(300, 2500);
        Self { index, fault, phase, next_run_after_s: draw.one_of(&[0, LEASE_S + 1]), after_frames }
    }
}

/// Number so and so of a list that begins again.
fn turn<T: Copy>(all: &[T], number: u64) -> T {
    all[usize::try_from(number % all.len() as u64).unwrap_or(0)]
}

fn node(draw: &mut Draw) -> usize {
    usize::try_from(draw.within(0, NODES as u64)).unwrap_or(0)
}

fn victim(draw: &mut Draw, number: u64) -> Victim {
    let sender = usize::try_from(draw.within(0, SENDERS as u64)).unwrap_or(0);
    match turn(&VICTIMS, number) {
        VictimKind::Worker(role) => Victim::Worker(role.node(sender)),
        VictimKind::Supervisor(role) => Victim::Supervisor(role.node(sender)),
        VictimKind::Node(role) => Victim::Node(role.node(sender)),
        VictimKind::Controller => Victim::Controller,
        VictimKind::Server => Victim::Server,
        VictimKind::FleetUp => Victim::FleetUp,
    }
}

fn links(draw: &mut Draw) -> Links {
    if draw.within(0, RARE) < 2 { Links::All } else { Links::One(node(draw)) }
}

fn cut(draw: &mut Draw) -> InjectedFault {
    let links = if draw.within(0, RARE) == 0 { Links::All } else { Links::One(node(draw)) };
    let seconds = if draw.within(0, RARE) == 0 { LONG_CUT_S } else { SHORT_CUT_S };
    let directions = draw.one_of(&[CutDirections::Both, CutDirections::ToNode, CutDirections::FromNode]);
    InjectedFault::Cut { links, directions, seconds }
}

fn full_disk(draw: &mut Draw) -> FullDisk {
    match draw.within(0, 4) {
        0 => FullDisk::Server,
        1 => FullDisk::Controller,
        _ => FullDisk::Node(node(draw)),
    }
}

impl Links {
    pub(crate) fn nodes(self) -> Vec<usize> {
        match self {
            Self::One(node) => vec![node],
            Self::All => (0..NODES).collect(),
        }
    }
}

impl Victim {
    pub(crate) const fn node(self) -> Option<usize> {
        match self {
            Self::Worker(node) | Self::Supervisor(node) | Self::Node(node) => Some(node),
            Self::Controller | Self::Server | Self::FleetUp => None,
        }
    }
}

impl InjectedFault {
    /// Nodes that it hits, directly.
    pub(crate) fn nodes(self) -> Vec<usize> {
        match self {
            Self::Kill(victim) | Self::Freeze(victim, _) => victim.node().into_iter().collect(),
            Self::Cut { links, .. }
            | Self::Delay(links, _)
            | Self::Loss(links, _)
            | Self::Jitter(links, _) => links.nodes(),
            Self::DiskFull(FullDisk::Node(node), _) | Self::Reboot(node) => vec![node],
            Self::DiskFull(..)
            | Self::JoinBurst(_)
            | Self::SecondController
            | Self::NumberReused
            | Self::ServeBeside => Vec::new(),
        }
    }

    /// Whether the process that counts dies with what it had not yet written down. A sender that sleeps beyond its lease is killed
    /// by its supervisor.
    pub(crate) fn costs_results_of(self, node: usize) -> bool {
        match self {
            Self::Kill(victim) => victim.node() == Some(node),
            Self::Freeze(victim, seconds) => {
                victim.node() == Some(node) && is_sender(node) && seconds >= LEASE_S
            }
            Self::Reboot(rebooted) => rebooted == node,
            _ => false,
        }
    }
}

/// The term of a fleet's leases.
pub(crate) const LEASE_S: u64 = 2;

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(_) => f.write_str("worker"),
            Self::Supervisor(_) => f.write_str("supervisor"),
            Self::Node(_) => f.write_str("whole agent"),
            Self::Controller => f.write_str("controller"),
            Self::Server => f.write_str("nats-server"),
            Self::FleetUp => f.write_str("fleet up"),
        }
    }
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(victim) => write!(f, "kill {victim}"),
            Self::Freeze(victim, seconds) => write!(f, "stop {victim} {seconds} s"),
            Self::Cut { directions, seconds, .. } => {
                let which = match directions {
                    CutDirections::Both => "both ways",
                    CutDirections::ToNode => "to the node",
                    CutDirections::FromNode => "from the node",
                };
                write!(f, "cut {which} {seconds} s")
            }
            Self::Delay(_, ms) => write!(f, "round trip + {ms} ms"),
            Self::Loss(_, percent) => write!(f, "loss {percent} %"),
            Self::Jitter(_, ms) => write!(f, "jitter {ms} ms"),
            Self::DiskFull(FullDisk::Node(_), seconds) => write!(f, "disk full {seconds} s: spool"),
            Self::DiskFull(FullDisk::Server, seconds) => write!(f, "disk full {seconds} s: nats-server"),
            Self::DiskFull(FullDisk::Controller, seconds) => write!(f, "disk full {seconds} s: results"),
            Self::Reboot(_) => f.write_str("reboot"),
            Self::JoinBurst(count) => write!(f, "{count} join at once"),
            Self::SecondController => f.write_str("second controller"),
            Self::NumberReused => f.write_str("kill controller, number reused"),
            Self::ServeBeside => f.write_str("serve beside"),
        }
    }
}

/// Nodes in words, with what they do.
pub(crate) fn name_nodes(nodes: &[usize]) -> String {
    match nodes {
        [] => "-".to_owned(),
        nodes if nodes.len() == NODES => "all".to_owned(),
        nodes => nodes.iter().map(|&node| name_with_role(node)).collect::<Vec<_>>().join(", "),
    }
}

fn name_with_role(node: usize) -> String {
    let role = if is_sender(node) { "sends" } else { "receives" };
    format!("{} ({role})", node_name(node))
}
