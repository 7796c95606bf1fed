//! The user that a process becomes.

use std::fmt;
use std::path::PathBuf;

const PASSWD_FILE: &str = "/etc/passwd";
const UID_MAP_FILE: &str = "/proc/self/uid_map";
const GROUP_MAP: &str = "/proc/self/gid_map";

/// A user, with the user's group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    pub uid: u32,
    /// The user's primary group.
    pub gid: u32,
    /// Name of the user; the number as text if /etc/passwd has no name for it.
    pub name: String,
}

/// A user that the process cannot become.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// /etc/passwd has no user of that name, or cannot be read.
    #[error("/etc/passwd has no user `{0}`; name another user, or give a user number")]
    Unknown(String),
    /// The user or the user's group does not exist in this user namespace.
    #[error(
        "user {0} does not exist in this user namespace; name a user that is mapped into it (/proc/self/uid_map)"
    )]
    NotMapped(ProcessUser),
}

impl ProcessUser {
    /// Finds the user of that name or number. A number that is not in /etc/passwd gets the group of the same number.
    pub fn find_by_name(name: &str) -> Result<Self, UserError> {
        let users = std::fs::read_to_string(PASSWD_FILE).unwrap_or_default();
        let user = find_user_in(&users, name).ok_or_else(|| UserError::Unknown(name.to_owned()))?;
        let mut maps = [(UID_MAP_FILE, user.uid), (GROUP_MAP, user.gid)].into_iter();
        let exists = maps
            .all(|(map, number)| is_number_mapped(&std::fs::read_to_string(map).unwrap_or_default(), number));
        if exists { Ok(user) } else { Err(UserError::NotMapped(user)) }
    }
}

impl fmt::Display for ProcessUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The name of a user, or the number where there is none.
pub(super) fn name_of_user(uid: u32) -> String {
    let users = std::fs::read_to_string(PASSWD_FILE).unwrap_or_default();
    find_user_in(&users, &uid.to_string()).map_or_else(|| uid.to_string(), |user| user.name)
}

/// The name of the real user of this process, or the number where there is none.
pub fn own_user_name() -> String {
    name_of_user(rustix::process::getuid().as_raw())
}

/// Home directory of a user that /etc/passwd lists; `None` if there is none, or its path is not absolute.
pub fn find_home_directory(uid: u32) -> Option<PathBuf> {
    find_home_directory_in(&std::fs::read_to_string(PASSWD_FILE).ok()?, uid)
}

fn find_home_directory_in(users: &str, uid: u32) -> Option<PathBuf> {
    let line = users.lines().find(|line| parse_user_line(line).is_some_and(|user| user.uid == uid))?;
    // The home is the sixth field (passwd(5)).
    Some(PathBuf::from(line.split(':').nth(5)?)).filter(|home| home.is_absolute())
}

fn find_user_in(users: &str, name: &str) -> Option<ProcessUser> {
    let number: Option<u32> = name.parse().ok();
    let mut listed = users.lines().filter_map(parse_user_line);
    let found = listed.find(|user| user.name == name || Some(user.uid) == number);
    // A number that is not in /etc/passwd is a valid user, too.
    found.or_else(|| number.map(|uid| ProcessUser { uid, gid: uid, name: name.to_owned() }))
}

/// A line of passwd(5): name, password, user, group, and more.
fn parse_user_line(line: &str) -> Option<ProcessUser> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(ProcessUser { uid, gid, name })
}

fn is_number_mapped(map: &str, uid: u32) -> bool {
    let numbers: Vec<u32> = map.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let mut lines = numbers.chunks(3);
    numbers.is_empty()
        || lines.any(|line| matches!(*line, [inside, _, count] if uid >= inside && uid - inside < count))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nflow:x:990:991::/:/sbin/nologin\n";

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let flow = ProcessUser { uid: 990, gid: 991, name: "flow".into() };
        assert_eq!(find_user_in(TEXT, "flow"), Some(flow.clone()));
        assert_eq!(find_user_in(TEXT, "990"), Some(flow));
        assert_eq!(
            find_user_in(TEXT, "5000"),
            Some(ProcessUser { uid: 5000, gid: 5000, name: "5000".into() })
        );
        assert_eq!(find_user_in(TEXT, "nobody"), None);
        assert!(matches!(ProcessUser::find_by_name("no-such-user"), Err(UserError::Unknown(_))));
    }

    #[test]
    fn home_directory_comes_from_passwd_entry() {
        assert_eq!(find_home_directory_in(TEXT, 0), Some("/root".into()));
        assert_eq!(find_home_directory_in(TEXT, 5000), None);
        assert_eq!(find_home_directory_in("a:x:7:7::relative:/bin/sh\n", 7), None);
    }

    #[test]
    fn a_private_namespace_has_few_users() {
        assert!(is_number_mapped("0 0 4294967295", 65_534));
        assert!(!is_number_mapped("0 1000 1", 65_534) && is_number_mapped("0 1000 1", 0));
    }
}
