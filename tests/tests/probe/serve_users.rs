//! `packetrig probe serve` for users who do not trust each other: what belongs to one is not another's.

use crate::serve::{MILLISECOND, SOON, Service, datagram, ends, packet, reports};
use crate::stations::FAR;
use packetrig_release::message::{PacketOutcome, PacketToRelease};
use packetrig_release::{AnswerFilter, ReleaseClient, ReleaseEvent};
use packetrig_sys::{clock, kernel};
use rustix::thread::{Uid, set_thread_res_uid};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

const USERS: [u32; 4] = [65_530, 65_531, 65_532, 65_533];
/// A network behind the far station that does not want to be probed.
const REFUSING: &str = "198.18.5.1";

/// A service at a socket that every user can reach.
fn start() -> Option<Service> {
    let users = USERS.map(|user| user.to_string());
    let mut words: Vec<&str> = vec!["--allow", "198.18.5.0/24"];
    for user in &users {
        words.extend(["--allow-user", user]);
    }
    let service = Service::start(&words)?;
    let directory = service.socket.parent().unwrap();
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711)).unwrap();
    Some(service)
}

/// A program of a user, if the service has room for it: the kernel notes the user of the thread that connects.
fn connect_as(service: &Service, user: u32) -> Option<ReleaseClient> {
    let socket = service.socket.clone();
    let connecting = std::thread::spawn(move || {
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user).unwrap();
        ReleaseClient::connect(&socket, "a program", 0).ok()
    });
    connecting.join().unwrap()
}

fn client_of(service: &Service, user: u32) -> ReleaseClient {
    connect_as(service, user).expect("there is room for a program")
}

/// All programs that a user can connect.
fn all_clients_of(service: &Service, user: u32) -> Vec<ReleaseClient> {
    (0..100).map_while(|_| connect_as(service, user)).collect()
}

#[test]
fn connection_quota_leaves_slots_to_other_users() {
    let Some(service) = start() else { return };
    let clients = USERS.map(|user| all_clients_of(&service, user));
    let counts = clients.each_ref().map(Vec::len);
    println!("programs of four users that connect all they can: {counts:?}");
    assert!(counts[0] >= 4 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    // Root comes last, and other programs of a user when one has ended.
    assert!(connect_as(&service, 0).is_some());
    let [mut of_first, ..] = clients;
    drop(of_first.pop());
    assert!((0..2_000).any(|_| connect_as(&service, USERS[0]).is_some() || pause()));
}

fn echo(target: &str, at_ns: u64, sequence: u16, payload: &[u8]) -> PacketToRelease {
    let echo = packet(|frame| ends(target).write_echo_frame(77, sequence, payload, frame));
    PacketToRelease::ip_packet(sequence.into(), at_ns, echo)
}

/// Payloads of the echoes that a client is given: of `count`, or of all that come soon.
fn payloads(client: &mut ReleaseClient, count: Option<usize>) -> Vec<Vec<u8>> {
    let within = if count.is_some() { SOON } else { Duration::from_millis(300) };
    let mut payloads = Vec::new();
    while count.is_none_or(|count| payloads.len() < count) {
        match client.next_event(within).unwrap() {
            Some(ReleaseEvent::Answer(answer)) => payloads.push(answer.bytes[42..50].to_vec()),
            Some(ReleaseEvent::Reports(reports)) => {
                assert!(reports.iter().all(|report| report.outcome == PacketOutcome::Sent), "{reports:?}");
            }
            None => break,
        }
    }
    payloads
}

#[test]
fn copied_identifier_receives_no_foreign_answers() {
    let Some(service) = start() else { return };
    let [mut spy, mut honest] = [USERS[0], USERS[1]].map(|user| client_of(&service, user));
    for client in [&mut spy, &mut honest] {
        client.set_answer_filter(Some(AnswerFilter::default())).unwrap();
    }
    // First, with the identifier and all sequence numbers of the other.
    let begin = clock::monotonic_ns() + 50 * MILLISECOND;
    let of = |payload: &'static [u8]| {
        (0..10).map(|n| echo(FAR, begin + u64::from(n) * MILLISECOND, n, payload)).collect::<Vec<_>>()
    };
    spy.submit_packets(of(b"I listen")).unwrap();
    assert_eq!(payloads(&mut spy, Some(10)), vec![b"I listen".to_vec(); 10]);
    honest.submit_packets(of(b"a secret")).unwrap();
    assert_eq!(payloads(&mut honest, Some(10)), vec![b"a secret".to_vec(); 10]);
    let overheard = payloads(&mut spy, None);
    println!("answers to another user: {} of 10 overheard, 0 of 10 lost", overheard.len());
    assert!(overheard.is_empty(), "answers to another user");
    // What is the same in every byte could be told from its own by nobody: it is not sent.
    spy.submit_packets(vec![echo(FAR, clock::monotonic_ns(), 3, b"a secret")]).unwrap();
    assert_eq!(reports(&mut spy, 1).0[0].outcome, PacketOutcome::WrongSource);
}

