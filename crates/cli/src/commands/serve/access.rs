//! Access to the server. Its own user, root and the users of `--allow-user` need no token on
//! this machine: the kernel names the user of each local connection. All others need the token
//! or a client certificate (docs/decisions/0018-who-may-use-serve.md).

use crate::args::ServeArgs;
use crate::error::Error;
use crate::output::print_remark;
use packetrig_server::{LocalUsers, ServerOptions};
use packetrig_sys::owner::{ConnectionOwners, own_user};
use packetrig_sys::private_files;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Length of the shortest token that is accepted. The limit matters for token files that users write by hand.
const MIN_TOKEN_CHARACTERS: usize = 16;
const MAX_TOKEN_BYTES: u64 = 4096;
/// Number of random bytes in a new token.
const NEW_TOKEN_RANDOM_BYTES: usize = 32;

/// Returns the local users who need no token; `None` if every client needs it.
pub(in crate::commands) fn local_users(arguments: &ServeArgs) -> Option<LocalUsers> {
    if arguments.token_always { None } else { find_local_users(&arguments.allow_user) }
}

/// Returns the server's own user, root and the `allowed` users. If the kernel does not report the users that own
/// connections, prints a warning and returns `None`.
pub(in crate::commands) fn find_local_users(allowed: &[u32]) -> Option<LocalUsers> {
    // If the kernel does not name the user, a local connection could be anybody's: then the token decides.
    match add_own_user_and_root(allowed) {
        Ok(users) => Some(users),
        Err(error) => {
            print_remark(format_args!(
                "warning: cannot tell which local user opens a connection ({error}), so every client needs \
                the token; if the loopback interface is down, run `ip link set lo up`"
            ));
            None
        }
    }
}

/// Returns this process's own user, root and the `allowed` users. Fails if the kernel does not report the
/// users that own connections.
pub(in crate::commands) fn add_own_user_and_root(
    allowed: &[u32],
) -> Result<LocalUsers, packetrig_sys::Error> {
    let mut allowed = [&[own_user(), 0], allowed].concat();
    // The user may have named root or the server's own user, too.
    allowed.sort_unstable();
    allowed.dedup();
    let owners = ConnectionOwners::open_for_this_thread()?;
    Ok(LocalUsers {
        allowed,
        find: Arc::new(move |client, server| owners.find_connection_user(client, server)),
    })
}

/// Refuses to serve if nobody could use the server.
pub(in crate::commands) fn check_somebody_may_connect(options: &ServerOptions) -> Result<(), Error> {
    let is_open = options.let_anyone_in
        || options.local_users.is_some()
        || options.token.is_some()
        || options.view_token.is_some()
        || options.client_ca.is_some();
    if is_open {
        Ok(())
    } else {
        Err(Error::Usage("no client could use this server; give --token-file FILE".into()))
    }
}

/// Reads the token in the file. A missing file is created, readable by its owner only.
pub(in crate::commands) fn read_or_create_token(file: &Path) -> Result<String, Error> {
    // First tries to create the file, and reads it only if it exists: a check before the creation would leave time for
    // another process to put its own file there.
    let made = match private_files::create_new_private_file(file) {
        Ok(new) => create_token(new),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return read_token(file),
        Err(error) => Err(error),
    };
    made.map_err(|source| Error::unwritable_file(file, source))
}

fn create_token(mut file: File) -> std::io::Result<String> {
    let mut random = [0; NEW_TOKEN_RANDOM_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let token = random.map(|byte| format!("{byte:02x}")).concat();
    writeln!(file, "{token}")?;
    // The token is on the disk before it is used: after a crash, clients must not have a token that is
    // missing in this file.
    file.sync_all()?;
    Ok(token)
}

/// Reads the token from an existing file that no other user can read.
pub(in crate::commands) fn read_token(path: &Path) -> Result<String, Error> {
    let name = path.display();
    let file = File::open(path).map_err(|source| Error::unreadable_file(path, source))?;
    // The open file is checked, not its path: this way the checked file is certainly the file that is read.
    let facts = file.metadata().map_err(|source| Error::unreadable_file(path, source))?;
    if !facts.is_file() {
        return Err(Error::Usage(format!("{name} is not a regular file, so it cannot hold a token")));
    }
    // The permission bits of the group and of others must all be zero.
    if facts.mode() & 0o077 != 0 {
        let message = format!("other users can read the token in {name}; run `chmod 600 {name}`");
        return Err(Error::Usage(message));
    }
    if facts.uid() != own_user() && facts.uid() != 0 {
        let message = format!(
            "the token file {name} belongs to user {}; it must belong to you or to root",
            facts.uid()
        );
        return Err(Error::Usage(message));
    }
    let mut text = String::new();
    // The length is limited, because the user may have named a file of any size.
    file.take(MAX_TOKEN_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|source| Error::unreadable_file(path, source))?;
    // Editors end a file with a line end, which does not belong to the token.
    let token = text.trim();
    // A longer file is refused, because its beginning would be a different token.
    let is_whole = text.len() as u64 <= MAX_TOKEN_BYTES;
    if !is_whole || token.len() < MIN_TOKEN_CHARACTERS || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::Usage(format!(
            "the token in {name} is invalid: it needs {MIN_TOKEN_CHARACTERS} to {MAX_TOKEN_BYTES} printable \
                ASCII characters, without spaces; a server creates a new token if you remove the file"
        )));
    }
    Ok(token.to_owned())
}

