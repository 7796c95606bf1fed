//! Records that a collector had from a meter are sent again to the next collector.

use super::super::accounts::BatchContent;
use super::super::dispatch::HandedBatch;
use super::*;
use crate::batch::WorkerBatch;
use crate::group::{GroupRoleHandle, GroupStatus};
use packetrig_flow::group::{GroupTerm, RoleChange};
use packetrig_units::MonoTime;
use std::net::TcpStream;

/// A number of packets that no other field of a message contains.
const MARK: u64 = 0x3a3b_3c3d_3e3f;

/// Reads until the record has come.
fn await_record(connection: &mut TcpStream) {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while !bytes.windows(8).any(|window| window == MARK.to_be_bytes()) {
        let length = connection.read(&mut part).unwrap();
        assert!(length > 0, "the connection ended before the record came");
        bytes.extend_from_slice(&part[..length]);
    }
}

/// The meter that is active now believes that the collector has stored it.
#[test]
fn standby_resends_records_of_killed_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("tcp://{}", listener.local_addr().unwrap());
    let options = MeterExport { has_history: true, ..to(&[(target, IPFIX)]) };
    let accounts = TargetAccounts::default();
    let account = accounts.add_target("target".into(), BatchContent::Records);
    let transport = open_transport(&options, &options.destinations[0]).unwrap();
    let last_offer = LastOffer::not_yet_made();
    let deadline = SendDeadline {
        last_offer: last_offer.clone(),
        linger: options.linger,
        backpressure: BackpressurePolicy::default(),
        progress: OutputProgress::new(transport.initial_reach()),
    };
    let handle = GroupRoleHandle::new(GroupStatus::new_standby("g", 1, MeterCoverage::seen_since(0)));
    let change = RoleChange::BecameActive { term: GroupTerm { count: 1, meter: 1 }, replay_from_ns: 0 };
    handle.publish_role(Some(change), None, MonoTime::from_nanos(u64::MAX));
    let (give, batches) = bounded(1);
    let sender = TargetSender::new(
        build_encoder(&options, &options.destinations[0], false),
        EncoderOutput::new(transport, account, deadline, new_written_messages(&options)),
        TargetBacklog::new(batches, Some(handle.clone())),
        Arc::new(MeterLedger::default),
    );
    let sender = std::thread::spawn(|| sender.run_until_closed());
    let mut killed = listener.accept().unwrap().0;
    let mut marked = FlowRecord { history: Some(Box::default()), ..record(0) };
    marked.forward.packets = MARK;
    give.send(HandedBatch { at_ns: 1, batch: Arc::new(WorkerBatch::Records(vec![marked])) }).unwrap();
    await_record(&mut killed);
    // The record must be acknowledged before the role changes: later it would be another meter's.
    while accounts.total_counts().sent.records == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    handle.publish_role(Some(RoleChange::BecameStandby { active: Some(2) }), Some(2), MonoTime::default());
    drop(killed);
    await_record(&mut listener.accept().unwrap().0);
    drop(give);
    last_offer.start_countdown(clock::monotonic_ns());
    sender.join().unwrap();
    assert_eq!(accounts.total_counts().sent.records, 1, "it counts once");
}
