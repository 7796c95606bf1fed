//! Provides the agent's data plane: the test rig that sends streams, or the plane for probes if the plan has probes.
//! This machine is either lent to a fleet or used by its own user.

use crate::probes::{ProbeDataPlane, ProbePolicy};
use packetrig_engine::Error;
use packetrig_engine::gate::SendGate;
use packetrig_engine::packet::ReusablePorts;
use packetrig_engine::process::EngineCommand;
use packetrig_engine::rig::{DataPlane, MachinePorts, OwnerPermit, PlanPortLocations, RigOptions, TestRig};
use packetrig_fleet::message::RunPreparation;
use packetrig_plan::{Plan, PlanProblem, PlanProblems, PortLocation};
use packetrig_report::NodeName;
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// A data plane, and the properties of its open ports.
pub type PreparedPlane = (Box<dyn DataPlane>, Vec<PortInfo>);

/// Source of data planes for runs.
pub trait PlaneSource {
    /// Opens the ports that the run needs on this machine. `plan` is the parsed document of the preparation.
    fn prepare_plane(
        &mut self,
        preparation: &RunPreparation,
        plan: Arc<Plan>,
    ) -> Result<PreparedPlane, Error>;

    /// Called repeatedly while there is no run: closes ports that were kept for a next run that did not come in time.
    fn close_unused_ports(&mut self, _now: MonoTime) {}
}

/// Source of the data planes that use this machine's interfaces.
#[derive(Clone, Debug, Default)]
pub struct EnginePlaneSource {
    /// What this machine lends to a fleet; `None`: its own user runs plans on it.
    lent: Option<LentMachine>,
    /// The program that sends with back end `process`. It is not part of a preparation, so that no message
    /// can name a program to start.
    engine: Option<EngineCommand>,
    /// Ports that stay open between runs.
    kept: Option<ReusablePorts>,
    /// How long ports stay open between runs on a lent machine.
    keeping: PortRetentionTime,
}

/// Time for which a lent machine keeps ports open after a run.
#[derive(Clone, Copy, Debug, Default)]
enum PortRetentionTime {
    /// Ports are not kept open.
    #[default]
    Nothing,
    /// A run is in progress. After it, ports stay open this long.
    AfterRun(Nanos),
    Until(MonoTime),
}

/// Resources that a machine lends to a fleet, with their limits. No message from a controller can change them.
#[derive(Clone, Debug)]
pub struct LentMachine {
    /// The machine's name in the fleet.
    pub node: NodeName,
    /// Holds the deadline until which its ports may send.
    pub gate: SendGate,
    /// Limits of the owner for plans.
    pub permit: Arc<dyn OwnerPermit>,
    /// Interfaces that the owner confirmed for test traffic.
    pub confirmed: BTreeSet<PortLocation>,
    /// Directory of captures, with one subdirectory for each run.
    pub captures: PathBuf,
    /// Measured limits of this machine's back ends.
    pub limits: Vec<RigLimit>,
    /// Back end for ports if the controller names none.
    pub back_end: Option<BackEnd>,
    /// Limits of the owner for probes.
    pub probes: ProbePolicy,
}

impl LentMachine {
    /// Returns the directory for a run's captures. The name of the run comes from the controller, so this checks that
    /// it is a plain name and not a path.
    pub(crate) fn run_capture_directory(&self, run: &str) -> Result<PathBuf, Error> {
        let is_plain = run.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if run.is_empty() || run.len() > MAX_RUN_ID_CHARACTERS || !is_plain {
            let run: String = run.chars().take(MAX_RUN_ID_CHARACTERS).collect();
            return Err(Error::NotPermitted(vec![format!("{run:?} is not a valid run ID")]));
        }
        Ok(self.captures.join(run))
    }

