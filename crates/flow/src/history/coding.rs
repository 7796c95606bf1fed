//! Encodes a history as bytes. Numbers take seven bits in a byte, as most of them are small.

use super::{
    CountTotals, CountedPacketSpan, DirectionHistory, FlowHistory, Landmark, LandmarkKind,
    MAX_RECORD_LANDMARKS, MAX_STORED_PLACES, RecordOriginMark, StoredPackets, StoredPlace,
};

const FLIPPED_FLAG: u8 = 1;
const STRANGE_FLAG: u8 = 2;
/// Set if what was stored of the two directions follows them.
const STORED_FLAG: u8 = 4;
/// Set if the places of the record's end follow. Without them, both directions end where their own meter says.
const PLACES_FLAG: u8 = 8;

impl FlowHistory {
    /// Encodes everything but the mark.
    pub(crate) fn encode_track(&self) -> Vec<u8> {
        // Records carry 100 to 200 bytes of history (docs/decisions/0037-landmarks.md).
        let mut out = Vec::with_capacity(160);
        let is_stored = self.stored.iter().any(Option::is_some);
        let own = [&self.forward, &self.reverse].map(|direction| self.own_place(direction));
        let mut stored = self.stored.iter().zip(own);
        let has_places =
            stored.any(|(stored, own)| stored.is_some_and(|stored| !stored.ends_at_own_place(&own)));
        let flags = [
            (self.flipped, FLIPPED_FLAG),
            (self.is_strange, STRANGE_FLAG),
            (is_stored, STORED_FLAG),
            (has_places, PLACES_FLAG),
        ];
        out.push(flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag));
        write_number(self.since_ns, &mut out);
        for direction in [&self.forward, &self.reverse] {
            write_counts(direction.followed, &mut out);
            let there = direction.landmarks.iter().filter(|landmark| landmark.at_ns > 0);
            out.push(there.clone().count().to_le_bytes()[0]);
            for landmark in there {
                out.extend_from_slice(&landmark.content.to_be_bytes());
                // Relative to the start of the history, so that the number takes few bytes.
                write_signed(landmark.at_ns.wrapping_sub(self.since_ns), &mut out);
                // Three kinds need two bits, which would otherwise take a byte.
                write_number(u64::from(landmark.alone_us) << 2 | landmark.kind as u64, &mut out);
                write_counts(landmark.since, &mut out);
            }
        }
        if is_stored {
            self.stored.iter().for_each(|stored| write_claim(*stored, self.since_ns, &mut out));
        }
        if has_places {
            self.stored.iter().flatten().for_each(|stored| write_places(stored, self.since_ns, &mut out));
        }
        out
    }

    /// Decodes a history; `None` if the bytes are not a whole history.
    pub(crate) fn decode_track(mark: RecordOriginMark, mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        let flags = *from.split_off_first()?;
        let since_ns = read_number(from)?;
        let mut history = Self {
            mark,
            flipped: flags & FLIPPED_FLAG != 0,
            is_strange: flags & STRANGE_FLAG != 0,
            since_ns,
            ..Self::default()
        };
        for direction in [&mut history.forward, &mut history.reverse] {
            *direction = read_direction(since_ns, from)?;
        }
        if flags & STORED_FLAG != 0 {
            let own = [history.own_place(&history.forward), history.own_place(&history.reverse)];
            for (stored, own) in history.stored.iter_mut().zip(own) {
                read_claim(stored, &own, since_ns, from)?;
            }
        }
        if flags & PLACES_FLAG != 0 {
            for stored in history.stored.iter_mut().flatten() {
                read_places(stored, since_ns, from)?;
            }
        }
        Some(history)
    }

    /// Returns where a direction of the record ends by the count of its own meter.
    const fn own_place(&self, direction: &DirectionHistory) -> StoredPlace {
        StoredPlace { meter: self.mark.meter, since_ns: self.since_ns, end: direction.followed }
    }
}

