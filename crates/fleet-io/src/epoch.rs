//! Stores the highest epoch (fencing token of a controller) that a node has seen, so that a restart does not reset it.

use packetrig_sys::private_files;
use std::fs;
use std::io;
use std::path::Path;

/// Reads the epoch that was written last; 0 if there is no file.
pub fn read_epoch(path: &Path) -> io::Result<u64> {
    match fs::read_to_string(path) {
        // An invalid file is an error and not epoch 0: with epoch 0 the node would obey an old controller.
        Ok(text) => text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Writes the epoch. After a crash the file has either the old number or the new one.
pub(crate) fn write_epoch(path: &Path, epoch: u64) -> io::Result<()> {
    private_files::replace_file(path, format!("{epoch}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("epoch");
        assert_eq!(read_epoch(&path).unwrap(), 0);
        for epoch in [7, 9] {
            write_epoch(&path, epoch).unwrap();
            assert_eq!(read_epoch(&path).unwrap(), epoch);
        }
        fs::write(&path, "nonsense").unwrap();
        assert!(read_epoch(&path).is_err(), "a guess could let an old controller in");
    }
}
