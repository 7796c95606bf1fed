//! Records that a collector had from a meter are sent again to the next collector.

use super::super::accounts::BatchContent;
use super::super::dispatch::BacklogBatch;
use super::*;
use crate::batch::WorkerBatch;
use crate::group::{GroupRoleHandle, GroupStatus};
use crossbeam_channel::Sender;
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

/// One target of a meter that is the active one of its group, for now.
struct ActiveTarget {
    accounts: TargetAccounts,
    handle: GroupRoleHandle,
    give: Sender<BacklogBatch>,
    last_offer: LastOfferTime,
    sender: JoinHandle<()>,
}

impl ActiveTarget {
    fn start(target: String) -> Self {
        let options = MeterExport { has_history: true, ..to(&[(target, IPFIX)]) };
        let accounts = TargetAccounts::default();
        let account = accounts.add_target("target".into(), BatchContent::Records);
        let transport = open_transport(&options, &options.destinations[0]).unwrap();
        let written = make_unconfirmed_store_if_needed(&options)
            .filter(|_| matches!(transport, TargetTransport::Stream(_)));
        let last_offer = LastOfferTime::no_offer_yet();
        let deadline = SendDeadline {
            last_offer: last_offer.clone(),
            linger: options.linger,
            backpressure: BackpressurePolicy::default(),
            progress: OutputProgress::new(transport.initial_reach()),
        };
        let handle = GroupRoleHandle::new(GroupStatus::new_standby("g", 1, MeterCoverage::seen_since(0)));
        let (give, batches) = bounded(1);
        let sender = TargetSender::new(
            build_encoder(&options, &options.destinations[0], false),
            EncoderOutput::new(transport, account, deadline, written),
            TargetBacklog::new(batches, Some(handle.clone())),
            Arc::new(MeterLedger::default),
        );
        let sender = std::thread::spawn(|| sender.run_until_closed());
        let target = Self { accounts, handle, give, last_offer, sender };
        target.become_active();
        target
    }

    fn become_active(&self) {
        let change = RoleChange::BecameActive { term: GroupTerm { count: 1, meter: 1 }, replay_from_ns: 0 };
        self.handle.publish_role(Some(change), None, MonoTime::from_nanos(u64::MAX));
    }

    fn become_standby(&self) {
        let change = RoleChange::BecameStandby { active: Some(2) };
        self.handle.publish_role(Some(change), Some(2), MonoTime::default());
    }

    /// Offers the marked record, as workers and the dispatcher do.
    fn offer_record(&self) {
        let mut marked = FlowRecord { history: Some(Box::default()), ..record(0) };
        marked.forward.packets = MARK;
        let batch = Arc::new(WorkerBatch::Records(vec![marked]));
        let carried = batch.carried_records();
        self.accounts.count_offered(BatchContent::Records, carried);
        self.accounts.move_batch_to_targets(BatchContent::Records, carried, |_| Ok(()));
        self.give.send(BacklogBatch { is_repeated: false, at_ns: 1, batch }).unwrap();
    }

    /// Ends the sender; `meanwhile` runs while it sends what is left.
    fn finish(self, meanwhile: impl FnOnce(&GroupRoleHandle)) -> ExportCounts {
        let Self { accounts, handle, give, last_offer, sender } = self;
        drop(give);
        last_offer.start_countdown(clock::monotonic_ns());
        meanwhile(&handle);
        sender.join().unwrap();
        accounts.total_counts()
    }
}

/// The meter that is active now believes that the collector has stored it.
#[test]
fn standby_resends_records_of_killed_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = ActiveTarget::start(format!("tcp://{}", listener.local_addr().unwrap()));
    let mut killed = listener.accept().unwrap().0;
    target.offer_record();
    await_record(&mut killed);
    // The record must be acknowledged before the role changes: later it would be another meter's.
    while target.accounts.total_counts().sent.records == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    target.become_standby();
    drop(killed);
    await_record(&mut listener.accept().unwrap().0);
    assert_eq!(target.finish(|_| {}).sent.records, 1, "it counts once");
}

/// Another target has a connection, whose collector may have been started again.
#[test]
fn datagrams_do_not_carry_repeated_records() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = ActiveTarget::start(format!("udp://{}", collector.local_addr().unwrap()));
    target.offer_record();
    let again = WorkerBatch::Records(vec![FlowRecord { history: Some(Box::default()), ..record(0) }]);
    target.give.send(BacklogBatch { is_repeated: true, at_ns: 2, batch: Arc::new(again) }).unwrap();
    let counts = target.finish(|_| {});
    assert_eq!(counts.sent.records, 1);
    assert_balanced(&counts);
}

/// A meter that stood still loses its role, and gets it back while it ends.
#[test]
fn kept_record_of_meter_that_regains_its_role_counts_once() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = port.local_addr().unwrap();
    drop(port);
    let target = ActiveTarget::start(format!("tcp://{place}"));
    target.offer_record();
    while !target.give.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    target.become_standby();
    let counts = target.finish(|handle| {
        std::thread::sleep(Duration::from_millis(50));
        let change = RoleChange::BecameActive { term: GroupTerm { count: 2, meter: 1 }, replay_from_ns: 0 };
        handle.publish_role(Some(change), None, MonoTime::from_nanos(u64::MAX));
        await_record(&mut TcpListener::bind(place).unwrap().accept().unwrap().0);
    });
    assert_eq!((counts.sent.records, counts.left_to_others.records), (1, 0));
    assert_balanced(&counts);
}
