//! Notices when this process did not run: a thread does nothing but wait, and records when it was woken much too late.
//!
//! In a stopped process, in a frozen virtual machine, or on a machine without a free processor, frames are lost or
//! stamped late, and the process cannot notice it at that moment.

use crate::agent::now;
use crate::error::Error;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_units::{MonoTime, Nanos};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Length of one wait of the thread.
const PULSE_INTERVAL: Nanos = Nanos::from_millis(50);
/// A wake-up with a longer delay than this is reported. On a busy machine the delays are usually shorter.
const LATE_WAKE_UP_THRESHOLD: Nanos = Nanos::from_secs(1);
/// Maximum number of standstills that are reported for one run.
const MAX_REPORTED_STANDSTILLS: usize = 100;

/// A time during which the process did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStandstill {
    pub(crate) from: MonoTime,
    pub(crate) length: Nanos,
}

impl ProcessStandstill {
    /// Returns the part of the standstill after `start`; `None` if the standstill was over before.
    fn standstill_after(&self, start: MonoTime) -> Option<Self> {
        let until = self.from + self.length;
        let from = self.from.max(start);
        (until > start).then(|| Self { from, length: until.since(from) })
    }
}

/// Builds one caveat about all standstills of a node after its start; `None` if all of them were over before.
pub(crate) fn build_standstill_caveat(
    standstills: &[ProcessStandstill],
    node: &str,
    start: MonoTime,
) -> Option<Caveat> {
    let after: Vec<_> = standstills.iter().filter_map(|one| one.standstill_after(start)).collect();
    let worst = after.iter().max_by_key(|one| one.length)?;
    let first = after.iter().map(|one| one.from).min().unwrap_or(worst.from);
    let last = after.iter().map(|one| one.from + one.length).max().unwrap_or(first);
    let longest = format!("{:.1} s", to_seconds(worst.length));
    let when = |at: MonoTime| format!("{:.1} s", to_seconds(at.since(start)));
    let times = match after.len() {
        1 => format!("for {longest}, beginning {} after the start", when(worst.from)),
        many => format!(
            "for up to {longest}, {many} times between {} and {} after the start (the longest pause began \
             at {})",
            when(first),
            when(last),
            when(worst.from)
        ),
    };
    let text = format!(
        "the packetrig process did not run {times}: frames may have been lost or stamped late during that time"
    );
    Some(Caveat { doubt: CaveatKind::StoodStill, subject: format!("node {node}"), text, matters: true })
}

fn to_seconds(time: Nanos) -> f64 {
    time.as_u64() as f64 / 1e9
}

/// Handle of the watching thread. Dropping the handle ends the thread.
#[derive(Debug)]
pub(crate) struct StandstillWatcher {
    found: Arc<Mutex<Vec<ProcessStandstill>>>,
    quit: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StandstillWatcher {
    pub(crate) fn start_watching() -> Result<Self, Error> {
        let found = Arc::new(Mutex::new(Vec::new()));
        // No message is ever sent through this channel: the thread only waits for the end of the channel.
        let (quit, until_told) = bounded(0);
        let findings = Arc::clone(&found);
        let thread = Builder::new()
            .name("pulse".to_owned())
            .spawn(move || watch_standstills(&findings, &until_told))
            .map_err(Error::Thread)?;
        Ok(Self { found, quit: Some(quit), thread: Some(thread) })
    }

    /// Returns the times since the thread was started in which the process did not run.
    pub(crate) fn standstills(&self) -> Vec<ProcessStandstill> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for StandstillWatcher {
    fn drop(&mut self) {
        // The thread waits on the channel. Closing the channel ends that wait at once.
        self.quit = None;
        if let Some(thread) = self.thread.take() {
            // The thread only waits and cannot have panicked.
            drop(thread.join());
        }
    }
}

fn watch_standstills(found: &Mutex<Vec<ProcessStandstill>>, quit: &Receiver<()>) {
    let mut is_over = false;
    while !is_over {
        let from = now();
        is_over = quit.recv_timeout(PULSE_INTERVAL.to_std()) != Err(RecvTimeoutError::Timeout);
        let length = now().since(from);
        if length > PULSE_INTERVAL + LATE_WAKE_UP_THRESHOLD {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            // Many standstills during a long run must not fill the memory.
            if found.len() < MAX_REPORTED_STANDSTILLS {
                found.push(ProcessStandstill { from, length });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_after_the_start_is_doubted() {
        let at = |ms: u64| MonoTime::from_nanos(ms * 1_000_000);
        let still = |from, length| ProcessStandstill { from: at(from), length: Nanos::from_millis(length) };
        assert_eq!(build_standstill_caveat(&[still(1000, 5000)], "r1", at(6000)), None);
        let text =
            |stills: &[ProcessStandstill]| build_standstill_caveat(stills, "r1", at(4000)).unwrap().text;
        let one = text(&[still(1000, 5000)]);
        assert!(one.contains("for 2.0 s, beginning 0.0 s after"), "{one}");
        let one = text(&[still(0, 100), still(7000, 1500)]);
        assert!(one.contains("for 1.5 s, beginning 3.0 s after"), "{one}");
        let many = text(&[still(7000, 1500), still(9000, 2500), still(20_000, 1100)]);
        assert!(
            many.contains(
                "for up to 2.5 s, 3 times between 3.0 s and 17.1 s after the start (the longest pause began at 5.0 s)"
            ),
            "{many}"
        );
    }
}
