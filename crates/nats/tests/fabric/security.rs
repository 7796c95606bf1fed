//! Rights to publish and subscribe: the server refuses nodes, and nodes refuse a server that lies.

use crate::fleet::{Fleet, fabric, node, roomy};
use crate::server::{program, reader};
use crate::stranger::Stranger;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use packetrig_fleet::fabric::{
    Endpoint, Error, Fabric, RecordStore, ResultReceiver, ResultSender, SegmentId,
};
use packetrig_fleet::message::{
    LeaseGrant, MessageBody, MessageHead, NodeCommand, NodeName, NodeReply, Nonce, PlanHash, RunId,
};
use packetrig_nats::enrol::{self, FleetMembership, JoinLine, enrol_node};
use packetrig_nats::{FleetCredentials, NatsEndpoint, NatsFabric, ServerAccess};
use packetrig_units::{MonoTime, Nanos};
use std::time::Duration;

const SOON: Nanos = Nanos::from_millis(200);
const LONG: Nanos = Nanos::from_secs(20);

fn head() -> MessageHead {
    MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") }
}

fn commit() -> MessageBody {
    let command = NodeCommand::Commit { start: MonoTime::from_nanos(7), guard: Nanos::from_millis(1) };
    MessageBody::Command(head(), command)
}

fn grant() -> MessageBody {
    MessageBody::Granted(head(), LeaseGrant { nonce: Nonce(1), go_on: true })
}

fn join(fabric: &NatsFabric, name: &NodeName) -> NatsEndpoint {
    fabric.open_endpoint(name.clone()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Introduces the controller to the node; earlier messages of the node count for no controller.
fn acquaint(controller: &mut NatsEndpoint, agent: &mut NatsEndpoint) {
    controller.post_to_all_nodes(MessageBody::RollCall(Nonce(1))).expect("it works");
    assert_eq!(agent.receive_message(LONG).map(|letter| letter.body), Some(MessageBody::RollCall(Nonce(1))));
}

/// Waits for a trouble, at most as long as a lost message would take.
fn troubles(of: &mut NatsEndpoint) -> Vec<Error> {
    (0..200)
        .find_map(|_| {
            assert_eq!(of.receive_message(Nanos::from_millis(50)), None);
            Some(of.take_problems()).filter(|troubles| !troubles.is_empty())
        })
        .expect("something was refused")
}

#[test]
fn fleet_works_with_certificates_and_seals() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, own) = (fleet.member("a"), fleet.controller());
    let mut controller = join(&own, &NodeName::controller());
    let mut agent = join(&fabric(&a), &node("a"));
    for body in [commit(), grant(), MessageBody::RollCall(Nonce(1))] {
        controller.post_message(&node("a"), body.clone()).expect("it works");
        assert_eq!(agent.receive_message(LONG).map(|letter| letter.body), Some(body));
    }
    controller.post_to_all_nodes(MessageBody::RollCall(Nonce(1))).expect("it works");
    assert_eq!(agent.receive_message(LONG).map(|letter| letter.body), Some(MessageBody::RollCall(Nonce(1))));
    assert!(matches!(controller.post_to_all_nodes(commit()), Err(Error::NotPermitted(_))));
    agent
        .post_message(&NodeName::controller(), MessageBody::Reply(head(), NodeReply::Armed))
        .expect("it works");
    let reply = controller.receive_message(LONG).expect("not lost");
    assert_eq!((reply.from, reply.body), (node("a"), MessageBody::Reply(head(), NodeReply::Armed)));
    // A node that starts again is another instance; messages for it are sealed for that instance.
    drop(agent);
    let mut agent = join(&fabric(&a), &node("a"));
    acquaint(&mut controller, &mut agent);
    agent
        .post_message(&NodeName::controller(), MessageBody::Reply(head(), NodeReply::Armed))
        .expect("it works");
    assert!(controller.receive_message(LONG).is_some());
    controller.post_message(&node("a"), commit()).expect("it works");
    assert_eq!(agent.receive_message(LONG).map(|letter| letter.body), Some(commit()));
    assert_eq!((agent.refused_message_count(), agent.take_problems()), (0, vec![]));
}

