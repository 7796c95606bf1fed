//! Location of a plan's ports, and the permit that the rig needs to open them.
//!
//! A rig of a fleet has the permit of its node's owner. The rig itself asks this permit about the ports and streams
//! that it really opens: before it opens them, once it has, and before every change. There is no other way to
//! create such a rig.

use packetrig_plan::{BoundPlan, Plan, PortLocation};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::RunTerms;
use packetrig_units::BitRate;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Location of the ports of a plan.
#[derive(Clone, Debug)]
pub enum RigSite {
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

impl RigSite {
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
    /// Returns all reasons why the node refuses; empty if it does not.
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
    /// Files that local ports replay, without symbolic links; `None` for one that cannot be found.
    pub replays: &'a [Option<PathBuf>],
    /// Terms of the run that are not part of the plan.
    pub terms: &'a RunTerms,
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
