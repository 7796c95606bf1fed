//! Roles that other programs order: keepalived's notifications, and a file that scripts write.

use super::{GroupError, RoleDecisionSource};
use packetrig_flow::group::OrderedRole;
use packetrig_sys::fifo::FifoReader;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Maximum number of bytes that are read from a state file.
const MAX_STATE_FILE_BYTES: u64 = 64;

/// The state of a VRRP instance or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepalivedState {
    Master,
    Backup,
    /// A tracked interface or script has failed.
    Fault,
    /// keepalived is stopping on this machine.
    Stop,
}

/// A line that keepalived writes to its notification pipe: `INSTANCE "VI_1" MASTER 100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepalivedNotice {
    /// True for a group of VRRP instances, false for one instance.
    pub is_group: bool,
    pub name: String,
    pub state: KeepalivedState,
    /// Priority of the instance; zero for groups.
    pub priority: u8,
}

impl KeepalivedNotice {
    /// Parses a line; `None` for lines that report no change of state: priorities (`MASTER_PRIORITY`), virtual servers
    /// (`VS`, `RS`) and others.
    pub fn parse_line(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(" \"")?;
        // The search starts from the right, because only the name may contain quotes.
        let (name, rest) = rest.rsplit_once("\" ")?;
        let (state, priority) = rest.split_once(' ')?;
        let is_group = match kind {
            "GROUP" => true,
            "INSTANCE" => false,
            _ => return None,
        };
        let state = match state {
            "MASTER" => KeepalivedState::Master,
            "BACKUP" => KeepalivedState::Backup,
            "FAULT" => KeepalivedState::Fault,
            "STOP" => KeepalivedState::Stop,
            _ => return None,
        };
        Some(Self { is_group, name: name.to_owned(), state, priority: priority.trim_end().parse().ok()? })
    }

    const fn ordered_role(&self) -> OrderedRole {
        match self.state {
            KeepalivedState::Master => OrderedRole::Active,
            // keepalived gives up its virtual address when it fails or stops. Then the meter on the machine of
            // the new master exports.
            KeepalivedState::Backup | KeepalivedState::Fault | KeepalivedState::Stop => OrderedRole::Standby,
        }
    }
}

/// Source of the roles that another program orders; `None` if the meters elect the active one.
#[derive(Debug)]
pub(super) enum RoleCommandSource {
    None,
    Keepalived { fifo: FifoReader, instance: Option<String> },
    StateFile(PathBuf),
}

impl RoleCommandSource {
    pub(super) fn open_role_order_source(orders: &RoleDecisionSource) -> Result<Self, GroupError> {
        Ok(match orders {
            RoleDecisionSource::Election => Self::None,
            RoleDecisionSource::Keepalived { fifo, instance } => {
                Self::Keepalived { fifo: FifoReader::open_or_create(fifo)?, instance: instance.clone() }
            }
            RoleDecisionSource::StateFile(path) => Self::StateFile(path.clone()),
        })
    }

    /// Reports whether the source must be polled.
    pub(super) const fn is_file(&self) -> bool {
        matches!(self, Self::StateFile(_))
    }

    /// Returns the file descriptor to wait for, together with the socket.
    pub(super) fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Keepalived { fifo, .. } => Some(fifo.as_fd()),
            Self::None | Self::StateFile(_) => None,
        }
    }

    /// Returns the last order of keepalived since the previous call, if there is one, or the order that the state file
    /// contains now. After an error, the role stays as it is.
    pub(super) fn poll_ordered_role(&mut self) -> Result<Option<OrderedRole>, String> {
        match self {
            Self::None => Ok(None),
            Self::Keepalived { fifo, instance } => {
                // Only the last notice counts: earlier notices describe past states.
                let mut latest = None;
                let mut take = |line: &str| {
                    let notice = KeepalivedNotice::parse_line(line);
                    let is_meant =
                        |notice: &KeepalivedNotice| instance.as_ref().is_none_or(|name| *name == notice.name);
                    if let Some(notice) = notice.filter(is_meant) {
                        latest = Some(notice.ordered_role());
                    }
                };
                fifo.read_lines(&mut take).map_err(|error| error.to_string())?;
                // keepalived makes a new pipe when it is restarted; the old pipe would stay silent for ever.
                fifo.reopen_if_replaced().map_err(|error| error.to_string())?;
                Ok(latest)
            }
            Self::StateFile(path) => read_state_file(path).map(Some),
        }
    }
}

