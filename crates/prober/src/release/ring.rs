//! `ring`: all frames of a train lie ready in a transmit ring, and one call at the instant of the first hands them to the driver, back to back.
//!
//! The instants of the others are not kept: what is due later leaves early, and is flagged.

use super::account::Account;
use super::pace::Pace;
use super::place::Place;
use super::train::Train;
use super::worker::Line;
use super::{Gone, Manner};
use crate::{Error, now};
use packetrig_probe::{Flag, Mechanism, Source, Stamp};
use packetrig_sys::packet::{TxOptions, TxRing};

const SLOTS: usize = 1024;
/// Kicks until the kernel has taken a whole train.
const KICKS: usize = 1_000;
/// Ethernet header and a VLAN tag.
const BEYOND_MTU: usize = 18;

/// See the module.
pub(super) struct Ring {
    slots: TxRing,
    account: Account,
    longest: usize,
}

impl Ring {
    pub(super) fn open(place: &Place, manner: &Manner) -> Result<Self, Error> {
        let account = Account::new(place.wanted(false), place.stamps, manner);
        let longest = place.link.mtu as usize + BEYOND_MTU;
        let options = TxOptions { slots: SLOTS, longest, bypass_queue: true };
        let ring = TxRing::open(&place.netns, place.link.index, &place.name, options)?;
        ring.request_stamps(account.wanted())?;
        Ok(Self { slots: ring, account, longest })
    }

    fn fill(&mut self, train: &Train) -> Result<(), Error> {
        let refused = Error::Train {
            mechanism: Mechanism::Ring,
            most: self.slots.capacity(),
            longest: self.longest,
            frames: train.len(),
            length: train.longest(),
        };
        if train.len() + self.slots.pending() > self.slots.capacity() || train.longest() > self.longest {
            return Err(refused);
        }
        for index in 0..train.len() {
            let frame = train.frame(index);
            let Some(slot) = self.slots.next_slot() else { return Err(refused) };
            slot[..frame.len()].copy_from_slice(frame);
            self.slots.commit(frame.len());
        }
        Ok(())
    }
}

impl Line for Ring {
    fn send(&mut self, train: &Train, pace: &mut Pace, gone: &mut [Gone]) -> Result<(), Error> {
        self.account.begin();
        let refused = self.slots.counts().refused;
        self.fill(train)?;
        let waited = pace.spin(train.at(0));
        for _ in 0..KICKS {
            self.slots.kick()?;
            if self.slots.pending() == 0 {
                break;
            }
        }
        let call = Stamp::between(Source::Program, waited.at, now());
        self.slots.withdraw();
        let taken = train.len() - usize::try_from(self.slots.counts().refused - refused).unwrap_or(0);
        for (index, gone) in gone.iter_mut().enumerate() {
            if index >= taken {
                gone.flags.push(Flag::Dropped);
                continue;
            }
            (gone.handed_over, gone.released) = (Some(call), Some(call));
            if waited.stolen {
                gone.flags.push(Flag::Stolen);
            }
        }
        self.account.fetch(taken, gone, &[], &|take| self.slots.reports(take))?;
        self.account.judge(train, gone);
        Ok(())
    }
}
