//! Runs the machine against a model of a server's TCP in virtual time; the path loses and reorders segments as each test sets it.

use super::*;
use crate::frame::flags;
use packetrig_wire::pattern::keyed_mix;
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
const DELAY: u64 = 10 * MS;
const SIZE: u32 = 536;

/// Loss and reordering of the path, in parts of a thousand.
#[derive(Clone, Copy, Default)]
struct PathFaults {
    there_lost: u64,
    there_late: u64,
    back_lost: u64,
    back_late: u64,
    /// The server forgets the connection when a segment comes, and resets it from then on.
    forgets: u64,
}

/// A server's end of a connection.
#[derive(Default)]
struct TestServer {
    is_open: bool,
    expects: u32,
    /// Data behind a gap: from and to.
    beyond: Option<(u32, u32)>,
    next: u32,
    unacknowledged: u32,
    edge: u32,
    window_from: u32,
    /// Bytes it has to send, counted from its first.
    first: u32,
    queue: u32,
    taken: u32,
    repeat_at: Option<u64>,
}

#[derive(Clone, Debug)]
enum WorldEvent {
    There(OutgoingSegment),
    Back(IncomingSegment),
    Repeat,
}

/// Truth of one probe: whether each segment there, and each first answer back, was lost or held back.
#[derive(Clone, Copy, Default, Debug)]
struct ProbeTruth {
    there_lost: [bool; 2],
    there_changed: bool,
    back_sent: [bool; 2],
    back_lost: [bool; 2],
    back_at: [u64; 2],
}

struct TestWorld {
    now: u64,
    nth: u64,
    seed: u64,
    faults: PathFaults,
    events: BTreeMap<(u64, u64), WorldEvent>,
    server: TestServer,
    truths: BTreeMap<u32, ProbeTruth>,
    probe: Option<u32>,
    answers_due: [u32; 2],
    object: u32,
    room: u32,
}

impl TestWorld {
    fn new(faults: PathFaults, seed: u64) -> Self {
        Self {
            now: 0,
            nth: 0,
            seed,
            faults,
            events: BTreeMap::new(),
            server: TestServer::default(),
            truths: BTreeMap::new(),
            probe: None,
            answers_due: [0; 2],
            object: 200_000,
            room: 64_000,
        }
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.nth += 1;
        keyed_mix(self.seed, self.nth) % 1000 < per_mille
    }

    fn put(&mut self, after: u64, event: WorldEvent) {
        self.nth += 1;
        self.events.insert((self.now + after, self.nth), event);
    }

    /// A segment of ours: `tag` is the probe and the place in it.
    fn there(&mut self, out: OutgoingSegment, tag: Option<(u32, usize)>, late: bool) {
        if self.chance(self.faults.there_lost) {
            if let Some((probe, place)) = tag {
                self.truths.entry(probe).or_default().there_lost[place] = true;
            }
            return;
        }
        self.put(DELAY + if late { MS } else { 0 }, WorldEvent::There(out));
    }

    fn back(&mut self, sequence: u32, length: u32, extra: u8) {
        let (acknowledgement, window) = (self.server.expects, self.room.saturating_sub(self.server.taken));
        let flags = flags::ACK | extra;
        let window = u16::try_from(window).unwrap();
        let segment = IncomingSegment { sequence, acknowledgement, flags, window, length };
        let place = self.answers_due.iter().position(|due| *due == sequence && length > 0);
        let tag = self.probe.zip(place);
        let is_first = tag.is_some_and(|(probe, place)| !self.truths[&probe].back_sent[place]);
        let lost = self.chance(self.faults.back_lost);
        let late = if self.chance(self.faults.back_late) { MS } else { 0 };
        if let Some((probe, place)) = tag.filter(|_| is_first) {
            let truth = self.truths.get_mut(&probe).unwrap();
            truth.back_sent[place] = true;
            truth.back_lost[place] = lost;
            // Both answers may leave at the same time: the late one comes after the other.
            truth.back_at[place] = self.now + late;
        }
        if !lost {
            self.put(DELAY + late, WorldEvent::Back(segment));
        }
    }

    fn send_what_may_go(&mut self) {
        loop {
            let server = &self.server;
            let open = server.edge.wrapping_sub(server.next);
            let rest = server.first.wrapping_add(server.queue).wrapping_sub(server.next);
            let length = SIZE.min(rest);
            if length == 0 || open > 1 << 20 || open < length {
                break;
            }
            let next = server.next;
            self.server.next = next.wrapping_add(length);
            self.back(next, length, 0);
            self.repeat_later();
        }
    }

    fn repeat_later(&mut self) {
        if self.server.repeat_at.is_none() {
            self.server.repeat_at = Some(self.now + 200 * MS + 2 * DELAY);
            self.put(200 * MS + 2 * DELAY, WorldEvent::Repeat);
        }
    }

