//! A node floods the server over a slow control network: the leases of other nodes continue.

use crate::fleet::{Fleet, fabric, node};
use crate::server::{program, say};
use crate::slow_link::SlowLink;
use crate::stranger::Stranger;
use packetrig_fleet::fabric::{Endpoint, Error, Fabric};
use packetrig_fleet::lead::{ClaimProgress, LeadClaim, WantedNodes, release_leads};
use packetrig_fleet::lease::LeaseTerms;
use packetrig_fleet::message::{LeaseGrant, MessageBody, MessageHead, NodeName, Nonce, PlanHash, RunId};
use packetrig_fleet::term::{ControllerIdentity, ControllerTermTimes, ControllerTermWatch};
use packetrig_nats::{NatsEndpoint, NatsFabric, NatsRecords, ServerAccess};
use packetrig_sys::clock::{monotonic_ns, sleep_until_ns};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const LONG: Nanos = Nanos::from_secs(20);
const TURN: Nanos = Nanos::from_millis(10);
/// 8 Mbit/s.
const LINK: u64 = 1_000_000;
/// Number of questions in a row.
const QUESTIONS: u64 = 20;

fn head() -> MessageHead {
    MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") }
}

/// Time that passes only while this process gets the processor: a thread counts its sleeps. A pause of the machine is
/// no fact about messages, and must not shorten a lease.
struct AttendedTime {
    ns: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AttendedTime {
    const MOMENT_NS: u64 = 5_000_000;

    fn start() -> Self {
        let (ns, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (ns, is_over) = (Arc::clone(&ns), Arc::clone(&is_over));
            std::thread::spawn(move || Self::count(&ns, &is_over))
        };
        Self { ns, is_over, thread: Some(thread) }
    }

    fn count(ns: &AtomicU64, is_over: &AtomicBool) {
        let mut last = monotonic_ns();
        while !is_over.load(Ordering::Acquire) {
            sleep_until_ns(last + Self::MOMENT_NS);
            let now = monotonic_ns();
            ns.fetch_add((now - last).min(2 * Self::MOMENT_NS), Ordering::Relaxed);
            last = now;
        }
    }

    fn now(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }
}

impl Drop for AttendedTime {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// A lease as the agent holds it: it asks steadily, and each answer counts from the time of its question.
struct HeldLease {
    time: AttendedTime,
    /// The time of each question.
    asked: BTreeMap<u64, u64>,
    until: u64,
    /// The remaining time at the worst moment; below zero the lease was over.
    least_left: i64,
}

impl HeldLease {
    /// Asks so many times, and answers as a controller does.
    fn hold(controller: &mut NatsEndpoint, agent: &mut NatsEndpoint) -> Self {
        let time = AttendedTime::start();
        let until = time.now() + LeaseTerms::FLEET_TERMS.ttl.as_u64();
        let mut held = Self { time, asked: BTreeMap::new(), until, least_left: i64::MAX };
        for number in 1..=QUESTIONS {
            let asked = held.time.now();
            held.asked.insert(number, asked);
            agent
                .post_message(&NodeName::controller(), MessageBody::Renew(head(), Nonce(number)))
                .expect("it is sent");
            while held.time.now() < asked + LeaseTerms::FLEET_TERMS.renewal_interval(2).as_u64() {
                grant(controller);
                held.hear(agent);
            }
        }
        held
    }

    fn hear(&mut self, agent: &mut NatsEndpoint) {
        self.least_left = self.least_left.min(self.until.cast_signed() - self.time.now().cast_signed());
        if let Some(MessageBody::Granted(_, grant)) =
            agent.receive_message(Nanos::ZERO).map(|letter| letter.body)
        {
            self.until = self.until.max(self.asked[&grant.nonce.0] + LeaseTerms::FLEET_TERMS.ttl.as_u64());
        }
    }
}

fn grant(controller: &mut NatsEndpoint) {
    let heard = controller.receive_message(TURN).filter(|letter| letter.from == node("b"));
    if let Some(MessageBody::Renew(head, nonce)) = heard.map(|letter| letter.body) {
        controller
            .post_message(&node("b"), MessageBody::Granted(head, LeaseGrant { nonce, go_on: true }))
            .expect("it is sent");
    }
}

/// Connects all places; then `a` floods these subjects while `b` renews its lease. Returns the
/// troubles of the controller.
fn flooded(subjects: [&str; 2], payload: usize) -> Option<(u64, Vec<Error>)> {
    let fleet = Fleet::new(program()?);
    let (a, b) = (fleet.member("a"), fleet.member("b"));
    let server = fleet.broker.lock().expect("whole").address();
    let link = SlowLink::to(server, LINK);
    let access = ServerAccess { servers: vec![link.address.to_string()], ..fleet.controller_access() };
    let own = NatsFabric::new(access).expect("a runtime");
    let mut controller = own.open_endpoint(NodeName::controller()).expect("it joins");
    let mut agent = fabric(&b).open_endpoint(node("b")).expect("it joins");
    drop({
        let mut first = fabric(&a).open_endpoint(node("a")).expect("it joins");
        controller.post_message(&node("a"), MessageBody::RollCall(Nonce(1))).expect("it is there");
        first.receive_message(LONG).expect("it comes")
    });
    controller.post_message(&node("b"), MessageBody::RollCall(Nonce(1))).expect("it is there");
    agent.receive_message(LONG).expect("it comes");
    let hostile = Stranger::new(&fleet, &a);
    let over = AtomicBool::new(false);
    let (held, flooded) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| hostile.flood(&subjects, payload, &over));
        // The flood fills all buffers before the first question.
        std::thread::sleep(LeaseTerms::FLEET_TERMS.renewal_interval(2).to_std());
        let held = HeldLease::hold(&mut controller, &mut agent);
        over.store(true, Ordering::Release);
        (held, flood.join().expect("it ends"))
    });
    let left_ms = held.least_left / 1_000_000;
    say(&format!(
        "{flooded} B flooded on {subjects:?} over a link of {LINK} B/s: the lease of another had {left_ms} ms left at worst"
    ));
    assert!(held.least_left > 0, "the lease ran out");
    Some((controller.refused_message_count(), controller.take_problems()))
}

