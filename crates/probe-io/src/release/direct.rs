//! `sleep` and `spin`: the sender waits for each departure time itself and sends by a system call.

use super::DepartedFrame;
use super::account::ReleaseAccount;
use super::pace::{ReleasePace, WaitOutcome, sleep};
use super::place::ReleasePlace;
use super::train::TrainRelease;
use super::worker::Line;
use super::{ReleaseOptions, open::flag_if_no_room, open::send_each};
use crate::{Error, now};
use packetrig_probe::{ProbeFlag, ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::packet::{FrameOptions, FrameSocket};

pub(super) struct DirectRelease {
    socket: FrameSocket,
    account: ReleaseAccount,
    spins: bool,
}

impl DirectRelease {
    pub(super) fn open(
        place: &ReleasePlace,
        mechanism: ReleaseMechanism,
        manner: &ReleaseOptions,
    ) -> Result<Self, Error> {
        let account = ReleaseAccount::new(place.wanted(true), place.stamps, manner);
        let options = FrameOptions { stamps: account.wanted(), ..FrameOptions::default() };
        let socket = FrameSocket::open(&place.netns, place.link.index, &place.name, options)?;
        Ok(Self { socket, account, spins: mechanism == ReleaseMechanism::Spin })
    }
}

impl Line for DirectRelease {
    fn send(
        &mut self,
        train: &TrainRelease,
        pace: &mut ReleasePace,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error> {
        self.account.begin();
        let sent = send_each(gone, |index, gone| {
            let due = train.at(index);
            let WaitOutcome { at, stolen } = if self.spins { pace.spin(due) } else { sleep(due) };
            // The last clock reading of the wait starts the interval: the frame can leave at any time from then on until the call returns.
            let sent = self.socket.send(train.frame(index));
            let call = ProbeStamp::between(StampSource::Program, at, now());
            flag_if_no_room(sent, gone)?;
            gone.handed_over = Some(call);
            gone.released = Some(call);
            if stolen {
                gone.flags.push(ProbeFlag::Stolen);
            }
            Ok(())
        });
        self.account.fetch(sent.count, gone, &[], &|take| self.socket.reports(take))?;
        self.account.judge(train, gone);
        sent.result
    }
}
