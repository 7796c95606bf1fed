use super::*;
use crate::fabric::Fabric as _;
use crate::local::{LocalFabric, LocalRecords};
use crate::term::{ControllerTerm, ControllerTermTimes, TermRecord};

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

fn identity(name: &str) -> ControllerIdentity {
    ControllerIdentity {
        controller: name.into(),
        user: "alice".into(),
        host: format!("{name}-host"),
        place: name.into(),
        pid: 1,
    }
}

fn wanted(run: &str, nodes: &[&str], heard: u64) -> WantedNodes {
    let nodes = nodes.iter().map(|name| node(name)).collect();
    WantedNodes { run: RunId(run.into()), nodes, heard, wall_ns: 50_580_000_000_000 }
}

fn claim(by: &str, nodes: &[&str], heard: u64) -> LeadClaim {
    let me = identity(by);
    let watch = ControllerTermWatch::new(ControllerTermTimes::default());
    LeadClaim::new(me, wanted(by, nodes, heard), watch)
}

fn begin(records: &mut LocalRecords, name: &str) -> u64 {
    let record = ControllerTerm::first_record(identity(name), 0);
    records
        .create_record(&TermRecord::record_key(name), &StoredRecord::encode_value(&record))
        .expect("it is new")
}

fn finish(claim: &mut LeadClaim, records: &mut LocalRecords, now: MonoTime) -> ClaimProgress {
    loop {
        match claim.advance_claim(records, &|_| Some(true), now).expect("memory") {
            ClaimProgress::UnderWay => {}
            done => return done,
        }
    }
}

fn taken(claim: &mut LeadClaim, records: &mut LocalRecords, now: MonoTime) -> (u64, Vec<OwnLead>) {
    match finish(claim, records, now) {
        ClaimProgress::Taken(epoch, leads) => (epoch, leads),
        other => panic!("{other:?}"),
    }
}

fn return_units(leads: Vec<OwnLead>, records: &mut LocalRecords) {
    assert_eq!(release_leads(records, leads), (Vec::new(), None));
}

fn lead_of(records: &mut LocalRecords, name: &str) -> NodeLead {
    let record =
        records.get_record(&NodeLead::record_key(&node(name))).expect("memory").expect("it was taken");
    record.decode_value().expect("it is readable")
}

#[test]
fn claim_epoch_exceeds_all_leads_and_nodes() {
    let mut records = LocalFabric::default().open_records().expect("memory");
    begin(&mut records, "x");
    let (epoch, leads) = taken(&mut claim("x", &["a"], 0), &mut records, at(0));
    assert_eq!((epoch, &leads[0].before), (1, &None));
    return_units(leads, &mut records);
    let (epoch, _) = taken(&mut claim("x", &["a", "b"], 7), &mut records, at(0));
    assert_eq!(epoch, 8, "a node has heard of more than the records say");
    assert_eq!([lead_of(&mut records, "a").epoch, lead_of(&mut records, "b").epoch], [8, 8]);
    begin(&mut records, "y");
    let (epoch, _) = taken(&mut claim("y", &["c"], 0), &mut records, at(0));
    assert_eq!(epoch, 1, "other nodes have epochs of their own");
}

#[test]
fn blocked_claim_holds_nothing_and_names_holder() {
    let mut records = LocalFabric::default().open_records().expect("memory");
    for name in ["x", "y"] {
        begin(&mut records, name);
    }
    let (_, leads) = taken(&mut claim("x", &["b"], 0), &mut records, at(0));
    let mut second = claim("y", &["a", "b"], 0);
    let ClaimProgress::Blocked(held) = finish(&mut second, &mut records, at(1)) else { panic!("b is held") };
    assert_eq!(held.keys().collect::<Vec<_>>(), [&node("b")]);
    assert_eq!(held[&node("b")].lead.to_string(), "belongs to run x of alice@x-host since 14:03 UTC");
    assert_eq!(records.get_record("lead.a"), Ok(None), "nothing was written");
    return_units(leads, &mut records);
    let (epoch, leads) = taken(&mut second, &mut records, at(2));
    assert_eq!(epoch, 2);
    assert_eq!(leads[1].before.as_ref().map(|before| before.run.0.as_str()), Some("x"));
}

/// A claim takes over only the wanted nodes, and the dead controller has lost altogether: its next refresh is refused.
#[test]
fn dead_term_is_ended_once_for_wanted_nodes() {
    let mut records = LocalFabric::default().open_records().expect("memory");
    let revision = begin(&mut records, "x");
    taken(&mut claim("x", &["a", "b"], 0), &mut records, at(0));
    begin(&mut records, "y");
    let mut second = claim("y", &["b"], 0);
    assert!(matches!(finish(&mut second, &mut records, at(0)), ClaimProgress::Blocked(_)));
    assert!(matches!(finish(&mut second, &mut records, at(14_999)), ClaimProgress::Blocked(_)));
    let (epoch, leads) = taken(&mut second, &mut records, at(15_000));
    assert_eq!((epoch, leads.len()), (2, 1));
    assert_eq!(leads[0].before.as_ref().map(|before| before.run.0.as_str()), Some("x"));
    assert_eq!(lead_of(&mut records, "a").controller, "x", "nobody needs it yet");
    let refresh = StoredRecord::encode_value(&ControllerTerm::first_record(identity("x"), 0));
    assert!(matches!(records.replace_record("term.x", revision, &refresh), Err(Error::Stale(_))));
    // The next claim need not wait: the term of the holder is over.
    begin(&mut records, "z");
    taken(&mut claim("z", &["a"], 0), &mut records, at(15_001));
}

