//! What the agent's shell asks of a data plane, and the real one.

use packetrig_engine::Error;
use packetrig_engine::gate::Gate;
use packetrig_engine::rig::{Rig, RigOptions};
use packetrig_engine::stream::Shift;
use packetrig_fleet::message::{NodeName, Preparation, SentTotal};
use packetrig_plan::{Held, Location, Plan, Problem, Problems, ReadOptions, Steer};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{NodeResult, Sample};
use packetrig_units::MonoTime;
use packetrig_wire::tag::TagKey;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Ports and workers prepared for one run. Dropping it stops everything and closes the ports.
pub trait DataPlane {
    /// Starts the receivers; returns when each is receiving.
    fn arm(&mut self) -> Result<(), Error>;
    /// Sends from `at` on.
    fn start_at(&mut self, at: MonoTime);
    /// Tells how the clocks of nodes that send streams to this one relate to its own; again whenever that is known better.
    fn shift(&mut self, shifts: &[(usize, Shift)]) -> Result<(), Error> {
        let _ = shifts;
        Ok(())
    }
    /// All counts now.
    fn sample(&mut self) -> Result<Sample, Error>;
    /// Changes something of a steered run, here alone. An error leaves the run as it was.
    fn steer(&mut self, steer: &Steer) -> Result<(), Error>;
    /// First step of a change that several nodes make: holds the streams concerned that are sent here. An error leaves the
    /// run as it was.
    fn hold(&mut self, steer: &Steer) -> Result<Vec<Held>, Error>;
    /// Second step: receivers hear of the takes that follow what was held anywhere.
    fn announce(&mut self, held: &[Held], at: Option<MonoTime>) -> Result<(), Error>;
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
pub type Prepared = (Box<dyn DataPlane>, Vec<PortInfo>);

/// Where data planes come from.
pub trait Planes {
    /// Told what `document` was found to mean, so that it need not be read again.
    fn know(&mut self, document: &str, seed: u64, plan: Plan) {
        let _ = (document, seed, plan);
    }
    /// Opens what the preparation asks for.
    fn prepare(&mut self, preparation: &Preparation) -> Result<Prepared, Error>;
}

/// The engine's rig on this machine's interfaces.
#[derive(Clone, Debug)]
pub struct EnginePlane {
    node: NodeName,
    gate: Gate,
    known: Option<(String, u64, Plan)>,
}

impl Default for EnginePlane {
    fn default() -> Self {
        Self::for_node(NodeName::local())
    }
}

impl EnginePlane {
    /// Of a node with this name: of a plan whose ports are on several, it opens those that are here.
    pub fn for_node(node: NodeName) -> Self {
        Self { node, gate: Gate::open(), known: None }
    }

    /// Under a lease: its ports send as long as `gate` is not shut.
    #[must_use]
    pub fn under(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// Where each port is, if it is here; empty if all are.
    fn places(&self, preparation: &Preparation) -> Result<Vec<Option<Location>>, Error> {
        let places = preparation.places.iter().map(|place| {
            let is_here = place.node == self.node;
            is_here
                .then(|| place.interface.parse::<Location>())
                .transpose()
                .map_err(|message| Error::Plan(Problems(vec![Problem::error("ports", message)])))
        });
        places.collect()
    }

    fn plan_of(&mut self, preparation: &Preparation) -> Result<Plan, Error> {
        let Preparation { document, seed, .. } = preparation;
        let fleet = !preparation.places.is_empty();
        match self.known.take() {
            Some((known, its_seed, plan)) if !fleet && known == *document && its_seed == *seed => Ok(plan),
            _ => Ok(Plan::read_with(document, ReadOptions { seed: *seed, fleet })?),
        }
    }

    /// Interfaces here that the user confirmed. In a fleet they may be written with this node's name.
    fn confirmed(&self, preparation: &Preparation) -> BTreeSet<Location> {
        let own = format!("{}/", self.node);
        let here = |text: &String| {
            let of_fleet = text.strip_prefix(&own).filter(|_| !preparation.places.is_empty());
            // What is no location cannot be a port of the plan either.
            of_fleet.unwrap_or(text).parse::<Location>().ok()
        };
        preparation.confirmed.iter().filter_map(here).collect()
    }
}

impl Planes for EnginePlane {
    fn know(&mut self, document: &str, seed: u64, plan: Plan) {
        self.known = Some((document.to_owned(), seed, plan));
    }

    fn prepare(&mut self, preparation: &Preparation) -> Result<Prepared, Error> {
        let plan = self.plan_of(preparation)?;
        let options = RigOptions {
            key: TagKey(preparation.tag_key),
            confirmed: self.confirmed(preparation),
            capture_dir: preparation.capture_dir.as_ref().map(PathBuf::from),
            capture_all: preparation.capture_all,
            captures_wait: preparation.steered,
            back_end: preparation.back_end,
            limits: preparation.limits.clone(),
            steered: preparation.steered,
            seed: preparation.seed,
            places: self.places(preparation)?,
            gate: self.gate.clone(),
            run: preparation.run.clone(),
        };
        let rig = Rig::prepare(plan, &options)?;
        let ports = rig.ports().into_iter().map(|(_, info)| info).collect();
        Ok((Box::new(rig), ports))
    }
}

impl DataPlane for Rig {
    fn arm(&mut self) -> Result<(), Error> {
        Self::arm(self)
    }
    fn start_at(&mut self, at: MonoTime) {
        Self::start_at(self, at);
    }
    fn shift(&mut self, shifts: &[(usize, Shift)]) -> Result<(), Error> {
        Self::shift(self, shifts)
    }
    fn sample(&mut self) -> Result<Sample, Error> {
        Self::sample(self)
    }
    fn steer(&mut self, steer: &Steer) -> Result<(), Error> {
        Self::steer(self, steer)
    }
    fn hold(&mut self, steer: &Steer) -> Result<Vec<Held>, Error> {
        Self::hold(self, steer)
    }
    fn announce(&mut self, held: &[Held], at: Option<MonoTime>) -> Result<(), Error> {
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
