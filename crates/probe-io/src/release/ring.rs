//! `ring`: all frames of a train are written to a transmit ring in advance. One call at the departure time of
//! the first frame hands them to the driver, back to back.
//!
//! Only the departure time of the first frame is respected. A frame that is due later leaves early, and is
//! flagged if it is early by more than the tolerance.

use super::account::DepartureStampCollector;
use super::pace::ReleaseTimer;
use super::place::ReleaseInterface;
use super::train::TrainCopy;
use super::worker::MechanismSender;
use super::{DepartedFrame, ReleaseOptions};
use crate::{Error, now, to_frame_count};
use packetrig_probe::{ProbeFlag, ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::packet::{TxOptions, TxRing};

const MAX_RING_SLOTS: usize = 1024;
/// Maximum memory for all slots, in bytes: 1024 slots for the long frames of the loopback interface (64 KiB)
/// would take 128 MiB.
const MAX_RING_BYTES: usize = 16 << 20;
/// Maximum number of send calls until the kernel has taken a whole train.
const MAX_SEND_CALLS: usize = 1_000;
/// Ethernet header and a VLAN tag.
const FRAME_BYTES_BEYOND_MTU: usize = 18;

/// Returns the number of slots of a ring for frames of at most `longest` bytes.
fn slot_count(longest: usize) -> usize {
    // The ring is allocated in blocks whose size is a power of two.
    (MAX_RING_BYTES / longest.next_power_of_two()).clamp(1, MAX_RING_SLOTS)
}

pub(super) struct RingRelease {
    slots: TxRing,
    account: DepartureStampCollector,
    longest: usize,
}

impl RingRelease {
    pub(super) fn open_at(place: &ReleaseInterface, release_options: &ReleaseOptions) -> Result<Self, Error> {
        let account = DepartureStampCollector::new(place.wanted_stamps(false), place.stamps, release_options);
        let longest = place.link.mtu as usize + FRAME_BYTES_BEYOND_MTU;
        let options = TxOptions { slots: slot_count(longest), longest, bypass_queue: true };
        let ring = TxRing::open_on_interface(&place.netns, place.link.index, &place.name, options)?;
        ring.request_stamps(account.wanted_stamps())?;
        Ok(Self { slots: ring, account, longest })
    }

    fn fill_slots(&mut self, train: &TrainCopy) -> Result<(), Error> {
        // The whole train is checked first, because a part of it in the ring would leave with the next send call.
        let refused = Error::Train {
            mechanism: ReleaseMechanism::Ring,
            most: self.slots.capacity(),
            longest: self.longest,
            frames: train.len(),
            length: train.longest_frame(),
        };
        if train.len() + self.slots.pending_frames() > self.slots.capacity()
            || train.longest_frame() > self.longest
        {
            return Err(refused);
        }
        for index in 0..train.len() {
            let frame = train.frame(index);
            let Some(slot) = self.slots.next_slot() else { return Err(refused) };
            slot[..frame.len()].copy_from_slice(frame);
            self.slots.commit_frame(frame.len());
        }
        Ok(())
    }
}

impl MechanismSender for RingRelease {
    fn send_train(
        &mut self,
        train: &TrainCopy,
        pace: &mut ReleaseTimer,
        gone: &mut [DepartedFrame],
    ) -> Result<(), Error> {
        self.account.begin_train();
        // The ring counts over all trains, so only the difference belongs to this one.
        let refused = self.slots.counts().refused;
        self.fill_slots(train)?;
        let waited = pace.spin_until_deadline(train.due_time_at(0));
        // A call takes only as many frames as the driver has room for. The limit on calls keeps a stuck driver
        // from blocking the thread for ever.
        for _ in 0..MAX_SEND_CALLS {
            self.slots.kick_kernel()?;
            if self.slots.pending_frames() == 0 {
                break;
            }
        }
        // One stamp is valid for all frames: each left between the last clock reading before the send calls and
        // the reading after them.
        let call = ProbeStamp::between_readings(StampSource::Program, waited.at, now());
        // Frames that are still in the ring would leave with the next train, so they are withdrawn.
        self.slots.withdraw_untaken();
        // The kernel takes frames in order, and `fill_slots` has checked their lengths, so the refused frames
        // are the last ones.
        let taken = train.len() - to_frame_count(self.slots.counts().refused - refused);
        for (index, gone) in gone.iter_mut().enumerate() {
            if index >= taken {
                gone.flags.push(ProbeFlag::Dropped);
                continue;
            }
            gone.handed_over = Some(call);
            gone.released = Some(call);
            if waited.stolen {
                gone.flags.push(ProbeFlag::Stolen);
            }
        }
        self.account.fetch_stamps(taken, gone, &[], &|take| self.slots.drain_reports(take))?;
        self.account.flag_train_timing(train, gone);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_ring_slots_are_limited_by_memory() {
        assert_eq!(slot_count(1_518), MAX_RING_SLOTS);
        assert_eq!(slot_count(9_018), MAX_RING_SLOTS);
        let at_loopback = slot_count(65_554);
        assert_eq!(at_loopback * 131_072, MAX_RING_BYTES);
    }
}
