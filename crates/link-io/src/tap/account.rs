//! What became of frames and of copies: the same accounts for both back ends.
//!
//! A count that is not known is absent. Rules are checked once the tap has ended; before, frames are on their way.

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why a frame was not forwarded, or a copy not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TapLossCause {
    /// The ring it arrived in was full: this process was too slow.
    Ring,
    /// There is no such interface any more.
    Gone,
    /// The interface was down.
    Down,
    /// It is longer than the interface takes.
    TooLong,
    /// There was no memory.
    Memory,
    /// The driver took no more, the other end being too slow.
    Driver,
    /// The ring towards the interface was full.
    Full,
    /// There is no room for a trailer in it.
    NoRoom,
    /// The kernel passed the interface over: down, gone, its MTU too small, or it takes no redirected frames.
    PassedOver,
    /// The interface takes no redirected frames, or none in several pieces.
    Deaf,
    /// On purpose, as an impairment.
    Impaired,
    Other,
}

impl TapLossCause {
    pub fn words(self) -> &'static str {
        match self {
            Self::Ring => "the receive ring was full: this machine was too slow",
            Self::Gone => "the interface is gone",
            Self::Down => "the interface was down",
            Self::TooLong => "longer than the interface can send",
            Self::Memory => "no memory",
            Self::Driver => "the driver refused more frames: the far end is too slow",
            Self::Full => "the transmit ring was full",
            Self::NoRoom => "no room for the trailer",
            Self::PassedOver => {
                "the interface was down or gone, its MTU was too small, or it does not accept redirected frames"
            }
            Self::Deaf => "the interface does not accept redirected frames",
            Self::Impaired => "on purpose",
            Self::Other => "another reason",
        }
    }
}

/// Why a frame was not to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UncopiedReason {
    /// It does not match the filter.
    Filter,
    /// It goes to a station that copies go to, so it may be one that came back.
    Own,
    /// It is longer than this way can copy.
    TooLong,
    /// It was lost before anybody saw it.
    Unseen,
}

impl UncopiedReason {
    pub fn words(self) -> &'static str {
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
    /// No frame is on its way any more.
    pub is_final: bool,
    /// From A to B, and back.
    pub directions: Vec<TapDirection>,
    /// What the file got, if there is to be one.
    pub recording: Option<RecordingAccount>,
}

/// Frames of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapDirection {
    pub from: String,
    pub to: String,
    pub received: u64,
    /// Their bytes, without FCS.
    pub received_bytes: u64,
    /// Made beyond them, as an impairment.
    pub made: u64,
    /// Taken by the driver of the other side.
    pub forwarded: Option<u64>,
    pub dropped: BTreeMap<TapLossCause, u64>,
    /// To be copied to each mirror.
    pub wanted: u64,
    /// Not to be copied.
    pub uncopied: BTreeMap<UncopiedReason, u64>,
    pub mirrors: Vec<MirrorAccount>,
}

/// Copies of one direction for one mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorAccount {
    pub to: String,
    /// Taken by its driver.
    pub mirrored: Option<u64>,
    /// Bytes handed to it.
    pub bytes: u64,
    pub dropped: BTreeMap<TapLossCause, u64>,
}

/// Copies for the file, of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingAccount {
    /// Frames taken from the rings.
    pub frames: u64,
    /// Frames that found their ring full.
    pub ring_dropped: u64,
    /// Frames that found the queue to the disk full.
    pub queue_dropped: u64,
    /// Frames that could not be written.
    pub disk_lost: u64,
}

/// Leaves out what did not happen.
pub(super) fn counted<K: Ord>(causes: impl IntoIterator<Item = (K, u64)>) -> BTreeMap<K, u64> {
    let mut all = BTreeMap::new();
    for (cause, frames) in causes.into_iter().filter(|(_, frames)| *frames > 0) {
        *all.entry(cause).or_insert(0) += frames;
    }
    all
}

fn total<K>(causes: &BTreeMap<K, u64>) -> u64 {
    causes.values().sum()
}

impl TapAccounts {
    /// Rules that are broken. None are checked before the end.
    pub fn imbalances(&self) -> Vec<String> {
        if self.is_final {
            self.directions.iter().flat_map(TapDirection::imbalances).collect()
        } else {
            Vec::new()
        }
    }
}

impl TapDirection {
    /// Frames that were not forwarded.
    pub fn lost(&self) -> u64 {
        total(&self.dropped)
    }

    fn imbalances(&self) -> Vec<String> {
        let way = format!("{} to {}", self.from, self.to);
        let mut broken = Vec::new();
        let came = self.received + self.made;
        let lost = self.lost();
        if let Some(forwarded) = self.forwarded.filter(|forwarded| forwarded + lost != came) {
            broken.push(format!("{way}: {came} arrived, {forwarded} forwarded and {lost} dropped"));
        }
        // Every frame that arrived was either meant for the mirrors or is in a count of why not; what each mirror
        // made of those that were meant is checked mirror by mirror.
        let uncopied = total(&self.uncopied);
        if !self.mirrors.is_empty() && self.wanted + uncopied != self.received {
            broken.push(format!(
                "{way}: {} arrived, {} selected for copying and {uncopied} not",
                self.received, self.wanted
            ));
        }
        for mirror in &self.mirrors {
            let dropped = total(&mirror.dropped);
            if let Some(mirrored) = mirror.mirrored.filter(|mirrored| mirrored + dropped != self.wanted) {
                broken.push(format!(
                    "{way}: {} to copy to {}, {mirrored} copied and {dropped} dropped",
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
            dropped: counted([(TapLossCause::Driver, 2), (TapLossCause::Full, 0)]),
        };
        TapDirection {
            from: "a".into(),
            to: "b".into(),
            received: 10,
            forwarded: Some(9),
            dropped: counted([(TapLossCause::Down, 1)]),
            wanted: 7,
            uncopied: counted([(UncopiedReason::Filter, 3)]),
            mirrors: vec![mirror],
            ..TapDirection::default()
        }
    }

    fn broken(direction: TapDirection) -> usize {
        TapAccounts { is_final: true, directions: vec![direction], ..TapAccounts::default() }
            .imbalances()
            .len()
    }

    #[test]
    fn what_adds_up_breaks_no_rule_and_each_frame_too_many_or_too_few_does() {
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
    fn what_is_not_known_breaks_no_rule_and_nothing_is_checked_on_the_way() {
        assert_eq!(broken(TapDirection { forwarded: None, ..direction() }), 0);
        let one = TapDirection { received: 99, ..direction() };
        assert!(TapAccounts { directions: vec![one], ..TapAccounts::default() }.imbalances().is_empty());
    }

    #[test]
    fn accounts_come_back_from_json() {
        let accounts = TapAccounts { directions: vec![direction()], ..TapAccounts::default() };
        let text = serde_json::to_string(&accounts).unwrap();
        assert!(text.contains("\"driver\":2") && !text.contains("full"), "{text}");
        assert_eq!(serde_json::from_str::<TapAccounts>(&text).unwrap(), accounts);
    }
}
