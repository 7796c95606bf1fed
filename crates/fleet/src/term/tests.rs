use super::*;

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn identity(name: &str) -> ControllerIdentity {
    ControllerIdentity {
        controller: name.into(),
        user: "alice".into(),
        host: "h".into(),
        place: "here".into(),
        pid: 7,
    }
}

fn record() -> TermRecord {
    ControllerTerm::first_record(identity("other"), 0)
}

fn watch() -> ControllerTermWatch {
    ControllerTermWatch::new(ControllerTermTimes::default())
}

fn term() -> ControllerTerm {
    ControllerTerm::from_record(record(), 5, ControllerTermTimes::default(), at(0))
}

#[test]
fn unchanging_term_is_eventually_dead() {
    let (mut watch, other) = (watch(), record());
    let mut look =
        |revision, ms| watch.judge_term_record("other", Some((&other, revision)), &|_| None, at(ms));
    assert_eq!(look(1, 0), TermState::Unclear(at(15_000)));
    assert_eq!(look(2, 2_000), TermState::Alive);
    assert_eq!(look(2, 16_999), TermState::Unclear(at(17_000)));
    assert_eq!(look(2, 17_000), TermState::Dead(2));
    assert_eq!(look(3, 17_001), TermState::Alive, "it came back before anybody ended it");
}

#[test]
fn controller_gone_from_host_is_dead_at_once() {
    let look = |record: Option<&TermRecord>, is_there| {
        watch().judge_term_record("other", record.map(|record| (record, 1)), &|_| is_there, at(1))
    };
    let found = record();
    assert_eq!(look(Some(&found), Some(true)), TermState::Alive);
    assert_eq!(look(Some(&found), Some(false)), TermState::Dead(1));
    assert!(matches!(look(Some(&found), None), TermState::Unclear(_)));
    let over = TermRecord { is_over: true, ..found };
    assert_eq!(look(Some(&over), Some(true)), TermState::Over);
    assert_eq!(look(None, Some(true)), TermState::Over);
}

/// A process that exists may be ended as well, if it was stopped for long enough.
#[test]
fn process_without_refresh_is_eventually_dead() {
    let (mut watch, here) = (watch(), record());
    assert_eq!(watch.judge_term_record("other", Some((&here, 1)), &|_| Some(true), at(0)), TermState::Alive);
    assert_eq!(
        watch.judge_term_record("other", Some((&here, 1)), &|_| Some(true), at(15_000)),
        TermState::Dead(1)
    );
}

#[test]
fn term_without_refresh_commits_nothing() {
    let mut term = term();
    assert_eq!(term.take_due_refresh(at(1_999)), None);
    assert!(matches!(term.take_due_refresh(at(2_000)), Some((5, _))));
    assert!(!term.may_commit(at(15_000)), "no answer: it counts from the last one that worked");
    assert!(matches!(term.take_due_refresh(at(4_000)), Some((5, _))), "the same again");
    term.on_term_refreshed(6);
    assert!(term.may_commit(at(18_999)));
    assert!(!term.may_commit(at(19_000)), "counted from when it was asked for, not from the answer");
    assert!(matches!(term.take_due_refresh(at(6_000)), Some((6, _))));
    let ended = TermRecord { is_over: true, ..record() };
    term.on_term_refresh_refused(Some((&ended, 7)));
    assert!(term.is_lost());
    assert!(!term.may_commit(at(6_001)));
    assert_eq!(term.take_due_refresh(at(60_000)), None);
}

#[test]
fn a_refusal_by_its_own_writing_is_none() {
    let mut term = term();
    let (_, written) = term.take_due_refresh(at(2_000)).expect("due");
    // It was written, the answer was lost, and the same again is refused.
    term.take_due_refresh(at(4_000));
    term.on_term_refresh_refused(Some((&written, 6)));
    assert!(!term.is_lost());
    assert!(!term.may_commit(at(17_000)), "it may have been the first that was written");
    assert!(matches!(term.take_due_refresh(at(6_000)), Some((6, _))));
    term.on_term_refresh_refused(None);
    assert!(term.is_lost(), "somebody took it away");
}
