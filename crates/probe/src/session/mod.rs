//! STAMP (RFC 8762, RFC 8972), and with it the light form of TWAMP (RFC 5357, appendix I): packets, and both ends as machines without
//! sockets and clocks.
//!
//! ```text
//!  Sender (a Method) -- Request --> Reflector -- reflection --> Sender -> Reply with the far end's two stamps
//! ```
//! Times in packets are of the real-time clock of whoever writes them; what relation two clocks have is not known here.
//!
//! Invariant: a reflection is never longer than its request, and in authenticated mode nothing is read from a packet whose digest is
//! wrong.

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

/// The port STAMP has by default.
pub const PORT: u16 = 862;
/// Bytes of a digest.
pub const DIGEST: usize = 16;

/// A key both ends share. It is never shown.
#[derive(Clone)]
pub struct SessionKey(Vec<u8>);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl SessionKey {
    /// Of these bytes; `None` for fewer than sixteen, which are no secret.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() >= DIGEST).then_some(Self(bytes))
    }

    /// As a file has it: hexadecimal digits, white space around them ignored.
    pub fn from_text(text: &str) -> Option<Self> {
        let digits = text.trim().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let is_even = digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit);
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        Self::new(bytes.filter(|_| is_even)?)
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // A key of any length is taken: longer ones than a block are hashed first.
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

    /// HMAC-SHA-256 over the parts, cut to 128 bits.
    pub(crate) fn digest(&self, parts: &[&[u8]]) -> [u8; DIGEST] {
        let whole = self.mac(parts).finalize().into_bytes();
        let mut cut = [0; DIGEST];
        cut.copy_from_slice(&whole[..DIGEST]);
        cut
    }

    /// Whether a digest is right; takes as long either way.
    pub(crate) fn is_right(&self, parts: &[&[u8]], digest: &[u8]) -> bool {
        digest.len() == DIGEST && self.mac(parts).verify_truncated_left(digest).is_ok()
    }
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests;
