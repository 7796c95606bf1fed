//! Settings of the loopback interface that let frames between this machine's own IPv4 addresses pass, shared by all processes that need them.
//!
//! Without these settings the kernel discards such frames as forged, because it has not routed them itself. Two files
//! of the [runtime directory](crate::runtime_directory) belong to each network namespace. The record has the settings
//! as they were before the first holder. On the other file, each holder has a shared lock as long as it needs the
//! settings; the kernel frees the lock of a process that dies. The last holder restores the settings. If it is killed,
//! the record stays: the next holder uses it, and [`find_unrestored_loopbacks`] finds it.
//!
//! Invariant: a process changes or restores the settings only while it has locked the record. It restores them only if
//! there is no holder. The record is written before the first change.

use crate::runtime_directory::{self, open_existing_lock_file, open_lock_file};
use crate::{Error, clock, kernel, netns::NetNs};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Directory of these files below the runtime directory.
const LOOPBACK_DIRECTORY: &str = "loopback";
/// `accept_local` allows frames with a source address of this machine; `route_localnet` allows addresses of
/// 127.0.0.0/8, which the kernel otherwise discards as martian.
const LOOPBACK_SETTINGS: [&str; 2] = ["net/ipv4/conf/lo/accept_local", "net/ipv4/conf/lo/route_localnet"];
const SETTING_ON: &str = "1";
/// Maximum number of attempts to lock the record; each waits for half a second.
const MAX_HOLD_ATTEMPTS: usize = 20;
const LOOPBACK_SETTINGS_NAME: &str = "the configuration of interface lo";

/// A holder of the settings, which stay switched on as long as it lives. Dropping the last holder restores them.
#[derive(Debug)]
pub struct LoopbackSettingsHolder {
    record: LoopbackRecord,
    holders: File,
}

impl LoopbackSettingsHolder {
    /// Switches the settings of a namespace on, or joins the processes that have switched them on.
    pub fn acquire_loopback_settings(netns: &NetNs) -> Result<Self, Error> {
        let record = LoopbackRecord::for_netns(netns.duplicate()?)?;
        let held = record.lock_record_file()?;
        // Every process that needs the settings locks the file of holders; the last one removes it.
        let failed =
            |error: io::Error| Error::from_call("lock", record.holders_path().display().to_string(), error);
        let holders = open_lock_file(&record.holders_path()).map_err(failed)?;
        // The record is written before the first change: if the process is killed from now on, the record stays,
        // with the old settings.
        if record.read_recorded_settings().is_none() {
            record.write_recorded_settings(&read_settings(netns)?)?;
        }
        // This does not wait for long: another process has an exclusive lock on this file only while
        // it holds the record.
        holders.lock_shared().map_err(failed)?;
        // From here on this process is a holder: if the kernel refuses a change, dropping `opened` restores the other
        // setting and removes the record.
        let opened = Self { record, holders };
        let changed =
            LOOPBACK_SETTINGS.into_iter().try_for_each(|key| kernel::write_setting(netns, key, SETTING_ON));
        drop(held);
        changed.map(|()| opened)
    }
}

impl Drop for LoopbackSettingsHolder {
    fn drop(&mut self) {
        // A drop cannot report an error. Settings that could not be restored stay in the record.
        let Ok(_held) = self.record.lock_record_file() else { return };
        // Upgrades this shared lock to an exclusive one, which succeeds only if no other process holds it.
        if self.holders.try_lock().is_ok() {
            drop(self.record.restore_settings());
        }
    }
}

fn read_settings(netns: &NetNs) -> Result<[String; 2], Error> {
    let [one, other] = LOOPBACK_SETTINGS.map(|key| kernel::read_setting(netns, key));
    Ok([one?, other?])
}

/// The two files of one network namespace.
#[derive(Debug)]
struct LoopbackRecord {
    netns: NetNs,
    /// Boot, inode number and cookie of the namespace: the kernel may use the inode number again for another namespace.
    identity: String,
    path: PathBuf,
}

impl LoopbackRecord {
    fn for_netns(netns: NetNs) -> Result<Self, Error> {
        let inode = netns.inode()?;
        // Before Linux 5.14 there is no cookie, so boot and inode must be enough.
        let cookie = netns.cookie()?.unwrap_or_default();
        // Inode numbers are used again, so boot and cookie tell whether the record is of this very namespace.
        let identity = format!("{} {inode} {cookie}", clock::boot_id()?);
        let path = runtime_directory::runtime_path_for(LOOPBACK_DIRECTORY).join(inode.to_string());
        Ok(Self { netns, identity, path })
    }

