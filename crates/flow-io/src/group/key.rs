//! The key that all meters of a group share.

use super::GroupError;
use crate::hexadecimal::parse_hexadecimal;
use hmac::{Hmac, KeyInit, Mac};
use packetrig_sys::private_files;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::Path;

/// Minimum length of a key: shorter ones can be guessed.
const MIN_KEY_BYTES: usize = 16;
/// Maximum length of a key file.
const LONGEST_FILE: u64 = 4096;
/// Block size of SHA-256, in bytes.
const SHA256_BLOCK_BYTES: usize = 64;

/// The key that authenticates advertisements. `Debug` does not show it.
#[derive(Clone)]
pub struct GroupKey([u8; SHA256_BLOCK_BYTES]);

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupKey(…)")
    }
}

impl GroupKey {
    /// Makes a key of these bytes; `None` for fewer than sixteen bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < MIN_KEY_BYTES {
            return None;
        }
        // RFC 2104, section 2: a key shorter than a block is padded with zeros, a longer one is hashed first.
        let mut block = [0; SHA256_BLOCK_BYTES];
        if bytes.len() <= SHA256_BLOCK_BYTES {
            block[..bytes.len()].copy_from_slice(bytes);
        } else {
            // SHA-256 gives 32 bytes; the rest of the block stays zero.
            block[..32].copy_from_slice(&Sha256::digest(bytes));
        }
        Some(Self(block))
    }

    /// Reads a file of hexadecimal digits that no other user may read or write.
    pub fn from_file(path: &Path) -> Result<Self, GroupError> {
        let text = private_files::read_secret_file(path, LONGEST_FILE)
            .map_err(|source| GroupError::KeyFile { path: path.to_owned(), source })?;
        let key = parse_hexadecimal(text.trim()).and_then(|bytes| Self::new(&bytes));
        key.ok_or_else(|| GroupError::Key { path: path.to_owned() })
    }

    pub(super) fn compute_mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&self.0.into());
        mac.update(bytes);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_units::message_with_causes;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn keys_are_read_from_private_files_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        private_files::write_file(&path, "00112233445566778899aabbccddeeff\n").unwrap();
        let key = GroupKey::from_file(&path).unwrap();
        assert_eq!(key.0[..4], [0, 0x11, 0x22, 0x33]);
        assert_eq!(format!("{key:?}"), "GroupKey(…)");
        for text in ["", "00112233", "zz112233445566778899aabbccddeeff", "+0112233445566778899aabbccddeeff"] {
            private_files::write_file(&path, text).unwrap();
            assert!(GroupKey::from_file(&path).unwrap_err().to_string().contains("16 bytes"), "{text}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let refused = message_with_causes(&GroupKey::from_file(&path).unwrap_err());
        assert!(refused.contains("chmod 600"), "{refused}");
        assert!(GroupKey::from_file(&directory.path().join("none")).is_err());
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // Only root may give a file away.
        if chown(&path, Some(12_345), None).is_ok() {
            let refused = message_with_causes(&GroupKey::from_file(&path).unwrap_err());
            assert!(refused.contains("user 12345"), "{refused}");
        }
    }
}
