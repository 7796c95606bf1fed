//! Makes a fault happen to a fleet, and ends it.

use crate::control_link::LinkConditions;
use crate::fault::{BURST, CutDirections, FullDisk, InjectedFault, Links, Trial, Victim};
use crate::fleet::{DiskName, Fleet};
use crate::network::{NODES, Network};
use crate::run::{RunProcess, RunRequest};
use crate::serve::ServeProcess;
use crate::witness::CHECK_SIZE;
use packetrig_eval::process::signal;
use packetrig_sys::clock;
use rustix::process::Signal;
use std::process::{Child, Command};

const SECOND_NS: u64 = 1_000_000_000;
/// What was killed for good is started again after this, as a service manager does.
const RESTART_NS: u64 = SECOND_NS;
/// A fault that lasts as long as the run ends after this at the latest.
const LONGEST_NS: u64 = 60 * SECOND_NS;
/// Machines that have not joined by then have given up: so long for each [`BURST`] of them, which share two processors.
const JOIN_NS: u64 = 30 * SECOND_NS;
/// Frames of a second controller's run, of each sender.
const SECOND_FRAMES: u64 = 500;
const NUMBER_TRIES: u32 = 200;

/// A fault under way, or over.
#[derive(Debug)]
pub(crate) struct Infliction {
    fault: InjectedFault,
    next_run_after_s: u64,
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: Option<u64>,
    names_joining: Vec<String>,
    /// Of machines that joined in a burst: what those said last that were not let in.
    pub(crate) not_joined: Vec<String>,
    pub(crate) second_run: Option<RunProcess>,
    pub(crate) served: Option<ServeProcess>,
    /// Has the number of the controller that was killed.
    namesake: Option<Child>,
}

impl Infliction {
    /// Begins the fault. `run` is the run of the trial, if it was started.
    pub(crate) fn begin(
        trial: &Trial,
        name: &str,
        fleet: &mut Fleet,
        network: &Network,
        run: Option<&mut RunProcess>,
    ) -> anyhow::Result<Self> {
        let fault = trial.fault;
        let mut infliction = Self {
            fault,
            next_run_after_s: trial.next_run_after_s,
            began_ns: clock::monotonic_ns(),
            ended_ns: None,
            names_joining: Vec::new(),
            not_joined: Vec::new(),
            second_run: None,
            served: None,
            namesake: None,
        };
        match fault {
            InjectedFault::Kill(victim) => kill(victim, fleet, run)?,
            InjectedFault::Freeze(victim, _) => signal_victim(victim, Signal::STOP, fleet, run)?,
            InjectedFault::NumberReused => {
                if let Some(run) = run {
                    run.kill();
                    run.await_meter_end();
                    infliction.namesake = Some(take_number(run.process())?);
                }
            }
            InjectedFault::ServeBeside => infliction.served = Some(ServeProcess::start(fleet)?),
            InjectedFault::Reboot(node) => fleet.kill_node(node),
            InjectedFault::DiskFull(disk, _) => fleet.fill_disk(disk_name(disk))?,
            InjectedFault::JoinBurst(count) => {
                infliction.names_joining = (0..count).map(|number| format!("{name}-{number}")).collect();
                fleet.start_joining(&infliction.names_joining)?;
            }
            InjectedFault::SecondController => {
                let second = format!("{name}-second");
                let request = RunRequest { name: &second, size: CHECK_SIZE, frames: SECOND_FRAMES };
                infliction.second_run = Some(RunProcess::start(fleet, request)?);
            }
            InjectedFault::Cut { links, .. }
            | InjectedFault::Delay(links, _)
            | InjectedFault::Loss(links, _)
            | InjectedFault::Jitter(links, _) => {
                set_conditions(links, conditions(fault), network);
            }
        }
        if matches!(fault, InjectedFault::Kill(_) | InjectedFault::NumberReused) {
            // What was killed is dead from here on.
            infliction.began_ns = clock::monotonic_ns();
        }
        Ok(infliction)
    }

    /// Ends the fault when its time has come.
    pub(crate) fn attend(
        &mut self,
        fleet: &mut Fleet,
        network: &Network,
        run: Option<&mut RunProcess>,
        run_has_ended: bool,
    ) -> anyhow::Result<()> {
        if self.ended_ns.is_some() || !self.is_due(fleet, run_has_ended) {
            return Ok(());
        }
        match self.fault {
            InjectedFault::Kill(victim) => restart(victim, fleet)?,
            InjectedFault::Freeze(victim, _) => signal_victim(victim, Signal::CONT, fleet, run)?,
            InjectedFault::Reboot(node) => {
                fleet.lose_run_directory(node);
                fleet.start_agent(node)?;
            }
            InjectedFault::DiskFull(disk, _) => fleet.free_disk(disk_name(disk))?,
            InjectedFault::Cut { .. }
            | InjectedFault::Delay(..)
            | InjectedFault::Loss(..)
            | InjectedFault::Jitter(..) => network.mend(),
            InjectedFault::JoinBurst(_)
            | InjectedFault::SecondController
            | InjectedFault::NumberReused
            | InjectedFault::ServeBeside => {}
        }
        self.ended_ns = Some(clock::monotonic_ns());
        if let InjectedFault::JoinBurst(count) = self.fault {
            let left_out = self.names_joining.iter().filter(|name| !has_joined(fleet, name));
            self.not_joined = left_out.map(|name| fleet.last_words(name)).collect();
            fleet.end_joining(&self.names_joining)?;
            if count > BURST {
                // A crowd takes all processor time until it is gone.
                self.ended_ns = Some(clock::monotonic_ns());
            }
        }
        Ok(())
    }

