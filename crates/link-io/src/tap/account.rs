//! Accounts of frames and copies, the same for both back ends.
//!
//! An unknown count is absent. The accounting rules are checked only after the tap has ended; before that,
//! frames are in transit.

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Reason why a frame was not forwarded, or a copy was not sent to its mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TapLossCause {
    /// The receive ring was full: this process was too slow.
    Ring,
    /// The interface no longer exists.
    Gone,
    /// The interface was down.
    Down,
    /// The frame is longer than the interface can send.
    TooLong,
    /// The kernel had no memory.
    Memory,
    /// The driver refused the frame because the receiver on the link was too slow.
    Driver,
    /// The transmit ring of the interface was full.
    Full,
    /// The frame has no space for a trailer.
    NoRoom,
    /// The kernel skipped the interface: it is down or gone, its MTU is too small, or it accepts no redirected frames.
    Skipped,
    /// The interface accepts no redirected frames, or none in several pieces.
    NoRedirect,
    /// An impairment dropped the frame on purpose.
    Impaired,
    Other,
}

impl TapLossCause {
    pub const ALL: [Self; 12] = [
        Self::Ring,
        Self::Gone,
        Self::Down,
        Self::TooLong,
        Self::Memory,
        Self::Driver,
        Self::Full,
        Self::NoRoom,
        Self::Skipped,
        Self::NoRedirect,
        Self::Impaired,
        Self::Other,
    ];

    /// Name in metrics, as in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Gone => "gone",
            Self::Down => "down",
            Self::TooLong => "too-long",
            Self::Memory => "memory",
            Self::Driver => "driver",
            Self::Full => "full",
            Self::NoRoom => "no-room",
            Self::Skipped => "skipped",
            Self::NoRedirect => "no-redirect",
            Self::Impaired => "impaired",
            Self::Other => "other",
        }
    }

    pub fn to_text(self) -> &'static str {
        match self {
            Self::Ring => "the receive ring was full: this machine was too slow",
            Self::Gone => "the interface is gone",
            Self::Down => "the interface was down",
            Self::TooLong => "longer than the interface can send",
            Self::Memory => "the kernel had no free memory",
            Self::Driver => "the driver refused more frames: the receiver on the link is too slow",
            Self::Full => "the transmit ring was full",
            Self::NoRoom => "no room for the trailer",
            Self::Skipped => {
                "the interface was down or gone, its MTU was too small, or it does not accept redirected frames"
            }
            Self::NoRedirect => "the interface does not accept redirected frames",
            Self::Impaired => "dropped on purpose by an impairment",
            Self::Other => "another reason",
        }
    }
}

/// Reason why a frame was not selected for copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UncopiedReason {
    /// The frame does not match the filter.
    Filter,
    /// The frame's destination is a station that receives copies, so it may be a copy that came back.
    Own,
    /// The frame is longer than this back end can copy.
    TooLong,
    /// The frame was lost before the tap received it.
    Unseen,
}

impl UncopiedReason {
    pub fn to_text(self) -> &'static str {
        match self {
            Self::Filter => "does not match the filter",
            Self::Own => "addressed to the station that receives the copies",
            Self::TooLong => "too long to be copied in the kernel",
            Self::Unseen => "lost on arrival",
        }
    }
}

/// All accounts of a tap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapAccounts {
    pub elapsed: Nanos,
    /// True if no frame is in transit any more.
    pub is_final: bool,
    /// The direction from A to B, then the direction from B to A.
    pub directions: Vec<TapDirection>,
    /// Counts of the recording, if there is one.
    pub recording: Option<RecordingAccount>,
}

/// Account of one direction's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapDirection {
    pub from: String,
    pub to: String,
    pub received: u64,
    /// Bytes of the received frames, without FCS.
    pub received_bytes: u64,
    /// Additional frames that an impairment made.
    pub made: u64,
    /// Frames that the driver of the other side accepted.
    pub forwarded: Option<u64>,
    pub dropped: BTreeMap<TapLossCause, u64>,
    /// Frames to be copied to each mirror.
    pub wanted: u64,
    /// Frames that were not selected for copying, by reason.
    pub uncopied: BTreeMap<UncopiedReason, u64>,
    pub mirrors: Vec<MirrorAccount>,
}

/// Account of one direction's copies for one mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorAccount {
    pub to: String,
    /// Copies that the mirror's driver accepted.
    pub mirrored: Option<u64>,
    /// Bytes of the copies that were handed to the mirror.
    pub bytes: u64,
    pub dropped: BTreeMap<TapLossCause, u64>,
}

/// Account of the copies for the file, of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingAccount {
    /// Frames read from the rings.
    pub frames: u64,
    /// Frames that were lost because their ring was full.
    pub ring_dropped: u64,
    /// Frames that were lost because the queue to the disk was full.
    pub queue_dropped: u64,
    /// Frames that could not be written.
    pub disk_lost: u64,
}

