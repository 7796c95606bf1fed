//! A copy of the link that is cut.

use super::*;

/// A count that is read at once.
fn count(packets: u64, ms: u64) -> PacketCount {
    PacketCount { packets, all_until: at(ms), none_after: at(ms) }
}

/// Advertisement of a peer that has read its count at once.
fn peer_count(n: u64, packets: u64) -> Advertisement {
    Advertisement { seen_packets: packets, ..active(2, 5, n, n) }
}

/// Both count a packet each millisecond from 1 ms on, every 10 ms until `ms`.
fn count_alike(member: &mut GroupElection, from_ms: u64, until_ms: u64, lacking: u64) {
    for ms in (from_ms..until_ms).step_by(10) {
        member.set_seen_packets(count(ms - lacking, ms));
        member.on_advertisement(&peer_count(ms, ms), at(ms));
    }
}

/// Under load, the counting thread may wait for a processor while the receiving thread has one.
#[test]
fn delayed_packet_count_does_not_make_member_blind() {
    let mut member = member(options(1));
    count_alike(&mut member, 10, 400, 0);
    for ms in (400..4000).step_by(10) {
        member.on_advertisement(&peer_count(ms, ms), at(ms));
        assert!(!member.is_blind());
    }
    member.set_seen_packets(count(4000, 4000));
    assert!(!member.is_blind() && member.is_ready());
    // The other one counts late, and says how late.
    for ms in (4000..8000).step_by(10) {
        let read_ms = ms - ms % 700;
        let [seen_all_ago, seen_none_ago] = [ms - read_ms + 30, ms - read_ms].map(Nanos::from_millis);
        member.set_seen_packets(count(ms, ms));
        let late = Advertisement { seen_all_ago, seen_none_ago, ..peer_count(ms, read_ms) };
        member.on_advertisement(&late, at(ms));
        assert!(!member.is_blind());
    }
}

#[test]
fn member_without_packets_others_see_is_blind() {
    let mut member = member(options(1));
    count_alike(&mut member, 10, 300, 0);
    assert!(!member.is_blind());
    let mut noticed_ms = None;
    for ms in (300..600).step_by(10) {
        member.set_seen_packets(count(290, ms));
        member.on_advertisement(&peer_count(ms, ms), at(ms));
        noticed_ms = noticed_ms.or_else(|| member.is_blind().then_some(ms));
    }
    assert!(noticed_ms.is_some_and(|ms| ms < 420), "{noticed_ms:?}");
    // The meter knows it, but still nothing arrives.
    member.set_coverage(MeterCoverage { seen_since_ns: 1, ..FULL });
    assert!(member.is_blind() && !member.is_ready());
    member.set_seen_packets(count(291, 610));
    assert!(!member.is_blind() && member.is_ready());
    count_alike(&mut member, 620, 9000, 300);
    assert!(!member.is_blind());
}

/// The count jumps over the cut: the thread that reads it had no processor.
#[test]
fn short_cut_is_noticed_after_it() {
    let mut member = member(options(1));
    count_alike(&mut member, 10, 1000, 0);
    for ms in (1000..1400).step_by(10) {
        member.on_advertisement(&peer_count(ms, ms), at(ms));
    }
    count_alike(&mut member, 1400, 1700, 200);
    assert!(member.is_blind() && !member.is_ready());
    // It stays so until the meter knows.
    count_alike(&mut member, 1700, 5000, 200);
    assert!(member.is_blind());
    member.set_coverage(MeterCoverage { seen_since_ns: 1, ..FULL });
    count_alike(&mut member, 5000, 9000, 200);
    assert!(!member.is_blind());
}

