//! Members of one process over the loopback interface. The tests wait for conditions, never for a time: the machine may be busy. The
//! interval is long for the same reason.

use super::*;
use packetrig_flow::group::{ElectionOptions, GroupRole, MeterCoverage};
use packetrig_sys::{clock, private_files};
use packetrig_units::{MonoTime, Nanos};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

const FULL: MeterCoverage = MeterCoverage { seen_since_ns: 0, complete_from_ns: Some(0) };
const GENEROUS_NS: u64 = 60_000_000_000;
/// A member counts as gone after three seconds: a busy machine keeps no thread from the processor for as long.
const MULTIPLIER: u8 = 60;

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = clock::monotonic_ns() + GENEROUS_NS;
    while !is_so() {
        assert!(clock::monotonic_ns() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Addresses of this machine that no other test has, with a port outside the kernel's ephemeral range.
fn addresses(count: usize) -> Vec<SocketAddr> {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let next = |_| [127, middle, low, NEXT.fetch_add(1, Ordering::Relaxed)];
    (0..count).map(next).map(|ip| SocketAddr::from((ip, 20_000 + u16::from(high)))).collect()
}

fn options(addresses: &[SocketAddr], index: usize) -> GroupOptions {
    let key = GroupKey::new(&[7; 32]).unwrap();
    let meter = u32::try_from(index).unwrap() + 1;
    let mut options = GroupOptions::new("test", key, meter, addresses[index]);
    options.peers = addresses.iter().copied().filter(|address| *address != addresses[index]).collect();
    options.election = ElectionOptions {
        interval: Nanos::from_millis(50),
        multiplier: MULTIPLIER,
        priority: 100 + u8::try_from(index).unwrap(),
        ..ElectionOptions::new(meter)
    };
    options
}

fn group(count: usize) -> Vec<GroupMember> {
    let addresses = addresses(count);
    (0..count).map(|index| GroupMember::join_group(options(&addresses, index), FULL).unwrap()).collect()
}

fn is_active(member: &GroupMember) -> bool {
    member.role_handle().role().is_active()
}

/// Waits until one member is active and all others have received its advertisement, and returns its index.
fn await_active(members: &[GroupMember]) -> usize {
    let mut found = None;
    await_that("one member is active", || {
        let active: Vec<usize> = (0..members.len()).filter(|index| is_active(&members[*index])).collect();
        let [index] = active[..] else { return false };
        let number = members[index].role_handle().status().meter;
        found = Some(index);
        members.iter().enumerate().all(|(other, member)| {
            other == index || member.role_handle().status().active_peer == Some(number)
        })
    });
    found.unwrap()
}

fn export(member: &GroupMember, ns: u64) {
    let GroupRole::Active { term } = member.role_handle().role() else { panic!("a standby") };
    member.role_handle().set_watermark(term, ns);
}

#[test]
fn standby_resumes_at_killed_members_watermark() {
    let mut members = group(3);
    let first = await_active(&members);
    assert!(members[first].role_handle().may_export());
    assert_eq!(members[first].role_handle().replay_from(), 0);
    export(&members[first], 1000);
    await_that("the standbys know the watermark", || {
        members.iter().all(|member| member.role_handle().active_watermark() == Some(1000))
    });
    assert!(!members[(first + 1) % 3].role_handle().may_export());
    let killed = members.remove(first);
    let old_term = killed.role_handle().role().term().unwrap();
    let role_handle = killed.role_handle().clone();
    assert!(killed.stop_silently());
    assert!(!role_handle.may_export());
    let second = await_active(&members);
    let view = members[second].role_handle().role_view();
    assert_eq!(view.replay_from_ns, 1000);
    assert!(view.role.term().unwrap() > old_term);
    // The role is known a moment before the status.
    await_that("the killed one is seen to be gone", || {
        let peers = members[second].role_handle().status().peers;
        peers.iter().any(|peer| peer.meter == old_term.meter && !peer.is_alive)
    });
    let status = members[second].role_handle().status();
    assert_eq!(u64::try_from(status.switches.len()).unwrap(), status.switch_count);
}

#[test]
fn leaving_member_hands_over_final_watermark() {
    let mut members = group(2);
    let first = await_active(&members);
    let generation = members[1 - first].role_handle().role_view().generation;
    export(&members[first], 77);
    let leaving = members.remove(first);
    let successor = members.remove(0);
    // The stop follows the watermark at once, so only the farewell carries it.
    assert!(leaving.leave_group());
    let view = successor.role_handle().wait_for_change(generation, Duration::from_nanos(GENEROUS_NS));
    assert!(view.role.is_active() && view.generation > generation);
    assert_eq!(view.replay_from_ns, 77);
}

#[test]
fn frozen_member_loses_export_right_and_is_replaced() {
    let members = group(2);
    let first = await_active(&members);
    let frozen = members[first].role_handle().freeze();
    let role_handle = members[first].role_handle();
    await_that("the other one takes over", || is_active(&members[1 - first]));
    // Its own thread has not run, so it still believes that it is active.
    assert!(role_handle.role().is_active() && !role_handle.may_export());
    drop(frozen);
    await_that("it becomes a standby", || !is_active(&members[first]));
    assert_eq!(await_active(&members), 1 - first);
}

#[test]
fn foreign_group_datagrams_are_counted_and_ignored() {
    let addresses = addresses(2);
    let own = GroupMember::join_group(options(&addresses, 0), FULL).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut wrong_key = options(&addresses, 1);
    wrong_key.key = GroupKey::new(&[8; 32]).unwrap();
    let wrong_key = GroupMember::join_group(wrong_key, FULL).unwrap();
    for text in [b"hello".as_slice(), b"PRGM\x03", &[0; 200]] {
        stranger.send_to(text, own.address()).unwrap();
    }
    await_that("all are counted", || {
        let dropped = own.role_handle().status().dropped;
        dropped.malformed >= 2 && dropped.other_version == 1 && dropped.wrong_key > 0
    });
    assert_eq!(own.role_handle().status().peers, []);
    // The two drop each other's advertisements, so both export: duplicates, never loss.
    await_that("both are active", || is_active(&own) && is_active(&wrong_key));
}

#[test]
fn members_meet_in_a_multicast_group() {
    // Both are bound to the port on all addresses, so the other tests must not use it.
    let own = SocketAddr::from(([127, 0, 0, 1], 20_300));
    let group = SocketAddr::from(([239, 255, 77, 2], own.port()));
    let members: Vec<GroupMember> = (0..2)
        .map(|index| {
            let mut options = options(&[own, own], index);
            options.peers = vec![group];
            GroupMember::join_group(options, FULL).unwrap()
        })
        .collect();
    await_active(&members);
    await_that("each hears itself too", || members[0].role_handle().status().dropped.own_echoes > 0);
}

#[test]
fn keepalived_orders_the_role() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("notify");
    let addresses = addresses(2);
    let mut ordered = options(&addresses, 0);
    ordered.orders = RoleDecisionSource::Keepalived { fifo: fifo.clone(), instance: None };
    let ordered = GroupMember::join_group(ordered, FULL).unwrap();
    let write = |text: &str| {
        std::io::Write::write_all(
            &mut std::fs::File::options().write(true).open(&fifo).unwrap(),
            text.as_bytes(),
        )
        .unwrap();
    };
    write("INSTANCE \"VI_1\" BACKUP 100\n");
    await_that("it runs", || ordered.role_handle().status().sent > 3);
    assert!(!is_active(&ordered));
    write("INSTANCE \"VI_1\" MASTER 100\n");
    await_that("it is active", || is_active(&ordered));
    write("INSTANCE \"VI_1\" FAULT 100\n");
    await_that("it is a standby", || !is_active(&ordered));
}

#[test]
fn a_state_file_orders_the_role() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let addresses = addresses(2);
    let mut ordered = options(&addresses, 0);
    ordered.orders = RoleDecisionSource::StateFile(path.clone());
    let ordered = GroupMember::join_group(ordered, FULL).unwrap();
    await_that("the missing file is reported", || ordered.role_handle().status().order_error.is_some());
    private_files::write_file(&path, "active\n").unwrap();
    await_that("it is active", || is_active(&ordered));
    private_files::write_file(&path, "standby\n").unwrap();
    await_that("it is a standby", || !is_active(&ordered));
    assert_eq!(ordered.role_handle().status().order_error, None);
}

