//! Caveats: reasons to doubt a result, which the report states together with the result.

use packetrig_units::text::deserialize_line;
use serde::{Deserialize, Serialize};

/// What makes a result doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaveatKind {
    /// The sender did not reach its planned rate.
    SenderShort,
    /// The sender stopped because its lease was not renewed.
    LeaseEnded,
    /// Frames left later than they were due.
    SentLate,
    /// The rig's own receiver lost frames.
    ReceiverLost,
    /// Accounts of the ledger do not add up as they must.
    Unbalanced,
    /// A counter is missing, or a value could not be measured.
    NotMeasured,
    /// Frames arrived that do not belong to this run.
    ForeignFrames,
    /// Frames left without a tag, so the receiver cannot identify them.
    Untagged,
    /// A capture file could not be replayed as it is.
    Recording,
    /// Latency is not measured, because the tags have no send time.
    NoSendTime,
    /// The relation of the clocks changed, or is not known well enough.
    Clock,
    /// Part of the capture is missing.
    CaptureIncomplete,
    /// The run was stopped before its plan ended.
    Interrupted,
    /// Receivers stopped while frames may still have been in flight.
    StoppedListening,
    /// The interface may send or change frames by itself, because a setting could not be changed.
    NotQuiet,
    /// The load was close to the limit of the rig itself.
    NearLimit,
    /// No frame of a stream arrived, or no stream ran.
    NothingMeasured,
    /// The rig's program did not run for some time.
    StoodStill,
    /// A node delivered its result after the report was written.
    CameLate,
    /// The external program that sends frames failed: it is not known for certain which frames it sent.
    EngineFailed,
    /// Sending or receiving at a port failed, and that half of the port did nothing more.
    PortFailed,
    /// A tap on this machine lost frames in its own rings, or did not report whether it did.
    TapLost,
    /// Earlier starts of the same plan failed, because some nodes received the start order too late.
    BegunAgain,
}

/// Maximum length of the text of a caveat, in characters. It may name many streams.
const MAX_CAVEAT_CHARACTERS: usize = 4096;

/// A doubt about one subject. Its texts come from other machines, so each is read as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caveat {
    pub doubt: CaveatKind,
    /// Name of the subject of the doubt: a stream, port or node.
    #[serde(deserialize_with = "deserialize_line::<MAX_CAVEAT_CHARACTERS, _>")]
    pub subject: String,
    /// Explanation in words, with the numbers.
    #[serde(deserialize_with = "deserialize_line::<MAX_CAVEAT_CHARACTERS, _>")]
    pub text: String,
    /// True if the run cannot pass because of this doubt.
    pub matters: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all names in the order of the kinds. They are read from the error about an unknown name, so none is missing.
    fn names() -> Vec<String> {
        let error = serde_json::from_str::<CaveatKind>("\"no such caveat\"").unwrap_err().to_string();
        let (_, expected) = error.split_once("expected one of ").unwrap();
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// Names of the page's table: a first cell that is a name, in a row of five cells.
    fn documented() -> Vec<String> {
        let page = include_str!("../../../docs/book/caveats.md");
        let rows = page.lines().filter(|line| line.matches(" | ").count() == 4);
        let names = rows.filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        names.map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn the_page_names_every_caveat() {
        assert_eq!(documented(), names());
    }
}
