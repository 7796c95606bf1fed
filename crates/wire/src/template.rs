//! A stream's frames, compiled: frame `n` is a copy of an image plus the fields that vary.

use crate::layer::Layer;
use crate::payload::Payload;
use crate::size::SizePattern;
use crate::tag::{Found, Stamp, TagForm};
use packetrig_units::FrameSize;
use serde::{Deserialize, Serialize};

/// What the frames of a stream look like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSpec {
    /// Headers in wire order; an empty list means one Ethernet header.
    pub layers: Vec<Layer>,
    /// Sizes.
    pub size: SizePattern,
    /// Fill.
    pub payload: Payload,
    /// Whether frames carry a test tag where one fits. Without it the payload stays byte-exact.
    pub tagged: bool,
}

/// Why a spec cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The headers are longer than the smallest frame.
    #[error("headers take {headers} bytes but the smallest frame leaves {room}")]
    TooSmall {
        /// Bytes of the headers.
        headers: usize,
        /// Smallest size without FCS.
        room: usize,
    },
}

/// How an arrived frame compares with the one sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Byte for byte as sent.
    Intact,
    /// Payload intact, headers not as sent (rewritten, pushed, popped).
    Altered,
    /// Payload damaged.
    Corrupt,
}

/// A compiled spec.
#[derive(Clone, Debug)]
pub struct Template {
    spec: FrameSpec,
}

impl Template {
    /// Compiles `spec`.
    pub fn new(spec: FrameSpec) -> Result<Self, Error> {
        Ok(Self { spec })
    }
    /// What it was made from.
    pub fn spec(&self) -> &FrameSpec {
        &self.spec
    }
    /// Bytes of all headers.
    pub fn header_len(&self) -> usize {
        todo!()
    }
    /// Size of frame `n`, FCS included.
    pub fn size(&self, n: u64) -> FrameSize {
        self.spec.size.at(n)
    }
    /// The tag form of frame `n`; `None` if untagged or if nothing fits.
    pub fn tag_form(&self, n: u64) -> Option<TagForm> {
        let _ = n;
        todo!()
    }
    /// Writes frame `n` without FCS into `out` (at least `size(n).kernel_len()` bytes) and returns its length.
    /// `stamp` is used when the frame carries a tag.
    pub fn render(&self, n: u64, stamp: Stamp, out: &mut [u8]) -> usize {
        let _ = (n, stamp, out);
        todo!()
    }
    /// Compares an arrived frame, whose tag was `found` and whose full number is `n`, with what was sent.
    /// `scratch` must hold `header_len()` bytes.
    pub fn verify(&self, n: u64, found: &Found, frame: &[u8], scratch: &mut [u8]) -> Verdict {
        let _ = (n, found, frame, scratch);
        todo!()
    }
}