    /// Returns the location of each port of the plan; `None` for ports on other machines.
    pub(crate) fn local_port_locations(
        &self,
        preparation: &RunPreparation,
    ) -> Result<Vec<Option<PortLocation>>, Error> {
        if preparation.places.is_empty() {
            let message = "the plan does not say on which node its ports are; write NODE/INTERFACE as the location of each port".to_owned();
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

    fn rig_options(&self, preparation: &RunPreparation) -> Result<RigOptions, Error> {
        Ok(RigOptions {
            terms: SharedRunOptions {
                back_end: preparation.terms.back_end.or(self.back_end),
                limits: self.limits.clone(),
                ..preparation.terms.clone()
            },
            confirmed: self.confirmed.clone(),
            capture_dir: Some(self.run_capture_directory(&preparation.run)?),
            site: PlanPortLocations::PartOfFleet {
                places: self.local_port_locations(preparation)?,
                permit: Arc::clone(&self.permit),
            },
            gate: self.gate.clone(),
            run: preparation.run.clone(),
            engine: None,
        })
    }
}

/// Longest time that a lent machine keeps ports open between two runs: its owner may want the interfaces back.
const MAX_PORT_KEEPING_TIME: Nanos = Nanos::from_secs(10);

/// Maximum length of a run ID.
const MAX_RUN_ID_CHARACTERS: usize = 100;

fn not_lent_error() -> Error {
    Error::NotPermitted(vec!["this machine is not lent to a fleet".to_owned()])
}

/// Builds the rig options for a run of this machine's own user.
fn local_rig_options(
    preparation: &RunPreparation,
    engine: Option<&EngineCommand>,
) -> Result<RigOptions, Error> {
    // Only a fleet's preparation has places.
    if !preparation.places.is_empty() {
        return Err(not_lent_error());
    }
    // A text that is not a location cannot name a port of the plan, so it is ignored.
    let confirmed = preparation.confirmed.iter().filter_map(|text| text.parse::<PortLocation>().ok());
    Ok(RigOptions {
        terms: preparation.terms.clone(),
        confirmed: confirmed.collect(),
        capture_dir: preparation.capture_dir.as_ref().map(PathBuf::from),
        site: PlanPortLocations::EveryPortHere,
        // The user's own run needs no lease: it ends with this process.
        gate: SendGate::without_lease(),
        run: preparation.run.clone(),
        engine: engine.cloned(),
    })
}

impl EnginePlaneSource {
    /// Creates the source for a node of a fleet. It opens those ports of a plan that are on this machine, if
    /// the owner allows it.
    pub const fn for_lent_machine(machine: LentMachine) -> Self {
        Self { lent: Some(machine), engine: None, kept: None, keeping: PortRetentionTime::Nothing }
    }

    /// Sets the program that sends with back end `process` on the user's own machine.
    #[must_use]
    pub fn with_engine(self, engine: Option<EngineCommand>) -> Self {
        Self { engine, ..self }
    }

    /// Keeps ports on AF_PACKET rings open after a run, for a next run that needs the same ports, because
    /// opening and closing them takes longer than a short trial. Between runs their interfaces stay locked and
    /// quiet. The ports close when this value and its clones are dropped. When a run begins, kept ports that it
    /// does not use are closed, too.
    #[must_use]
    pub fn with_ports_kept_open(self) -> Self {
        Self { kept: Some(ReusablePorts::default()), ..self }
    }

    /// Applies the requested time for which ports stay open after this run. Returns the store of open ports; `None` if
    /// no ports stay open, in which case kept ports are closed.
    fn apply_port_retention(&mut self, preparation: &RunPreparation) -> Option<ReusablePorts> {
        if self.lent.is_none() {
            return self.kept.clone();
        }
        let wanted = preparation.keep_ports_ns.min(MAX_PORT_KEEPING_TIME);
        // A run that keeps no ports also uses no kept ports, so their owner gets the interfaces back.
        if wanted == Nanos::ZERO {
            self.close_kept_ports();
            return None;
        }
        self.keeping = PortRetentionTime::AfterRun(wanted);
        Some(self.kept.get_or_insert_default().clone())
    }

    /// Closes the ports that were kept open, which releases their interfaces.
    fn close_kept_ports(&mut self) {
        self.kept = None;
        self.keeping = PortRetentionTime::Nothing;
    }
}

impl PlaneSource for EnginePlaneSource {
    fn prepare_plane(
        &mut self,
        preparation: &RunPreparation,
        plan: Arc<Plan>,
    ) -> Result<PreparedPlane, Error> {
        // Probes use interfaces together with the kernel, but kept ports have locked their interfaces.
        if plan.probes.is_some() && self.lent.is_some() {
            self.close_kept_ports();
        }
        if let Some(probes) = plan.probes.clone() {
            let lent = self.lent.as_ref().ok_or_else(not_lent_error)?;
            let plane = ProbeDataPlane::prepare_probes(preparation, &plan, probes, lent)?;
            // The list of open ports is empty: probes share the interface with the kernel and
            // use the kernel's addresses.
            return Ok((Box::new(plane), Vec::new()));
        }
        let options = match &self.lent {
            Some(machine) => machine.rig_options(preparation)?,
            None => local_rig_options(preparation, self.engine.as_ref())?,
        };
        // The rig writes its interfaces into the plan, so it gets its own copy.
        let plan = Arc::unwrap_or_clone(plan);
        let kept = self.apply_port_retention(preparation);
        let ports = MachinePorts::new(&plan, &options).with_kept_ports(kept, &options.site);
        let rig = TestRig::prepare_with(plan, &options, &ports)?;
        let ports = rig.ports().into_iter().map(|(_, info)| info).collect();
        Ok((Box::new(rig), ports))
    }

    fn close_unused_ports(&mut self, now: MonoTime) {
        match self.keeping {
            // This is called only between runs: the first call marks the end of the run.
            PortRetentionTime::AfterRun(time) => self.keeping = PortRetentionTime::Until(now + time),
            PortRetentionTime::Until(end) if now >= end => self.close_kept_ports(),
            PortRetentionTime::Nothing | PortRetentionTime::Until(_) => {}
        }
    }
}