#[test]
fn controller_rights_cover_records_and_results() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let own = fleet.controller();
    let mut records = own.open_records().expect("it may");
    let first = records.create_record("run.a", b"1").expect("it may");
    assert_eq!(records.get_record("run.a").expect("it may").map(|record| record.value), Some(b"1".to_vec()));
    assert_eq!(records.replace_record("run.a", first + 7, b"2"), Err(Error::Stale("run.a".into())));
    records.replace_record("run.a", first, b"2").expect("it may");
    assert_eq!(records.list_keys("run.").expect("it may"), ["run.a"]);
    records.remove_record("run.a").expect("it may");
    assert_eq!(records.get_record("run.a").expect("it may"), None);
    // This call creates the stream.
    drop(own.open_result_inlet("1").expect("it may"));
    let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node("a"), number: 0 };
    let mut outgoing = fabric(&fleet.member("a")).open_result_outlet(&node("a")).expect("it opens");
    outgoing.append_segment(&id, b"x").expect("it is kept");
    // The second reader takes over from the first; unconfirmed deliveries come again.
    for reader_name in ["1", "2"] {
        let mut incoming = reader(&own, reader_name);
        assert_eq!(incoming.receive_segment(LONG).map(|delivery| delivery.id), Some(id.clone()));
    }
    let mut incoming = reader(&own, "3");
    let delivery = incoming.receive_segment(LONG).expect("it comes");
    incoming.confirm_segment(delivery.token).expect("it may");
}

/// The error of this member when it opens a part that is not its own. It comes at once, long before the timeout.
fn refusal<T>(member: &FleetMembership, open: impl Fn(&NatsFabric) -> Result<T, Error>) -> Error {
    let access =
        ServerAccess { timeout: Duration::from_secs(20), ..roomy(member.server_access().expect("whole")) };
    open(&NatsFabric::new(access).expect("a runtime")).err().expect("it may not")
}

/// This member of the fleet can open neither the result outlet of another node nor the
/// controller's records and results.
fn assert_refuses_stores(a: &NatsFabric, member: &FleetMembership) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let refused = refusal(member, NatsFabric::open_records);
            assert!(matches!(refused, Error::NotPermitted(_)), "records: {refused:?}");
        });
        scope.spawn(|| {
            let refused = refusal(member, |fabric| fabric.open_result_inlet("1"));
            assert!(matches!(refused, Error::NotPermitted(_)), "results: {refused:?}");
        });
        let mut forger = a.open_result_outlet(&node("b")).expect("it connects");
        let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node("b"), number: 0 };
        // The server refuses the answer's inbox or the subject, whichever comes first.
        let refused = forger.append_segment(&id, b"x");
        assert!(matches!(refused, Err(Error::NotPermitted(_))), "of another: {refused:?}");
    });
}

#[test]
fn node_cannot_impersonate_or_overhear_another() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let member = fleet.member("a");
    let (a, b) = (fabric(&member), fabric(&fleet.member("b")));
    let own = fleet.controller();
    let mut controller = join(&own, &NodeName::controller());
    let (mut agent, mut other) = (join(&a, &node("a")), join(&b, &node("b")));
    // With the certificate of `a`, a client that takes the place of `b` or of the controller receives nothing.
    for name in [node("b"), NodeName::controller()] {
        assert!(matches!(a.open_endpoint(name.clone()), Err(Error::NotPermitted(_))), "{name}");
    }
    let refusal = agent
        .post_message(&node("b"), commit())
        .err()
        .map_or_else(|| troubles(&mut agent), |error| vec![error]);
    assert_eq!(refusal, [Error::NotPermitted("cmd.node.b".into())]);
    agent.post_to_all_nodes(MessageBody::RollCall(Nonce(1))).expect("it is sent");
    assert_eq!(troubles(&mut agent), [Error::NotPermitted("cmd.all".into())]);
    assert_eq!(other.receive_message(SOON), None);
    assert_refuses_stores(&a, &member);
    // None of this has changed anything.
    acquaint(&mut controller, &mut other);
    other
        .post_message(&NodeName::controller(), MessageBody::Reply(head(), NodeReply::Armed))
        .expect("it works");
    let reply = controller.receive_message(LONG).expect("not lost");
    assert_eq!(reply.from, node("b"));
    assert_eq!(controller.receive_message(SOON), None);
}

