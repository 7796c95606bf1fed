//! The only module of packetrig that reads clocks.
//!
//! It owns nothing. packetrig has one time scale: nanoseconds of `CLOCK_MONOTONIC`. `CLOCK_REALTIME` is only read to
//! date reports, and to find its offset, because the kernel's timestamps of frames are from that clock.

pub mod state;

pub use state::{ClockState, boot_id, read_clock_identity};

use crate::Error;
use rustix::time::{ClockId, DynamicClockId, Timespec};
use std::num::NonZeroU64;
use std::time::Duration;

/// Number of measurements for one offset; the one with the smallest error bound is used.
const OFFSET_READINGS: usize = 8;
const SECOND: u64 = 1_000_000_000;

/// Difference between `CLOCK_REALTIME` and `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealtimeOffset {
    /// Realtime minus monotonic, nanoseconds.
    pub offset_ns: i64,
    /// Largest possible error of the offset, nanoseconds.
    pub bound_ns: u64,
}

impl RealtimeOffset {
    /// The monotonic time at which the real-time clock showed `realtime_ns`; zero if that was before
    /// the monotonic clock began.
    pub fn to_monotonic(self, realtime_ns: u64) -> u64 {
        realtime_ns.saturating_sub_signed(self.offset_ns)
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`. A vDSO read: tens of nanoseconds, no system call.
pub fn monotonic_ns() -> u64 {
    to_nanoseconds(rustix::time::clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds of `CLOCK_BOOTTIME`: like the monotonic clock, but it continues while the machine is suspended.
pub fn boottime_ns() -> u64 {
    to_nanoseconds(rustix::time::clock_gettime(ClockId::Boottime))
}

/// Nanoseconds since 1970 of `CLOCK_REALTIME`: for dates in reports, never for measuring.
pub fn wall_clock_ns() -> u64 {
    to_nanoseconds(rustix::time::clock_gettime(ClockId::Realtime))
}

/// Nanoseconds of `CLOCK_TAI`. It is ahead of `CLOCK_REALTIME` by the leap seconds (37 since 2017), or equal to it if
/// no program has set their number in the kernel.
pub fn tai_ns() -> u64 {
    let read = rustix::time::clock_gettime_dynamic(DynamicClockId::Tai);
    read.map_or_else(|_| wall_clock_ns(), to_nanoseconds)
}

/// Nanoseconds of processor time that all threads of this process together have used.
pub fn process_cpu_ns() -> u64 {
    to_nanoseconds(rustix::time::clock_gettime(ClockId::ProcessCPUTime))
}

/// Nanoseconds of processor time that the calling thread alone has used.
pub fn thread_cpu_ns() -> u64 {
    to_nanoseconds(rustix::time::clock_gettime(ClockId::ThreadCPUTime))
}

/// Measures the offset between the real-time and the monotonic clock. Each reading of the real-time clock lies between
/// two readings of the monotonic clock, so half the time between those two bounds the error.
pub fn measure_realtime_offset() -> RealtimeOffset {
    // An interrupt or another thread may delay a measurement: the one with the smallest bound was delayed least.
    (1..OFFSET_READINGS).fold(read_offset(), |best, _| {
        let next = read_offset();
        if next.bound_ns < best.bound_ns { next } else { best }
    })
}

fn read_offset() -> RealtimeOffset {
    offset_from_bracket(monotonic_ns(), wall_clock_ns(), monotonic_ns())
}

fn offset_from_bracket(before: u64, real: u64, after: u64) -> RealtimeOffset {
    let width = after.saturating_sub(before);
    let middle = before + width / 2;
    // Both readings are below 2^63 ns (292 years), so the conversion to signed numbers changes neither.
    let offset_ns = real.cast_signed().saturating_sub(middle.cast_signed());
    // Half of the time between the two readings, rounded up, plus one nanosecond for the rounding of the clocks.
    RealtimeOffset { offset_ns, bound_ns: width.div_ceil(2) + 1 }
}

/// Sleeps until `CLOCK_MONOTONIC` shows `until_ns`; returns at once if that is past. A signal does not cut it short.
pub fn sleep_until_ns(until_ns: u64) {
    let until = to_timespec(until_ns);
    while rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(rustix::io::Errno::INTR)
    {
    }
}

/// Tells the processor that the caller waits in a busy loop.
pub fn hint_busy_loop() {
    std::hint::spin_loop();
}

/// Makes the kernel wake the calling thread at the requested time, instead of up to 50 us later.
pub fn tighten_timer_slack() -> Result<(), Error> {
    set_timer_slack(1)
}

/// Sets how much later than requested the kernel may wake the calling thread. For zero the kernel uses its
/// default of 50 us.
pub fn set_timer_slack(ns: u64) -> Result<(), Error> {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(ns))
        .map_err(|errno| Error::from_call("prctl(PR_SET_TIMERSLACK)", "this thread", errno))
}

pub(crate) fn to_timespec(ns: u64) -> Timespec {
    // Both parts fit: 2^64 ns are 18 446 744 073 seconds.
    Timespec { tv_sec: (ns / SECOND).cast_signed(), tv_nsec: (ns % SECOND).cast_signed() }
}

/// Converts a duration; one of more than 584 years is cut to that.
pub(crate) fn duration_to_timespec(duration: Duration) -> Timespec {
    to_timespec(duration.as_nanos().try_into().unwrap_or(u64::MAX))
}

fn to_nanoseconds(time: Timespec) -> u64 {
    // A wall clock before 1970 counts as 1970.
    let seconds = time.tv_sec.max(0).cast_unsigned();
    seconds.saturating_mul(SECOND).saturating_add(time.tv_nsec.max(0).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_runs_backwards() {
        let mut last = 0;
        for _ in 0..10_000 {
            let now = monotonic_ns();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn time_asleep_is_counted_by_one_clock_only() {
        let monotonic = monotonic_ns();
        let boottime = boottime_ns();
        assert!(boottime >= monotonic && boottime_ns() >= boottime);
    }

    #[test]
    fn bracketed_clock_offset_bound_is_half_interval() {
        let offset = offset_from_bracket(1_000, 5_000_000, 1_100);
        assert_eq!(offset, RealtimeOffset { offset_ns: 4_998_950, bound_ns: 51 });
        assert_eq!(offset.to_monotonic(5_000_000), 1_050);
        assert_eq!(offset.to_monotonic(1), 0);
    }

    #[test]
    fn converted_wall_clock_lies_between_monotonic_readings() {
        let offset = measure_realtime_offset();
        let before = monotonic_ns();
        let real = wall_clock_ns();
        let after = monotonic_ns();
        let converted = offset.to_monotonic(real);
        // A stepped wall clock would break this; a millisecond covers slewing by NTP between the readings.
        let doubt = offset.bound_ns + 1_000_000;
        assert!(converted + doubt >= before && converted <= after + doubt);
    }

    #[test]
    fn sleeping_does_not_end_early() {
        let until = monotonic_ns() + 2_000_000;
        sleep_until_ns(until);
        assert!(monotonic_ns() >= until);
        sleep_until_ns(0);
    }
}
