//! Checks that the server's store works, because the store can fail while the process keeps running.
//!
//! nats-server switches its store off when the disk is full. It does not switch the store on again when there is space;
//! only a restart does. So a thread writes regularly, checks the disk, and requests a restart once there is space. The
//! restart loses nothing: confirmed data is on the disk, and nodes keep their data until it is confirmed.
//!
//! Invariant: the server is not restarted because of its store while the disk is full, because it would not start.

use crate::fabric::NatsFabric;
use crate::records::NatsRecords;
use packetrig_fleet::fabric::{Error, Fabric, RecordStore};
use packetrig_sys::clock::{monotonic_ns, wall_clock_ns};
use packetrig_sys::disk;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of the writes to the store.
const HEALTH_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Key of the record that is written. Its value does not matter.
const HEALTH_RECORD_KEY: &str = "health.server";
/// A disk with less free space than this counts as full.
const FULL_DISK_BYTES: u64 = 1 << 20;
/// Minimum free space for a restart of the server.
const ENOUGH_DISK_BYTES: u64 = 16 << 20;
/// Consecutive failed writes before the server is restarted.
const MAX_FAILED_WRITES: u32 = 3;
/// First pause between two restarts. It doubles as long as the store does not work.
const FIRST_RESTART_PAUSE_NS: u64 = 15_000_000_000;
const MAX_RESTART_PAUSE_NS: u64 = 300_000_000_000;

/// Result of one check of the server's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerHealth {
    /// Time of the check, in nanoseconds since 1970 (UTC).
    pub checked_wall_ns: u64,
    /// Reason why the store does not work; absent if it works. A full disk is a reason even if a small write succeeded.
    pub failure: Option<String>,
    /// Bytes free on its disk, if known.
    pub disk_free: Option<u64>,
    /// True if the server must be restarted for its store to work.
    #[serde(skip)]
    pub needs_restart: bool,
}

/// Checks the store on its own thread, which ends when this value is dropped.
#[derive(Debug)]
pub struct HealthWatch {
    found: Receiver<BrokerHealth>,
    /// Dropping this sender ends the thread.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HealthWatch {
    /// Watches the server that `fabric` reaches; its files are in `directory`.
    pub fn start_watching(fabric: NatsFabric, directory: &Path) -> std::io::Result<Self> {
        let (tell, found) = channel();
        let (over, ended) = channel();
        let directory = directory.to_owned();
        let thread = std::thread::Builder::new()
            .name("health".to_owned())
            .spawn(move || StoreHealthProbe::new(fabric, directory).run_until_ended(&tell, &ended))?;
        Ok(Self { found, over: Some(over), thread: Some(thread) })
    }

    /// Returns the newest result since the last call, if there is one.
    pub fn take_newest_health(&self) -> Option<BrokerHealth> {
        let mut all = self.found.try_iter();
        let first = all.next()?;
        // A request for a restart is reported once, even if a later result does not repeat it.
        Some(all.fold(first, |before, now| {
            let needs_restart = before.needs_restart || now.needs_restart;
            BrokerHealth { needs_restart, ..now }
        }))
    }
}

impl Drop for HealthWatch {
    fn drop(&mut self) {
        // The thread waits on this channel, so closing the channel ends its wait at once.
        self.over = None;
        if let Some(thread) = self.thread.take() {
            // `join` fails only if the thread has panicked, and the panic was printed then.
            drop(thread.join());
        }
    }
}

struct StoreHealthProbe {
    fabric: NatsFabric,
    directory: PathBuf,
    records: Option<NatsRecords>,
    rule: StoreRestartPolicy,
}

impl StoreHealthProbe {
    fn new(fabric: NatsFabric, directory: PathBuf) -> Self {
        Self { fabric, directory, records: None, rule: StoreRestartPolicy::default() }
    }

    fn run_until_ended(&mut self, tell: &Sender<BrokerHealth>, ended: &Receiver<()>) {
        while ended.recv_timeout(HEALTH_WRITE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let failure = self.write_probe_record().err().map(|error| error.to_string());
            let disk_free = disk::free_bytes(&self.directory).ok();
            let needs_restart =
                self.rule.decide_restart_after_write(failure.is_none(), disk_free, monotonic_ns());
            // A full disk is reported even while a write as small as this one still works.
            let failure = failure.or_else(|| {
                disk_free.is_some_and(|free| free < FULL_DISK_BYTES).then(|| "its disk is full".to_owned())
            });
            let found = BrokerHealth { checked_wall_ns: wall_clock_ns(), failure, disk_free, needs_restart };
            if tell.send(found).is_err() {
                return;
            }
        }
    }

