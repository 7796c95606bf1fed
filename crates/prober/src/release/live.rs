//! `live`: the kernel makes the frames, and a program of ours lets each go at its instant, a train in one call. Nothing else of the machine sees
//! them leave: no queue, no capture, no stamps of the kernel's. That the driver has a frame is known from what comes next: the program is
//! called again, for another one or in vain.

use super::account::ReleaseAccount;
use super::gate::{enter, most_ahead};
use super::pace::ReleasePace;
use super::place::ReleasePlace;
use super::train::TrainRelease;
use super::worker::Line;
use super::{DepartedFrame, ReleaseOptions};
use crate::{Error, now};
use packetrig_probe::{DepartureStage, DepartureStamp, ProbeFlag, ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::hold::{FRAMES, LONGEST, LiveTrain};
use packetrig_sys::stamping::WantedStamps;
use packetrig_sys::{UnsupportedFeature, netdev};
use packetrig_units::{MonoTime, Nanos};

/// Frames this near to each other are sent in one call; the processor does nothing else between them.
const NEAR: Nanos = Nanos::from_micros(300);
/// Calls in vain until a frame counts as stuck.
const CALLS: usize = 100;

pub(super) struct LiveRelease {
    train: LiveTrain,
    account: ReleaseAccount,
    ahead: Nanos,
    stamps: bool,
}

/// A call that has sent frames off.
struct SendCall {
    /// Whether the driver got them together.
    together: bool,
    /// The number behind its last frame's.
    end: u64,
}

impl LiveRelease {
    pub(super) fn open(place: &ReleasePlace, manner: &ReleaseOptions) -> Result<Self, Error> {
        // Kernels that cannot be asked may be able to.
        let can =
            netdev::xdp_features(&place.netns, place.link.index).map_or(true, |features| features.transmit);
        if !can {
            return Err(Error::Mechanism {
                mechanism: ReleaseMechanism::Live,
                interface: place.name.clone(),
                source: Box::new(UnsupportedFeature {
                    feature: "sending live frames",
                    needs: "a driver that takes redirected frames (of a virtual cable: GRO or an XDP program at the far end)"
                        .into(),
                    found: format!("{} does not", place.name),
                }),
            });
        }
        let account = ReleaseAccount::new(WantedStamps::default(), place.stamps, manner);
        let (ahead, stamps) = (most_ahead(manner.ahead), manner.stamps);
        Ok(Self { train: LiveTrain::open(place.link.index)?, account, ahead, stamps })
    }

    /// Gives the program as many of the train as it has room for, from `next` on.
    fn give(&mut self, train: &TrainRelease, next: usize, gone: &mut [DepartedFrame]) -> usize {
        let mut index = next;
        while index < train.len() {
            let at = now();
            if !self.train.give(train.at(index).as_nanos(), train.frame(index)) {
                break;
            }
            gone[index].handed_over = Some(ProbeStamp::between(StampSource::Program, at, now()));
            index += 1;
        }
        index
    }

    /// Sends frame `from` and what follows closely, of those that were given. What is due at once the driver gets at once.
    fn run(
        &mut self,
        train: &TrainRelease,
        from: usize,
        given: usize,
        pace: &mut ReleasePace,
    ) -> Result<SendCall, Error> {
        let within = |most: Nanos| {
            let is_near = |index: &usize| train.at(*index).since(train.at(*index - 1)) <= most;
            1 + (from + 1..given).take_while(is_near).count()
        };
        let together = within(Nanos::ZERO);
        let (most, at_once) = if together > 1 { (together, together) } else { (within(NEAR), 1) };
        pace.sleep(train.at(from) - self.ahead, train.at(from));
        let began = now();
        let end = self.train.run(train.longest(), most, u32::try_from(at_once).unwrap_or(u32::MAX))?;
        pace.note_spun(began, now());
        Ok(SendCall { together: together > 1, end })
    }

    /// What is known of frame `number`, one of those that this call sent off.
    fn enter(&self, number: u64, call: &SendCall, gone: &mut DepartedFrame) {
        let held = self.train.held(number);
        if held.released_ns == 0 {
            gone.flags.push(ProbeFlag::Dropped);
            return;
        }
        enter(held, gone);
        if self.stamps {
            let again = self.train.held(if call.together { call.end } else { number + 1 });
            let [lo, hi] = [held.released_ns, again.entered_ns].map(MonoTime::from_nanos);
            let stamp = ProbeStamp::between(StampSource::Bpf, lo, hi);
            gone.departures.push(DepartureStamp { stage: DepartureStage::Driver, stamp });
        }
    }
}

impl Line for LiveRelease {
    fn send(
        &mut self,
        train: &TrainRelease,
        pace: &mut ReleasePace,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error> {
        if train.longest() > LONGEST {
            let (frames, length) = (train.len(), train.longest());
            let mechanism = ReleaseMechanism::Live;
            return Err(Error::Train { mechanism, most: FRAMES, longest: LONGEST, frames, length });
        }
        let first = self.train.sent_off();
        let (mut sent, mut given, mut in_vain) = (0, 0, 0);
        while sent < train.len() && in_vain < CALLS {
            given = self.give(train, given, gone);
            let call = self.run(train, sent, given, pace)?;
            let off = usize::try_from(call.end - first).unwrap_or(0);
            in_vain = if off == sent { in_vain + 1 } else { 0 };
            for (number, gone) in (first..).zip(&mut *gone).take(off).skip(sent) {
                self.enter(number, &call, gone);
            }
            sent = off;
        }
        self.train.withdraw();
        for gone in &mut gone[sent..] {
            gone.flags.push(ProbeFlag::Dropped);
        }
        self.account.judge(train, gone);
        Ok(())
    }

    fn lead(&self) -> Nanos {
        self.ahead
    }
}
