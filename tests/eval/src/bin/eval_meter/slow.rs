//! A slower processor for a thread: a group of its own whose share of a processor is limited (cgroup version 1, controller `cpu`).

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup/cpu";
/// The kernel takes no quota below a millisecond.
const QUOTA_US: u32 = 1000;

/// Its group goes when it is dropped, if its thread has ended.
pub(crate) struct SlowProcessor {
    group: PathBuf,
}

impl SlowProcessor {
    /// Why this machine has none.
    pub(crate) fn obstacle() -> Option<String> {
        let quota = Path::new(ROOT).join("cpu.cfs_quota_us");
        if !quota.exists() {
            return Some(format!("{} is not there: no quota of cgroup version 1", quota.display()));
        }
        let probe = Path::new(ROOT).join(format!("packetrig-eval-{}", std::process::id()));
        let made = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe));
        made.err().map(|error| format!("no group can be made below {ROOT}: {error}"))
    }

    /// For a thread, which has this share of a processor from now on.
    pub(crate) fn hold(thread: u32, share: f64) -> anyhow::Result<Self> {
        let group = Path::new(ROOT).join(format!("packetrig-eval-{}-{thread}", std::process::id()));
        fs::create_dir(&group).with_context(|| group.display().to_string())?;
        let slow = Self { group };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "microseconds of a period"
        )]
        let period_us = (f64::from(QUOTA_US) / share) as u64;
        slow.set("cpu.cfs_period_us", period_us)?;
        slow.set("cpu.cfs_quota_us", QUOTA_US.into())?;
        slow.set("tasks", thread.into())?;
        Ok(slow)
    }

    fn set(&self, file: &str, value: u64) -> anyhow::Result<()> {
        let path = self.group.join(file);
        fs::write(&path, value.to_string()).with_context(|| path.display().to_string())
    }
}

impl Drop for SlowProcessor {
    fn drop(&mut self) {
        // Its thread has ended with the meter; a group that is left has no threads and costs nothing.
        fs::remove_dir(&self.group).unwrap_or(());
    }
}