    fn holders_path(&self) -> PathBuf {
        self.path.with_extension("holders")
    }

    /// Locks the record until the returned file is dropped.
    fn lock_record_file(&self) -> Result<File, Error> {
        let held = (0..MAX_HOLD_ATTEMPTS).find_map(|_| runtime_directory::lock_file_for_update(&self.path));
        held.ok_or_else(|| Error::Busy { object: LOOPBACK_SETTINGS_NAME.to_owned(), holder: None })
    }

    /// Reads the recorded settings, as they were before the first holder; `None` if none are
    /// recorded for this namespace.
    fn read_recorded_settings(&self) -> Option<[String; 2]> {
        let text = String::from_utf8(runtime_directory::read_file(&self.path).ok()?).ok()?;
        let mut lines = text.lines();
        let is_same = lines.next() == Some(&self.identity);
        let settings = [lines.next()?.to_owned(), lines.next()?.to_owned()];
        is_same.then_some(settings)
    }

    fn write_recorded_settings(&self, settings: &[String; 2]) -> Result<(), Error> {
        let text = format!("{}\n{}\n", self.identity, settings.join("\n"));
        runtime_directory::write_file(&self.path, text.as_bytes())
            .map_err(|error| Error::from_call("write", self.path.display().to_string(), error))
    }

    /// Writes the recorded settings back and removes the record. A setting that another program has changed in the
    /// meantime is left alone.
    fn restore_settings(&self) -> Result<(), Error> {
        let Some(before) = self.read_recorded_settings() else { return Ok(()) };
        for (key, value) in LOOPBACK_SETTINGS.into_iter().zip(before) {
            // Another value was set later by another program or person, and must not be undone.
            if kernel::read_setting(&self.netns, key)? == SETTING_ON {
                kernel::write_setting(&self.netns, key, &value)?;
            }
        }
        // The record is removed last: if the process is killed before this, the record is left.
        for path in [&self.path, &self.holders_path()] {
            runtime_directory::remove_file(path)
                .map_err(|error| Error::from_call("unlink", path.display().to_string(), error))?;
        }
        Ok(())
    }

    /// Returns true if a process holds the settings. Call this only while the record is locked: otherwise two
    /// processes that ask at the same time would each see the other as a holder.
    fn has_holders(&self) -> bool {
        open_existing_lock_file(&self.holders_path())
            .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }
}

/// A loopback interface whose settings were not restored, because the last holder was killed.
#[derive(Debug)]
pub struct UnrestoredLoopback {
    record: LoopbackRecord,
}

impl UnrestoredLoopback {
    /// Location in the user's notation: `lo`, or `ns/lo`.
    pub fn location(&self) -> String {
        self.record.netns.find_namespace_name().map_or_else(|| "lo".to_owned(), |netns| format!("{netns}/lo"))
    }

    /// Restores the settings, unless a process holds them by now.
    pub fn restore_settings(&self) -> Result<(), Error> {
        let _held = self.record.lock_record_file()?;
        if self.record.has_holders() { Ok(()) } else { self.record.restore_settings() }
    }
}

