//! Distinguishes frames of other runs from frames of this run with a damaged tag.
//!
//! A frame of a known run carries a mark that was made with the key of that run. A frame counts as a frame of
//! an unknown run if it has a full tag whose send time is before the start of this run and whose check matches
//! the payload. A damaged frame of this run looks like that only if its damage has moved the send time and left
//! the payload and the check intact.

use super::{PayloadTagPosition, compare_payload_with_tag};
use crate::tag::{self, FoundTag, TagForm, TagKey};
use crate::template::FrameComparison;
use std::cmp::Reverse;

/// The run that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherRun {
    /// The run whose key is at this index of the known keys.
    Known(usize),
    /// An unknown run.
    Unknown,
}

/// The key of a known run, and how many of its frames have arrived.
pub type KnownRun = (TagKey, u64);

/// Finds the run of a frame without a valid tag of this run; `None` if nothing shows that the frame belongs to another
/// run. `began` and `arrived` are times of the sender's clock: the start of this run, and the arrival of the frame.
///
/// A mark matches a wrong key by chance once in 65 536 times, which does happen with many keys and frames. If
/// the keys of several runs match, the frame is assigned to the run with the most frames so far.
pub fn find_other_run(frame: &[u8], known: &[KnownRun], began: u64, arrived: u64) -> Option<OtherRun> {
    let fitting = known.iter().enumerate().filter(|(_, (key, _))| {
        // The mark alone may match by chance, so a second sign is required: an early send time or an intact payload.
        tag::tag_candidates(frame, *key)
            .any(|found| is_from_earlier_run(&found, began, arrived) || has_intact_payload(frame, &found))
    });
    // A mark may match several keys by chance. The run with the most frames is the likeliest; of runs with
    // equally many frames, the first one in `known` is used.
    if let Some((place, _)) = fitting.max_by_key(|(place, (_, frames))| (*frames, Reverse(*place))) {
        return Some(OtherRun::Known(place));
    }
    // The check of a full tag covers only the payload, so headers that a device has changed do not matter.
    let place = PayloadTagPosition::from_frame(frame).filter(|place| place.form() == TagForm::Full)?;
    let found = tag::read_unverified_full_tag(frame, place.end_offset())?;
    let fits = has_intact_payload(frame, &found);
    (fits && is_from_earlier_run(&found, began, arrived)).then_some(OtherRun::Unknown)
}

/// Returns whether the tag states that its frame was sent before this run began; false for a short tag,
/// which has no time.
fn is_from_earlier_run(found: &FoundTag, began: u64, arrived: u64) -> bool {
    found.tag.restore_send_time(arrived).is_some_and(|sent| sent < began)
}

fn has_intact_payload(frame: &[u8], found: &FoundTag) -> bool {
    compare_payload_with_tag(frame, found) == Some(FrameComparison::Intact)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::keyed_mix;
    use crate::tag::TagStamp;

    const OURS: TagKey = TagKey(1);
    const THEIRS: TagKey = TagKey(2);
    const BEGAN: u64 = 1_000_000_000;

    /// An IPv4/UDP frame with this much payload and a tag.
    fn frame(payload: usize, key: TagKey, number: u64, time: u64) -> Vec<u8> {
        let mut bytes = vec![0x55; 42 + payload];
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[14] = 0x45;
        let length = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
        bytes[16..18].copy_from_slice(&length(28 + payload));
        bytes[20..22].fill(0);
        bytes[23] = 17;
        bytes[38..40].copy_from_slice(&length(8 + payload));
        bytes[40..42].fill(0);
        let copy = bytes.clone();
        PayloadTagPosition::from_frame(&copy).unwrap().write_tag(
            number,
            TagStamp { key, stream: 3, time },
            &mut bytes,
        );
        bytes
    }

    #[test]
    fn other_run_frame_is_not_taken_for_damage() {
        let full = frame(60, THEIRS, 7, BEGAN - 500);
        let look = |frame: &[u8], known: &[TagKey]| {
            let known: Vec<KnownRun> = known.iter().map(|key| (*key, 0)).collect();
            find_other_run(frame, &known, BEGAN, BEGAN + 900)
        };
        assert_eq!(look(&full, &[TagKey(9), THEIRS]), Some(OtherRun::Known(1)));
        assert_eq!(look(&full, &[]), Some(OtherRun::Unknown));
        // A short tag has no time, so only the key identifies it.
        let short = frame(10, THEIRS, 7, 0);
        assert_eq!((look(&short, &[THEIRS]), look(&short, &[])), (Some(OtherRun::Known(0)), None));
    }

    #[test]
    fn ambiguous_tag_belongs_to_run_with_frames() {
        let other = TagKey(9);
        let fits_both = (0..1 << 20)
            .map(|number| frame(60, THEIRS, number, BEGAN - 500))
            .find(|frame| tag::tag_candidates(frame, other).next().is_some());
        let frame = fits_both.expect("one in 65 536 does");
        let look = |frames: u64| find_other_run(&frame, &[(other, 0), (THEIRS, frames)], BEGAN, BEGAN + 900);
        assert_eq!((look(0), look(1)), (Some(OtherRun::Known(0)), Some(OtherRun::Known(1))));
    }

    #[test]
    fn damaged_tag_of_this_run_stays_own() {
        let whole = frame(60, OURS, 7, BEGAN + 500);
        let tag_at = whole.len() - 16;
        // Mark, stream, number; not the time.
        for at in tag_at..tag_at + 8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert_eq!(find_other_run(&damaged, &[(THEIRS, 0)], BEGAN, BEGAN + 900), None, "byte {at}");
        }
    }

    /// Checks the number in docs/book/tag.md: about 1 in 65 536 short tags of another run has a mark of this run.
    #[test]
    fn short_tag_false_match_is_one_in_65536() {
        let frames = 400_000u64;
        let is_false = |number: &u64| {
            let frame = frame(10, TagKey(keyed_mix(3, *number)), *number, 0);
            tag::tag_candidates(&frame, OURS).any(|found| found.tag.form == TagForm::Short)
        };
        let hits = (0..frames).filter(is_false).count();
        // 6.1 expected; more than 20 happens once in a million.
        assert!(hits <= 20, "{hits} of {frames}");
    }
}
