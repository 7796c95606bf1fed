//! Which mechanisms an interface can have, and what each could tell of a departure.

use super::place::Place;
use super::queued::check;
use super::{Manner, gate, live, open};
use crate::Error;
use packetrig_plan::PortLocation;
use packetrig_probe::{Mechanism, Stage};

/// What is known of a mechanism at an interface.
#[derive(Debug)]
pub struct Capability {
    /// Which.
    pub mechanism: Mechanism,
    /// Why it cannot be used; `None`: it can.
    pub obstacle: Option<Error>,
    /// Stages of a departure that are stamped; the release itself is always known but of `fq`, `etf` and `launch`.
    pub stages: Vec<Stage>,
}

/// Tries all of them, for a moment each. Nothing is sent.
pub fn capabilities(location: &PortLocation) -> Result<Vec<Capability>, Error> {
    let place = Place::open(location)?;
    let of = |mechanism| Capability {
        mechanism,
        obstacle: attempt(location, &place, mechanism).err(),
        stages: stages(&place, mechanism),
    };
    Ok(Mechanism::ALL.into_iter().map(of).collect())
}

fn attempt(location: &PortLocation, place: &Place, mechanism: Mechanism) -> Result<(), Error> {
    let manner = Manner::usual();
    match mechanism {
        Mechanism::Gate => gate::Gate::open(place, &manner).map(drop),
        Mechanism::Live => live::Live::open(place, &manner).map(drop),
        Mechanism::Fq | Mechanism::Etf | Mechanism::Launch => {
            check(place, mechanism)?;
            open(location, mechanism, manner).map(drop)
        }
        Mechanism::Sleep | Mechanism::Spin | Mechanism::Ring => open(location, mechanism, manner).map(drop),
    }
}

fn stages(place: &Place, mechanism: Mechanism) -> Vec<Stage> {
    if mechanism == Mechanism::Live {
        return vec![Stage::Driver];
    }
    let wanted = place.wanted(mechanism != Mechanism::Ring);
    let all = [(wanted.queued, Stage::Queue), (wanted.sent, Stage::Driver), (wanted.wire, Stage::Wire)];
    all.into_iter().filter_map(|(has, stage)| has.then_some(stage)).collect()
}