/// Finds the loopback interfaces with settings that a killed process did not restore. Searches the caller's namespace
/// and all named namespaces.
pub fn find_unrestored_loopbacks() -> Vec<UnrestoredLoopback> {
    let names = runtime_directory::list_names(&runtime_directory::runtime_path_for(LOOPBACK_DIRECTORY));
    let inodes = names.iter().filter_map(|name| Path::new(name).to_str()?.parse::<u64>().ok());
    let records = inodes
        .filter_map(|inode| LoopbackRecord::for_netns(NetNs::find_namespace_by_inode(inode, None)?).ok());
    let mut found: Vec<_> = records
        .filter(|record| {
            // If the record cannot be locked, a process uses it now, so it is not a leftover.
            let held = runtime_directory::lock_file_for_update(&record.path);
            held.is_some() && record.read_recorded_settings().is_some() && !record.has_holders()
        })
        .map(|record| UnrestoredLoopback { record })
        .collect();
    found.sort_by_key(UnrestoredLoopback::location);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU32, Ordering};

    const NAMESPACE: &str = "PACKETRIG_TEST_LOOPBACK";

    /// A namespace with a name; `None` where rights are missing.
    struct Namespace(String);

    impl Namespace {
        fn new() -> Option<Self> {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("loopback-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            match NetNs::create_named_namespace(&name) {
                Ok(_) => Some(Self(name)),
                Err(error) => {
                    assert!(error.is_permission_error(), "{error}");
                    println!("skipped: {error}");
                    None
                }
            }
        }

        fn hold(&self) -> LoopbackSettingsHolder {
            LoopbackSettingsHolder::acquire_loopback_settings(&NetNs::open_named_namespace(&self.0).unwrap())
                .unwrap()
        }

        fn settings(&self) -> [String; 2] {
            read_settings(&NetNs::open_named_namespace(&self.0).unwrap()).unwrap()
        }

        /// Another process that holds the settings until it is killed.
        fn held_elsewhere(&self) -> Child {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "loopback::tests::holder", "--nocapture", "--include-ignored"]);
            let mut child =
                command.env(NAMESPACE, &self.0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().ends_with("holds")));
            child
        }

        fn unrestored(&self) -> Option<UnrestoredLoopback> {
            let location = format!("{}/lo", self.0);
            find_unrestored_loopbacks().into_iter().find(|found| found.location() == location)
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            drop(crate::netns::delete_named_namespace(&self.0));
        }
    }

    #[test]
    #[ignore = "run by other tests"]
    fn holder() {
        let _held = LoopbackSettingsHolder::acquire_loopback_settings(
            &NetNs::open_named_namespace(&std::env::var(NAMESPACE).unwrap()).unwrap(),
        )
        .unwrap();
        println!("holds");
        io::stdin().read_line(&mut String::new()).unwrap();
    }

    fn kill(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn last_loopback_holder_restores_settings_in_any_order() {
        let Some(namespace) = Namespace::new() else { return };
        assert_eq!(namespace.settings(), ["0", "0"]);
        let first = namespace.hold();
        let second = namespace.hold();
        drop(first);
        assert_eq!(namespace.settings(), ["1", "1"], "the second still needs them");
        let third = namespace.hold();
        drop(second);
        assert_eq!(namespace.settings(), ["1", "1"]);
        drop(third);
        assert_eq!(namespace.settings(), ["0", "0"]);
        assert!(namespace.unrestored().is_none());
    }

    #[test]
    fn killed_loopback_holder_is_ignored_and_next_restores() {
        let Some(namespace) = Namespace::new() else { return };
        let child = namespace.held_elsewhere();
        let here = namespace.hold();
        kill(child);
        assert_eq!(namespace.settings(), ["1", "1"], "held here");
        drop(here);
        assert_eq!(namespace.settings(), ["0", "0"], "the killed one does not count");
        kill(namespace.held_elsewhere());
        assert_eq!(namespace.settings(), ["1", "1"], "nobody could restore");
        drop(namespace.hold());
        assert_eq!(namespace.settings(), ["0", "0"]);
    }

    #[test]
    fn settings_of_killed_holder_are_found_and_restored() {
        let Some(namespace) = Namespace::new() else { return };
        let child = namespace.held_elsewhere();
        assert!(namespace.unrestored().is_none(), "it lives");
        kill(child);
        let found = namespace.unrestored().unwrap();
        let here = namespace.hold();
        found.restore_settings().unwrap();
        assert_eq!(namespace.settings(), ["1", "1"], "somebody holds them by now");
        let _held = std::mem::ManuallyDrop::new(here);
        kill(namespace.held_elsewhere());
        assert!(namespace.unrestored().is_none(), "still held here");
    }

    #[test]
    fn restore_keeps_original_and_foreign_settings() {
        let Some(namespace) = Namespace::new() else { return };
        let netns = NetNs::open_named_namespace(&namespace.0).unwrap();
        kernel::write_setting(&netns, LOOPBACK_SETTINGS[0], "1").unwrap();
        kill(namespace.held_elsewhere());
        namespace.unrestored().unwrap().restore_settings().unwrap();
        assert_eq!(namespace.settings(), ["1", "0"], "as it was");
        let held = namespace.hold();
        kernel::write_setting(&netns, LOOPBACK_SETTINGS[0], "0").unwrap();
        drop(held);
        assert_eq!(namespace.settings(), ["0", "0"], "somebody else turned it off meanwhile");
    }
}