#[test]
fn connection_without_fleet_certificate_is_refused() {
    let Some(program) = program() else { return };
    let (fleet, stranger) = (Fleet::new(program.clone()), Fleet::new(program));
    let open = roomy(ServerAccess::for_server(fleet.address(), None));
    let refused = NatsFabric::new(open).expect("a runtime").open_endpoint(node("a")).err();
    assert!(refused.is_some(), "without TLS");
    let foreign = stranger.member("a").server_access().expect("whole").credentials.expect("it has one");
    let authority = fleet.authority.read_certificate_pem().expect("kept");
    let mixed =
        roomy(ServerAccess::for_server(fleet.address(), Some(FleetCredentials { authority, ..foreign })));
    let refused = NatsFabric::new(mixed).expect("a runtime").open_endpoint(node("a")).err();
    assert!(matches!(refused, Some(Error::NotPermitted(_))), "of another fleet: {refused:?}");
    // A removed node is cut off.
    let members = ["a", "c"].map(|name| fleet.member(name));
    let mut connected = members.each_ref().map(|member| join(&fabric(member), &member.name));
    for member in &members {
        fleet.authority.remove_node(&member.name).expect("it is there");
    }
    let left = fleet.authority.list_admitted_nodes().expect("listed");
    let remover = fleet.authority.load_system_user_credentials().expect("it has keys");
    fleet.broker.lock().expect("whole").set_allowed_nodes(&left, remover).expect("it is told");
    for connected in &mut connected {
        assert!(!troubles(connected).is_empty(), "it is cut off");
    }
    // A namesake of the second node joins, and the old certificate is not valid for its place.
    let namesake = fleet.member("c");
    // The server searches a long time for each account that it does not know.
    std::thread::scope(|scope| {
        for (member, why) in members.iter().zip(["removed", "an older generation"]) {
            scope.spawn(move || {
                let refused = fabric(member).open_endpoint(member.name.clone()).err();
                assert!(matches!(refused, Some(Error::NotPermitted(_))), "{why}: {refused:?}");
            });
        }
    });
    join(&fabric(&namesake), &node("c"));
    assert_eq!(fleet.broker.lock().expect("whole").server_start_count(), 1, "nobody else noticed");
}

#[test]
fn certificate_and_user_must_match_to_connect() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program.clone());
    let member = fleet.member("a");
    let own = member.server_access().expect("whole").credentials.expect("it has one");
    let user = own.user.clone().expect("it has a user");
    let is_in = |user: Option<String>| {
        Stranger::with(&fleet, &member, FleetCredentials { user, ..own.clone() }).is_some()
    };
    assert!(is_in(Some(user.clone())), "as it was let in");
    assert!(!is_in(None), "a certificate alone");
    let neighbour = fleet.member("b").server_access().expect("whole").credentials.expect("it has one");
    assert!(!is_in(neighbour.user), "of another node of the fleet");
    // The signature covers the claims: those of another fleet and changed ones are refused.
    let elsewhere =
        Fleet::new(program).member("a").server_access().expect("whole").credentials.expect("it has one");
    assert!(!is_in(elsewhere.user), "of another operator");
    let parts: Vec<&str> = user.split('.').collect();
    let claims = BASE64.decode(parts[1]).expect("base64");
    let wider = String::from_utf8(claims).expect("text").replace("rep.a", "rep.b");
    assert!(!is_in(Some(format!("{}.{}.{}", parts[0], BASE64.encode(wider), parts[2]))), "changed");
    let unsigned = BASE64.encode(r#"{"typ":"JWT","alg":"none"}"#);
    assert!(!is_in(Some(format!("{unsigned}.{}.", parts[1]))), "unsigned");
}

