//! Where the ports of a plan are, and the permit that the rig needs to open them.
//!
//! A rig whose plan comes from a fleet's controller has the permit of the node's owner, and cannot be created without
//! it. The rig itself checks against this permit what it really opens and sends: before it opens the ports, after that,
//! and before every change of the plan.

use packetrig_plan::{BoundPlan, Plan, PortLocation};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::BitRate;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the ports of a plan are.
#[derive(Clone, Debug)]
pub enum PlanPortLocations {
    /// The plan runs on this machine only: every port is at the location in the plan, and no permit is needed.
    EveryPortHere,
    /// The plan comes from the controller of a fleet.
    PartOfFleet {
        /// For each port of the plan an interface of this machine, or `None` if the port is on another node.
        places: Vec<Option<PortLocation>>,
        /// The owner's permit.
        permit: Arc<dyn OwnerPermit>,
    },
}

impl PlanPortLocations {
    /// Returns the interfaces of this machine that the plan's ports are on.
    pub(super) fn port_locations(&self, plan: &Plan) -> BTreeSet<PortLocation> {
        match self {
            Self::EveryPortHere => plan.ports.iter().map(|port| port.location.clone()).collect(),
            Self::PartOfFleet { places, .. } => places.iter().flatten().cloned().collect(),
        }
    }
}

/// Permit of a node's owner.
pub trait OwnerPermit: fmt::Debug + Send + Sync {
    /// Returns all reasons why the owner forbids the run; empty if it is allowed.
    fn list_objections(&self, question: &PermitQuestion<'_>) -> Vec<String>;
    /// Returns whether sending to this address is allowed.
    fn allows_address(&self, address: IpAddr) -> bool;
}

/// The planned actions of a run, for the check against the owner's permit.
#[derive(Clone, Copy, Debug)]
pub struct PermitQuestion<'a> {
    /// The whole plan with its schedules, without streams that a steered run has removed.
    pub plan: &'a BoundPlan,
    /// The ports of the plan that are on this node.
    pub ports: &'a [PermitPort],
    /// Paths of the files that local ports replay, with symbolic links resolved; `None` for a file
    /// that cannot be found.
    pub replays: &'a [Option<PathBuf>],
    /// Terms of the run that are not part of the plan.
    pub terms: &'a SharedRunOptions,
}

/// A port of the plan that is on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitPort {
    /// Index of the port in the plan.
    pub port: usize,
    pub interface: PortLocation,
    /// Speed that the link reports, whatever the plan says.
    pub link_speed: Option<BitRate>,
    /// Back end that sends the frames, once the port is open.
    pub back_end: Option<BackEnd>,
}
