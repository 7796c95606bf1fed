//! The faults of [`Faulty`], each seen over a fabric of any kind.

use super::{LONG, SOON, command, controller, join, node, post, segment};
use crate::fabric::{Endpoint, Error, Fabric, Incoming, Outgoing, Records};
use crate::faulty::{Faults, Faulty};
use crate::message::{Body, Command, Nonce};

/// Each fault does what it says, and when it is taken away everything works as before.
pub fn faults_do_what_they_say<F: Fabric>(make: impl Fn() -> F) {
    messages(&Faulty::new(make()));
    calls(&Faulty::new(make()));
}

fn letters<E: Endpoint>(at: &mut E) -> Vec<Body> {
    let first = at.receive(LONG).map(|letter| letter.body);
    first.into_iter().chain(std::iter::from_fn(|| Some(at.receive(SOON)?.body))).collect()
}

fn messages<F: Fabric>(fabric: &Faulty<F>) {
    let (mut from, mut a) = (controller(fabric), join(fabric, &node("a")));
    let three = [Command::Arm, Command::Query, Command::Stop].map(command);
    let [arm, query, stop] = three.clone();
    let mut sent = |faults: Faults| {
        fabric.set(faults);
        for letter in three.clone() {
            post(&mut from, &node("a"), letter);
        }
        letters(&mut a)
    };
    assert_eq!(sent(Faults::default()), three);
    assert_eq!(sent(Faults { lose_each: Some(3), ..Faults::default() }), [arm.clone(), query.clone()]);
    let repeated = [arm.clone(), query.clone(), stop.clone(), stop.clone()];
    assert_eq!(sent(Faults { repeat_each: Some(3), ..Faults::default() }), repeated);
    assert_eq!(sent(Faults { hold_back: 2, ..Faults::default() }), three[..1]);
    let late = [query.clone(), stop.clone(), arm, query, stop];
    assert_eq!(sent(Faults::default()), late, "what was held back comes first");

    fabric.set(Faults { refuse: true, ..Faults::default() });
    assert_eq!(from.post(&node("a"), Body::RollCall(Nonce(1))), Err(Error::NotPermitted("a".into())));
    fabric.set(Faults { cut: true, ..Faults::default() });
    assert!(matches!(from.post(&node("a"), Body::RollCall(Nonce(1))), Err(Error::Down(_))));
    assert_eq!(a.receive(LONG), None);
    fabric.set(Faults::default());
    post(&mut from, &node("a"), Body::RollCall(Nonce(1)));
    assert_eq!(letters(&mut a), [Body::RollCall(Nonce(1))]);
}

fn calls<F: Fabric>(fabric: &Faulty<F>) {
    let parts = || {
        Ok::<_, Error>((fabric.records()?, super::reader(fabric, "one", &[]), fabric.outgoing(&node("a"))?))
    };
    let (mut records, mut incoming, mut outgoing) =
        parts().unwrap_or_else(|error| panic!("opening: {error}"));
    fabric.set(Faults { cut: true, ..Faults::default() });
    assert!(matches!(records.get("k"), Err(Error::Down(_))));
    assert!(matches!(outgoing.append(&segment("a", 0), b"x"), Err(Error::Down(_))));
    assert!(incoming.collect(LONG).is_none());
    fabric.set(Faults { full: true, ..Faults::default() });
    assert_eq!(outgoing.append(&segment("a", 0), b"x"), Err(Error::Full));
    fabric.set(Faults { refuse: true, ..Faults::default() });
    assert_eq!(records.create("k", b"x"), Err(Error::NotPermitted("k".into())));
    fabric.set(Faults { unanswered: true, ..Faults::default() });
    assert!(matches!(outgoing.append(&segment("a", 0), b"x"), Err(Error::Unanswered(_))));
    fabric.set(Faults::default());
    assert_eq!(outgoing.append(&segment("a", 0), b"x"), Ok(()), "the same again");
    let delivery = incoming.collect(LONG).unwrap_or_else(|| panic!("it was kept"));
    assert_eq!(incoming.confirm(delivery.token), Ok(()));
    assert!(incoming.collect(SOON).is_none(), "it was kept once");
}