/// The generator splitmix64, for reproducible seeds.
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % bound
}

/// Does what is asked, and sometimes the answer is lost.
struct LossyRecords<'a>(&'a mut LocalRecords, bool);

impl LossyRecords<'_> {
    fn answer<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        if self.1 { Err(Error::Unanswered("lost".into())) } else { done }
    }
}

impl RecordStore for LossyRecords<'_> {
    fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, Error> {
        let found = self.0.get_record(key);
        self.answer(found)
    }
    fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, Error> {
        let done = self.0.create_record(key, value);
        self.answer(done)
    }
    fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error> {
        let done = self.0.replace_record(key, revision, value);
        self.answer(done)
    }
    fn remove_record(&mut self, key: &str) -> Result<(), Error> {
        self.0.remove_record(key)
    }
    fn list_keys(&mut self, prefix: &str) -> Result<Vec<String>, Error> {
        self.0.list_keys(prefix)
    }
}

/// Present activity of a controller.
enum ActorState {
    Claims(Box<LeadClaim>),
    /// Has given a claim up, and gives back what that may have written.
    GivesUp(UncertainLeads),
    /// Works with its nodes until then.
    Leads(u64, Vec<OwnLead>),
    GivesBack(Vec<OwnLead>),
    /// Has had its turn.
    Rests,
    /// Found that its term was ended.
    Lost,
}

/// A controller whose process may stop at any moment, and go on later or never.
struct LeadActor {
    name: &'static str,
    nodes: &'static [&'static str],
    term: ControllerTerm,
    refreshing: Option<(u64, TermRecord)>,
    doing: ActorState,
    sleeps_until: u64,
    turns: u32,
    /// Claims the leads of its nodes.
    gave_up: u32,
}

