//! `gate`: frames are handed over ahead of their instants, and a program at the interface's egress holds each back until then.

use super::account::Account;
use super::open::not_taken;
use super::pace::{Pace, STOLEN};
use super::place::Place;
use super::train::Train;
use super::worker::Line;
use super::{Gone, Manner};
use crate::{Error, now};
use packetrig_probe::{Flag, Source, Stamp};
use packetrig_sys::hold::{self, GatedFrame};
use packetrig_sys::packet::{FrameOptions, FrameSocket, ReleaseClock};
use packetrig_units::{MonoTime, Nanos};

/// What is left of the longest hold for the call itself.
const MARGIN: Nanos = Nanos::from_micros(50);

/// See the module.
pub(super) struct Gate {
    held_by: hold::KernelGate,
    socket: FrameSocket,
    account: Account,
    ahead: Nanos,
    /// Far enough ahead that a late waking does no harm.
    sleeps: bool,
}

impl Gate {
    pub(super) fn open(place: &Place, manner: &Manner) -> Result<Self, Error> {
        let account = Account::new(place.wanted(true), place.stamps, manner);
        let release = Some(ReleaseClock::Monotonic);
        let options = FrameOptions { stamps: account.wanted(), release, ..FrameOptions::default() };
        let socket = FrameSocket::open(&place.netns, place.link.index, &place.name, options)?;
        let gate = hold::KernelGate::open(&place.netns, place.link.index, &place.name, socket.cookie()?)?;
        let ahead = most_ahead(manner.ahead);
        Ok(Self { held_by: gate, socket, account, ahead, sleeps: ahead > manner.spin_from })
    }

    fn enter(&self, number: u64, pace: &mut Pace, gone: &mut Gone) {
        if self.held_by.passed() == number {
            gone.flags.push(Flag::StampMissing);
            return;
        }
        let held = self.held_by.held(number);
        pace.note_spun(MonoTime::from_nanos(held.entered_ns), MonoTime::from_nanos(held.released_ns));
        enter(held, gone);
    }
}

/// The instant to hand over at is so long before the other at most.
pub(super) fn most_ahead(ahead: Nanos) -> Nanos {
    ahead.min(Nanos::new(hold::MOST_HELD_NS - MARGIN.as_u64()))
}

/// What the program in the kernel says of a frame.
pub(super) fn enter(held: GatedFrame, gone: &mut Gone) {
    let at = MonoTime::from_nanos;
    gone.released = Some(Stamp::between(Source::Bpf, at(held.released_ns), at(held.left_ns)));
    if held.gap_ns > STOLEN.as_u64() {
        gone.flags.push(Flag::Stolen);
    }
}

impl Line for Gate {
    fn send(&mut self, train: &Train, pace: &mut Pace, gone: &mut [Gone]) -> Result<(), Error> {
        self.account.begin();
        for (index, gone) in gone.iter_mut().enumerate() {
            let due = train.at(index);
            let early = due - self.ahead;
            let at = if self.sleeps { pace.sleep(early, due).at } else { pace.spin(early).at };
            let number = self.held_by.passed();
            let sent = self.socket.send_at(train.frame(index), due.as_nanos());
            gone.handed_over = Some(Stamp::between(Source::Program, at, now()));
            self.enter(number, pace, gone);
            not_taken(sent, gone)?;
        }
        self.account.fetch(train.len(), gone, &[], &|take| self.socket.reports(take))?;
        self.account.judge(train, gone);
        Ok(())
    }

    fn lead(&self) -> Nanos {
        self.ahead
    }
}
