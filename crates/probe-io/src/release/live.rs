//! `live`: our XDP program in the kernel creates each frame and releases it at its departure time. One call
//! sends all frames that follow each other closely. The frames pass no queue and no capture, and get no kernel
//! stamps. The program's next call shows that the driver has the previous frame, so the kernel calls the
//! program once more after the last frame.

use super::account::DepartureStampCollector;
use super::gate::{limit_hold_time, record_gated_frame};
use super::pace::ReleaseTimer;
use super::place::ReleaseInterface;
use super::train::TrainCopy;
use super::worker::MechanismSender;
use super::{DepartedFrame, ReleaseOptions};
use crate::{Error, now, small_count, to_frame_count};
use packetrig_probe::{DepartureStage, DepartureStamp, ProbeFlag, ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::hold::{LiveTrain, MAX_TRAIN_FRAME_BYTES, MAX_TRAIN_FRAMES};
use packetrig_sys::stamping::WantedStamps;
use packetrig_sys::{UnsupportedFeature, netdev};
use packetrig_units::{MonoTime, Nanos};
use std::ops::Range;

/// Frames that are closer together than this are sent in one call. Meanwhile the processor does nothing else.
const SINGLE_CALL_DISTANCE: Nanos = Nanos::from_micros(300);
/// Number of calls without a frame sent after which the rest of the train counts as dropped.
const MAX_CALLS_WITHOUT_FRAME: usize = 100;

pub(super) struct LiveRelease {
    train: LiveTrain,
    account: DepartureStampCollector,
    ahead: Nanos,
    stamps: bool,
}

/// Result of one call that makes the kernel program send frames.
struct SendCallResult {
    /// True if the driver got all frames of this call at once.
    together: bool,
    /// Number of the last frame of this call plus one.
    end: u64,
}

impl LiveRelease {
    pub(super) fn open_at(place: &ReleaseInterface, release_options: &ReleaseOptions) -> Result<Self, Error> {
        // Kernels before 6.3 do not report the features of a driver, so the mechanism is tried there.
        let can = netdev::read_xdp_features(&place.netns, place.link.index)
            .map_or(true, |features| features.transmit);
        if !can {
            return Err(Error::Mechanism {
                mechanism: ReleaseMechanism::Live,
                interface: place.name.clone(),
                source: Box::new(UnsupportedFeature {
                    feature: "sending live frames",
                    needs: "a driver that sends redirected frames (for a veth: GRO or an XDP program on its peer)"
                        .into(),
                    found: format!("that the driver of {} does not send them", place.name),
                }),
            });
        }
        let account = DepartureStampCollector::new(WantedStamps::default(), place.stamps, release_options);
        let train = LiveTrain::open_for_interface(place.link.index)?;
        Ok(Self {
            train,
            account,
            ahead: limit_hold_time(release_options.ahead),
            stamps: release_options.stamps,
        })
    }

    /// Gives the program as many frames of the train as it has room for, beginning at `next`. Returns the index
    /// of the first frame without room, or the number of frames.
    fn fill_program_slots(&mut self, train: &TrainCopy, next: usize, gone: &mut [DepartedFrame]) -> usize {
        let mut index = next;
        while index < train.len() {
            let at = now();
            if !self.train.try_queue_frame(train.due_time_at(index).as_nanos(), train.frame(index)) {
                break;
            }
            gone[index].handed_over = Some(ProbeStamp::between_readings(StampSource::Program, at, now()));
            index += 1;
        }
        index
    }

    /// Sends frame `from` and the frames that follow closely, as far as they were given to the program. The
    /// driver gets frames with the same departure time at once.
    fn send_next_batch(
        &mut self,
        train: &TrainCopy,
        from: usize,
        given: usize,
        pace: &mut ReleaseTimer,
    ) -> Result<SendCallResult, Error> {
        // The kernel gives a batch to the driver when its last frame is made. So only frames of one departure
        // time may share a batch; a frame with its own departure time is a batch of one.
        let together = count_frames_within(train, from..given, Nanos::ZERO);
        let most = if together > 1 {
            together
        } else {
            count_frames_within(train, from..given, SINGLE_CALL_DISTANCE)
        };
        // The program itself waits for the remaining time, so the call only has to begin early enough.
        pace.sleep_then_warm_up(train.due_time_at(from) - self.ahead, train.due_time_at(from));
        let began = now();
        let end = self.train.send_batch(train.longest_frame(), most, small_count(together))?;
        pace.record_busy_time(began, now());
        Ok(SendCallResult { together: together > 1, end })
    }

    /// Records the departure of frame `number`, which this call sent.
    fn record_sent_frame(&self, number: u64, call: &SendCallResult, gone: &mut DepartedFrame) {
        let held = self.train.gated_frame(number);
        // The release time is 0 if the program could not create the frame.
        if held.released_ns == 0 {
            gone.flags.push(ProbeFlag::Dropped);
            return;
        }
        record_gated_frame(held, gone);
        if self.stamps {
            // The driver got the frame between its release and the next call of the program; a batch is flushed after its last frame.
            let again = self.train.gated_frame(if call.together { call.end } else { number + 1 });
            let [lo, hi] = [held.released_ns, again.entered_ns].map(MonoTime::from_nanos);
            let stamp = ProbeStamp::between_readings(StampSource::Bpf, lo, hi);
            gone.departures.push(DepartureStamp { stage: DepartureStage::Driver, stamp });
        }
    }
}

/// Counts how many frames at the beginning of `range` follow each other within at most `most`.
fn count_frames_within(train: &TrainCopy, range: Range<usize>, most: Nanos) -> usize {
    1 + (range.start + 1..range.end)
        .take_while(|index| train.due_time_at(*index).since(train.due_time_at(*index - 1)) <= most)
        .count()
}

impl MechanismSender for LiveRelease {
    fn send_train(
        &mut self,
        train: &TrainCopy,
        pace: &mut ReleaseTimer,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error> {
        if train.longest_frame() > MAX_TRAIN_FRAME_BYTES {
            return Err(Error::Train {
                mechanism: ReleaseMechanism::Live,
                most: MAX_TRAIN_FRAMES,
                longest: MAX_TRAIN_FRAME_BYTES,
                frames: train.len(),
                length: train.longest_frame(),
            });
        }
        let first = self.train.released_count();
        let mut sent = 0;
        let mut given = 0;
        let mut in_vain = 0;
        while sent < train.len() && in_vain < MAX_CALLS_WITHOUT_FRAME {
            given = self.fill_program_slots(train, given, gone);
            // A call sends nothing if its frame is due later than the program may hold it. The call is
            // repeated when the due time is nearer.
            let call = self.send_next_batch(train, sent, given, pace)?;
            let off = to_frame_count(call.end - first);
            in_vain = if off == sent { in_vain + 1 } else { 0 };
            // Only frames of this call are recorded: earlier frames have their record, and the program reuses
            // its slots.
            for (number, gone) in (first..).zip(&mut *gone).take(off).skip(sent) {
                self.record_sent_frame(number, &call, gone);
            }
            sent = off;
        }
        // Frames that stayed with the program would leave with the next train.
        self.train.drop_unsent_frames();
        for gone in &mut gone[sent..] {
            gone.flags.push(ProbeFlag::Dropped);
        }
        self.account.flag_train_timing(train, gone);
        Ok(())
    }

    fn longest_frame(&self) -> usize {
        MAX_TRAIN_FRAME_BYTES
    }

    fn lead_time(&self) -> Nanos {
        self.ahead
    }
}