#[test]
fn few_packets_of_one_copy_prove_nothing() {
    let mut member = member(options(1));
    for ms in (10..60_000).step_by(10) {
        member.set_seen_packets(count(ms, ms));
        member.on_advertisement(&peer_count(ms, ms + ms / 2000), at(ms));
        assert!(!member.is_blind(), "{ms}");
    }
    // A restart counts from zero again.
    for ms in (60_000..70_000).step_by(10) {
        member.set_seen_packets(count(ms, ms));
        member.on_advertisement(&Advertisement { boot: 5, ..peer_count(ms, ms - 50_000) }, at(ms));
    }
    assert!(!member.is_blind());
}

#[test]
fn cut_of_a_slow_link_is_noticed_by_eight_packets() {
    let mut member = member(options(1));
    for second in 1..40 {
        member.set_seen_packets(count(second.min(20), 1000 * second));
        member.on_advertisement(&peer_count(second, second), at(1000 * second + 100));
        member.set_seen_packets(count(second.min(20), 1000 * second + 500));
        assert!(second > 27 || !member.is_blind());
    }
    assert!(member.is_blind());
}

/// Counts that were read far apart show nothing, so packets wait until closer ones are there.
#[test]
fn late_packet_count_compares_nothing() {
    let mut member = member(options(1));
    count_alike(&mut member, 10, 1000, 0);
    let before = member.copy_comparison(at(1000)).compared_until;
    assert!(before >= at(850) && before < at(1000), "{before:?}");
    for ms in (1000..1500).step_by(10) {
        member.on_advertisement(&peer_count(ms, ms), at(ms));
    }
    let late = PacketCount { packets: 1500, all_until: at(1100), none_after: at(1500) };
    member.set_seen_packets(late);
    assert_eq!(member.copy_comparison(at(1500)).compared_until, before);
    count_alike(&mut member, 1500, 1800, 0);
    let until = member.copy_comparison(at(1800)).compared_until;
    assert!(until >= at(1650) && until < at(1800), "{until:?}");
    // A silent member compares nothing, and is not waited for after 3 s.
    member.set_seen_packets(count(4000, 4000));
    assert!(member.copy_comparison(at(4000)).compared_until < at(1800));
    assert_eq!(member.copy_comparison(at(6000)).compared_until, at(6000));
    // Of one that leaves, only its last count is waited for.
    count_alike(&mut member, 6000, 6200, 0);
    assert!(member.copy_comparison(at(6200)).compared_until < at(6200));
    let leaving = Advertisement { role: AdvertisedRole::LeavingStandby, ..peer_count(6210, 6210) };
    member.on_advertisement(&leaving, at(6210));
    assert!(member.copy_comparison(at(6220)).compared_until < at(6220));
    member.set_seen_packets(count(6250, 6250));
    assert_eq!(member.copy_comparison(at(6260)).compared_until, at(6260));
}

/// What is compared after a cut includes the cut.
#[test]
fn loss_is_shown_before_its_time_is_compared() {
    let mut member = member(options(1));
    count_alike(&mut member, 10, 1000, 0);
    for ms in (1000..1400).step_by(10) {
        member.set_seen_packets(count(990, ms));
        member.on_advertisement(&peer_count(ms, ms), at(ms));
        assert!(member.is_blind() || member.copy_comparison(at(ms)).compared_until < at(1100), "{ms}");
    }
    assert_eq!(member.copy_comparison(at(1400)).losses, 1);
    member.set_coverage(MeterCoverage { seen_since_ns: 1, ..FULL });
    member.set_seen_packets(count(991, 1400));
    assert!(!member.is_blind());
    assert_eq!(member.copy_comparison(at(1400)).losses, 2, "the end of the cut");
    let cut_until = member.copy_comparison(at(1400)).compared_until;
    count_alike(&mut member, 1410, 1450, 400);
    assert_eq!(
        member.copy_comparison(at(1450)).compared_until,
        cut_until,
        "no count since the cut has a bound yet"
    );
    count_alike(&mut member, 1450, 1800, 400);
    assert!(
        member.copy_comparison(at(1800)).bounded_since > at(1410),
        "an earlier loss is part of the bound"
    );
    assert!(!member.is_blind() && member.copy_comparison(at(1800)).compared_until > at(1600));
}
