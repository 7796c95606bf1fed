//! Opening a mechanism at an interface.

use super::direct::Direct;
use super::gate::Gate;
use super::live::Live;
use super::place::Place;
use super::queued::Queued;
use super::ring::Ring;
use super::worker::Worker;
use super::{Gone, Manner, Release};
use crate::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::{Flag, Mechanism};

/// ENOBUFS: the queue or the interface had no room.
const NO_ROOM: i32 = 105;

/// Opens a mechanism at an interface. What it set up there ends with it.
pub fn open(
    location: &PortLocation,
    mechanism: Mechanism,
    manner: Manner,
) -> Result<Box<dyn Release>, Error> {
    let place = Place::open(location)?;
    let worker = match mechanism {
        Mechanism::Sleep | Mechanism::Spin => {
            Worker::start(&place, mechanism, manner, Direct::open(&place, mechanism, &manner)?)?
        }
        Mechanism::Ring => Worker::start(&place, mechanism, manner, Ring::open(&place, &manner)?)?,
        Mechanism::Gate => Worker::start(&place, mechanism, manner, Gate::open(&place, &manner)?)?,
        Mechanism::Live => Worker::start(&place, mechanism, manner, Live::open(&place, &manner)?)?,
        Mechanism::Fq | Mechanism::Etf | Mechanism::Launch => {
            Worker::start(&place, mechanism, manner, Queued::open(&place, mechanism, &manner)?)?
        }
    };
    Ok(Box::new(worker))
}

/// Notes that the kernel had no room for a frame; other failures end the train.
pub(super) fn not_taken(sent: Result<(), packetrig_sys::Error>, gone: &mut Gone) -> Result<(), Error> {
    match sent {
        Err(error) if error.errno() == Some(NO_ROOM) => {
            gone.flags.push(Flag::Dropped);
            Ok(())
        }
        other => Ok(other?),
    }
}
