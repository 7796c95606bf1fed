//! Controller, server and nodes are killed in every state that can be seen from outside; afterwards everything that nodes
//! ever had on their disks is compared with what the controller stored.

use crate::plans::{Load, from_each};
use crate::rig::Rig;
use crate::segments::{Comparison, Watcher};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::process::{pause, signal, wait};
use rustix::process::Signal;

const LOAD: Load = Load { size: 128, pps: 1000, frames: 2500 };
const STATES: [&str; 5] = ["preparing", "armed", "running", "draining", "collecting"];
/// Of these, in a quick run.
const QUICK: [&str; 2] = ["running", "collecting"];
/// How long nodes may take to bring what they have.
const COLLECTS: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Controller,
    Server,
    /// Worker of a sender, then of a receiver.
    Node(usize),
}

impl Victim {
    const ALL: [Self; 4] = [Self::Controller, Self::Server, Self::Node(1), Self::Node(4)];

    fn name(self) -> String {
        match self {
            Self::Controller => "controller".to_owned(),
            Self::Server => "nats-server".to_owned(),
            Self::Node(node) => format!("agent n{node}"),
        }
    }

    fn kill(self, rig: &Rig, controller: u32) -> anyhow::Result<()> {
        let pid = match self {
            Self::Controller => controller,
            Self::Server => rig.broker()?,
            Self::Node(node) => rig.worker(node)?,
        };
        signal(pid, Signal::KILL)
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let states: &[&str] = if effort.quick { &QUICK } else { &STATES };
    output.say(&format!(
        "## Results after kills\n\n`kill -9` at the moment a run says that it is in a state; two senders, two receivers, {} s of \
         traffic. Then `fleet collect` until no node has anything left. Every segment that was ever seen in a node's spool is \
         compared, byte by byte, with what was seen in the controller's store. *Unseen*: stored, and deleted at the node before \
         it was looked at (every millisecond).\n",
        LOAD.frames as f64 / LOAD.pps as f64
    ))?;
    let mut rig = Rig::start(&[])?;
    let watcher = Watcher::start(&rig)?;
    let mut table = Table::new(&[
        "killed",
        "while",
        "killed then",
        "outcome",
        "segments at nodes",
        "equal",
        "differ",
        "lost",
        "waiting",
        "unseen",
    ]);
    let (mut kills, mut sum) = (0, Comparison::default());
    for state in states {
        for victim in Victim::ALL {
            let end = drill(&mut rig, &watcher, state, victim)?;
            kills += usize::from(end.killed);
            let of = end.comparison;
            let figures = [of.had, of.equal, of.differ, of.lost, of.waiting, of.unseen];
            let mut row = vec![victim.name(), (*state).to_owned(), end.killed.to_string(), end.outcome];
            row.extend(figures.map(|figure| figure.to_string()));
            table.rows.push(row);
            sum.had += of.had;
            sum.equal += of.equal;
            sum.differ += of.differ;
            sum.lost += of.lost + of.waiting;
            sum.unseen += of.unseen;
        }
    }
    output.table("kills", &table)?;
    let whole = sum.had > 0 && sum.equal == sum.had && kills > 0;
    output.goal(
        "results_equal",
        &format!(
            "{} of {} segments byte-equal after {kills} kills in {} states ({} differ, {} missing, {} unseen at nodes)",
            sum.equal,
            sum.had,
            states.len(),
            sum.differ,
            sum.lost,
            sum.unseen
        ),
        "all",
        &whole.into(),
    );
    Ok(())
}

struct End {
    killed: bool,
    outcome: String,
    comparison: Comparison,
}

fn drill(rig: &mut Rig, watcher: &Watcher, state: &str, victim: Victim) -> anyhow::Result<End> {
    let mut run = rig.run(&from_each(&[1, 2], LOAD), &["--drain", "500ms"])?;
    let reached = run.wait_for(state)?;
    let killed = reached && victim.kill(rig, run.child.id()).is_ok();
    // One that does not end by itself is ended, and collected as after a dead controller.
    if wait(&mut run.child, 60).is_err() {
        run.child.kill()?;
        wait(&mut run.child, 10)?;
    }
    let report = run.report().ok();
    let outcome = report.as_ref().and_then(|report| report["outcome"]["state"].as_str());
    let outcome =
        outcome.unwrap_or(if victim == Victim::Controller { "collected later" } else { "no report" });
    for _ in 0..COLLECTS {
        // While a server comes back it cannot be asked.
        let collected = rig.collect();
        if collected.is_ok() && watcher.waiting().is_empty() {
            break;
        }
        pause(1000);
    }
    rig.settle()?;
    Ok(End { killed, outcome: outcome.to_owned(), comparison: watcher.compare() })
}
