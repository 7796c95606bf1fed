//! A copy of the link that is cut.

use super::*;

/// Under load, the counting thread may wait for a processor while the receiving thread has one.
#[test]
fn delayed_packet_count_does_not_make_member_blind() {
    let mut member = member(options(1));
    member.set_seen_packets(10, at(0));
    member.set_seen_packets(10, at(200));
    for n in 20..400 {
        member.on_advertisement(&Advertisement { seen_packets: n * 100, ..active(2, 5, n, n) }, at(n * 10));
        assert!(!member.is_blind());
    }
    member.set_seen_packets(40_000, at(4000));
    assert!(!member.is_blind() && member.is_ready());
}

#[test]
fn member_without_packets_others_see_is_blind() {
    let mut member = member(options(1));
    let hear = |member: &mut GroupElection, n: u64, packets: u64| {
        member.on_advertisement(&Advertisement { seen_packets: packets, ..active(2, 5, n, n) }, at(n * 10));
        member.is_blind()
    };
    // Counts that are a little older or newer prove nothing, and neither does a link without traffic.
    for n in 0..30 {
        member.set_seen_packets(n, at(n * 10));
        assert!(!hear(&mut member, n, n * 100));
    }
    for n in 30..60 {
        member.set_seen_packets(29, at(n * 10));
        assert!(!hear(&mut member, n, 3000));
    }
    assert!(!hear(&mut member, 60, 3007));
    // The others have more packets from here on. Earlier counts prove nothing.
    for n in 61..300 {
        assert!(!hear(&mut member, n, 3008 + n));
        member.set_seen_packets(29, at(629));
    }
    member.set_seen_packets(29, at(630));
    assert!(member.is_blind() && !member.is_ready());
    member.set_seen_packets(30, at(1120));
    assert!(member.is_ready());
    // A restart counts from zero again.
    for n in 140..240 {
        member.set_seen_packets(30, at(n * 10));
        let restarted = Advertisement { boot: 5, seen_packets: 9000, ..standby(2, n) };
        member.on_advertisement(&restarted, at(n * 10));
    }
    assert!(!member.is_blind());
}