impl LeadActor {
    fn new(records: &mut LocalRecords, name: &'static str, nodes: &'static [&'static str]) -> Self {
        let revision = begin(records, name);
        let term = ControllerTerm::from_record(
            ControllerTerm::first_record(identity(name), 0),
            revision,
            ControllerTermTimes::default(),
            at(0),
        );
        let doing = ActorState::Claims(Box::new(claim(name, nodes, 0)));
        Self { name, nodes, term, refreshing: None, doing, sleeps_until: 0, turns: 0, gave_up: 0 }
    }

    /// Refreshes its term in two steps: between the decision and the writing any time may pass.
    fn refresh(&mut self, records: &mut LocalRecords, is_lost: bool, now: MonoTime) {
        let Some((revision, record)) = self.refreshing.take() else {
            self.refreshing = self.term.take_due_refresh(now);
            return;
        };
        let key = TermRecord::record_key(self.name);
        match LossyRecords(records, is_lost).replace_record(
            &key,
            revision,
            &StoredRecord::encode_value(&record),
        ) {
            Ok(revision) => self.term.on_term_refreshed(revision),
            Err(Error::Stale(_)) => {
                let found = records.get_record(&key).expect("memory");
                let record: Option<TermRecord> = found.as_ref().and_then(StoredRecord::decode_value);
                let revision = found.map_or(0, |found| found.revision);
                self.term.on_term_refresh_refused(record.as_ref().map(|record| (record, revision)));
            }
            Err(_) => {}
        }
        if self.term.is_lost() {
            self.doing = ActorState::Lost;
        }
    }

    /// Half of the claims write all at once until they meet another.
    fn begin_claim(&self, random: &mut u64) -> ActorState {
        let claim = claim(self.name, self.nodes, 0);
        ActorState::Claims(Box::new(if draw(random, 2) == 0 { claim } else { claim.with_single_writes() }))
    }

    fn act(&mut self, records: &mut LocalRecords, random: &mut u64, ms: u64) {
        let is_lost = draw(random, 12) == 0;
        let mut records = LossyRecords(records, is_lost);
        self.doing = match std::mem::replace(&mut self.doing, ActorState::Lost) {
            ActorState::Claims(claim) if draw(random, 40) == 0 => {
                let nodes = claim.nodes_with_possible_lead().clone();
                ActorState::GivesUp(UncertainLeads { run: RunId(self.name.into()), nodes })
            }
            ActorState::GivesUp(mut leads) => match leads.release_uncertain_leads(&mut records, self.name) {
                Ok(()) => {
                    let own = leads_of(records.0, self.name);
                    assert!(own.is_empty(), "{} has given up and holds {own:?}", self.name);
                    self.gave_up += 1;
                    self.begin_claim(random)
                }
                Err(_) => ActorState::GivesUp(leads),
            },
            ActorState::Claims(mut claim) => match claim.advance_claim(&mut records, &|_| Some(true), at(ms))
            {
                Ok(ClaimProgress::Taken(_, leads)) => ActorState::Leads(ms + draw(random, 2_000), leads),
                Ok(ClaimProgress::Blocked(held)) => {
                    assert!(!held.is_empty());
                    let own = leads_of(records.0, self.name);
                    assert!(own.is_empty(), "{} waits and holds {own:?}", self.name);
                    ActorState::Claims(claim)
                }
                Ok(ClaimProgress::UnderWay) | Err(_) => ActorState::Claims(claim),
            },
            ActorState::Leads(until, leads) if ms >= until => ActorState::GivesBack(leads),
            ActorState::GivesBack(mut leads) => {
                if let Some(lead) = leads.pop() {
                    leads.extend(release_leads(&mut records, vec![lead]).0);
                    ActorState::GivesBack(leads)
                } else {
                    self.turns += 1;
                    ActorState::Rests
                }
            }
            ActorState::Rests if self.turns < 3 => self.begin_claim(random),
            other => other,
        };
    }

    /// Nodes that it may command, with the epoch of each.
    fn commands(&self, ms: u64) -> Vec<(NodeName, u64)> {
        let ActorState::Leads(_, leads) = &self.doing else { return Vec::new() };
        let leads = leads.iter().filter(|_| self.term.may_commit(at(ms)));
        leads.map(|lead| (lead.node.clone(), lead.lead.epoch)).collect()
    }
}

/// Nodes whose lead names this controller.
fn leads_of(records: &mut LocalRecords, name: &str) -> Vec<String> {
    let mut keys = records.list_keys("lead.").expect("memory");
    keys.retain(|key| {
        let lead =
            records.get_record(key).expect("memory").and_then(|record| record.decode_value::<NodeLead>());
        lead.is_some_and(|lead| lead.controller == name && !lead.is_free)
    });
    keys
}

/// Controllers want overlapping sets of nodes, in any order of their steps, while processes stop and answers are lost.
#[test]
fn contending_claims_all_get_exclusive_turns() {
    const WANTED: [(&str, &[&str]); 3] = [("x", &["a", "b"]), ("y", &["b", "c"]), ("z", &["c", "a"])];
    let mut turns = 0;
    let mut lost = 0;
    let mut gave_up = 0;
    for seed in 0..1000 {
        let (mut random, mut ms) = (seed, 0);
        let mut records = LocalFabric::default().open_records().expect("memory");
        let mut actors = WANTED.map(|(name, nodes)| LeadActor::new(&mut records, name, nodes));
        // Epoch that each node has obeyed, with its controller.
        let mut obeyed: BTreeMap<NodeName, (u64, &str)> = BTreeMap::new();
        let is_done = |actor: &LeadActor| actor.turns == 3 || matches!(actor.doing, ActorState::Lost);
        while !actors.iter().all(is_done) {
            ms += draw(&mut random, 120);
            assert!(ms < 2_000_000, "seed {seed}: somebody never gets its turn");
            let index = usize::try_from(draw(&mut random, 3)).expect("small");
            let actor = &mut actors[index];
            if actor.sleeps_until <= ms && !matches!(actor.doing, ActorState::Lost) {
                let is_lost = draw(&mut random, 12) == 0;
                actor.refresh(&mut records, is_lost, at(ms));
                if !matches!(actor.doing, ActorState::Lost) {
                    actor.act(&mut records, &mut random, ms);
                }
                if draw(&mut random, 1500) == 0 {
                    actor.sleeps_until = ms + draw(&mut random, 60_000);
                }
            }
            let mut commanded: BTreeMap<NodeName, &str> = BTreeMap::new();
            for actor in &actors {
                for (node, epoch) in actor.commands(ms) {
                    let other = commanded.insert(node.clone(), actor.name);
                    assert_eq!(other, None, "seed {seed}: two command {node} at {ms} ms");
                    let before = obeyed.insert(node.clone(), (epoch, actor.name));
                    assert!(
                        before.is_none_or(
                            |(highest, by)| epoch > highest || epoch == highest && by == actor.name
                        ),
                        "seed {seed}: {node} has obeyed {before:?} and is told {epoch} by {}",
                        actor.name
                    );
                }
            }
        }
        turns += actors.iter().map(|actor| actor.turns).sum::<u32>();
        gave_up += actors.iter().map(|actor| actor.gave_up).sum::<u32>();
        lost += actors.iter().filter(|actor| matches!(actor.doing, ActorState::Lost)).count();
    }
    assert!(turns > 8000, "{turns}: hardly anyone had its turn");
    assert!(gave_up > 100, "{gave_up}: hardly anybody has given up a claim");
    assert!(lost > 20, "{lost}: hardly anybody was taken over");
}