impl StoredPackets {
    /// Makes what most records need: they end where their own meter says.
    fn from_own_place(claim: CountedPacketSpan, own: &StoredPlace) -> Self {
        let mut places = [StoredPlace::default(); MAX_STORED_PLACES];
        places[0] = *own;
        Self { claim, placed_packets: own.end.packets, places }
    }

    fn ends_at_own_place(&self, own: &StoredPlace) -> bool {
        *self == Self::from_own_place(self.claim, own)
    }
}

fn read_direction(since_ns: u64, from: &mut &[u8]) -> Option<DirectionHistory> {
    let mut direction = DirectionHistory { followed: read_counts(from)?, ..DirectionHistory::default() };
    let there = usize::from(*from.split_off_first()?);
    // More landmarks than a record can name are not valid.
    for landmark in direction.landmarks.get_mut(..there)? {
        let content = u32::from_be_bytes(from.split_off(..4)?.try_into().ok()?);
        let at_ns = since_ns.wrapping_add(read_signed(from)?);
        let alone = read_number(from)?;
        *landmark = Landmark {
            content,
            kind: landmark_kind(alone & 3)?,
            at_ns,
            alone_us: u32::try_from(alone >> 2).ok()?,
            since: read_counts(from)?,
        };
    }
    Some(direction)
}

fn write_claim(stored: Option<StoredPackets>, history_since_ns: u64, out: &mut Vec<u8>) {
    out.push(stored.is_some().into());
    if let Some(StoredPackets { claim, .. }) = stored {
        write_counts(claim.totals, out);
        write_signed(claim.since_ns.wrapping_sub(history_since_ns), out);
    }
}

/// Reads what `write_claim` wrote. `None` if the bytes end too early.
fn read_claim(
    stored: &mut Option<StoredPackets>,
    own: &StoredPlace,
    history_since_ns: u64,
    from: &mut &[u8],
) -> Option<()> {
    if *from.split_off_first()? != 0 {
        let totals = read_counts(from)?;
        let since_ns = history_since_ns.wrapping_add(read_signed(from)?);
        *stored = Some(StoredPackets::from_own_place(CountedPacketSpan { totals, since_ns }, own));
    }
    Some(())
}

fn write_places(stored: &StoredPackets, history_since_ns: u64, out: &mut Vec<u8>) {
    write_number(stored.placed_packets, out);
    out.push(stored.places().count().to_le_bytes()[0]);
    for StoredPlace { meter, since_ns, end } in stored.places() {
        write_number(u64::from(*meter), out);
        write_signed(since_ns.wrapping_sub(history_since_ns), out);
        write_counts(*end, out);
    }
}

/// Reads what `write_places` wrote. `None` if the bytes end too early.
fn read_places(stored: &mut StoredPackets, history_since_ns: u64, from: &mut &[u8]) -> Option<()> {
    stored.placed_packets = read_number(from)?;
    stored.places = Default::default();
    let there = usize::from(*from.split_off_first()?);
    // More places than a record can have are not valid.
    for place in stored.places.get_mut(..there)? {
        let meter = u32::try_from(read_number(from)?).ok()?;
        let since_ns = history_since_ns.wrapping_add(read_signed(from)?);
        *place = StoredPlace { meter, since_ns, end: read_counts(from)? };
    }
    Some(())
}

const fn landmark_kind(number: u64) -> Option<LandmarkKind> {
    match number {
        0 => Some(LandmarkKind::Smallest),
        1 => Some(LandmarkKind::First),
        2 => Some(LandmarkKind::Last),
        _ => None,
    }
}

fn write_counts(counts: CountTotals, out: &mut Vec<u8>) {
    write_number(counts.packets, out);
    write_number(counts.bytes, out);
    // The difference is usually a few bytes for each packet.
    write_signed(counts.frame_bytes.wrapping_sub(counts.bytes), out);
}

fn read_counts(from: &mut &[u8]) -> Option<CountTotals> {
    let (packets, bytes) = (read_number(from)?, read_number(from)?);
    Some(CountTotals { packets, bytes, frame_bytes: bytes.wrapping_add(read_signed(from)?) })
}

