//! Finds the mechanisms that work at an interface, and the departure stamps that each of them gives.

use super::place::ReleaseInterface;
use super::queued::find_release_qdisc;
use super::{ReleaseOptions, gate, live, open_release};
use crate::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::{DepartureStage, ReleaseMechanism};

/// A mechanism and its usability at an interface.
#[derive(Debug)]
pub struct MechanismCapability {
    pub mechanism: ReleaseMechanism,
    /// Reason why the mechanism cannot be used; `None` if it can.
    pub obstacle: Option<Error>,
    /// Stages of a departure that are stamped. The time of the release itself is always known, except with
    /// `fq`, `etf` and `launch`.
    pub stages: Vec<DepartureStage>,
}

/// Tries to open each mechanism for a moment, without sending anything.
pub fn find_capabilities(location: &PortLocation) -> Result<Vec<MechanismCapability>, Error> {
    let place = ReleaseInterface::look_up_interface(location)?;
    let all = ReleaseMechanism::ALL.into_iter().map(|mechanism| MechanismCapability {
        mechanism,
        obstacle: try_mechanism(location, &place, mechanism).err(),
        stages: stamped_stages(&place, mechanism),
    });
    Ok(all.collect())
}

fn try_mechanism(
    location: &PortLocation,
    place: &ReleaseInterface,
    mechanism: ReleaseMechanism,
) -> Result<(), Error> {
    let options = ReleaseOptions::common();
    match mechanism {
        // The program is opened without the worker's thread: loading it alone shows whether the kernel accepts it.
        ReleaseMechanism::Gate => gate::GateRelease::open_at(place, &options).map(drop),
        ReleaseMechanism::Live => live::LiveRelease::open_at(place, &options).map(drop),
        ReleaseMechanism::Fq | ReleaseMechanism::Etf | ReleaseMechanism::Launch => {
            // The queueing discipline is checked first: without it, the socket opens nevertheless, but
            // departure times are ignored.
            find_release_qdisc(place, mechanism)?;
            open_release(location, mechanism, options).map(drop)
        }
        ReleaseMechanism::Sleep | ReleaseMechanism::Spin | ReleaseMechanism::Ring => {
            open_release(location, mechanism, options).map(drop)
        }
    }
}

fn stamped_stages(place: &ReleaseInterface, mechanism: ReleaseMechanism) -> Vec<DepartureStage> {
    // The kernel takes no stamp of a live frame. The program's next call bounds the time at which the driver
    // got the frame.
    if mechanism == ReleaseMechanism::Live {
        return vec![DepartureStage::Driver];
    }
    let wanted = place.wanted_stamps(mechanism != ReleaseMechanism::Ring);
    let all = [
        (wanted.queued, DepartureStage::Queue),
        (wanted.sent, DepartureStage::Driver),
        (wanted.wire, DepartureStage::Wire),
    ];
    all.into_iter().filter_map(|(has, stage)| has.then_some(stage)).collect()
}
