//! STAMP (RFC 8762, RFC 8972), and with it the light form of TWAMP (RFC 5357, appendix I): packets, and both ends as state machines
//! without sockets and clocks.
//!
//! ```text
//!  Sender (a Method) -- Request --> Reflector -- reflection --> Sender -> Reply with the far end's two stamps
//! ```
//! Times in packets are of the real-time clock of the host that writes them. Only [`delays`] computes how the two
//! clocks are related.
//!
//! Invariant: a reflection is never longer than its request. In authenticated mode, a packet with a wrong digest is not read.

pub mod delays;
pub mod packet;
pub mod reflector;
pub mod sender;
pub mod time;
pub mod tlv;

pub use packet::{StampReflection, StampRequest};
pub use reflector::{ReflectionRefusal, StampReflector};
pub use sender::StampSender;
pub use time::{ErrorEstimate, TimeFormat};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Default UDP port of STAMP (RFC 8762, 4.1).
pub const STAMP_PORT: u16 = 862;
/// Bytes of a digest: HMAC-SHA-256, cut to 128 bits (RFC 8762, 4.4).
pub const DIGEST_BYTES: usize = 16;

/// A key that both ends share. `Debug` does not show it.
#[derive(Clone)]
pub struct SessionKey(Vec<u8>);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl SessionKey {
    /// Makes a key; `None` if there are fewer than sixteen bytes, which are too few for a secret.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() >= DIGEST_BYTES).then_some(Self(bytes))
    }

    /// Reads the text of a key file: hexadecimal digits, with white space only around them. `None` if the text is
    /// something else, or if the key has fewer than sixteen bytes.
    pub fn from_text(text: &str) -> Option<Self> {
        let digits = text.trim().as_bytes();
        // The digits are checked before `from_str_radix`, which would accept a sign.
        if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let bytes: Option<Vec<u8>> = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        Self::new(bytes?)
    }

    fn compute_mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // RFC 2104, 2: a key shorter than a block is padded with zeros, a longer one is hashed first.
        let mut block = [0; 64];
        if self.0.len() <= block.len() {
            block[..self.0.len()].copy_from_slice(&self.0);
        } else {
            use sha2::Digest;
            block[..32].copy_from_slice(&Sha256::digest(&self.0));
        }
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
        for part in parts {
            mac.update(part);
        }
        mac
    }

    /// The digest over the concatenated parts.
    pub(crate) fn compute_digest(&self, parts: &[&[u8]]) -> [u8; DIGEST_BYTES] {
        let whole = self.compute_mac(parts).finalize().into_bytes();
        let mut cut = [0; DIGEST_BYTES];
        cut.copy_from_slice(&whole[..DIGEST_BYTES]);
        cut
    }

    /// Returns whether a digest is right. The check takes the same time in both cases, so that its duration
    /// reveals nothing to a forger.
    pub(crate) fn is_digest_right(&self, parts: &[&[u8]], digest: &[u8]) -> bool {
        digest.len() == DIGEST_BYTES && self.compute_mac(parts).verify_truncated_left(digest).is_ok()
    }
}

fn read_be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn read_be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn read_be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests;