fn write_number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn read_number(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    // Ten bytes hold 64 bits; a longer number is not valid.
    for shift in (0..64).step_by(7) {
        let byte = *from.split_off_first()?;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit only.
        if bits > u64::MAX >> shift {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Writes a signed number in zigzag order, so that small negative numbers are short too.
fn write_signed(value: u64, out: &mut Vec<u8>) {
    let value = value.cast_signed();
    write_number((value << 1 ^ value >> 63).cast_unsigned(), out);
}

fn read_signed(from: &mut &[u8]) -> Option<u64> {
    let value = read_number(from)?;
    Some(value >> 1 ^ 0_u64.wrapping_sub(value & 1))
}

const _: () = assert!(MAX_RECORD_LANDMARKS < 256 && MAX_STORED_PLACES < 256, "their number is one byte");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn number_beyond_64_bits_is_refused() {
        let number = |last: u8| [&[0xff; 9][..], &[last]].concat();
        assert_eq!(read_number(&mut &number(1)[..]), Some(u64::MAX));
        for last in [2, 3, 0x7f, 0x81] {
            assert_eq!(read_number(&mut &number(last)[..]), None, "{last}");
        }
    }

    fn counts_of(packets: u64) -> CountTotals {
        CountTotals { packets, bytes: packets.wrapping_mul(100), frame_bytes: packets.wrapping_mul(114) }
    }

    fn history(numbers: &[u64; 10], flags: [bool; 3], there: usize) -> FlowHistory {
        let landmark = |at: usize| Landmark {
            content: numbers[at].to_le_bytes()[..4].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
            kind: if flags[2] { LandmarkKind::First } else { LandmarkKind::Last },
            at_ns: numbers[at].max(1),
            alone_us: u32::MAX >> (numbers[at] % 32),
            since: counts_of(numbers[at]),
        };
        let mut direction = DirectionHistory { followed: counts_of(numbers[9]), ..Default::default() };
        for at in 0..there {
            direction.landmarks[at] = landmark(at);
        }
        FlowHistory {
            flipped: flags[0],
            is_strange: flags[1],
            since_ns: numbers[8],
            forward: direction,
            reverse: DirectionHistory { followed: counts_of(numbers[7]), ..direction },
            stored: [flags[0], flags[1]].map(|is_set| is_set.then(|| stored_packets(numbers, there))),
            ..FlowHistory::default()
        }
    }

    fn stored_packets(numbers: &[u64; 10], there: usize) -> StoredPackets {
        let claim = CountedPacketSpan { totals: counts_of(numbers[6]), since_ns: numbers[5] };
        let mut stored = StoredPackets { claim, placed_packets: numbers[4], ..StoredPackets::default() };
        for (at, place) in stored.places.iter_mut().enumerate().take(there) {
            let meter = numbers[at].to_le_bytes()[0].into();
            *place = StoredPlace { meter, since_ns: numbers[at].max(1), end: counts_of(numbers[at]) };
        }
        stored
    }

    proptest! {
        #[test]
        fn flow_history_track_round_trips(numbers: [u64; 10], flags: [bool; 3], there in 0..=MAX_RECORD_LANDMARKS) {
            let history = history(&numbers, flags, there);
            prop_assert_eq!(FlowHistory::decode_track(history.mark, &history.encode_track()), Some(history));
        }

        #[test]
        fn bytes_of_strangers_do_no_harm(bytes: Vec<u8>) {
            let _ = FlowHistory::decode_track(RecordOriginMark::default(), &bytes);
        }

        #[test]
        fn truncated_track_is_not_decoded(numbers: [u64; 10], at in 0_usize..100) {
            let whole = history(&numbers, [true; 3], MAX_RECORD_LANDMARKS).encode_track();
            let cut = &whole[..at.min(whole.len() - 1)];
            prop_assert_eq!(FlowHistory::decode_track(RecordOriginMark::default(), cut), None);
        }
    }
}
