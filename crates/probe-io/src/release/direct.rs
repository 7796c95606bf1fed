//! `sleep` and `spin`: the sender waits for each departure time itself and sends by a system call.

use super::DepartedFrame;
use super::account::DepartureStampCollector;
use super::pace::{ReleaseTimer, SpinWaitOutcome, sleep_until};
use super::place::ReleaseInterface;
use super::train::TrainCopy;
use super::worker::MechanismSender;
use super::{ReleaseOptions, open::flag_if_queue_full, open::send_each_frame};
use crate::{Error, now};
use packetrig_probe::{ProbeFlag, ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::packet::{FrameOptions, FrameSocket};

pub(super) struct DirectRelease {
    socket: FrameSocket,
    account: DepartureStampCollector,
    spins: bool,
}

impl DirectRelease {
    pub(super) fn open_at(
        place: &ReleaseInterface,
        mechanism: ReleaseMechanism,
        release_options: &ReleaseOptions,
    ) -> Result<Self, Error> {
        let account = DepartureStampCollector::new(place.wanted_stamps(true), place.stamps, release_options);
        let options = FrameOptions { stamps: account.wanted_stamps(), ..FrameOptions::default() };
        let socket = FrameSocket::open_on_interface(&place.netns, place.link.index, &place.name, options)?;
        Ok(Self { socket, account, spins: mechanism == ReleaseMechanism::Spin })
    }
}

impl MechanismSender for DirectRelease {
    fn send_train(
        &mut self,
        train: &TrainCopy,
        pace: &mut ReleaseTimer,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error> {
        self.account.begin_train();
        let sent = send_each_frame(gone, |index, gone| {
            let due = train.due_time_at(index);
            let SpinWaitOutcome { at, stolen } =
                if self.spins { pace.spin_until_deadline(due) } else { sleep_until(due) };
            // The last clock reading of the wait starts the interval: the frame can leave at any time from then on until the call returns.
            let sent = self.socket.send_frame(train.frame(index));
            let call = ProbeStamp::between_readings(StampSource::Program, at, now());
            flag_if_queue_full(sent, gone)?;
            gone.handed_over = Some(call);
            gone.released = Some(call);
            if stolen {
                gone.flags.push(ProbeFlag::Stolen);
            }
            Ok(())
        });
        self.account.fetch_stamps(sent.count, gone, &[], &|take| self.socket.drain_reports(take))?;
        self.account.flag_train_timing(train, gone);
        sent.result
    }
}
