//! The server is killed while results are appended: accepted segments arrive.

use crate::server::{Server, program, reader, say, setup};
use packetrig_fleet::fabric::{Endpoint, Fabric, ResultReceiver, ResultSender, SegmentId};
use packetrig_fleet::message::{MessageBody, NodeName, Nonce, RunId};
use packetrig_nats::broker::{BrokerSetup, Error, MessageServer};
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

const SEGMENTS: u64 = 120;
const LONG: Nanos = Nanos::from_secs(60);

fn kill(process: u32) {
    let status = Command::new("kill").args(["-9", &process.to_string()]).status().expect("there is a kill");
    assert!(status.success());
}

/// Kills the running server after this many were killed. A server that has just started takes segments before its
/// keeper has reported its number.
fn kill_after(server: &Server, killed: u64) {
    let is_told = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        server.broker.server_start_count() > killed
    });
    assert!(is_told, "the server comes back");
    kill(server.broker.process_id());
}

/// Words that distinguish a port that was taken meanwhile from other troubles.
#[test]
fn port_in_use_error_quotes_server() {
    let Some(program) = program() else { return };
    let place = tempfile::TempDir::new().expect("a place for the server");
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = other.local_addr().expect("it has an address");
    let refused = MessageServer::start_server_and_wait(BrokerSetup { listen, ..setup(program, &place) });
    let Err(Error::NotReady(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("address already in use"), "{why}");
}

#[test]
fn accepted_segments_survive_server_kills() {
    let Some(program) = program() else { return };
    let server = Server::open(program);
    let fabric = server.fabric();
    let node = NodeName("a".into());
    let mut incoming = reader(&fabric, "1");
    let mut outgoing = fabric.open_result_outlet(&node).expect("it opens");
    let mut got: BTreeMap<u64, u32> = BTreeMap::new();
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            for number in 0..SEGMENTS {
                if number % 50 == 25 {
                    kill_after(&server, number / 50);
                }
                let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node.clone(), number };
                let body = format!("segment {number}");
                outgoing.append_segment(&id, body.as_bytes()).expect("the server comes back");
            }
        });
        while got.len() < usize::try_from(SEGMENTS).expect("few") {
            let delivery = incoming.receive_segment(LONG).expect("an accepted segment was lost");
            assert_eq!(delivery.body, format!("segment {}", delivery.id.number).into_bytes());
            *got.entry(delivery.id.number).or_default() += 1;
            // An unconfirmed segment is delivered again: no harm.
            incoming.confirm_segment(delivery.token).unwrap_or(());
        }
        appending.join().expect("all were accepted");
    });
    assert!(server.broker.server_start_count() >= 2, "it was killed");
    let again: u32 = got.values().map(|times| times - 1).sum();
    let starts = server.broker.server_start_count();
    say(&format!("{SEGMENTS} segments, {starts} starts of the server, {again} delivered again"));
}

#[test]
fn endpoint_recovers_from_server_restart_and_reports_it() {
    let Some(program) = program() else { return };
    let server = Server::open(program);
    let fabric = server.fabric();
    let mut controller = fabric.open_endpoint(NodeName::controller()).expect("it is free");
    let mut agent = fabric.open_endpoint(NodeName("a".into())).expect("it is free");
    kill(server.broker.process_id());
    // Repeats the message until it arrives, as the state machines do.
    let heard = (0..600).any(|_| {
        controller.post_message(agent.name(), MessageBody::RollCall(Nonce(1))).unwrap_or(());
        agent.receive_message(Nanos::from_millis(100)).is_some()
    });
    assert!(heard);
    assert!(!agent.take_problems().is_empty());
    assert!(server.broker.take_problems().iter().any(|told| told.contains("starting it again")));
}
