//! What every fabric must do. A networked fabric is held to [`conforms`] as the local one is.

use packetrig_fleet::fabric::{Endpoint, Error, Fabric};
use packetrig_fleet::local::Local;
use packetrig_fleet::message::{Body, Command, Head, NodeName, PlanHash, Reply, RunId};
use packetrig_stats::result::Sample;
use packetrig_units::{MonoTime, Nanos};

const SOON: Nanos = Nanos::from_millis(5);
const LONG: Nanos = Nanos::from_secs(10);

fn head() -> Head {
    Head { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::of("p") }
}

fn sample(at: u64) -> Body {
    Body::Telemetry(head(), Box::new(Sample { at: MonoTime::from_nanos(at), ..Sample::default() }))
}

fn conforms<F: Fabric>(make: impl Fn() -> F) {
    messages_arrive_in_order(&make());
    telemetry_is_dropped_and_letters_are_not(&make());
    nobody_is_answered_by_an_error(&make());
    waiting_ends_with_a_message_from_another_thread(&make());
}

fn join<F: Fabric>(fabric: &F, name: &str) -> F::Endpoint {
    fabric.join(NodeName(name.into())).expect("the name is free")
}

fn messages_arrive_in_order<F: Fabric>(fabric: &F) {
    let (mut a, mut b, mut c) = (join(fabric, "a"), join(fabric, "b"), join(fabric, "c"));
    for command in [Command::Arm, Command::Stop, Command::Query] {
        let letter = Body::Command(head(), command);
        a.post(&NodeName("b".into()), letter).expect("it works");
    }
    let got: Vec<Body> = (0..3).map(|_| b.receive(LONG).expect("not lost").body).collect();
    let wanted = [Command::Arm, Command::Stop, Command::Query].map(|command| Body::Command(head(), command));
    assert_eq!(got, wanted);
    assert_eq!(b.receive(SOON), None);
    assert_eq!(c.receive(SOON), None, "what is not for it does not come");
}

fn telemetry_is_dropped_and_letters_are_not<F: Fabric>(fabric: &F) {
    let (mut a, mut b) = (join(fabric, "a"), join(fabric, "b"));
    let to = NodeName("b".into());
    let posted = 100_000;
    for at in 0..posted {
        let letter = sample(at);
        a.post(&to, letter).expect("a slow reader is no error");
    }
    let letter = Body::Reply(head(), Reply::Armed);
    a.post(&to, letter).expect("it works");
    assert_eq!(
        b.receive(LONG).expect("it works").body,
        Body::Reply(head(), Reply::Armed),
        "replies overtake telemetry"
    );
    let mut arrived = 0;
    while b.receive(SOON).is_some() {
        arrived += 1;
    }
    assert!(arrived > 0 && arrived < posted);
    assert_eq!(arrived + b.dropped(), posted, "what is dropped is counted");
}

fn nobody_is_answered_by_an_error<F: Fabric>(fabric: &F) {
    let mut a = join(fabric, "a");
    let nobody = NodeName("nobody".into());
    let letter = Body::Command(head(), Command::Arm);
    assert_eq!(a.post(&nobody, letter.clone()), Err(Error::Unknown(nobody.clone())));
    assert!(matches!(fabric.join(NodeName("a".into())), Err(Error::Taken(_))));
    drop(join(fabric, "b"));
    assert!(a.post(&NodeName("b".into()), letter).is_err(), "it has left");
    join(fabric, "b");
}

fn waiting_ends_with_a_message_from_another_thread<F: Fabric>(fabric: &F) {
    let (mut a, mut b) = (join(fabric, "a"), join(fabric, "b"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let letter = b.receive(LONG).expect("the question");
            let answer = Body::Reply(head(), Reply::Armed);
            b.post(&letter.from, answer).expect("it works");
        });
        let letter = Body::Command(head(), Command::Arm);
        a.post(&NodeName("b".into()), letter).expect("it works");
        assert_eq!(a.receive(LONG).expect("the answer").body, Body::Reply(head(), Reply::Armed));
    });
}

#[test]
fn the_local_fabric_conforms() {
    conforms(Local::default);
}
