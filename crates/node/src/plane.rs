//! What the agent's shell asks of a data plane, and the real one.

use packetrig_engine::Error;
use packetrig_engine::rig::{Rig, RigOptions};
use packetrig_fleet::message::{Preparation, SentTotal};
use packetrig_plan::{Location, Plan, ReadOptions, Steer};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{NodeResult, Sample};
use packetrig_units::MonoTime;
use packetrig_wire::tag::TagKey;
use std::path::PathBuf;

/// Ports and workers prepared for one run. Dropping it stops everything and closes the ports.
pub trait DataPlane {
    /// Starts the receivers; returns when each is receiving.
    fn arm(&mut self) -> Result<(), Error>;
    /// Sends from `at` on.
    fn start_at(&mut self, at: MonoTime);
    /// All counts now.
    fn sample(&mut self) -> Result<Sample, Error>;
    /// Changes something of a steered run; `at` is the instant of a start that nodes have in common. An error leaves
    /// the run as it was.
    fn steer(&mut self, steer: &Steer, at: Option<MonoTime>) -> Result<(), Error>;
    /// Whether every sender is done.
    fn senders_done(&mut self) -> bool;
    /// What each stream sent from here has sent; final once the senders are done.
    fn sent(&mut self) -> Result<Vec<SentTotal>, Error>;
    /// Stops the senders; what is unsent stays unsent.
    fn stop_senders(&mut self);
    /// Stops the receivers and gives the accounts. `sent` is what all streams of the run sent.
    fn finish(self: Box<Self>, node: &str, sent: &[SentTotal]) -> Result<NodeResult, Error>;
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
#[derive(Clone, Debug, Default)]
pub struct EnginePlane {
    known: Option<(String, u64, Plan)>,
}

impl EnginePlane {
    fn plan_of(&mut self, document: &str, seed: u64) -> Result<Plan, Error> {
        match self.known.take() {
            Some((known, its_seed, plan)) if known == document && its_seed == seed => Ok(plan),
            _ => Ok(Plan::read_with(document, ReadOptions { seed, ..ReadOptions::default() })?),
        }
    }
}

impl Planes for EnginePlane {
    fn know(&mut self, document: &str, seed: u64, plan: Plan) {
        self.known = Some((document.to_owned(), seed, plan));
    }

    fn prepare(&mut self, preparation: &Preparation) -> Result<Prepared, Error> {
        let plan = self.plan_of(&preparation.document, preparation.seed)?;
        // What is no location cannot be a port of the plan either.
        let confirmed = preparation.confirmed.iter().filter_map(|text| text.parse::<Location>().ok());
        let options = RigOptions {
            key: TagKey(preparation.tag_key),
            confirmed: confirmed.collect(),
            capture_dir: preparation.capture_dir.as_ref().map(PathBuf::from),
            capture_all: preparation.capture_all,
            captures_wait: preparation.steered,
            back_end: preparation.back_end,
            limits: preparation.limits.clone(),
            steered: preparation.steered,
            seed: preparation.seed,
        };
        let rig = Rig::prepare(plan, &options)?;
        let ports = rig.ports().to_vec();
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
    fn sample(&mut self) -> Result<Sample, Error> {
        Self::sample(self)
    }
    fn steer(&mut self, steer: &Steer, at: Option<MonoTime>) -> Result<(), Error> {
        Self::steer(self, steer, at)
    }
    fn senders_done(&mut self) -> bool {
        Self::senders_done(self)
    }
    fn sent(&mut self) -> Result<Vec<SentTotal>, Error> {
        let totals = Self::sent(self)?;
        Ok(totals.into_iter().map(|(stream, frames)| SentTotal { stream, frames }).collect())
    }
    fn stop_senders(&mut self) {
        Self::stop_senders(self);
    }
    fn finish(self: Box<Self>, node: &str, sent: &[SentTotal]) -> Result<NodeResult, Error> {
        let sent: Vec<_> = sent.iter().map(|total| (total.stream, total.frames)).collect();
        Self::finish(*self, node, &sent)
    }
}
