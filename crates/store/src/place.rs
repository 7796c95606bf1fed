//! The default directory of past runs.

use crate::Error;
use packetrig_sys::data_directory::data_directory;
use std::path::PathBuf;

/// `$XDG_DATA_HOME/packetrig`, or `~/.local/share/packetrig`.
pub fn default_store_directory() -> Result<PathBuf, Error> {
    data_directory().ok_or(Error::NoPlace)
}
