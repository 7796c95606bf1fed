//! Runs an impairer on the frames of a tap and publishes its counters for other threads.
//!
//! Delays count from the time at which the kernel stamped the arrival of a frame. So the time
//! that the tap needs to see a frame does not add to the delay, unless the tap sees the frame after its due time. The
//! lateness that the lane measures includes the time in the rings before and after the tap.

use super::chronicle::{ImpairCounts, ImpairmentObserver, ImpairmentTruthLog};
use packetrig_link::{DepartureLateness, FaultPlan, FrameImpairer, FrameTreatment};
use packetrig_sys::clock;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one direction. They are consistent with each other only when the tap has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImpairAccount {
    /// Counts of the impairer's actions.
    pub counts: ImpairCounts,
    /// Frames that have arrived, and copies that were made, that have not departed yet.
    pub inside: u64,
    /// Frames that are missing from the truth log because the writing thread was behind or had failed.
    pub untold: u64,
}

impl ImpairAccount {
    /// Returns the accounting rule that is broken, if one is. Valid only after the tap has ended.
    pub fn find_imbalance(&self) -> Option<String> {
        let counts = &self.counts;
        let came = counts.arrived + counts.copies;
        let went = counts.left + counts.dropped + counts.overflowed + self.inside;
        (came != went)
            .then(|| format!("arrived + copies = {came}, left + dropped + overflowed + inside = {went}"))
    }
}

const PUBLISHED_NUMBERS: usize = 13;

/// Published counters of a direction: one thread writes them, any thread reads them.
#[derive(Debug, Default)]
struct PublishedImpairAccount([AtomicU64; PUBLISHED_NUMBERS]);

impl PublishedImpairAccount {
    fn publish_account(&self, account: &ImpairAccount) {
        let ImpairAccount { counts: c, inside, untold } = account;
        let numbers: [u64; PUBLISHED_NUMBERS] = [
            c.arrived,
            c.arrived_bytes,
            c.copies,
            c.dropped,
            c.overflowed,
            c.held,
            c.delayed,
            c.corrupted,
            c.left,
            c.late_most_ns,
            c.late_sum_ns,
            *inside,
            *untold,
        ];
        for (place, number) in self.0.iter().zip(numbers) {
            // Relaxed ordering is enough: each number is correct by itself, and no reader combines two of
            // them before the thread has ended.
            place.store(number, Ordering::Relaxed);
        }
    }

    fn read_account(&self) -> ImpairAccount {
        let n: [u64; PUBLISHED_NUMBERS] = std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed));
        let counts = ImpairCounts {
            arrived: n[0],
            arrived_bytes: n[1],
            copies: n[2],
            dropped: n[3],
            overflowed: n[4],
            held: n[5],
            delayed: n[6],
            corrupted: n[7],
            left: n[8],
            late_most_ns: n[9],
            late_sum_ns: n[10],
        };
        ImpairAccount { counts, inside: n[11], untold: n[12] }
    }
}

/// Reads the counters of both directions.
#[derive(Clone, Debug)]
pub struct ImpairAccountsReader([Arc<PublishedImpairAccount>; 2]);

impl ImpairAccountsReader {
    /// Returns the current counters.
    pub fn read_accounts(&self) -> [ImpairAccount; 2] {
        [self.0[0].read_account(), self.0[1].read_account()]
    }
}

#[derive(Debug)]
pub struct ImpairTreatment {
    impairer: FrameImpairer<ImpairmentObserver>,
    lateness: DepartureLateness,
    published: Arc<PublishedImpairAccount>,
}

impl ImpairTreatment {
    /// Creates the treatments of both directions and a reader of their counters.
    pub fn for_both_directions(
        plans: [FaultPlan; 2],
        truth: Option<&ImpairmentTruthLog>,
    ) -> ([Box<dyn FrameTreatment>; 2], ImpairAccountsReader) {
        let watch = ImpairAccountsReader(Default::default());
        let mut direction = 0;
        let treated = plans.map(|plan| -> Box<dyn FrameTreatment> {
            let chronicle = ImpairmentObserver::new(direction, truth);
            let published = Arc::clone(&watch.0[direction]);
            let impairer = FrameImpairer::new(plan, direction, chronicle);
            direction += 1;
            Box::new(Self { impairer, lateness: DepartureLateness::default(), published })
        });
        (treated, watch)
    }