    /// Writes the health record over the network, as a controller writes its records.
    fn write_probe_record(&mut self) -> Result<(), Error> {
        // The connection is kept only after a success: after a failure the next write opens a new one.
        let mut records = match self.records.take() {
            Some(records) => records,
            None => self.fabric.open_records()?,
        };
        let value = wall_clock_ns().to_string();
        let written = match records.get_record(HEALTH_RECORD_KEY)? {
            Some(found) => records.replace_record(HEALTH_RECORD_KEY, found.revision, value.as_bytes()),
            None => records.create_record(HEALTH_RECORD_KEY, value.as_bytes()),
        };
        match written {
            // Another process that checks the same server has written in between. The store works.
            Ok(_) | Err(Error::Stale(_) | Error::Exists(_)) => {}
            Err(error) => return Err(error),
        }
        self.records = Some(records);
        Ok(())
    }
}

/// Decides when the server must be restarted.
#[derive(Debug, Default)]
struct StoreRestartPolicy {
    failures: u32,
    was_full: bool,
    not_before_ns: u64,
    pause_ns: u64,
}

impl StoreRestartPolicy {
    /// Counts the outcome of one write, and returns whether the server must be restarted now.
    fn decide_restart_after_write(&mut self, is_written: bool, disk_free: Option<u64>, now_ns: u64) -> bool {
        // A full disk is remembered until the restart, because the server does not switch its store on again by itself.
        self.was_full |= disk_free.is_some_and(|free| free < FULL_DISK_BYTES);
        self.failures = if is_written { 0 } else { self.failures.saturating_add(1) };
        let is_ill = self.was_full || self.failures >= MAX_FAILED_WRITES;
        if !is_ill {
            // The store works again: the next failure begins with the short pause.
            if is_written && now_ns >= self.not_before_ns {
                self.pause_ns = 0;
            }
            return false;
        }
        // If the free space is not known, a restart is worth an attempt.
        let has_room = disk_free.is_none_or(|free| free >= ENOUGH_DISK_BYTES);
        if !has_room || now_ns < self.not_before_ns {
            return false;
        }
        self.pause_ns = (2 * self.pause_ns).clamp(FIRST_RESTART_PAUSE_NS, MAX_RESTART_PAUSE_NS);
        self.not_before_ns = now_ns.saturating_add(self.pause_ns);
        // The restarted server gets as many attempts as the earlier one.
        self.failures = 0;
        self.was_full = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn full_store_is_restarted_once_there_is_room() {
        let mut rule = StoreRestartPolicy::default();
        assert!(!rule.decide_restart_after_write(true, Some(1 << 30), 0));
        assert!(!rule.decide_restart_after_write(true, Some(0), 0), "writes may still find room in a block");
        assert!(
            (1..100).all(|second| {
                !rule.decide_restart_after_write(false, Some(FULL_DISK_BYTES + 1), second * SECOND)
            }),
            "no room yet"
        );
        assert!(rule.decide_restart_after_write(false, Some(ENOUGH_DISK_BYTES), 100 * SECOND));
        assert!(!rule.decide_restart_after_write(true, Some(ENOUGH_DISK_BYTES), 101 * SECOND), "once");
    }

    #[test]
    fn failing_store_is_restarted_with_backoff() {
        let mut rule = StoreRestartPolicy::default();
        let starts: Vec<u64> =
            (0..600).filter(|second| rule.decide_restart_after_write(false, None, second * SECOND)).collect();
        assert_eq!(starts, [2, 17, 47, 107, 227, 467]);
        let mut once = StoreRestartPolicy::default();
        let flaky = (0..600).filter(|second| {
            once.decide_restart_after_write(second % 3 == 0, Some(1 << 40), second * SECOND)
        });
        assert_eq!(flaky.count(), 0, "a write that fails now and then is no reason");
    }
}