#[test]
fn letter_flood_costs_other_nodes_no_lease() {
    if let Some((refused, troubles)) = flooded(["rep.a", "hb.a"], 64 << 10) {
        assert!(refused > 0, "what it says is counted");
        let lines =
            troubles.iter().filter(|error| error.to_string().contains("refused or dropped message")).count();
        assert!((1..20).contains(&lines), "{refused} refusals are told in a few lines: {troubles:?}");
    }
}

#[test]
fn renewal_flood_names_node_and_costs_no_lease() {
    if let Some((_, troubles)) = flooded(["lease.a"; 2], 4 << 10) {
        let is_named =
            |error: &Error| matches!(error, Error::NotPermitted(why) if why.contains("node a sent"));
        assert!(troubles.iter().any(is_named), "{troubles:?}");
    }
}

/// A claim of so many nodes, and their release.
fn take_and_give_back(records: &mut NatsRecords, nodes: usize) {
    let me = ControllerIdentity {
        controller: "2e".into(),
        user: "bob".into(),
        host: "there".into(),
        place: "boot".into(),
        pid: 1,
    };
    let names = (0..nodes).map(|number| node(&format!("n{number}"))).collect();
    let wanted = WantedNodes { run: RunId("many".into()), nodes: names, heard: 0, wall_ns: 0 };
    let watch = ControllerTermWatch::new(ControllerTermTimes::default());
    let mut claim = LeadClaim::new(me, wanted, watch);
    loop {
        let now = MonoTime::from_nanos(monotonic_ns());
        match claim.advance_claim(records, &|_| Some(true), now).expect("the server answers") {
            ClaimProgress::UnderWay => {}
            ClaimProgress::Blocked(held) => panic!("nobody else wants them: {held:?}"),
            ClaimProgress::Taken(_, leads) => {
                assert_eq!(leads.len(), nodes);
                assert_eq!(release_leads(records, leads), (Vec::new(), None));
                return;
            }
        }
    }
}

#[test]
fn lease_holds_while_other_controller_cycles_leads() {
    const LEADS: usize = 1000;
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (own, other) = (fleet.controller(), fleet.controller());
    let mut controller = own.open_endpoint(NodeName::controller_of("1f")).expect("it joins");
    let mut agent = fabric(&fleet.member("b")).open_endpoint(node("b")).expect("it joins");
    controller.listen_to(&[node("b")]).expect("it may");
    controller.post_message(&node("b"), MessageBody::RollCall(Nonce(1))).expect("it is there");
    agent.receive_message(LONG).expect("it comes");
    let over = AtomicBool::new(false);
    let (held, (taken, took)) = std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut records = other.open_records().expect("it may");
            let (mut taken, began) = (0, monotonic_ns());
            while !over.load(Ordering::Acquire) {
                take_and_give_back(&mut records, LEADS);
                taken += LEADS;
            }
            (taken, monotonic_ns() - began)
        });
        let held = HeldLease::hold(&mut controller, &mut agent);
        over.store(true, Ordering::Release);
        (held, taking.join().expect("it ends"))
    });
    let left_ms = held.least_left / 1_000_000;
    let each_us = took / 1000 / u64::try_from(taken).expect("some were taken");
    say(&format!(
        "{taken} leads taken and given back, {each_us} us each; the lease of another had {left_ms} ms left at worst"
    ));
    assert!(taken >= LEADS && held.least_left > 0, "the lease ran out");
}