/// Describes in one line which clients may use the server.
pub(in crate::commands) fn describe_access(arguments: &ServeArgs, users: Option<&LocalUsers>) -> String {
    if arguments.let_anyone_in {
        return "Anyone who reaches these addresses can make this machine send (--let-anyone-in)".to_owned();
    }
    let open_to =
        describe_admitted_clients(users, arguments.token_file.as_deref(), arguments.client_ca.as_deref());
    match &arguments.view_token_file {
        Some(file) => {
            format!("{open_to}; for viewing only, also to clients with the token in {}", file.display())
        }
        None => open_to,
    }
}

/// Describes the clients of a server without `--let-anyone-in`.
pub(in crate::commands) fn describe_admitted_clients(
    users: Option<&LocalUsers>,
    token_file: Option<&Path>,
    client_ca: Option<&Path>,
) -> String {
    let others = match (token_file, client_ca) {
        (Some(file), _) => Some(format!("clients with the token in {}", file.display())),
        (None, Some(_)) => Some("clients with a certificate".to_owned()),
        (None, None) => None,
    };
    let all: Vec<String> = users.map(describe_users).into_iter().chain(others).collect();
    if all.is_empty() {
        "No client may control this machine".to_owned()
    } else {
        format!("Open to {}", all.join(" and "))
    }
}

fn describe_users(users: &LocalUsers) -> String {
    let numbers: Vec<String> = users.allowed.iter().map(ToString::to_string).collect();
    let noun = if numbers.len() == 1 { "user" } else { "users" };
    format!("{noun} {} of this machine", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_server_that_nobody_can_use_is_refused() {
        let nobody = ServerOptions::default();
        assert!(nobody.local_users.is_none());
        let refused = check_somebody_may_connect(&nobody).expect_err("nobody has access").to_string();
        assert!(refused.contains("--token-file"), "{refused}");
        assert!(check_somebody_may_connect(&ServerOptions { token: Some("t".into()), ..nobody }).is_ok());
    }

    #[test]
    fn token_file_is_created_once_and_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        let made = read_or_create_token(&file).expect("one is made");
        assert_eq!(made.len(), 2 * NEW_TOKEN_RANDOM_BYTES);
        assert_eq!(fs::metadata(&file).expect("it is there").mode() & 0o777, 0o600);
        assert_eq!(read_or_create_token(&file).expect("it is read"), made);
        assert_ne!(read_or_create_token(&directory.path().join("other")).expect("another"), made);
    }

    #[test]
    fn a_token_of_another_user_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        read_or_create_token(&file).expect("one is made");
        // Only root may give a file away.
        if std::os::unix::fs::chown(&file, Some(65534), None).is_err() {
            return;
        }
        let refused = read_token(&file).expect_err("it belongs to somebody else").to_string();
        assert!(refused.ends_with("belongs to user 65534; it must belong to you or to root"), "{refused}");
    }

    #[test]
    fn token_path_that_is_no_file_is_refused_as_such() {
        let directory = tempfile::tempdir().expect("a directory");
        // Others may read it, but that is not its fault.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let refused = read_token(directory.path()).expect_err("a directory has no token").to_string();
        assert!(refused.contains("is not a regular file"), "{refused}");
        assert!(!refused.contains("chmod"), "{refused}");
    }

    #[test]
    fn readable_or_weak_token_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        for (text, mode) in [
            ("a-token-that-is-long-enough", 0o644),
            ("a-token-that-is-long-enough", 0o640),
            ("", 0o600),
            ("short", 0o600),
            ("sixteen characters with spaces", 0o600),
        ] {
            fs::write(&file, text).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("set");
            assert!(matches!(read_or_create_token(&file), Err(Error::Usage(_))), "{text} {mode:o}");
        }
        assert!(matches!(read_or_create_token(&directory.path().join("no/such")), Err(Error::Write { .. })));
    }
}
