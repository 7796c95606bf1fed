//! The ports and workers of one node for one run: prepare, arm, start, sample, stop, finish.
//!
//! A `Rig` owns every worker thread and every changed interface setting; dropping it at any point stops the workers
//! and restores the interfaces.

use crate::Error;
use packetrig_plan::{Location, Plan};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{NodeResult, Sample};
use packetrig_units::MonoTime;
use packetrig_wire::tag::TagKey;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What the user may insist on.
#[derive(Clone, Debug)]
pub struct RigOptions {
    /// Key of this run's tags.
    pub key: TagKey,
    /// Interfaces confirmed although they look like they belong to a real network (RFC 6815 guard).
    pub confirmed: BTreeSet<Location>,
    /// Where captures go; without it a plan with captures is refused.
    pub capture_dir: Option<PathBuf>,
    /// Capture every receiving port as pcapng, whatever the plan says.
    pub capture_all: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Rig;

impl Rig {
    /// Opens the plan's ports that are on this node: guards, locks, quiets them, allocates rings and templates.
    pub fn prepare(plan: Plan, options: RigOptions) -> Result<Self, Error> {
        let _ = (plan, options);
        todo!()
    }
    /// What the ports turned out to be, in plan order.
    pub fn ports(&self) -> &[PortInfo] {
        todo!()
    }
    /// Starts the receivers; returns when each is receiving.
    pub fn arm(&mut self) -> Result<(), Error> {
        todo!()
    }
    /// Sends from `at` on.
    pub fn start_at(&mut self, at: MonoTime) -> Result<(), Error> {
        let _ = at;
        todo!()
    }
    /// All counts now.
    pub fn sample(&mut self) -> Result<Sample, Error> {
        todo!()
    }
    /// Whether every sender is done.
    pub fn senders_done(&self) -> bool {
        todo!()
    }
    /// Stops the senders; what is unsent stays unsent.
    pub fn stop_senders(&mut self) {
        todo!()
    }
    /// Stops the receivers, restores the interfaces, gives the final accounts.
    pub fn finish(self) -> Result<NodeResult, Error> {
        todo!()
    }
}