#[test]
fn certificate_renewal_requires_fleet_membership() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let member = fleet.member("a");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    assert!(!member.is_renewal_due(now) && member.is_renewal_due(now + 80 * 24 * 3600));
    let renewed = enrol::renew_membership(&member).expect("it is in the fleet");
    assert_ne!(renewed.certificate(), member.certificate());
    let fabric = fabric(&member);
    fabric.renew_credentials(renewed.renewed_credentials());
    join(&fabric, &node("a"));
    fleet.authority.remove_node(&node("a")).expect("it is there");
    assert!(matches!(enrol::renew_membership(&renewed), Err(enrol::Error::Refused(_))), "removed");
}

/// An attacker that holds the server can publish anything: here a client with the controller's certificate and no key,
/// and one that records the controller's messages.
#[test]
fn forged_or_replayed_messages_change_nothing() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let a = fleet.member("a");
    let mut agent = join(&fabric(&a), &node("a"));
    let keyless =
        NatsFabric::new(ServerAccess { keys: None, ..fleet.controller_access() }).expect("a runtime");
    let mut forger = join(&keyless, &NodeName::controller());
    for body in [commit(), grant(), MessageBody::RollCall(Nonce(1))] {
        forger.post_message(&node("a"), body).expect("it is sent");
        assert!(matches!(&troubles(&mut agent)[..], [Error::NotPermitted(_)]));
    }
    forger.post_to_all_nodes(MessageBody::RollCall(Nonce(1))).expect("it is sent");
    assert!(matches!(&troubles(&mut agent)[..], [Error::NotPermitted(_)]));
    assert_eq!(agent.refused_message_count(), 4);
    drop(forger);
    replayed(&fleet, &mut agent);
}

fn replayed(fleet: &Fleet, agent: &mut NatsEndpoint) {
    let witness = fleet.member("witness");
    let witness = Stranger::witness(fleet, &witness);
    let seen = witness.listen("cmd.node.a");
    let own = fleet.controller();
    let mut controller = join(&own, &NodeName::controller());
    for body in [commit(), grant()] {
        controller.post_message(&node("a"), body.clone()).expect("it works");
        assert_eq!(agent.receive_message(LONG).map(|letter| letter.body), Some(body));
    }
    let letters = seen.wait_for(2, |message| !message.payload.is_empty());
    for letter in letters.iter().chain(&letters) {
        witness.repeat(letter.clone());
        assert!(
            matches!(&troubles(agent)[..], [Error::NotPermitted(why)] if why.contains("the message was received before"))
        );
    }
    assert_eq!(agent.refused_message_count(), 8);
}

#[test]
fn enrolment_requires_good_secret_and_right_authority() {
    let Some(program) = program() else { return };
    let (fleet, stranger) = (Fleet::new(program.clone()), Fleet::new(program));
    let line = fleet.line();
    let member = enrol_node(&line, &node("a"), None).expect("the secret is good");
    assert!(matches!(enrol_node(&line, &node("b"), None), Err(enrol::Error::Refused(_))), "used up");
    assert!(matches!(enrol_node(&fleet.line(), &node("a"), None), Err(enrol::Error::Refused(_))), "taken");
    let again = enrol_node(&fleet.line(), &node("a"), Some(&member)).expect("the same key");
    join(&fabric(&again), &node("a"));
    assert!(matches!(enrol_node(&fleet.line(), &NodeName::controller(), None), Err(enrol::Error::Name(_))));
    let caught = JoinLine { enrol: stranger.door.address().to_string(), ..fleet.line() };
    assert!(matches!(enrol_node(&caught, &node("c"), None), Err(enrol::Error::Stranger(_))));
    assert_eq!(stranger.authority.list_node_names().expect("listed"), []);
    let file = fleet.place.path().join("membership");
    member.save_to(&file).expect("written");
    assert_eq!(FleetMembership::load_from(&file).expect("read"), member);
}