    fn publish_account(&mut self) {
        let inside = self.impairer.frames_inside();
        let chronicle = self.impairer.observer_mut();
        // The lane that sends the frames measures their lateness, so the observer does not have it.
        let DepartureLateness { most_ns, sum_ns, .. } = self.lateness;
        let counts = ImpairCounts { late_most_ns: most_ns, late_sum_ns: sum_ns, ..chronicle.counts() };
        let account = ImpairAccount { counts, inside, untold: chronicle.unlogged_frames() };
        self.published.publish_account(&account);
    }
}

impl FrameTreatment for ImpairTreatment {
    fn accept_frame(&mut self, arrived_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8], u64)) {
        self.impairer.accept_frame(arrived_ns, frame, out);
    }

    fn release_due_frames(&mut self, now_ns: u64, out: &mut dyn FnMut(&[u8], u64)) {
        self.impairer.release_due_frames(now_ns, out);
    }

    fn next_due_time(&self) -> Option<u64> {
        self.impairer.next_due_time()
    }

    fn release_all_frames(&mut self, out: &mut dyn FnMut(&[u8], u64)) {
        // Frames that wait for later frames have no due time, so they count as due now.
        self.impairer.flush_frames(clock::monotonic_ns(), out);
    }

    fn record_lateness(&mut self, lateness: DepartureLateness) {
        // The lane calls this once per batch, which is often enough to publish the counters.
        self.lateness = lateness;
        self.publish_account();
    }

    fn drop_and_copy_counts(&self) -> (u64, u64) {
        let counts = self.impairer.observer().counts();
        (counts.dropped + counts.overflowed, counts.copies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_link::ImpairSpecs;

    #[test]
    fn impaired_directions_are_separate_and_accounts_balance() {
        let specs =
            ImpairSpecs::parse_document("both: loss=5%,duplicate=5%,reorder=2%\nb->a: {delay: 1ms}\n")
                .unwrap();
        let ([mut there, mut back], watch) =
            ImpairTreatment::for_both_directions(specs.to_fault_plans(3), None);
        let mut left = [0u64; 2];
        for n in 0..2_000u64 {
            there.accept_frame(n * 1000, &[0; 60], &mut |_, _| left[0] += 1);
            back.accept_frame(n * 1000, &[0; 60], &mut |_, _| left[1] += 1);
            there.release_due_frames(n * 1000, &mut |_, _| left[0] += 1);
            back.release_due_frames(n * 1000, &mut |_, _| left[1] += 1);
        }
        let lateness = DepartureLateness { frames: 1, most_ns: 7, sum_ns: 9 };
        back.record_lateness(lateness);
        let [_, account] = watch.read_accounts();
        assert_eq!((account.counts.late_most_ns, account.counts.late_sum_ns), (7, 9));
        assert_eq!((account.inside, account.counts.left, account.find_imbalance()), (1_000, 1_000, None));
        there.release_all_frames(&mut |_, _| left[0] += 1);
        back.release_all_frames(&mut |_, _| left[1] += 1);
        there.record_lateness(lateness);
        back.record_lateness(lateness);
        for (way, account) in watch.read_accounts().into_iter().enumerate() {
            assert_eq!((account.find_imbalance(), account.inside, account.counts.left), (None, 0, left[way]));
        }
        let (dropped, made) = there.drop_and_copy_counts();
        assert_eq!(2_000 + made, left[0] + dropped);
        assert!(dropped > 60 && made > 60 && left[1] == 2_000);
    }

    #[test]
    fn account_names_a_missing_frame() {
        let counts = ImpairCounts { arrived: 5, left: 4, ..ImpairCounts::default() };
        assert!(
            ImpairAccount { counts, ..ImpairAccount::default() }
                .find_imbalance()
                .is_some_and(|rule| rule.contains("= 5"))
        );
    }
}
