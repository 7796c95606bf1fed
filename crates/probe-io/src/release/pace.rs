//! Waits for a departure time: sleeps, or sleeps and then spins.
//!
//! A [`ReleaseTimer`] belongs to the thread that it prepared. A real-time thread that spins blocks all other
//! threads on its processor. So after spinning for [`MAX_SPIN_TIME`] within [`SPIN_WINDOW`], the thread becomes an
//! ordinary thread until the window ends.
//!
//! Invariant: a wait never ends before the time that it waits for.

use super::ReleaseOptions;
use super::warm::{MAX_WARM_UP_TIME, SendPathWarmer};
use crate::now;
use packetrig_sys::{clock, sched};
use packetrig_units::{MonoTime, Nanos};

const SPIN_WINDOW: Nanos = Nanos::from_millis(1_000);
const MAX_SPIN_TIME: Nanos = Nanos::from_millis(500);
/// If two consecutive clock readings of a spin are further apart than this, another task had the processor in between.
pub(super) const STOLEN_CPU_THRESHOLD: Nanos = Nanos::from_micros(20);

/// Length of a sleep after which the CPU caches count as cold.
const COLD_CACHE_SLEEP: Nanos = Nanos::from_micros(200);

/// How a wait for a departure time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpinWaitOutcome {
    /// The clock reading that ended the wait.
    pub(super) at: MonoTime,
    /// True if the thread lost its processor during the wait.
    pub(super) stolen: bool,
}

#[derive(Debug)]
pub(super) struct ReleaseTimer {
    spin_from: Nanos,
    priority: Option<i32>,
    warm: Option<SendPathWarmer>,
    duty: SpinBudget,
    /// Requested options that could not be applied, as sentences.
    pub(super) remarks: Vec<String>,
}

impl ReleaseTimer {
    /// Prepares the calling thread: processor, timer slack and real-time priority. If the kernel refuses the priority,
    /// a remark says so.
    pub(super) fn prepare_thread(
        options: &ReleaseOptions,
        warm: Option<SendPathWarmer>,
    ) -> Result<Self, packetrig_sys::Error> {
        let mut remarks = Vec::new();
        if let Some(cpu) = options.cpu {
            sched::pin_thread(cpu)?;
        }
        // The kernel may wake a thread late, by up to its timer slack (50 us by default). With a slack of 1
        // ns, the median wake-up is 26 us late instead of 74 us.
        clock::set_timer_slack(options.slack.as_u64())?;
        let mut priority = options.priority;
        if let Some(Err(error)) = priority.map(sched::request_fifo_scheduling) {
            remarks.push(format!("the sender runs without real-time priority: {error}"));
            priority = None;
        }
        Ok(Self { spin_from: options.spin_from, priority, warm, duty: SpinBudget::default(), remarks })
    }

    /// Sleeps until shortly before the deadline, warms up the send path, and spins until the deadline.
    pub(super) fn spin_until_deadline(&mut self, until: MonoTime) -> SpinWaitOutcome {
        self.adjust_scheduling_class();
        // The time for warming up is taken from the sleep, not from the spin, because the spin must still
        // cover a late wake-up.
        let warming = self.warm.as_ref().map_or(Nanos::ZERO, |_| MAX_WARM_UP_TIME);
        let awake = until - (self.spin_from + warming);
        let began = self.sleep_then_warm_up(awake, until).at;
        let mut at = began;
        let mut longest = Nanos::ZERO;
        // The loop reads the clock continuously, so a gap between two readings shows that the thread did not
        // run: because of an interrupt, another thread, or a hypervisor that gave the processor to another
        // guest.
        while at < until {
            clock::hint_busy_loop();
            let next = now();
            longest = longest.max(next.since(at));
            at = next;
        }
        self.duty.add_spin_time(began, at);
        SpinWaitOutcome { at, stolen: longest > STOLEN_CPU_THRESHOLD }
    }

    /// Sleeps until `until`, and then warms up the send path if there is time for that before `busy_from`.
    pub(super) fn sleep_then_warm_up(&mut self, until: MonoTime, busy_from: MonoTime) -> SpinWaitOutcome {
        let began = now();
        let waited = sleep_until(until);
        let slept = waited.at.since(began) > COLD_CACHE_SLEEP;
        if slept && busy_from.since(waited.at) > MAX_WARM_UP_TIME {
            self.warm.iter().for_each(SendPathWarmer::send_warm_up);
        }
        waited
    }

