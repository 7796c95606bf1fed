//! `sleep` and `spin`: the sender waits for each instant itself and sends by a call.

use super::Gone;
use super::account::Account;
use super::pace::{Pace, Waited, sleep};
use super::place::Place;
use super::train::Train;
use super::worker::Line;
use super::{Manner, open::not_taken};
use crate::{Error, now};
use packetrig_probe::{Flag, Mechanism, Source, Stamp};
use packetrig_sys::packet::{FrameOptions, FrameSocket};

/// See the module.
pub(super) struct Direct {
    socket: FrameSocket,
    account: Account,
    spins: bool,
}

impl Direct {
    pub(super) fn open(place: &Place, mechanism: Mechanism, manner: &Manner) -> Result<Self, Error> {
        let account = Account::new(place.wanted(true), place.stamps, manner);
        let options = FrameOptions { stamps: account.wanted(), ..FrameOptions::default() };
        let socket = FrameSocket::open(&place.netns, place.link.index, &place.name, options)?;
        Ok(Self { socket, account, spins: mechanism == Mechanism::Spin })
    }
}

impl Line for Direct {
    fn send(&mut self, train: &Train, pace: &mut Pace, gone: &mut [Gone]) -> Result<(), Error> {
        self.account.begin();
        for (index, gone) in gone.iter_mut().enumerate() {
            let due = train.at(index);
            let Waited { at, stolen } = if self.spins { pace.spin(due) } else { sleep(due) };
            let sent = self.socket.send(train.frame(index));
            let call = Stamp::between(Source::Program, at, now());
            (gone.handed_over, gone.released) = (Some(call), Some(call));
            if stolen {
                gone.flags.push(Flag::Stolen);
            }
            not_taken(sent, gone)?;
        }
        self.account.fetch(train.len(), gone, &[], &|take| self.socket.reports(take))?;
        self.account.judge(train, gone);
        Ok(())
    }
}
