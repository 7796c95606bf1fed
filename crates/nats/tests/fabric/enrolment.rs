//! The enrolment server: not blocked by silent clients, undone when the message server cannot be informed, open to many
//! nodes at once, and with certificates that do not expire.

use crate::fleet::{Fleet, fabric, node, roomy};
use crate::server::{program, say};
use packetrig_fleet::fabric::{Error, Fabric};
use packetrig_fleet::message::NodeName;
use packetrig_nats::enrol::{self, EnrolServer, JoinLine, NodeKey, enrol_node, enrol_with_retries};
use packetrig_nats::{NatsFabric, ServerAccess};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DAY: u64 = 24 * 3600;
/// Machines that are switched on at the same time.
const BURST: usize = 80;

fn seconds() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs()
}

#[test]
fn silent_connections_keep_no_node_out() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let line = fleet.line();
    let silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(fleet.door.address()).expect("it listens")).collect();
    let member = enrol_node(&line, &node("a"), None).expect("it is let in beside them");
    fabric(&member).open_endpoint(node("a")).expect("it joins");
    drop(silent);
}

/// An enrolment server that cannot inform its message server of a node the first times.
fn door_that_fails(fleet: &Fleet, times: usize) -> (EnrolServer, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let on_join = move |_: &NodeName| {
        let is_broken = count.fetch_add(1, Ordering::AcqRel) < times;
        if is_broken { Err("the server does not answer".to_owned()) } else { Ok(()) }
    };
    let security = fleet.certificate().security().clone();
    let anywhere = "127.0.0.1:0".parse().expect("an address");
    let door =
        EnrolServer::start_listening(Arc::clone(&fleet.authority), &security, anywhere, Arc::new(on_join));
    (door.expect("it listens"), asked)
}

#[test]
fn failed_enrolment_takes_no_name_or_secret() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (door, _) = door_that_fails(&fleet, 1);
    let line = JoinLine { enrol: door.address().to_string(), ..fleet.line() };
    assert!(matches!(enrol_node(&line, &node("a"), None), Err(enrol::Error::Later(_))));
    assert_eq!(fleet.authority.list_node_names().expect("listed"), []);
    // Another machine, so another key: the name is free, and the secret is as valid as before.
    enrol_node(&line, &node("a"), None).expect("the single use is still there");
    assert!(
        matches!(enrol_node(&line, &node("b"), None), Err(enrol::Error::Refused(_))),
        "it is used up now"
    );
}

#[test]
fn enrolment_retries_with_stored_key() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (door, asked) = door_that_fails(&fleet, 2);
    let line = JoinLine { enrol: door.address().to_string(), ..fleet.line() };
    let place = tempfile::TempDir::new().expect("a place");
    let file = place.path().join("joining.key");
    let mut failures = Vec::new();
    let key = NodeKey::load_or_create(&file).expect("it is written");
    let member = enrol_with_retries(&line, &node("a"), &key, &mut |error| failures.push(error.to_string()));
    member.expect("the third time");
    assert_eq!((asked.load(Ordering::Acquire), failures.len()), (3, 2), "{failures:?}");
    // The machine lost power before it had stored its membership: it asks again with the key that it stored.
    let key = NodeKey::load_or_create(&file).expect("it is read");
    enrol_with_retries(&line, &node("a"), &key, &mut |_| {}).expect("it is the same node");
    let refused = enrol_node(&line, &node("a"), None);
    assert!(matches!(refused, Err(enrol::Error::Refused(_))), "another key: {refused:?}");
    std::fs::write(&file, "damaged").expect("writable");
    let unreadable = NodeKey::load_or_create(&file).expect_err("no key is in it").to_string();
    assert!(unreadable.contains("joining.key is damaged"), "{unreadable}");
    assert_eq!(std::fs::read(&file).expect("readable"), b"damaged", "it is not replaced");
}