    fn arrived(&mut self, out: &OutgoingSegment) {
        if out.flags & flags::SYN != 0 {
            let first = u32::try_from(keyed_mix(self.seed, u64::from(out.sequence)) >> 32).unwrap();
            let expects = out.sequence.wrapping_add(1);
            self.server =
                TestServer { is_open: true, expects, next: first.wrapping_add(1), ..TestServer::default() };
            self.server.first = first.wrapping_add(1);
            self.server.unacknowledged = self.server.first;
            (self.server.edge, self.server.window_from) = (self.server.first, out.sequence);
            return self.back(first, 0, flags::SYN);
        }
        if out.flags & flags::RST != 0 {
            self.server.is_open &= out.sequence != self.server.expects;
            return;
        }
        if self.faults.forgets > 0 && self.chance(self.faults.forgets) {
            self.server.is_open = false;
        }
        if self.server.is_open {
            self.took(out);
        } else if self.faults.forgets > 0 {
            let (sequence, flags) = (out.acknowledgement, flags::RST);
            self.put(
                DELAY,
                WorldEvent::Back(IncomingSegment {
                    sequence,
                    acknowledgement: 0,
                    flags,
                    window: 0,
                    length: 0,
                }),
            );
        }
    }

    /// The order of Linux: window and acknowledgement first, then the data, then what may be sent, then a bare acknowledgement.
    fn took(&mut self, out: &OutgoingSegment) {
        let length = u32::try_from(out.payload.len()).unwrap();
        let end = out.sequence.wrapping_add(length);
        let (before, next) = (self.server.expects, self.server.next);
        if length > 0 && !evidence::is_sequence_after(end, before) {
            return self.back(next, 0, 0);
        }
        let server = &mut self.server;
        if evidence::is_sequence_after(out.acknowledgement, server.unacknowledged) {
            server.unacknowledged = out.acknowledgement;
            server.repeat_at = None;
        }
        if !evidence::is_sequence_after(server.window_from, out.sequence) {
            server.window_from = out.sequence;
            server.edge = out.acknowledgement.wrapping_add(out.window.into());
        }
        let mut is_filled = false;
        if length > 0 && out.sequence == before {
            server.expects = end;
            if let Some((from, to)) = server.beyond
                && from == end
            {
                (server.expects, server.beyond, is_filled) = (to, None, true);
            }
            server.taken += server.expects.wrapping_sub(before);
            if server.queue == 0 {
                server.queue = self.object;
            }
        } else if length > 0 {
            server.beyond = Some((out.sequence, end));
        }
        self.send_what_may_go();
        if length > 0 && self.server.next == next || is_filled {
            self.back(self.server.next, 0, 0);
        }
    }

    fn repeat(&mut self) {
        if self.server.repeat_at != Some(self.now) {
            return;
        }
        self.server.repeat_at = None;
        let from = self.server.unacknowledged;
        if self.server.is_open && from != self.server.next {
            self.back(from, SIZE.min(self.server.next.wrapping_sub(from)), 0);
            self.repeat_later();
        }
    }

    fn happens(&mut self, event: WorldEvent, machine: &mut OneprobeMachine) {
        match event {
            WorldEvent::There(out) => self.arrived(&out),
            WorldEvent::Back(segment) => machine.on_segment(&segment, self.now),
            WorldEvent::Repeat => self.repeat(),
        }
    }

    fn pair(&mut self, at: u64, segments: [OutgoingSegment; 2], number: u32) {
        self.now = self.now.max(at);
        self.probe = Some(number);
        self.truths.insert(number, ProbeTruth::default());
        let first = segments[0].acknowledgement;
        self.answers_due = [first, first.wrapping_add(SIZE)];
        let late = self.chance(self.faults.there_late);
        self.truths.get_mut(&number).unwrap().there_changed = late;
        let [one, other] = segments;
        self.there(one, Some((number, 0)), late);
        self.there(other, Some((number, 1)), false);
    }

    fn run(&mut self, machine: &mut OneprobeMachine) {
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 2_000_000, "no end: {:?}", machine.report());
            match machine.next_step(self.now) {
                OneprobeStep::Over => return,
                OneprobeStep::Send(out) => self.there(out, None, false),
                OneprobeStep::Pair { at, segments } => {
                    // Segments that arrive before then are handled first.
                    let number = u32::try_from(machine.report().0.probes).unwrap();
                    self.pair(at, segments, number);
                    machine.on_pair_sent(PairDeparture::Both(self.now), self.now);
                }
                OneprobeStep::Wait(until) => {
                    let next =
                        self.events.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= until);
                    self.now = self.now.max(next.unwrap_or(until));
                    if next.is_some() {
                        let (_, event) = self.events.pop_first().unwrap();
                        self.happens(event, machine);
                    }
                }
            }
        }
    }
}