/// Collects the counts that are not zero.
pub(super) fn nonzero_counts<K: Ord>(causes: impl IntoIterator<Item = (K, u64)>) -> BTreeMap<K, u64> {
    let mut all = BTreeMap::new();
    for (cause, frames) in causes.into_iter().filter(|(_, frames)| *frames > 0) {
        // A cause may occur twice: both the ring and the lane refuse frames that are too long.
        *all.entry(cause).or_insert(0) += frames;
    }
    all
}

fn total_frames<K>(causes: &BTreeMap<K, u64>) -> u64 {
    causes.values().sum()
}

impl TapAccounts {
    /// Returns the accounting rules that are broken. Checks nothing before the end of the tap.
    pub fn find_imbalances(&self) -> Vec<String> {
        if self.is_final {
            self.directions.iter().flat_map(TapDirection::find_imbalances).collect()
        } else {
            Vec::new()
        }
    }
}

impl TapDirection {
    /// Number of frames that were not forwarded.
    pub fn lost_frames(&self) -> u64 {
        total_frames(&self.dropped)
    }

    fn find_imbalances(&self) -> Vec<String> {
        let way = format!("{} to {}", self.from, self.to);
        let mut broken = Vec::new();
        let came = self.received + self.made;
        let lost = self.lost_frames();
        // An unknown count breaks no rule.
        if let Some(forwarded) = self.forwarded.filter(|forwarded| forwarded + lost != came) {
            broken.push(format!(
                "{way}: {came} frames arrived, but {forwarded} were forwarded and {lost} dropped"
            ));
        }
        // Every frame that arrived was either selected for the mirrors or is in a count of reasons. The copies of the
        // selected frames are checked mirror by mirror.
        let uncopied = total_frames(&self.uncopied);
        if !self.mirrors.is_empty() && self.wanted + uncopied != self.received {
            broken.push(format!(
                "{way}: {} frames arrived, but {} were selected for copying and {uncopied} were not",
                self.received, self.wanted
            ));
        }
        for mirror in &self.mirrors {
            let dropped = total_frames(&mirror.dropped);
            if let Some(mirrored) = mirror.mirrored.filter(|mirrored| mirrored + dropped != self.wanted) {
                broken.push(format!(
                    "{way}: {} frames to copy to {}, but {mirrored} were copied and {dropped} dropped",
                    self.wanted, mirror.to
                ));
            }
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction() -> TapDirection {
        let mirror = MirrorAccount {
            to: "m".into(),
            mirrored: Some(5),
            bytes: 300,
            dropped: nonzero_counts([(TapLossCause::Driver, 2), (TapLossCause::Full, 0)]),
        };
        TapDirection {
            from: "a".into(),
            to: "b".into(),
            received: 10,
            forwarded: Some(9),
            dropped: nonzero_counts([(TapLossCause::Down, 1)]),
            wanted: 7,
            uncopied: nonzero_counts([(UncopiedReason::Filter, 3)]),
            mirrors: vec![mirror],
            ..TapDirection::default()
        }
    }

    fn broken(direction: TapDirection) -> usize {
        TapAccounts { is_final: true, directions: vec![direction], ..TapAccounts::default() }
            .find_imbalances()
            .len()
    }

    #[test]
    fn frame_imbalance_breaks_account_rules() {
        assert_eq!(broken(direction()), 0);
        assert_eq!(broken(TapDirection { received: 11, ..direction() }), 2);
        assert_eq!(broken(TapDirection { made: 1, ..direction() }), 1);
        assert_eq!(broken(TapDirection { forwarded: Some(8), ..direction() }), 1);
        assert_eq!(broken(TapDirection { wanted: 8, ..direction() }), 2);
        let mut missing = direction();
        missing.mirrors[0].dropped.clear();
        assert_eq!(broken(missing), 1);
    }

    #[test]
    fn unknown_counts_and_running_taps_break_no_rule() {
        assert_eq!(broken(TapDirection { forwarded: None, ..direction() }), 0);
        let one = TapDirection { received: 99, ..direction() };
        assert!(TapAccounts { directions: vec![one], ..TapAccounts::default() }.find_imbalances().is_empty());
    }

    #[test]
    fn accounts_come_back_from_json() {
        let accounts = TapAccounts { directions: vec![direction()], ..TapAccounts::default() };
        let text = serde_json::to_string(&accounts).unwrap();
        assert!(text.contains("\"driver\":2") && !text.contains("full"), "{text}");
        assert_eq!(serde_json::from_str::<TapAccounts>(&text).unwrap(), accounts);
    }
}