#[test]
fn a_meter_becomes_ready_when_it_is_told() {
    let addresses = addresses(2);
    let mut options = options(&addresses, 0);
    options.election.unready_wait = Nanos::from_secs(3600);
    let member = GroupMember::join_group(options, MeterCoverage::seen_since(clock::wall_clock_ns())).unwrap();
    await_that("it has listened", || member.role_handle().status().sent > u64::from(MULTIPLIER) + 5);
    assert!(!is_active(&member));
    member.role_handle().set_ready(clock::wall_clock_ns());
    await_that("it takes over", || is_active(&member));
    assert!(!member.role_handle().may_export_at(MonoTime::from_nanos(u64::MAX)));
}

#[test]
fn options_that_cannot_work_are_refused() {
    let addresses = addresses(2);
    let start = |change: fn(&mut GroupOptions)| {
        let mut options = options(&addresses, 0);
        change(&mut options);
        GroupMember::join_group(options, FULL).unwrap_err().to_string()
    };
    assert!(start(|options| options.name.clear()).contains("no name"));
    assert!(start(|options| options.peers.clear()).contains("no peers"));
    assert!(
        start(|options| options.peers = vec!["[::1]:9".parse().unwrap()])
            .contains("different address families")
    );
    assert!(start(|options| options.election.multiplier = 1).contains("multiplier"));
    assert!(start(|options| options.interface = Some("no-such-if".into())).contains("no-such-if"));
}
