//! Which ports of a plan a rig opens, and the permit that it needs.
//!
//! A rig of a fleet carries the permit of its node's owner. The rig itself asks, of the ports and streams that it really
//! opens: before it opens them, once it has, and before every change. There is no other way to make such a rig.

use packetrig_plan::{BoundPlan, Plan, PortLocation};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::RunTerms;
use packetrig_units::BitRate;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the ports of a plan are.
#[derive(Clone, Debug)]
pub enum RigSite {
    /// The plan is for this machine alone: every port is here, where the plan says, and the user is asked nothing more.
    EveryPortHere,
    /// The plan comes from the controller of a fleet.
    PartOfFleet {
        /// For each port of the plan an interface of this machine, or `None` if the port is on another node.
        places: Vec<Option<PortLocation>>,
        /// What the owner of this machine allows.
        permit: Arc<dyn OwnerPermit>,
    },
}

impl RigSite {
    /// Interfaces of this machine that the plan's ports are on.
    pub(super) fn locations(&self, plan: &Plan) -> BTreeSet<PortLocation> {
        match self {
            Self::EveryPortHere => plan.ports.iter().map(|port| port.location.clone()).collect(),
            Self::PartOfFleet { places, .. } => places.iter().flatten().cloned().collect(),
        }
    }
}

/// What the owner of a node allows.
pub trait OwnerPermit: fmt::Debug + Send + Sync {
    /// Why the node does not do this: everything at once; empty if it does.
    fn objections(&self, question: &PermitQuestion<'_>) -> Vec<String>;
    /// Whether something may be sent to this address.
    fn allows(&self, address: IpAddr) -> bool;
}

/// What a rig is about to do.
#[derive(Clone, Copy, Debug)]
pub struct PermitQuestion<'a> {
    /// The whole plan with its schedules, without streams that a steered run has lost.
    pub plan: &'a BoundPlan,
    /// The ports that are here.
    pub ports: &'a [PermitPort],
    /// The files whose frames ports that are here send, without symbolic links; `None`: one cannot be found.
    pub replays: &'a [Option<PathBuf>],
    /// What was asked for beside the plan.
    pub terms: &'a RunTerms,
}

/// A port that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitPort {
    /// Its index in the plan.
    pub port: usize,
    pub interface: PortLocation,
    /// What the link says of its speed, whatever the plan says.
    pub link_speed: Option<BitRate>,
    /// What frames leave by, once the port is open.
    pub back_end: Option<BackEnd>,
}
