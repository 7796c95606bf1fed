//! Finds the server's program and checks its version.

use super::{Error, server_io_error};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Command that installs the program.
pub const INSTALL_COMMAND: &str = "go install github.com/nats-io/nats-server/v2@v2.15.2";
/// Minimum version: older ones have security holes, or lack features that packetrig uses.
pub const MIN_NATS_SERVER_VERSION: &str = "2.15.2";
/// Supported major version: the next one may change the meaning of the configuration.
pub const NATS_SERVER_MAJOR_VERSION: u64 = 2;

const NATS_SERVER_PROGRAM: &str = "nats-server";
/// Directory of the server in a package, an image or a wheel, relative to the directory of packetrig's own program. It
/// is not in PATH, so users of the machine still start their own nats-server.
const PACKAGED_PROGRAM_DIRECTORY: &str = "../lib/packetrig";

/// Finds the program to use: the given one, or the first one with a supported version in the directory of the package,
/// in PATH, and in `packetrig/bin` of `$XDG_DATA_HOME` and `~/.local/share`. If none of the programs has a supported
/// version, the error for the first one is returned.
pub fn find_program(given: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(program) = given {
        return check_program_version(&resolve_program_path(program));
    }
    let mut reason = None;
    for program in list_candidate_programs().into_iter().filter(|program| program.is_file()) {
        match check_program_version(&program) {
            Ok(program) => return Ok(program),
            Err(error) => reason = reason.or(Some(error)),
        }
    }
    Err(reason.unwrap_or(Error::Missing))
}

/// Returns the path of a program. A name without a directory is searched in PATH, as a shell does, and returned
/// unchanged if PATH does not contain it.
fn resolve_program_path(program: &Path) -> PathBuf {
    let is_name = program.parent() == Some(Path::new(""));
    let found = is_name.then(|| list_paths_in_path_variable(program).into_iter().find(|path| path.is_file()));
    found.flatten().unwrap_or_else(|| program.to_owned())
}

fn list_paths_in_path_variable(name: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).collect()
}

fn list_candidate_programs() -> Vec<PathBuf> {
    let in_path = list_paths_in_path_variable(Path::new(NATS_SERVER_PROGRAM));
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
    // An empty variable counts as unset (XDG Base Directory Specification).
    let data = std::env::var_os("XDG_DATA_HOME").filter(|data| !data.is_empty()).map(PathBuf::from);
    let own_places =
        data.into_iter().chain(home).map(|data| data.join("packetrig/bin").join(NATS_SERVER_PROGRAM));
    let packaged = std::env::current_exe().ok().and_then(|own| packaged_path(&own));
    packaged.into_iter().chain(in_path).chain(own_places).collect()
}

/// Path of the server that was installed together with this program.
fn packaged_path(own: &Path) -> Option<PathBuf> {
    Some(own.parent()?.join(PACKAGED_PROGRAM_DIRECTORY).join(NATS_SERVER_PROGRAM))
}

fn check_program_version(program: &Path) -> Result<PathBuf, Error> {
    let shown = program.display().to_string();
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(server_io_error(format!("cannot start nats-server `{shown}`")))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if is_supported_version(&said) {
        return Ok(program.to_owned());
    }
    Err(Error::Version { program: shown, found: said.rsplit(' ').next().unwrap_or_default().to_owned() })
}

/// Returns true if a version line, such as `nats-server: v2.15.2`, names a supported version.
fn is_supported_version(said: &str) -> bool {
    let found = said.strip_prefix("nats-server: ").and_then(parse_version);
    // Arrays are compared number by number, so 2.15.10 is newer than 2.15.2.
    found.is_some_and(|found| {
        found[0] == NATS_SERVER_MAJOR_VERSION && Some(found) >= parse_version(MIN_NATS_SERVER_VERSION)
    })
}

/// The three numbers of a version: 2, 15 and 2 of `v2.15.2-beta.1`.
fn parse_version(text: &str) -> Option<[u64; 3]> {
    let mut numbers = text.trim_start_matches('v').split('.').map(|number| {
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ones_and_strangers_are_refused() {
        for good in ["nats-server: v2.15.2", "nats-server: v2.16.0-RC.1", "nats-server: v2.100.0"] {
            assert!(is_supported_version(good), "{good}");
        }
        for bad in ["nats-server: v2.9.10", "nats-server: v2.15.1", "nats-server: v3.0.0", "v2.15.2", ""] {
            assert!(!is_supported_version(bad), "{bad}");
        }
    }

    #[test]
    fn name_without_directory_is_searched_in_path() {
        assert!(resolve_program_path(Path::new("sh")).is_absolute());
        for unchanged in ["./sh", "/bin/sh", "no-such-program"] {
            assert_eq!(resolve_program_path(Path::new(unchanged)), Path::new(unchanged));
        }
    }

    #[test]
    fn packaged_server_is_beside_the_program() {
        let path = packaged_path(Path::new("/usr/bin/packetrig"));
        assert_eq!(path, Some(PathBuf::from("/usr/bin/../lib/packetrig/nats-server")));
    }

    #[test]
    fn wrong_server_program_error_explains_installation() {
        let error = find_program(Some(Path::new("/bin/echo"))).expect_err("it is not the server");
        assert!(error.to_string().contains(INSTALL_COMMAND), "{error}");
    }
}
