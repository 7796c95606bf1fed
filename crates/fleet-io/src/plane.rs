//! What the agent's shell asks of a data plane, and the real one.

use packetrig_engine::Error;
use packetrig_engine::gate::SendGate;
use packetrig_engine::rig::{OwnerPermit, RigOptions, RigSite, TestRig};
use packetrig_engine::stream::ClockShift;
use packetrig_fleet::message::{NodeName, RunPreparation, SentTotal};
use packetrig_plan::{HeldStream, Plan, PlanChange, PlanGrowth, PlanProblem, PlanProblems, PortLocation};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_stats::terms::RunTerms;
use packetrig_units::MonoTime;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Ports and workers prepared for one run. Dropping it stops everything and closes the ports.
pub trait DataPlane {
    /// Starts the receivers; returns when each is receiving.
    fn arm(&mut self) -> Result<(), Error>;
    /// Sends from `at` on.
    fn start_at(&mut self, at: MonoTime);
    /// Sets how the clocks of nodes that send streams to this one relate to its own; called again when that is known better.
    fn shift(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), Error> {
        let _ = shifts;
        Ok(())
    }
    fn sample(&mut self) -> Result<CountSample, Error>;
    /// Changes something of a steered run, here alone. An error leaves the run as it was.
    fn steer(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<(), Error>;
    /// First step of a change that several nodes make: holds the streams concerned that are sent here. An error leaves the
    /// run as it was.
    fn hold(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<Vec<HeldStream>, Error>;
    /// Second step: receivers hear of the takes that follow what was held anywhere.
    fn announce(&mut self, held: &[HeldStream], at: Option<MonoTime>) -> Result<(), Error>;
    /// Third step: the senders go on, at `at` if that is still to come.
    fn begin(&mut self, at: Option<MonoTime>) -> Result<(), Error>;
    /// Instead of the second step: the senders go on as before.
    fn undo(&mut self) -> Result<(), Error>;
    /// Whether every sender is done.
    fn senders_done(&mut self) -> bool;
    /// Whether a sender has stopped because its lease was over.
    fn lease_ended(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    /// What each stream sent from here has sent; final once the senders are done.
    fn sent(&mut self) -> Result<Vec<SentTotal>, Error>;
    /// Stops the senders; what is unsent stays unsent.
    fn stop_senders(&mut self);
    /// Stops the receivers and gives the accounts. `sent` is what all streams of the run sent. The last thing asked of it:
    /// dropping it closes the ports.
    fn finish(&mut self, node: &str, sent: &[SentTotal]) -> Result<NodeResult, Error>;
}

/// A data plane and what its ports turned out to be.
pub type PreparedPlane = (Box<dyn DataPlane>, Vec<PortInfo>);

/// Where data planes come from.
pub trait PlaneSource {
    /// Opens what the preparation asks for. `plan` is what its document was read as.
    fn prepare(&mut self, preparation: &RunPreparation, plan: Arc<Plan>) -> Result<PreparedPlane, Error>;
}

/// The engine's rig on this machine's interfaces.
#[derive(Clone, Debug, Default)]
pub struct EnginePlane {
    /// What the machine lends to a fleet; `None`: the plan is its user's own.
    lent: Option<MachineLoan>,
}

/// What a machine lends to a fleet, and on which terms. No message from a controller changes any of it.
#[derive(Clone, Debug)]
pub struct MachineLoan {
    /// The machine's name in the fleet.
    pub node: NodeName,
    /// Until when its ports may send.
    pub gate: SendGate,
    /// What its owner allows.
    pub permit: Arc<dyn OwnerPermit>,
    /// Interfaces that the owner confirmed for test traffic.
    pub confirmed: BTreeSet<PortLocation>,
    /// Below which captures are written: a directory for each run.
    pub captures: PathBuf,
    /// What this machine's back ends can do, as measured before.
    pub limits: Vec<RigLimit>,
    /// The back end to use if the controller names none.
    pub back_end: Option<BackEnd>,
}

impl MachineLoan {
    /// Where the captures of a run are. The name of a run comes from the controller, so it is checked: it must be a name and no path.
    pub(crate) fn captures_of(&self, run: &str) -> Result<PathBuf, Error> {
        let is_plain = run.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if run.is_empty() || run.len() > LONGEST_RUN_ID || !is_plain {
            let run: String = run.chars().take(LONGEST_RUN_ID).collect();
            return Err(Error::NotPermitted(vec![format!("{run:?} is not a valid name of a run")]));
        }
        Ok(self.captures.join(run))
    }

    /// Where each port is, if it is here.
    fn places(&self, preparation: &RunPreparation) -> Result<Vec<Option<PortLocation>>, Error> {
        if preparation.places.is_empty() {
            let message = "the plan does not say on which node its ports are".to_owned();
            return Err(Error::NotPermitted(vec![message]));
        }
        let places = preparation.places.iter().map(|place| {
            let is_here = place.node == self.node;
            is_here
                .then(|| place.interface.parse::<PortLocation>())
                .transpose()
                .map_err(|message| Error::Plan(PlanProblems(vec![PlanProblem::error("ports", message)])))
        });
        places.collect()
    }

    fn options(&self, preparation: &RunPreparation) -> Result<RigOptions, Error> {
        Ok(RigOptions {
            terms: RunTerms {
                back_end: preparation.terms.back_end.or(self.back_end),
                limits: self.limits.clone(),
                ..preparation.terms.clone()
            },
            confirmed: self.confirmed.clone(),
            capture_dir: Some(self.captures_of(&preparation.run)?),
            site: RigSite::PartOfFleet {
                places: self.places(preparation)?,
                permit: Arc::clone(&self.permit),
            },
            gate: self.gate.clone(),
            run: preparation.run.clone(),
        })
    }
}

/// Longest name of a run.
const LONGEST_RUN_ID: usize = 100;

/// What a preparation says to a machine that is its user's own.
fn own_options(preparation: &RunPreparation) -> Result<RigOptions, Error> {
    // Only a fleet's preparation has places.
    if !preparation.places.is_empty() {
        return Err(Error::NotPermitted(vec!["this machine is not lent to a fleet".to_owned()]));
    }
    // A text that is no location names no port of the plan either, so it can be passed over.
    let confirmed = preparation.confirmed.iter().filter_map(|text| text.parse::<PortLocation>().ok());
    Ok(RigOptions {
        terms: preparation.terms.clone(),
        confirmed: confirmed.collect(),
        capture_dir: preparation.capture_dir.as_ref().map(PathBuf::from),
        site: RigSite::EveryPortHere,
        gate: SendGate::open(),
        run: preparation.run.clone(),
    })
}

impl EnginePlane {
    /// Of a node of a fleet: of each plan it opens the ports that are here, if the owner allows it.
    pub const fn lent(loan: MachineLoan) -> Self {
        Self { lent: Some(loan) }
    }
}

impl PlaneSource for EnginePlane {
    fn prepare(&mut self, preparation: &RunPreparation, plan: Arc<Plan>) -> Result<PreparedPlane, Error> {
        let options = match &self.lent {
            Some(loan) => loan.options(preparation)?,
            None => own_options(preparation)?,
        };
        // The rig writes its interfaces into the plan, so it has a copy of its own.
        let rig = TestRig::prepare(Arc::unwrap_or_clone(plan), &options)?;
        let ports = rig.ports().into_iter().map(|(_, info)| info).collect();
        Ok((Box::new(rig), ports))
    }
}

impl DataPlane for TestRig {
    fn arm(&mut self) -> Result<(), Error> {
        Self::arm(self)
    }
    fn start_at(&mut self, at: MonoTime) {
        Self::start_at(self, at);
    }
    fn shift(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), Error> {
        Self::shift(self, shifts)
    }
    fn sample(&mut self) -> Result<CountSample, Error> {
        Self::sample(self)
    }
    fn steer(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<(), Error> {
        Self::steer(self, steer)
    }
    fn hold(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<Vec<HeldStream>, Error> {
        Self::hold(self, steer)
    }
    fn announce(&mut self, held: &[HeldStream], at: Option<MonoTime>) -> Result<(), Error> {
        Self::announce(self, held, at)
    }
    fn begin(&mut self, at: Option<MonoTime>) -> Result<(), Error> {
        Self::begin(self, at)
    }
    fn undo(&mut self) -> Result<(), Error> {
        Self::undo(self)
    }
    fn senders_done(&mut self) -> bool {
        Self::senders_done(self)
    }
    fn lease_ended(&mut self) -> Result<bool, Error> {
        Self::lease_ended(self)
    }
    fn sent(&mut self) -> Result<Vec<SentTotal>, Error> {
        let totals = Self::sent(self)?;
        Ok(totals.into_iter().map(|(stream, frames)| SentTotal { stream, frames }).collect())
    }
    fn stop_senders(&mut self) {
        Self::stop_senders(self);
    }
    fn finish(&mut self, node: &str, sent: &[SentTotal]) -> Result<NodeResult, Error> {
        let sent: Vec<_> = sent.iter().map(|total| (total.stream, total.frames)).collect();
        Self::finish(self, node, &sent)
    }
}
