//! Counts frames without a tag by a hash of their content: how many frames of each content were sent,
//! and how many arrived.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Maximum number of different contents that are counted separately.
pub const MAX_CONTENTS: usize = 16_384;

/// Number of frames of each content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentCounts {
    /// Number of frames, by the hash of their content.
    pub frames: HashMap<u64, u64>,
    /// Number of frames with any other content: once there are [`MAX_CONTENTS`] contents, new
    /// ones are not distinguished.
    pub uncounted: u64,
}

impl ContentCounts {
    /// Creates empty counts and allocates the memory for all contents at once.
    pub fn with_allocated_memory() -> Self {
        Self { frames: HashMap::with_capacity(MAX_CONTENTS), uncounted: 0 }
    }

    pub fn add_frame(&mut self, hash: u64) {
        // Known contents are looked up first: they are counted even after the limit was reached.
        if let Some(frames) = self.frames.get_mut(&hash) {
            *frames += 1;
        } else if self.frames.len() < MAX_CONTENTS {
            self.frames.insert(hash, 1);
        } else {
            self.uncounted += 1;
        }
    }

    /// Removes the frames that `sent` contains and returns their number. Frames that arrived more often than
    /// they were sent remain.
    pub fn remove_matching_frames(&mut self, sent: &Self) -> u64 {
        let mut matched = 0;
        // Matched frames are removed, so that an arrived frame is matched to only one stream.
        for (hash, wanted) in &sent.frames {
            let Some(here) = self.frames.get_mut(hash) else { continue };
            let taken = (*here).min(*wanted);
            *here -= taken;
            matched = taken.saturating_add(matched);
        }
        matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_received_content_matches_one_sent_frame() {
        let (mut sent, mut here) =
            (ContentCounts::with_allocated_memory(), ContentCounts::with_allocated_memory());
        for hash in [1, 1, 1, 2, 3] {
            sent.add_frame(hash);
        }
        for hash in [1, 1, 3, 3, 9] {
            here.add_frame(hash);
        }
        assert_eq!(here.remove_matching_frames(&sent), 3);
        assert_eq!(here.remove_matching_frames(&sent), 1, "the second copy of 3 was left for another stream");
    }

    #[test]
    fn excess_contents_are_counted_as_uncounted() {
        let mut counts = ContentCounts::with_allocated_memory();
        for hash in 0..MAX_CONTENTS as u64 + 5 {
            counts.add_frame(hash);
        }
        assert_eq!(counts.uncounted, 5);
    }
}