    /// Records that a program in the kernel spun on the processor of this thread, and on its behalf.
    pub(super) fn record_busy_time(&mut self, from: MonoTime, to: MonoTime) {
        self.duty.add_spin_time(from, to);
        self.adjust_scheduling_class();
    }

    /// Leaves the real-time scheduling class or returns to it, as the spin budget requires.
    fn adjust_scheduling_class(&mut self) {
        let Some(priority) = self.priority else { return };
        match self.duty.scheduling_class_change(now()) {
            // `prepare_thread` could change the class, so this call works, too. If it fails, the thread keeps
            // its class, and lateness is flagged as usual.
            Some(SchedulingClassChange::ToOrdinary) => drop(sched::return_to_ordinary_scheduling()),
            Some(SchedulingClassChange::ToRealTime) => drop(sched::request_fifo_scheduling(priority)),
            None => {}
        }
    }
}

/// Sleeps until `until`, on a prepared thread; returns at once if that time has passed.
pub(super) fn sleep_until(until: MonoTime) -> SpinWaitOutcome {
    let mut at = now();
    if at < until {
        clock::sleep_until_ns(until.as_nanos());
        at = now();
    }
    SpinWaitOutcome { at, stolen: false }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchedulingClassChange {
    ToOrdinary,
    ToRealTime,
}

/// Time that the thread has spun in the current window, and whether it is an ordinary thread until the window ends.
#[derive(Debug)]
struct SpinBudget {
    window: MonoTime,
    spun: Nanos,
    resting: bool,
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self { window: MonoTime::from_nanos(0), spun: Nanos::ZERO, resting: false }
    }
}

impl SpinBudget {
    fn add_spin_time(&mut self, from: MonoTime, to: MonoTime) {
        self.spun += to.since(from);
    }

    /// Returns the change of scheduling class that is due now, if any, and records it.
    fn scheduling_class_change(&mut self, now: MonoTime) -> Option<SchedulingClassChange> {
        // Half a second per second is below the kernel's own limit for real-time threads (sched_rt_runtime_us, 950 ms per s). Beyond
        // that limit, the kernel would stop the thread for the rest of the period, in the middle of a wait.
        if now.since(self.window) >= SPIN_WINDOW {
            self.window = now;
            self.spun = Nanos::ZERO;
            return std::mem::take(&mut self.resting).then_some(SchedulingClassChange::ToRealTime);
        }
        if self.spun < MAX_SPIN_TIME || self.resting {
            return None;
        }
        self.resting = true;
        Some(SchedulingClassChange::ToOrdinary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_never_ends_early() {
        let options = ReleaseOptions { priority: None, ..ReleaseOptions::common() };
        std::thread::spawn(move || {
            let mut pace = ReleaseTimer::prepare_thread(&options, None).unwrap();
            for ahead in [0, 1_000, 50_000, 300_000] {
                let until = now() + Nanos::new(ahead);
                assert!(pace.spin_until_deadline(until).at >= until);
                let until = now() + Nanos::new(ahead);
                assert!(sleep_until(until).at >= until);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn spin_budget_forces_rest_after_half_second() {
        let at = |ms: u64| MonoTime::from_nanos(5_000_000_000 + ms * 1_000_000);
        let mut duty = SpinBudget::default();
        assert_eq!(duty.scheduling_class_change(at(0)), None);
        duty.add_spin_time(at(0), at(499));
        assert_eq!(duty.scheduling_class_change(at(499)), None);
        duty.add_spin_time(at(499), at(500));
        assert_eq!(duty.scheduling_class_change(at(500)), Some(SchedulingClassChange::ToOrdinary));
        duty.add_spin_time(at(500), at(900));
        assert_eq!(duty.scheduling_class_change(at(900)), None);
        assert_eq!(duty.scheduling_class_change(at(1_000)), Some(SchedulingClassChange::ToRealTime));
        assert_eq!(duty.scheduling_class_change(at(1_001)), None);
    }
}
