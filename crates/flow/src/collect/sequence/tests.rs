use super::*;
use proptest::prelude::*;

fn message(number: u32) -> MessageSequenceFacts {
    MessageSequenceFacts {
        number,
        fingerprint: u64::from(number) * 77,
        sent_s: 100,
        ..MessageSequenceFacts::default()
    }
}

fn take(sequence: &mut MessageSequence, number: u32, units: u32) -> SequencePosition {
    let place = sequence.classify_and_record_message(message(number));
    if place.is_wanted() {
        sequence.complete_message(place, number, units, 0);
    }
    place
}

#[test]
fn a_gap_is_lost_until_it_is_filled() {
    let mut sequence = MessageSequence::default();
    assert_eq!(take(&mut sequence, u32::MAX - 4, 10), SequencePosition::InOrder);
    assert_eq!(take(&mut sequence, 25, 5), SequencePosition::Ahead(20));
    assert_eq!(sequence.certainly_lost_units(), 20);
    assert_eq!(take(&mut sequence, 15, 10), SequencePosition::Late);
    assert_eq!(
        (sequence.certainly_lost_units(), take(&mut sequence, 15, 10)),
        (10, SequencePosition::Duplicate)
    );
    assert_eq!((take(&mut sequence, 5, 10), sequence.certainly_lost_units()), (SequencePosition::Late, 0));
}

#[test]
fn a_restart_is_no_loss() {
    let mut sequence = MessageSequence::default();
    take(&mut sequence, 5_000, 10);
    let later = MessageSequenceFacts { sent_s: 101, ..message(0) };
    assert_eq!(sequence.classify_and_record_message(later), SequencePosition::Restart);
    sequence.complete_message(SequencePosition::Restart, 0, 10, 0);
    assert_eq!((take(&mut sequence, 10, 1), sequence.certainly_lost_units()), (SequencePosition::InOrder, 0));
    assert_eq!(take(&mut sequence, 3_000_000_000, 1), SequencePosition::Restart, "no exporter is so fast");
    let rebooted = MessageSequenceFacts { rebooted: true, ..message(3_000_000_050) };
    assert_eq!(
        (sequence.classify_and_record_message(rebooted), sequence.certainly_lost_units()),
        (SequencePosition::Restart, 0)
    );
}

#[test]
fn message_overtaken_at_start_is_early_not_lost() {
    let mut sequence = MessageSequence::default();
    take(&mut sequence, 10, 5);
    assert_eq!((take(&mut sequence, 0, 5), sequence.certainly_lost_units()), (SequencePosition::Early, 5));
    assert_eq!((take(&mut sequence, 5, 5), sequence.certainly_lost_units()), (SequencePosition::Late, 0));
    assert_eq!(
        (take(&mut sequence, 0, 5), sequence.certainly_lost_units()),
        (SequencePosition::Duplicate, 0)
    );
    // The number goes back by one, across the wrap; sets that cannot be read may hold the missing units behind it.
    let claim = MessageSequenceFacts { sent_s: 95, ..message(u32::MAX - 9) };
    let place = sequence.classify_and_record_message(claim);
    sequence.complete_message(place, claim.number, 4, 100);
    assert_eq!(
        (place, sequence.certainly_lost_units(), sequence.possibly_undecoded_units()),
        (SequencePosition::Early, 0, 6)
    );
    sequence.recover_units(claim.number.wrapping_add(4), 6, true);
    assert_eq!((sequence.certainly_lost_units(), sequence.possibly_undecoded_units()), (0, 0));
    assert_eq!(take(&mut sequence, 15, 1), SequencePosition::InOrder);
}

#[test]
fn stray_old_message_leaves_no_gap() {
    let mut sequence = MessageSequence::default();
    take(&mut sequence, 1_000_000, 10);
    let old = MessageSequenceFacts { sent_s: 40, ..message(60) };
    assert_eq!(
        (
            sequence.classify_and_record_message(old),
            sequence.complete_message(SequencePosition::Old, 60, 3, 0)
        ),
        (SequencePosition::Old, 0)
    );
    assert_eq!(
        (sequence.certainly_lost_units(), sequence.classify_and_record_message(old)),
        (0, SequencePosition::Duplicate)
    );
    for n in 0..RESTART_AFTER_OLD_MESSAGES {
        assert_eq!(
            sequence.classify_and_record_message(MessageSequenceFacts { fingerprint: n.into(), ..old }),
            SequencePosition::Old
        );
    }
    assert_eq!(
        sequence.classify_and_record_message(MessageSequenceFacts { fingerprint: 99, ..old }),
        SequencePosition::Restart,
        "its clock was set back"
    );
}