    fn is_due(&self, fleet: &Fleet, run_has_ended: bool) -> bool {
        let lasted_ns = clock::monotonic_ns() - self.began_ns;
        match self.fault {
            InjectedFault::Kill(Victim::Supervisor(_) | Victim::Node(_) | Victim::FleetUp)
            | InjectedFault::Reboot(_) => lasted_ns >= RESTART_NS,
            InjectedFault::Kill(Victim::Controller) | InjectedFault::NumberReused => {
                lasted_ns >= self.next_run_after_s * SECOND_NS
            }
            InjectedFault::ServeBeside => run_has_ended || lasted_ns >= LONGEST_NS,
            InjectedFault::Kill(_) | InjectedFault::SecondController => true,
            InjectedFault::Freeze(_, seconds) | InjectedFault::Cut { seconds, .. } => {
                lasted_ns >= seconds * SECOND_NS
            }
            InjectedFault::Delay(..) | InjectedFault::Loss(..) | InjectedFault::Jitter(..) => {
                run_has_ended || lasted_ns >= LONGEST_NS
            }
            InjectedFault::DiskFull(_, seconds) => run_has_ended || lasted_ns >= seconds * SECOND_NS,
            InjectedFault::JoinBurst(count) => {
                let limit_ns = JOIN_NS * count.div_ceil(BURST);
                self.names_joining.iter().all(|name| has_joined(fleet, name)) || lasted_ns >= limit_ns
            }
        }
    }
}

/// Starts a process with a number that is free.
fn take_number(number: u32) -> anyhow::Result<Child> {
    for _ in 0..NUMBER_TRIES {
        // The kernel goes on from here. Another process may be first.
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string())?;
        let mut child = Command::new("sleep").arg("600").spawn()?;
        if child.id() == number {
            return Ok(child);
        }
        child.kill()?;
        child.wait()?;
    }
    anyhow::bail!("no process gets the number {number}")
}

impl Drop for Infliction {
    fn drop(&mut self) {
        if let Some(mut namesake) = self.namesake.take() {
            namesake.kill().unwrap_or(());
            drop(namesake.wait());
        }
    }
}

fn has_joined(fleet: &Fleet, name: &str) -> bool {
    fleet.log_of(name).contains("joined the fleet")
}

fn kill(victim: Victim, fleet: &mut Fleet, run: Option<&mut RunProcess>) -> anyhow::Result<()> {
    match victim {
        Victim::Worker(node) => signal(fleet.worker(node)?, Signal::KILL)?,
        Victim::Supervisor(node) => fleet.kill_supervisor(node)?,
        Victim::Node(node) => fleet.kill_node(node),
        Victim::Server => signal(fleet.server()?, Signal::KILL)?,
        Victim::FleetUp => fleet.kill_up(),
        Victim::Controller => {
            if let Some(run) = run {
                run.kill();
            }
        }
    }
    Ok(())
}

fn restart(victim: Victim, fleet: &mut Fleet) -> anyhow::Result<()> {
    match victim {
        Victim::Supervisor(node) | Victim::Node(node) => fleet.start_agent(node),
        Victim::FleetUp => fleet.start_up(),
        // Somebody is there to start these again, or it has done its work.
        Victim::Worker(_) | Victim::Server | Victim::Controller => Ok(()),
    }
}

fn signal_victim(
    victim: Victim,
    which: Signal,
    fleet: &Fleet,
    run: Option<&mut RunProcess>,
) -> anyhow::Result<()> {
    let process = match victim {
        Victim::Node(node) => return fleet.signal_node(node, which),
        // A frozen worker may have been killed meanwhile; then there is nobody to wake.
        Victim::Worker(node) => fleet.worker(node).ok(),
        Victim::Supervisor(node) => Some(fleet.supervisor(node)?),
        Victim::Server => fleet.server().ok(),
        Victim::FleetUp => Some(fleet.up_process()?),
        Victim::Controller => run.map(|run| run.process()),
    };
    process.map_or(Ok(()), |process| signal(process, which).or_else(|error| wake_failed(which, error)))
}

/// A process that ended while it was stopped needs not be woken.
fn wake_failed(which: Signal, error: anyhow::Error) -> anyhow::Result<()> {
    if which == Signal::CONT { Ok(()) } else { Err(error) }
}

const fn disk_name(disk: FullDisk) -> DiskName {
    match disk {
        FullDisk::Node(node) => DiskName::Node(node),
        FullDisk::Server => DiskName::Fleet,
        FullDisk::Controller => DiskName::Controller,
    }
}

fn conditions(fault: InjectedFault) -> LinkConditions {
    let whole = LinkConditions::default();
    match fault {
        InjectedFault::Cut { directions, .. } => LinkConditions {
            cut_to_node: directions != CutDirections::FromNode,
            cut_from_node: directions != CutDirections::ToNode,
            ..whole
        },
        // Half of it in each direction.
        InjectedFault::Delay(_, ms) => LinkConditions { delay_ns: ms * 500_000, ..whole },
        InjectedFault::Loss(_, percent) => LinkConditions { loss_permille: percent * 10, ..whole },
        InjectedFault::Jitter(_, ms) => LinkConditions { jitter_ns: ms * 1_000_000, ..whole },
        _ => whole,
    }
}

fn set_conditions(links: Links, conditions: LinkConditions, network: &Network) {
    for node in links.nodes().into_iter().filter(|node| *node < NODES) {
        network.set_conditions(node, conditions);
    }
}