#[test]
fn port_quota_leaves_source_ports_to_others() {
    let Some(service) = start() else { return };
    // As far ahead as packets may be due, from all programs that a user may have.
    let far_ahead = clock::monotonic_ns() + 590_000 * MILLISECOND;
    let mut accepted = 0;
    let mut greedy = all_clients_of(&service, USERS[0]);
    for (client, first) in greedy.iter_mut().zip((10_000..).step_by(64)) {
        let packets = (first..first + 64).map(|port| datagram(port, 1, far_ahead, FAR)).collect();
        accepted += client.submit_packets(packets).unwrap().1.accepted;
    }
    println!("{accepted} of 512 ports are held by {} programs of one user", greedy.len());
    assert!((8..=128).contains(&accepted), "{accepted} ports of one user");
    for user in &USERS[1..] {
        let mut other = client_of(&service, *user);
        let begin = clock::monotonic_ns() + 50 * MILLISECOND;
        let first = 20_000 + u16::try_from(user - USERS[0]).unwrap() * 100;
        other.submit_packets((0..10).map(|n| datagram(first + n, n.into(), begin, FAR)).collect()).unwrap();
        let (reports, _) = reports(&mut other, 10);
        assert!(reports.iter().all(|report| report.outcome == PacketOutcome::Sent), "{reports:?}");
    }
}

/// Sends one packet to the network that refuses.
fn send_to_refusing(client: &mut ReleaseClient, number: u16) {
    client
        .submit_packets(vec![echo(REFUSING, clock::monotonic_ns() + 20 * MILLISECOND, number, b"single")])
        .unwrap();
    let outcome = reports(client, 1).0[0].outcome;
    // The error for the packet before may come while this one waits.
    assert!(matches!(outcome, PacketOutcome::Sent | PacketOutcome::NotPermitted), "{outcome:?}");
}

/// A moment in which nothing has happened yet.
fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(5));
    false
}

#[test]
fn refusing_target_closes_per_user_then_for_all() {
    let Some(service) = start() else { return };
    let ip = |index: usize, words: &[&str]| {
        let run = || Command::new("ip").args(words).status().unwrap().success();
        assert!(service.stations.netns(index).run_in_namespace(run).unwrap(), "{words:?}");
    };
    ip(0, &["route", "add", "198.18.5.0/24", "via", FAR, "dev", "eth0"]);
    ip(1, &["route", "add", "prohibit", "198.18.5.0/24"]);
    for (key, value) in [("net/ipv4/ip_forward", "1"), ("net/ipv4/icmp_ratelimit", "0")] {
        kernel::write_setting(&service.stations.netns(1), key, value).unwrap();
    }
    let target = REFUSING.parse().unwrap();
    let [mut first, mut second, mut third, mut fourth] = USERS.map(|user| client_of(&service, user));
    let is_closed = |client: &mut ReleaseClient| client.query_limits(target).unwrap().is_none();
    // A single packet, after a pause.
    send_to_refusing(&mut first, 0);
    assert!((0..2_000).any(|_| is_closed(&mut first) || pause()), "the target is not closed");
    // A prohibited route answers few packets a second, whatever the setting.
    let send_until_closed = |client: &mut ReleaseClient, number: u16| {
        let is_closed_after = |n| {
            send_to_refusing(client, number + n);
            (0..100).any(|_| is_closed(client) || pause())
        };
        assert!((0..20).any(is_closed_after), "the target is not closed");
    };
    let mut same_user = client_of(&service, USERS[0]);
    assert!(same_user.query_limits(target).unwrap().is_none(), "all programs of the user");
    assert!(second.query_limits(target).unwrap().is_some() && fourth.query_limits(target).unwrap().is_some());
    send_until_closed(&mut second, 100);
    assert!(fourth.query_limits(target).unwrap().is_some());
    send_until_closed(&mut third, 200);
    assert!(fourth.query_limits(target).unwrap().is_none(), "it has refused packets of three users");
    assert!(fourth.query_limits(FAR.parse().unwrap()).unwrap().is_some(), "other targets stay open");
}
