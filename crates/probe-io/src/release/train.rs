//! A copy of a train, so that another thread can send it.
//!
//! Invariant: the memory of the last train is reused for the next one.

use super::DueFrame;
use packetrig_units::MonoTime;

#[derive(Clone, Debug, Default)]
pub(super) struct TrainCopy {
    bytes: Vec<u8>,
    /// Departure time of each frame, and the offset at which its bytes end.
    probes: Vec<(MonoTime, usize)>,
}

impl TrainCopy {
    /// Replaces the content by a copy of `train`.
    pub(super) fn copy_train(&mut self, train: &[DueFrame<'_>]) {
        self.bytes.clear();
        self.probes.clear();
        for due in train {
            self.bytes.extend_from_slice(due.frame);
            self.probes.push((due.at, self.bytes.len()));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.probes.len()
    }

    /// Departure time of frame `index`.
    pub(super) fn due_time_at(&self, index: usize) -> MonoTime {
        self.probes[index].0
    }

    /// The bytes of frame `index`.
    pub(super) fn frame(&self, index: usize) -> &[u8] {
        // A frame begins where the one before it ends.
        let start = index.checked_sub(1).map_or(0, |before| self.probes[before].1);
        &self.bytes[start..self.probes[index].1]
    }

    /// Bytes of the longest frame; zero without frames.
    pub(super) fn longest_frame(&self) -> usize {
        (0..self.len()).map(|index| self.frame(index).len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_instants_are_as_they_were_given() {
        let mut train = TrainCopy::default();
        for frames in [vec![&b"abc"[..], b"", b"defg"], vec![b"x"]] {
            let dues: Vec<_> = (10..)
                .zip(&frames)
                .map(|(at, frame)| DueFrame { at: MonoTime::from_nanos(at), frame })
                .collect();
            train.copy_train(&dues);
            assert_eq!((0..train.len()).map(|index| train.frame(index)).collect::<Vec<_>>(), frames);
            assert_eq!(train.due_time_at(train.len() - 1).as_nanos(), 9 + frames.len() as u64);
        }
        assert_eq!(train.longest_frame(), 1);
    }
}
