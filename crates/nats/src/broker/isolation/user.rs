//! Chooses the user of a server that root starts. For a server that runs as the user of this process, takes the
//! directory back from the user of an earlier server.

use super::super::{Error, server_io_error};
use packetrig_sys::held_directory::HeldDirectory;
use packetrig_sys::sandbox::{self, ProcessCapabilities, ProcessUser, UserError};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Name of the user that packetrig's packages create.
const NATS_USER_NAME: &str = "packetrig-nats";
/// IDs of users that exist only while their program runs. systemd uses the same range for `DynamicUser`, so
/// distributions give none of these IDs to a permanent user.
const USER_ID_RANGE: RangeInclusive<u32> = 61_184..=65_519;
/// Directory in which systemd records the user IDs that it has assigned.
const DYNAMIC_UID_DIRECTORY: &str = "/run/systemd/dynamic-uid";
/// Maximum number of user IDs that are tried after the one of the last start.
const MAX_USER_ID_ATTEMPTS: u32 = 100;
/// File with the first port that needs no capability.
const FIRST_FREE_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

const NEEDED_CAPABILITIES: ProcessCapabilities =
    ProcessCapabilities::SWITCH_USER.union_with(ProcessCapabilities::GIVE_FILES);

/// Checks that this process can give the server its own user. An error is the reason why it cannot.
pub(super) fn check_can_switch_user(port: u16) -> Result<(), String> {
    if !sandbox::is_root() {
        return Err("only root can change users".to_owned());
    }
    let permitted = ProcessCapabilities::read_permitted().map_err(|error| error.to_string())?;
    let missing = ProcessCapabilities::from_bits(NEEDED_CAPABILITIES.bits() & !permitted.bits());
    if !missing.is_empty() {
        return Err(format!("this process lacks {missing}"));
    }
    let first = fs::read_to_string(FIRST_FREE_PORT).ok().and_then(|text| text.trim().parse().ok());
    if (1..first.unwrap_or(1024)).contains(&port) {
        return Err(format!("only root may listen at port {port}"));
    }
    Ok(())
}

/// Chooses the user of the server in `directory`, which belongs to `owner` now: the user `packetrig-nats` if it exists,
/// otherwise a free user ID that depends on the directory. An error is the reason why no user was found.
pub(super) fn choose_user(directory: &Path, owner: u32) -> Result<ProcessUser, String> {
    match ProcessUser::find_by_name(NATS_USER_NAME) {
        Err(UserError::Unknown(_)) => {}
        found => return found.map_err(|error| error.to_string()),
    }
    let directory = fs::canonicalize(directory).map_err(|error| error.to_string())?;
    let first = hash_directory_to_number(&directory);
    // The ID of the last start is tried first, so that no file has to change its owner.
    let numbers = USER_ID_RANGE.contains(&owner).then_some(owner).into_iter();
    let mut numbers = numbers.chain((0..MAX_USER_ID_ATTEMPTS).map(|step| nth_candidate_user_id(first, step)));
    match numbers.find_map(|number| find_unused_user(number).transpose()) {
        Some(found) => found.map_err(|error| error.to_string()),
        None => Err(format!(
            "none of the {MAX_USER_ID_ATTEMPTS} user IDs from {} on is free",
            nth_candidate_user_id(first, 0)
        )),
    }
}

fn hash_directory_to_number(directory: &Path) -> u32 {
    let digest = Sha256::digest(directory.as_os_str().as_encoded_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

fn nth_candidate_user_id(first: u32, step: u32) -> u32 {
    let count = USER_ID_RANGE.end() - USER_ID_RANGE.start() + 1;
    USER_ID_RANGE.start() + (first % count + step) % count
}

/// Returns the user with this ID if it is neither in the list of users nor assigned by systemd.
fn find_unused_user(number: u32) -> Result<Option<ProcessUser>, UserError> {
    let user = ProcessUser::find_by_name(&number.to_string())?;
    // For an ID that no listed user has, `find_by_name` returns the ID as the name.
    let is_listed = user.name != number.to_string();
    let is_given_out = Path::new(DYNAMIC_UID_DIRECTORY).join(number.to_string()).exists();
    Ok(Some(user).filter(|_| !is_listed && !is_given_out))
}

/// Opens the directory for a server that runs as the user of this process. If an earlier server had its own
/// user, the owner of the parent directory gets the directory back.
pub(super) fn reclaim_directory(directory: &Path) -> Result<HeldDirectory, Error> {
    let shown = directory.display().to_string();
    let owner = fs::metadata(directory).map_err(server_io_error(&shown))?.uid();
    let held = HeldDirectory::open(directory).map_err(|error| Error::NotReady(error.to_string()))?;
    if !is_server_user(owner) {
        return Ok(held);
    }
    let above = directory.canonicalize().and_then(|path| fs::metadata(path.parent().unwrap_or(&path)));
    let above = above.map_err(server_io_error(&shown))?;
    let user = ProcessUser { uid: above.uid(), gid: above.gid(), name: above.uid().to_string() };
    match held.change_owner_to(&user) {
        Ok(()) => Ok(held),
        Err(_) => Err(Error::World { what: shown, source: foreign_owner_error(directory, owner, &user) }),
    }
}

fn is_server_user(uid: u32) -> bool {
    USER_ID_RANGE.contains(&uid)
        || ProcessUser::find_by_name(NATS_USER_NAME).is_ok_and(|user| user.uid == uid)
}

fn foreign_owner_error(directory: &Path, owner: u32, user: &ProcessUser) -> io::Error {
    let text = format!(
        "the directory belongs to user {owner}, because root started nats-server earlier; \
        start as root again, or let root run `chown -R {user} {}`",
        directory.display()
    );
    io::Error::new(ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_directories_differ_and_stay_in_the_range() {
        let [one, other] =
            ["/root/a/broker", "/root/b/broker"].map(|path| hash_directory_to_number(Path::new(path)));
        assert_ne!(nth_candidate_user_id(one, 0), nth_candidate_user_id(other, 0));
        for first in [0, 4335, 4336, u32::MAX, one, other] {
            assert!(
                (0..MAX_USER_ID_ATTEMPTS)
                    .all(|step| USER_ID_RANGE.contains(&nth_candidate_user_id(first, step))),
                "{first}"
            );
        }
        assert_eq!([nth_candidate_user_id(4335, 0), nth_candidate_user_id(4335, 1)], [65_519, 61_184]);
    }
}