/// Joins so many nodes at once, each of which then sends and receives. Returns how often one of them asked again.
fn join_at_once(fleet: &Fleet, count: usize) -> usize {
    let secret = fleet.authority.create_secret("room", u32::try_from(count).ok(), None).expect("made");
    let line =
        fleet.door.make_join_line(fleet.address(), fleet.door.address().to_string(), secret).expect("a line");
    let asked_again = AtomicUsize::new(0);
    let members: Vec<_> = std::thread::scope(|scope| {
        let join = |number: usize| {
            let key = NodeKey::generate().expect("a key");
            let member = enrol_with_retries(&line, &node(&format!("n{number}")), &key, &mut |_| {
                asked_again.fetch_add(1, Ordering::Relaxed);
            });
            let member = member.expect("it is let in");
            fabric(&member).open_endpoint(member.name.clone()).expect("the server knows it")
        };
        let joining: Vec<_> = (0..count).map(|number| scope.spawn(move || join(number))).collect();
        joining.into_iter().map(|it| it.join().expect("it ends")).collect()
    });
    assert_eq!(members.len(), count);
    asked_again.into_inner()
}

#[test]
fn simultaneous_joins_all_enrol_and_work() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let again = join_at_once(&fleet, BURST);
    say(&format!("{BURST} joined at once: {again} asked again"));
    let broker = fleet.broker.lock().expect("whole");
    assert_eq!(broker.server_start_count(), 1, "the server ended: {:?}", broker.take_problems());
}

/// The server's certificate is renewed while many machines are switched on.
#[test]
fn server_survives_reloads_while_nodes_join() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let reloads = std::thread::scope(|scope| {
        let joining = scope.spawn(|| join_at_once(&fleet, BURST / 2));
        let while_joining = (0..10_000).take_while(|_| !joining.is_finished());
        let asker = fleet.authority.load_system_user_credentials().expect("it has an account");
        while_joining
            .map(|_| fleet.broker.lock().expect("whole").reload_configuration(&asker).expect("it reads it"))
            .count()
    });
    let broker = fleet.broker.lock().expect("whole");
    assert_eq!(broker.server_start_count(), 1, "the server ended: {:?}", broker.take_problems());
    assert!(reloads > 1, "reloaded {reloads} times");
}

#[test]
fn server_certificate_is_renewed_when_due() {
    let Some(program) = program() else { return };
    // The certificate looks as if the server had been started then.
    let issued = seconds() - 100 * DAY;
    let fleet = Fleet::issued_at(program, issued);
    let line = fleet.line();
    assert!(enrol_node(&line, &node("a"), None).is_err(), "the certificate of the door has expired");
    let renew = |now| {
        let broker = fleet.broker.lock().expect("whole");
        fleet.certificate().renew_certificate_if_due(now, Some(&broker), &fleet.door).expect("it can")
    };
    assert_eq!([issued + 59 * DAY, seconds(), seconds()].map(renew), [false, true, false]);
    let member = enrol_node(&line, &node("a"), None).expect("the door has a new one");
    fabric(&member).open_endpoint(node("a")).expect("the server has a new one");
}

#[test]
fn controller_certificate_is_renewed_when_due() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let issued = seconds() - 100 * DAY;
    let (credentials, keys) = fleet.authority.load_controller_credentials_at(issued).expect("it has keys");
    let access = roomy(ServerAccess {
        keys: Some(keys),
        ..ServerAccess::for_server(fleet.address(), Some(credentials.clone()))
    });
    let own = NatsFabric::new(access).expect("a runtime");
    let refused = own.open_endpoint(NodeName::controller()).err();
    assert!(matches!(refused, Some(Error::NotPermitted(_))), "expired: {refused:?}");
    let (same, _) = fleet.authority.load_controller_credentials_at(issued + 59 * DAY).expect("it has keys");
    assert_eq!(same.certificate, credentials.certificate, "not yet");
    let (renewed, _) = fleet.authority.load_controller_credentials_at(seconds()).expect("it has keys");
    assert_eq!(renewed.key, credentials.key, "connections that are opened later keep their key");
    own.renew_credentials(renewed.newest_credentials());
    own.open_endpoint(NodeName::controller()).expect("it is valid again");
}
