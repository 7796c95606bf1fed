//! Frames that taps of this machine lost in their own rings. A run reads these losses, so that it does not blame the
//! device under test for frames that a tap lost.
//!
//! A tap that forwards frames in its own process writes a file with its losses and the time up to which it has counted
//! them, and holds a lock on a second file while it runs. At its end, a run reads these files. If a tap lost frames, or
//! did not report, the losses of the run at that time are in doubt. Whether the tap is on the path of the run is not
//! known here, so the report names the tap and leaves the decision to its reader.
//!
//! Times are of the monotonic clock, which all processes of a machine share.

use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::port_event::{PortEvent, PortEventKind};
use packetrig_stats::result::NodeResult;
use packetrig_sys::{clock, process, runtime_directory};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Directory name in the runtime directory.
const TAP_LOSSES_DIRECTORY: &str = "tap-losses";
const LOSS_FILE_EXTENSION: &str = ".json";
/// Maximum number of losses that a file lists; if there are more, the two oldest are joined into one.
const MAX_LOSSES: usize = 64;
/// Interval at which a tap updates its file while it has no losses.
const LOSS_FILE_UPDATE_INTERVAL: Nanos = Nanos::from_millis(100);
/// Longest time that a run waits at its end until all taps have counted up to this end.
const TAP_TIMEOUT: Nanos = Nanos::from_secs(2);
const LOSS_FILE_CHECK_INTERVAL_NS: u64 = 5_000_000;
/// Age after which the file of an ended tap is removed.
const ENDED_TAP_FILE_LIFETIME: Nanos = Nanos::from_secs(24 * 3600);

/// Frames that a tap lost in its rings between two readings of their counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TapLoss {
    from: MonoTime,
    until: MonoTime,
    frames: u64,
}

/// Contents of the loss file of one tap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TapLossFile {
    tap: String,
    process: u32,
    began: MonoTime,
    /// Time up to which the tap has reported its losses.
    told: MonoTime,
    /// Whether the tap ended normally. If so, it forwarded no frame after `told`.
    is_over: bool,
    losses: Vec<TapLoss>,
}

/// Reports a tap's losses to other processes of this machine.
#[derive(Debug)]
pub struct TapLossLog {
    path: PathBuf,
    file: TapLossFile,
    lost: u64,
    written: MonoTime,
    /// Lock that shows to runs that the tap is running.
    _lock: Option<File>,
}

impl TapLossLog {
    /// Creates the log of a tap that begins to forward now.
    pub fn create_loss_log(tap: &str, now: MonoTime) -> io::Result<Self> {
        Self::create_loss_log_in(&runtime_directory::runtime_path_for(TAP_LOSSES_DIRECTORY), tap, now)
    }

    fn create_loss_log_in(directory: &Path, tap: &str, now: MonoTime) -> io::Result<Self> {
        remove_old_files(directory, now);
        let process = process::current_process_id();
        let path = directory.join(format!("{tap}-{process}{LOSS_FILE_EXTENSION}"));
        let lock = runtime_directory::lock_file_for_update(&path);
        let file = TapLossFile {
            tap: tap.to_owned(),
            process,
            began: now,
            told: now,
            is_over: false,
            losses: Vec::new(),
        };
        let log = Self { path, file, lost: 0, written: now, _lock: lock };
        log.write_file()?;
        Ok(log)
    }

    /// Reports `lost`, the number of frames lost since the log began. `looked` is the time at which the first ring was
    /// read: all losses before it are included, later ones only in part. To be called several times a second.
    pub fn report_losses(&mut self, looked: MonoTime, now: MonoTime, lost: u64) -> io::Result<()> {
        let file = &mut self.file;
        let more = lost.saturating_sub(self.lost);
        // The frames were lost between the previous report and now; the exact time is unknown.
        if more > 0 {
            file.losses.push(TapLoss { from: file.told, until: now, frames: more });
            join_oldest_losses(&mut file.losses);
            self.lost = lost;
        }
        // An older reading does not move the reported time back.
        file.told = file.told.max(looked);
        // A loss is written at once: a tap that is killed later has already reported it.
        if more > 0 || file.told >= self.written + LOSS_FILE_UPDATE_INTERVAL {
            self.written = file.told;
            self.write_file()?;
        }
        Ok(())
    }

    /// Ends the log of a tap that forwards no more frames. If the tap lost none, the file is removed.
    pub fn close_loss_log(mut self, now: MonoTime, lost: u64) -> io::Result<()> {
        self.file.is_over = true;
        self.report_losses(now, now, lost)?;
        if self.file.losses.is_empty() {
            return remove_files(&self.path);
        }
        self.write_file()
    }

    fn write_file(&self) -> io::Result<()> {
        runtime_directory::write_file(&self.path, &serde_json::to_vec(&self.file)?)
    }
}

fn join_oldest_losses(losses: &mut Vec<TapLoss>) {
    while losses.len() > MAX_LOSSES {
        let oldest = losses.remove(0);
        // The two losses are joined, and none is dropped: the doubt gets wider, never smaller.
        losses[0] = TapLoss { from: oldest.from, frames: oldest.frames + losses[0].frames, ..losses[0] };
    }
}

