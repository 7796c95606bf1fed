//! Fetching of captures with certificates and seals, against an attacker that may publish anything on the server.

use crate::fleet::{Fleet, fabric, node};
use crate::server::program;
use crate::stranger::Stranger;
use async_nats::{HeaderMap, Message};
use packetrig_fleet::captures::{
    CaptureAnswer, CaptureAnswers, CaptureIdentity, CaptureName, CaptureQuestions, CaptureRequest,
};
use packetrig_fleet::message::RunId;
use packetrig_units::Nanos;

const PATIENCE: Nanos = Nanos::from_secs(20);
const WISH: CaptureRequest = CaptureRequest::Range { offset: 0, length: 10 };

fn capture() -> CaptureName {
    CaptureName { run: RunId("r".into()), file: "rx.pcapng".into() }
}

#[test]
fn capture_questions_and_answers_must_be_genuine() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, witness) = (fleet.member("a"), fleet.member("witness"));
    let witness = Stranger::witness(&fleet, &witness);
    let (questions, answers) = (witness.listen("get.a"), witness.listen("cap.a"));
    let mut giver = fabric(&a).open_capture_questions(&node("a")).expect("it listens");
    let mut asker = fleet.controller().open_capture_fetcher(&node("a")).expect("it listens");
    let number = asker.send_question(&capture(), WISH).expect("it is asked");
    let question = giver.next_question(PATIENCE).expect("the question comes");
    assert_eq!((question.number, &question.capture, question.request), (number, &capture(), WISH));
    let identity = CaptureIdentity { size: 10, modified_ns: 1 };
    let answer = CaptureAnswer { asker: question.asker, number, outcome: Ok(identity) };
    giver.send_answer(&answer, b"0123456789".to_vec()).expect("it is answered");
    assert_eq!(asker.next_answer(PATIENCE), Some((answer, b"0123456789".to_vec())));
    // Recorded questions: repeated, without the seal, and with other words or bytes. The server takes everything in
    // order, so the next genuine question shows that none of them counted.
    let asked = questions.first();
    let given = answers.first();
    witness.repeat(asked);
    let mut unsealed = HeaderMap::new();
    unsealed.insert(
        "Packetrig-Capture",
        r#"{"asker":9,"number":1,"capture":{"run":"r","file":"x"},"request":"sha256"}"#,
    );
    witness.publish("get.a", None, unsealed.clone(), "");
    unsealed.insert("Packetrig-Seal", "AAAA");
    witness.publish("get.a", None, unsealed, "");
    witness.repeat(Message { payload: "9876543210".into(), ..given });
    witness.prove();
    let number = asker.send_question(&capture(), CaptureRequest::Sha256).expect("it is asked");
    let question = giver.next_question(PATIENCE).expect("the question comes");
    assert_eq!(
        (question.number, question.request),
        (number, CaptureRequest::Sha256),
        "the operator's, and each once"
    );
    let answer = CaptureAnswer { asker: question.asker, number, outcome: Ok(identity) };
    giver.send_answer(&answer, b"the hash".to_vec()).expect("it is answered");
    assert_eq!(asker.next_answer(PATIENCE), Some((answer, b"the hash".to_vec())), "the node's bytes");
}