const MANNER: OneprobeOptions =
    OneprobeOptions { count: 2_000, every_ns: 500 * MS, payload: 300, answer: 536, seed: 9 };

fn measured(world: &mut TestWorld, options: OneprobeOptions) -> (OneprobeReport, Option<OneprobeFailure>) {
    let mut machine = OneprobeMachine::new(options, HttpRequest::new("lab.example", "/", None));
    world.run(&mut machine);
    let (report, failure) = machine.report();
    (report.clone(), failure)
}

/// Every verdict against the truth.
fn agrees(report: &OneprobeReport, world: &TestWorld) {
    for outcome in &report.outcomes {
        let ProbeVerdict::Told { forward, reverse } = outcome.verdict else { continue };
        let truth = world.truths[&outcome.number];
        let expected = match truth.there_lost {
            [true, true] => ForwardOutcome::BothLost,
            [true, false] => ForwardOutcome::FirstLost,
            [false, true] => ForwardOutcome::SecondLost,
            [false, false] if truth.there_changed => ForwardOutcome::Both(ArrivalOrder::Changed),
            [false, false] => ForwardOutcome::Both(ArrivalOrder::Kept),
        };
        let is_same = forward == expected
            || matches!(
                (forward, expected),
                (ForwardOutcome::Both(ArrivalOrder::Unknown), ForwardOutcome::Both(_))
            );
        assert!(is_same, "{outcome:?} {truth:?}");
        let lost: Vec<_> = (0..2).map(|n| truth.back_sent[n] && truth.back_lost[n]).collect();
        let said: Vec<_> = (0..2).map(|n| (n as u64) < reverse.sent && !reverse.heard[n]).collect();
        assert_eq!(said, lost, "{outcome:?} {truth:?}");
        if reverse.order != ArrivalOrder::Unknown {
            let changed = truth.back_at[1] < truth.back_at[0];
            assert_eq!(reverse.order == ArrivalOrder::Changed, changed, "{outcome:?} {truth:?}");
        }
    }
}

#[test]
fn a_clean_path_has_only_round_trips() {
    let mut world = TestWorld::new(PathFaults::default(), 1);
    let (report, failure) = measured(&mut world, MANNER);
    assert_eq!((failure, report.probes), (None, 2_000));
    assert!(report.ambiguous.is_empty(), "{:?}", report.ambiguous);
    assert_eq!((report.forward.lost, report.reverse.lost), (0, 0));
    assert_eq!((report.forward.ordered, report.forward.reordered), (2_000, 0));
    assert!(report.round_trips.len() == 2_000 && report.round_trips.iter().all(|took| *took == 2 * DELAY));
    // The server took no more than its room holds, so there were several.
    assert!(report.connections > 10 && report.connections < 40, "{}", report.connections);
    assert_eq!(report.handshakes.len() as u64, report.connections);
}

#[test]
fn oneprobe_verdicts_match_simulated_faults_both_ways() {
    let faults = |there_lost, there_late, back_lost, back_late| PathFaults {
        there_lost,
        there_late,
        back_lost,
        back_late,
        forgets: 0,
    };
    for (seed, faults) in [
        faults(30, 0, 0, 0),
        faults(0, 0, 30, 0),
        faults(0, 50, 0, 0),
        faults(0, 0, 0, 50),
        faults(20, 30, 20, 30),
        faults(100, 100, 100, 100),
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = TestWorld::new(faults, seed as u64);
        let (report, failure) = measured(&mut world, MANNER);
        assert_eq!((failure, report.probes), (None, 2_000));
        agrees(&report, &world);
        let ambiguous: u64 = report.ambiguous.values().sum();
        assert_eq!(report.told + ambiguous, report.probes);
        assert!(ambiguous * 20 < report.probes, "{:?}", report.ambiguous);
        let (there, back) = (report.forward, report.reverse);
        let share = |part: u64, whole: u64| part as f64 * 1_000.0 / whole as f64;
        assert!((share(there.lost, there.sent) - faults.there_lost as f64).abs() < 20.0, "{there:?}");
        assert!((share(back.lost, back.sent) - faults.back_lost as f64).abs() < 20.0, "{back:?}");
        assert!((share(there.reordered, there.ordered) - faults.there_late as f64).abs() < 25.0, "{there:?}");
    }
}