/// Removes files of taps that ended long ago or before a reboot, and unreadable files.
fn remove_old_files(directory: &Path, now: MonoTime) {
    for path in list_files(directory) {
        // A time in the future is from before a reboot: the monotonic clock starts again.
        let is_old =
            read_file(&path).is_none_or(|file| file.told + ENDED_TAP_FILE_LIFETIME < now || now < file.told);
        if is_old && !runtime_directory::is_locked_for_update(&path) {
            // An error is ignored: the file concerns no later run.
            drop(remove_files(&path));
        }
    }
}

fn remove_files(path: &Path) -> io::Result<()> {
    runtime_directory::remove_file(path)?;
    runtime_directory::remove_file(&runtime_directory::update_lock_path(path))
}

fn list_files(directory: &Path) -> Vec<PathBuf> {
    let names = runtime_directory::list_names(directory).into_iter();
    let files = names.filter(|name| name.to_str().is_some_and(|name| name.ends_with(LOSS_FILE_EXTENSION)));
    files.map(|name| directory.join(name)).collect()
}

fn read_file(path: &Path) -> Option<TapLossFile> {
    serde_json::from_slice(&runtime_directory::read_file(path).ok()?).ok()
}

/// A period in which a tap lost frames, or did not report whether it lost any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapLossPeriod {
    tap: String,
    from: MonoTime,
    until: MonoTime,
    /// `None` if the tap did not report.
    frames: Option<u64>,
}

impl TapLossPeriod {
    fn port_event(&self) -> PortEvent {
        PortEvent {
            what: PortEventKind::TapDropped { frames: self.frames },
            from: self.from,
            until: Some(self.until),
            only_sending: false,
        }
    }
}

/// Returns the periods between `from` and `until` in which taps of this machine lost frames or did not report. Waits up
/// to 2 s in all until every tap has reported up to `until`.
pub(crate) fn find_tap_losses_between(from: MonoTime, until: MonoTime) -> Vec<TapLossPeriod> {
    find_tap_loss_periods_in(
        &runtime_directory::runtime_path_for(TAP_LOSSES_DIRECTORY),
        from,
        until,
        TAP_TIMEOUT,
    )
}

fn find_tap_loss_periods_in(
    directory: &Path,
    from: MonoTime,
    until: MonoTime,
    timeout: Nanos,
) -> Vec<TapLossPeriod> {
    let give_up_ns = clock::monotonic_ns() + timeout.as_u64();
    let each = list_files(directory).into_iter().flat_map(|path| {
        loop {
            // Checks the lock before it reads the file: a tap that ends in between has written its last counts by then.
            let is_alive = runtime_directory::is_locked_for_update(&path);
            let Some(file) = read_file(&path) else { return Vec::new() };
            let is_known = file.is_over || file.told >= until;
            if is_known || !is_alive || clock::monotonic_ns() >= give_up_ns {
                return file.loss_periods_between(from, until, is_alive);
            }
            clock::sleep_until_ns(clock::monotonic_ns() + LOSS_FILE_CHECK_INTERVAL_NS);
        }
    });
    each.collect()
}

impl TapLossFile {
    fn loss_periods_between(&self, from: MonoTime, until: MonoTime, is_alive: bool) -> Vec<TapLossPeriod> {
        let of = |loss: &TapLoss, frames| TapLossPeriod {
            tap: self.tap.clone(),
            from: loss.from,
            until: loss.until,
            frames,
        };
        // A loss counts if its period overlaps the run, even by a moment.
        let during = self.losses.iter().filter(|loss| loss.until > from && loss.from < until);
        let mut found: Vec<TapLossPeriod> = during.map(|loss| of(loss, Some(loss.frames))).collect();
        // A tap that was killed before the run forwarded nothing during the run.
        let fell_silent = !self.is_over && self.told < until && (is_alive || self.told > from);
        if fell_silent && self.began < until {
            found.push(of(&TapLoss { from: self.told, until, frames: 0 }, None));
        }
        found
    }
}

/// Looks for losses of taps if the run may have lost frames, and adds them to the result of a node. An event of every
/// port puts the run's losses of that time in doubt, and a caveat names the tap.
pub(crate) fn add_tap_loss_doubts(result: &mut NodeResult, sends_elsewhere: bool) {
    let has_losses = result.receive.iter().any(|received| received.counts.sequence.lost > 0);
    // A run without lost frames has no doubtful losses, so it need not wait for taps.
    if has_losses || sends_elsewhere {
        let times = find_tap_losses_between(result.started, result.ended);
        add_tap_loss_caveats(result, &times);
    }
}

fn add_tap_loss_caveats(result: &mut NodeResult, times: &[TapLossPeriod]) {
    for time in times {
        let event = time.port_event();
        result.ports.iter_mut().for_each(|port| port.events.push(event));
        let after = |at: MonoTime| at.since(result.started).as_secs_f64();
        let (from, until) = (after(time.from), after(time.until));
        let tap = &time.tap;
        let text = match time.frames {
            Some(frames) => format!(
                "tap {tap} on this machine lost {frames} frames in its own rings between {from:.3} s and \
                {until:.3} s: losses of the run in that period are in doubt"
            ),
            None => format!(
                "tap {tap} on this machine reports no counts after {from:.3} s: the tap was killed or is \
                stopped, so losses of the run since then are in doubt"
            ),
        };
        let (doubt, subject) = (CaveatKind::TapLost, result.node.clone());
        result.caveats.push(Caveat { doubt, subject, text, matters: false });
    }
}

#[cfg(test)]
mod tests;
