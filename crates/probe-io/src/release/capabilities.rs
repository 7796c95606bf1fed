//! Finds the mechanisms that work at an interface, and the departure stamps that each can have.

use super::place::ReleasePlace;
use super::queued::check;
use super::{ReleaseOptions, gate, live, open};
use crate::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::{DepartureStage, ReleaseMechanism};

/// A mechanism and its usability at an interface.
#[derive(Debug)]
pub struct MechanismCapability {
    pub mechanism: ReleaseMechanism,
    /// Reason why it cannot be used; `None`: it can.
    pub obstacle: Option<Error>,
    /// Stages of a departure that are stamped. The release itself is always known, except with `fq`, `etf` and `launch`.
    pub stages: Vec<DepartureStage>,
}

/// Opens each mechanism for a moment. It sends nothing.
pub fn capabilities(location: &PortLocation) -> Result<Vec<MechanismCapability>, Error> {
    let place = ReleasePlace::open(location)?;
    let all = ReleaseMechanism::ALL.into_iter().map(|mechanism| MechanismCapability {
        mechanism,
        obstacle: attempt(location, &place, mechanism).err(),
        stages: stages(&place, mechanism),
    });
    Ok(all.collect())
}

fn attempt(location: &PortLocation, place: &ReleasePlace, mechanism: ReleaseMechanism) -> Result<(), Error> {
    let manner = ReleaseOptions::usual();
    match mechanism {
        // Opened without the worker's thread: loading the program alone shows whether the kernel takes it.
        ReleaseMechanism::Gate => gate::GateRelease::open(place, &manner).map(drop),
        ReleaseMechanism::Live => live::LiveRelease::open(place, &manner).map(drop),
        ReleaseMechanism::Fq | ReleaseMechanism::Etf | ReleaseMechanism::Launch => {
            check(place, mechanism)?;
            open(location, mechanism, manner).map(drop)
        }
        ReleaseMechanism::Sleep | ReleaseMechanism::Spin | ReleaseMechanism::Ring => {
            open(location, mechanism, manner).map(drop)
        }
    }
}

fn stages(place: &ReleasePlace, mechanism: ReleaseMechanism) -> Vec<DepartureStage> {
    // No kernel stamp is taken of a live frame. The program's next call bounds the time at which the driver got it.
    if mechanism == ReleaseMechanism::Live {
        return vec![DepartureStage::Driver];
    }
    let wanted = place.wanted(mechanism != ReleaseMechanism::Ring);
    let all = [
        (wanted.queued, DepartureStage::Queue),
        (wanted.sent, DepartureStage::Driver),
        (wanted.wire, DepartureStage::Wire),
    ];
    all.into_iter().filter_map(|(has, stage)| has.then_some(stage)).collect()
}