#[test]
fn exhausted_object_costs_one_probe_and_connection() {
    let mut world = TestWorld::new(PathFaults::default(), 2);
    world.object = 20_000;
    let (report, failure) = measured(&mut world, OneprobeOptions { count: 200, ..MANNER });
    assert_eq!((failure, report.probes), (None, 200));
    assert!(report.told >= 170, "{report:?}");
    assert_eq!(report.ambiguous.keys().copied().collect::<Vec<_>>(), [AmbiguityReason::ServerQuiet]);
    agrees(&report, &world);
}

#[test]
fn servers_that_are_none_are_told_apart() {
    let mut world = TestWorld::new(PathFaults::default(), 3);
    world.object = 900;
    let (report, failure) = measured(&mut world, MANNER);
    assert_eq!((failure, report.told), (Some(OneprobeFailure::TooShort), 0));
    let mut world = TestWorld::new(PathFaults { there_lost: 1_000, ..PathFaults::default() }, 3);
    assert_eq!(measured(&mut world, MANNER).1, Some(OneprobeFailure::Silent));
    let mut machine = OneprobeMachine::new(MANNER, HttpRequest::new("lab.example", "/", None));
    let OneprobeStep::Send(syn) = machine.next_step(0) else { panic!("no call") };
    let refusal = IncomingSegment {
        sequence: 0,
        acknowledgement: syn.sequence.wrapping_add(1),
        flags: flags::RST | flags::ACK,
        window: 0,
        length: 0,
    };
    machine.on_segment(&refusal, 1);
    assert_eq!(
        (machine.next_step(2), machine.report().1),
        (OneprobeStep::Over, Some(OneprobeFailure::Refused))
    );
}

#[test]
fn forgetful_server_costs_at_most_one_probe() {
    let mut world = TestWorld::new(PathFaults { forgets: 10, ..PathFaults::default() }, 6);
    let (report, failure) = measured(&mut world, MANNER);
    assert_eq!((failure, report.probes), (None, 2_000));
    assert!(report.connections > 20 && report.told > 1_800, "{report:?}");
    assert_eq!(
        report.ambiguous.keys().copied().collect::<Vec<_>>(),
        [AmbiguityReason::Ended],
        "nothing is waited for"
    );
    agrees(&report, &world);
}

/// Makes three probes that do not leave, and returns the report.
fn run_with_departure(departure: PairDeparture) -> OneprobeReport {
    let mut world = TestWorld::new(PathFaults::default(), 4);
    let mut machine = OneprobeMachine::new(
        OneprobeOptions { count: 3, ..MANNER },
        HttpRequest::new("lab.example", "/", None),
    );
    loop {
        match machine.next_step(world.now) {
            OneprobeStep::Over => break,
            OneprobeStep::Send(out) => world.there(out, None, false),
            OneprobeStep::Pair { at, .. } => {
                world.now = world.now.max(at);
                machine.on_pair_sent(departure, world.now);
            }
            OneprobeStep::Wait(until) => {
                let next = world.events.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= until);
                world.now = world.now.max(next.unwrap_or(until));
                if next.is_some() {
                    let (_, event) = world.events.pop_first().unwrap();
                    world.happens(event, &mut machine);
                }
            }
        }
    }
    machine.report().0.clone()
}

#[test]
fn probes_that_were_not_sent_are_accounted_for() {
    for (departure, connections) in [(PairDeparture::Neither, 1), (PairDeparture::OnlyOne, 3)] {
        let report = run_with_departure(departure);
        assert_eq!(report.ambiguous, BTreeMap::from([(AmbiguityReason::Unsent, 3)]));
        assert_eq!(
            report.connections, connections,
            "{departure:?}: the server may have the segment that left"
        );
    }
}

#[test]
fn coalesced_answers_count_as_two() {
    let mut evidence = evidence::ProbeEvidence::new([100, 400, 700], [5_000, 5_536, 6_072]);
    evidence.add_data_segment(5_000, 1_072, 100, 7, true);
    assert_eq!(evidence.verdict_by_answers(), None);
    let reverse = ReverseOutcome { sent: 2, heard: [true, true], order: ArrivalOrder::Kept };
    let told = |forward| ProbeVerdict::Told { forward, reverse };
    assert_eq!(evidence.verdict_with_state(100, 6_072), told(ForwardOutcome::FirstLost));
    evidence.add_segment_without_data(700);
    assert_eq!(evidence.verdict_by_answers(), Some(told(ForwardOutcome::Both(ArrivalOrder::Changed))));
    // Cut elsewhere, they are no answers.
    let mut evidence = evidence::ProbeEvidence::new([100, 400, 700], [5_000, 5_536, 6_072]);
    evidence.add_data_segment(5_000, 900, 400, 7, true);
    assert_eq!(
        evidence.verdict_with_state(700, 6_072),
        ProbeVerdict::Ambiguous(AmbiguityReason::ServerQuiet)
    );
}
