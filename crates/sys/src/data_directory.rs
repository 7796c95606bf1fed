//! The directory of the user's own data: past runs and calibrations.

use std::ffi::OsString;
use std::path::PathBuf;

/// Returns `$XDG_DATA_HOME/packetrig`, or `$HOME/.local/share/packetrig` if the first variable is not set. `None` if
/// neither variable has an absolute path. The directory may not exist yet.
pub fn data_directory() -> Option<PathBuf> {
    directory_from_variables(std::env::var_os("XDG_DATA_HOME"), std::env::var_os("HOME"))
}

/// The XDG base directory specification: a relative or empty path counts as not set.
fn directory_from_variables(data_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let data = absolute_path(data_home).or_else(|| absolute_path(home).map(|home| home.join(".local/share")));
    data.map(|data| data.join("packetrig"))
}

fn absolute_path(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_xdg_data_home_comes_first() {
        let place = |data: &str, home: &str| directory_from_variables(Some(data.into()), Some(home.into()));
        assert_eq!(place("/data", "/home/a").unwrap(), PathBuf::from("/data/packetrig"));
        assert_eq!(place("data", "/home/a").unwrap(), PathBuf::from("/home/a/.local/share/packetrig"));
        assert_eq!(place("", "/home/a").unwrap(), PathBuf::from("/home/a/.local/share/packetrig"));
        assert_eq!(directory_from_variables(None, None), None);
    }
}
