//! What is free of a link that the kernel shapes, beside traffic of a known rate, through our own reflector.
//!
//! The lab's router is on the processors that probe: `gate` keeps the kernel's own work off them, so `spin` lets probes go here.

use crate::bench::{Bench, routed, said};
use crate::shaped::{others, shape};
use packetrig_tests::program::Running;
use serde_json::Value;
use std::sync::atomic::Ordering;

const LINK: f64 = 1e7;
/// Of the link's rate: an estimate may be so much off. Other programs on this machine delay packets, too.
const TOLERANCE: f64 = 0.3;
/// A method is asked again if its estimate is further off than this, or if it has none.
const ASKED_AGAIN_BEYOND: f64 = 0.2;
const MOST_TRIES: usize = 3;

/// Ten Mbit/s, with a bucket of so many bytes.
fn link(bench: &Bench, bucket: u32) {
    shape(bench, &format!("tbf rate 10mbit burst {bucket} limit 200000"));
}

fn reflector(bench: &Bench) -> Running {
    let netns = bench.lab.ports()[1].namespace().to_owned();
    let words = ["probe", "reflect", "198.18.2.2:862", "--netns", &netns, "--allow", "198.18.0.0/15"];
    let mut running = Running::start(&words, "");
    running.await_remark("listening");
    running
}

fn asked(bench: &Bench, what: &str, more: &[&str]) -> (Option<i32>, Value) {
    let usual = [what, "198.18.2.2", "--reflector", "862", "--pause", "20ms"];
    let finished = bench.probe(&[&usual[..], more].concat());
    (finished.code, said(&finished))
}

/// What a method says is free, in bits per second.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    low: f64,
    rate: f64,
    high: f64,
}

impl Estimate {
    fn is_within(self, share: f64, free: f64) -> bool {
        let off = share * LINK;
        (self.rate - free).abs() <= off && self.low - off <= free && free <= self.high + off
    }
}

/// The estimate of a method where so much is free: the nearest of a few. While other programs delay packets a method may have none, or one
/// that is off.
fn estimate(bench: &Bench, method: &str, count: &str, free: f64) -> Option<Estimate> {
    let mut nearest: Option<Estimate> = None;
    for _ in 0..MOST_TRIES {
        let found = found(asked(bench, "available", &["--method", method, "--count", count]));
        let off = |estimate: &Estimate| (estimate.rate - free).abs();
        nearest = nearest.into_iter().chain(found).min_by(|a, b| off(a).total_cmp(&off(b)));
        if nearest.is_some_and(|estimate| estimate.is_within(ASKED_AGAIN_BEYOND, free)) {
            break;
        }
    }
    nearest
}

/// The rate, if there is one; a reason that a busy machine excuses if there is none.
fn found(answer: (Option<i32>, Value)) -> Option<Estimate> {
    let (code, said) = answer;
    let figure = |name: &str| said["estimate"][name].as_f64();
    if let Some(rate) = figure("bits_per_s") {
        assert_eq!(code, Some(0), "{said}");
        return Some(Estimate { low: figure("low").unwrap(), rate, high: figure("high").unwrap() });
    }
    let reason = said["no_answer"]["detail"]["reason"].as_str().unwrap_or_default();
    assert!(["too_few", "not_converged"].contains(&reason) && code == Some(7), "{said}");
    None
}

#[test]
fn every_method_finds_what_others_leave() {
    let Some(bench) = routed() else { return };
    link(&bench, 1_600);
    let _reflector = reflector(&bench);
    let methods = [("pathload", "8"), ("pathchirp", "20"), ("spruce", "120")];
    let mut rates = Vec::new();
    for busy in [0.0, 0.5] {
        let traffic = (busy > 0.0).then(|| others(&bench, busy * LINK));
        for (method, count) in methods {
            rates.push((method, busy, estimate(&bench, method, count, (1.0 - busy) * LINK)));
        }
        if let Some((is_over, thread)) = traffic {
            is_over.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        }
    }
    let answers = rates.iter().filter(|(.., answer)| answer.is_some()).count();
    assert!(answers >= rates.len() - 1, "{rates:?}");
    for (_, busy, answer) in &rates {
        let Some(answer) = answer else { continue };
        let free = (1.0 - busy) * LINK;
        assert!(answer.is_within(TOLERANCE, free), "{free}: {rates:?}");
    }
    // The same method sees that there is less.
    for (method, _) in methods {
        let of: Vec<_> = rates.iter().filter(|(name, ..)| *name == method).filter_map(|(.., a)| *a).collect();
        if let [idle, busy] = of[..] {
            assert!(busy.rate < idle.rate, "{rates:?}");
        }
    }
}

#[test]
fn a_bucket_hides_it_from_chirps_and_from_nobody_else() {
    let Some(bench) = routed() else { return };
    link(&bench, 9_000);
    let _reflector = reflector(&bench);
    let is_hidden = |(code, said): &(Option<i32>, Value)| {
        *code == Some(7) && said["no_answer"]["detail"]["reason"] == "bucket"
    };
    let mut answers = Vec::new();
    while answers.len() < MOST_TRIES && !answers.last().is_some_and(is_hidden) {
        answers.push(asked(&bench, "available", &["--method", "pathchirp"]));
    }
    assert!(answers.last().is_some_and(is_hidden), "{answers:?}");
    let Some(answer) = estimate(&bench, "pathload", "8", LINK) else { return };
    assert!(answer.is_within(TOLERANCE, LINK), "{answer:?}");
}

#[test]
fn a_reflector_without_a_burst_answers_no_train_and_that_is_no_rate() {
    let Some(bench) = routed() else { return };
    link(&bench, 1_600);
    let netns = bench.lab.ports()[1].namespace().to_owned();
    let words = ["probe", "reflect", "198.18.2.2:862", "--netns", &netns, "--allow", "198.18.0.0/15"];
    let mut closed = Running::start(&[&words[..], &["--burst", "1", "--min-interval", "1s"]].concat(), "");
    closed.await_remark("listening");
    let (code, said) = asked(&bench, "available", &["--method", "spruce"]);
    assert_eq!(code, Some(7), "{said}");
    assert_eq!(said["no_answer"]["detail"]["reason"], "too_few", "{said}");
}

#[test]
fn capacity_of_the_way_there_is_a_reflectors_word() {
    let Some(bench) = routed() else { return };
    link(&bench, 5_000);
    let _reflector = reflector(&bench);
    let (code, said) = asked(&bench, "capacity", &["--count", "60"]);
    assert_eq!((code, &said["way"]), (Some(0), &"there".into()), "{said}");
    let rate = said["estimate"]["bits_per_s"].as_f64().unwrap();
    assert!((rate / LINK - 1.0).abs() < 0.05, "{said}");
}