fn read_state_file(path: &Path) -> Result<OrderedRole, String> {
    let name = path.display();
    let file = File::open(path).map_err(|error| format!("cannot read the state file {name}: {error}"))?;
    let mut text = String::new();
    // Only the beginning is read: the path may name any file.
    file.take(MAX_STATE_FILE_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read the state file {name}: {error}"))?;
    match text.trim() {
        "active" => Ok(OrderedRole::Active),
        "standby" => Ok(OrderedRole::Standby),
        // This error also occurs for a moment while a script writes the file, because the file is then empty.
        _ => Err(format!("the state file {name} contains no role; write `active` or `standby` into it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_sys::private_files;
    use std::io::Write;

    /// The format of `notify_fifo` in keepalived/vrrp/vrrp_notify.c: `%s "%s" %s %d\n`.
    #[test]
    fn lines_of_keepalived_are_read_exactly() {
        let parsed = |line: &str| {
            KeepalivedNotice::parse_line(line).map(|notice| (notice.name, notice.state, notice.priority))
        };
        let named = |name: &str, state, priority| Some((name.to_owned(), state, priority));
        assert_eq!(parsed("INSTANCE \"VI_1\" MASTER 100"), named("VI_1", KeepalivedState::Master, 100));
        assert_eq!(parsed("INSTANCE \"VI_1\" BACKUP 254"), named("VI_1", KeepalivedState::Backup, 254));
        assert_eq!(parsed("INSTANCE \"VI_1\" FAULT 100"), named("VI_1", KeepalivedState::Fault, 100));
        assert_eq!(parsed("INSTANCE \"VI_1\" STOP 0"), named("VI_1", KeepalivedState::Stop, 0));
        assert_eq!(parsed("GROUP \"VG 1\" MASTER 0"), named("VG 1", KeepalivedState::Master, 0));
        for other in [
            "INSTANCE \"VI_1\" MASTER_RX_LOWER_PRI 100",
            "INSTANCE \"VI_1\" MASTER_PRIORITY 101",
            "INSTANCE \"VI_1\" BACKUP_PRIORITY 99",
            "INSTANCE \"VI_1\" {UNKNOWN} 99",
            "INSTANCE VI_1 MASTER 100",
            "INSTANCE \"VI_1\" MASTER",
            "INSTANCE \"VI_1\" MASTER 256",
            "instance \"VI_1\" MASTER 100",
            "VS [192.168.201.15]:tcp:80 UP",
            "RS [1.1.1.1]:tcp:80 [2.2.2.2]:tcp:80 DOWN",
            "",
        ] {
            assert_eq!(KeepalivedNotice::parse_line(other), None, "{other}");
        }
    }

    #[test]
    fn the_last_notice_of_the_instance_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let orders = RoleDecisionSource::Keepalived { fifo: path.clone(), instance: Some("VI_1".into()) };
        let mut source = RoleCommandSource::open_role_order_source(&orders).unwrap();
        assert_eq!(source.poll_ordered_role(), Ok(None));
        let mut pipe = File::options().write(true).open(&path).unwrap();
        pipe.write_all(
            b"INSTANCE \"VI_1\" BACKUP 100\nINSTANCE \"VI_1\" MASTER 100\nINSTANCE \"VI_2\" FAULT 1\n",
        )
        .unwrap();
        assert_eq!(source.poll_ordered_role(), Ok(Some(OrderedRole::Active)));
        assert_eq!(source.poll_ordered_role(), Ok(None));
        pipe.write_all(b"INSTANCE \"VI_1\" STOP 100\n").unwrap();
        assert_eq!(source.poll_ordered_role(), Ok(Some(OrderedRole::Standby)));
    }

    #[test]
    fn a_state_file_holds_the_role() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut source =
            RoleCommandSource::open_role_order_source(&RoleDecisionSource::StateFile(path.clone())).unwrap();
        assert!(source.poll_ordered_role().unwrap_err().contains("cannot read the state file"));
        for (text, role) in [("active\n", OrderedRole::Active), ("standby", OrderedRole::Standby)] {
            private_files::write_file(&path, text).unwrap();
            assert_eq!(source.poll_ordered_role(), Ok(Some(role)));
        }
        for text in ["", "activ", "ACTIVE"] {
            private_files::write_file(&path, text).unwrap();
            assert!(
                source.poll_ordered_role().unwrap_err().contains("write `active` or `standby`"),
                "{text}"
            );
        }
    }
}