#[test]
fn message_for_forgotten_gap_reduces_loss() {
    let mut sequence = MessageSequence::default();
    let gaps = u32::try_from(MAX_REMEMBERED_GAPS).unwrap() + 1;
    for n in 0..=gaps {
        take(&mut sequence, n * 10, 5);
    }
    let of_forgotten = MessageSequenceFacts { sent_s: 99, ..message(5) };
    assert_eq!(
        (sequence.certainly_lost_units(), sequence.classify_and_record_message(of_forgotten)),
        (u64::from(gaps) * 5, SequencePosition::Old)
    );
    assert_eq!(sequence.complete_message(SequencePosition::Old, 5, 5, 0), 5);
    assert_eq!(sequence.certainly_lost_units(), u64::from(gaps - 1) * 5);
}

#[test]
fn late_messages_leave_bounded_number_of_gaps() {
    let mut sequence = MessageSequence::default();
    take(&mut sequence, 0, 1);
    take(&mut sequence, 10_000, 1);
    let late = (1..=1000).map(|at| take(&mut sequence, at * 2, 1));
    assert_eq!(late.filter(|place| *place == SequencePosition::Late).count(), 1000);
    // The forgotten gaps stay counted, and a late message of one of them still reduces the loss.
    assert!(sequence.gaps.len() <= MAX_REMEMBERED_GAPS, "{}", sequence.gaps.len());
    assert_eq!(sequence.certainly_lost_units(), 10_000 - 1 - 1000);
    let old = MessageSequenceFacts { sent_s: 99, ..message(3) };
    let place = sequence.classify_and_record_message(old);
    assert_eq!((place, sequence.complete_message(place, 3, 1, 0)), (SequencePosition::Old, 1));
    assert_eq!(sequence.certainly_lost_units(), 10_000 - 1 - 1001);
}

#[test]
fn units_in_undecodable_sets_are_not_lost() {
    let mut sequence = MessageSequence::default();
    let place = sequence.classify_and_record_message(message(0));
    sequence.complete_message(place, 0, 3, 50);
    assert_eq!(take(&mut sequence, 13, 1), SequencePosition::InOrder);
    assert_eq!((sequence.possibly_undecoded_units(), sequence.certainly_lost_units()), (10, 0));
}

#[test]
fn duplicate_undecodable_message_is_recognised() {
    let mut sequence = MessageSequence::default();
    let place = sequence.classify_and_record_message(message(7));
    sequence.complete_message(place, 7, 0, 50);
    assert_eq!(take(&mut sequence, 7, 0), SequencePosition::Duplicate);
    let other = MessageSequenceFacts { fingerprint: 1, ..message(7) };
    assert_eq!(sequence.classify_and_record_message(other), SequencePosition::InOrder);
}

proptest! {
    /// Sends a stream of messages, some lost, some duplicated, some displaced by a few places.
    #[test]
    fn lost_is_what_did_not_arrive(
        fates in prop::collection::vec((1_u32..40, 0_u8..10, 0_usize..20), 1..300),
        start in any::<u32>(),
    ) {
        let mut number = start;
        let mut arrivals = Vec::new();
        let mut dropped = 0_u64;
        let mut pending = 0_u64;
        for (at, (units, fate, delay)) in fates.iter().enumerate() {
            let first = at == 0;
            match fate {
                0 if !first => pending += u64::from(*units),
                1 if !first => arrivals.extend([(at, number, *units), (at + delay, number, *units)]),
                // The first message may be overtaken as well.
                2 => arrivals.push((at + delay, number, *units)),
                _ => arrivals.push((at, number, *units)),
            }
            if *fate != 0 || first {
                dropped += std::mem::take(&mut pending);
            }
            number = number.wrapping_add(*units);
        }
        arrivals.sort_by_key(|arrival| arrival.0);
        let mut sequence = MessageSequence::default();
        let mut got = 0;
        for (_, number, units) in &arrivals {
            let place = take(&mut sequence, *number, *units);
            prop_assert!(!matches!(place, SequencePosition::Restart | SequencePosition::Old));
            if place.is_wanted() {
                got += u64::from(*units);
            }
        }
        prop_assert_eq!(sequence.certainly_lost_units(), dropped);
        let all: u64 = fates.iter().map(|fate| u64::from(fate.0)).sum();
        prop_assert_eq!(got + dropped + pending, all);
    }
}
