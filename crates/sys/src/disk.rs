//! How full disks are.

use crate::Error;
use std::path::Path;

/// Bytes that an ordinary process may still write where `path` is.
pub fn free(path: &Path) -> Result<u64, Error> {
    let facts = rustix::fs::statvfs(path)
        .map_err(|errno| Error::call("statvfs", path.display().to_string(), errno))?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_some_room() {
        assert!(free(Path::new("/")).unwrap() > 0);
        assert!(free(Path::new("/no/such/place")).is_err());
    }
}
