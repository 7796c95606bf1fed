//! What is free of a link that the kernel shapes, beside traffic of a known rate, through our own reflector.
//!
//! The lab's router is on the processors that probe: `gate` keeps the kernel's own work off them, so `spin` lets probes go here.

use crate::shaped::{OTHERS_PAYLOAD, others, shape};
use crate::testbed::{Testbed, routed, said};
use packetrig_tests::program::Running;
use serde_json::Value;
use std::sync::atomic::Ordering;

/// A link, and the frames that it is measured with.
#[derive(Clone, Copy, Debug)]
struct NarrowLink {
    bits_per_s: f64,
    /// Bytes of a probe, FCS included.
    size: u32,
    /// Bytes in a packet of others, without headers.
    others_payload: usize,
}

/// Ten Mbit/s.
const USUAL: NarrowLink = NarrowLink { bits_per_s: 1e7, size: 1518, others_payload: OTHERS_PAYLOAD };
/// The same at 0.48 of the rate with frames of 0.48 of the length, so that every distance of frames is the same. Spruce sends 0.24 Mbit/s
/// at most, and a twentieth of what the link carries: nowhere are its pauses shorter for pairs that are as far apart.
const FOR_SPRUCE: NarrowLink = NarrowLink { bits_per_s: 4.8e6, size: 728, others_payload: 314 };
/// Of the link's rate: an estimate may be so much off. Other programs on this machine delay packets, too.
const TOLERANCE: f64 = 0.3;
/// A method is asked again if its estimate is further off than this, or if it has none.
const ASKED_AGAIN_BEYOND: f64 = 0.2;
const MAX_TRIES: usize = 3;

impl NarrowLink {
    /// Makes the way to the second host such a link, with a bucket of so many bytes.
    fn shape(self, testbed: &Testbed, bucket: u32) {
        shape(testbed, &format!("tbf rate {:.0} burst {bucket} limit 200000", self.bits_per_s));
    }
}

fn reflector(testbed: &Testbed) -> Running {
    let netns = testbed.lab.ports()[1].namespace().to_owned();
    let words = ["probe", "reflect", "198.18.2.2:862", "--netns", &netns, "--allow", "198.18.0.0/15"];
    let mut running = Running::start(&words, "");
    running.await_remark("listening");
    running
}

fn asked(testbed: &Testbed, what: &str, more: &[&str]) -> (Option<i32>, Value) {
    let usual = [what, "198.18.2.2", "--reflector", "862", "--pause", "20ms"];
    let finished = testbed.probe(&[&usual[..], more].concat());
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
    /// Whether it is off by no more than this share of the link's rate.
    fn is_within(self, share: f64, link: NarrowLink, free: f64) -> bool {
        let off = share * link.bits_per_s;
        (self.rate - free).abs() <= off && self.low - off <= free && free <= self.high + off
    }
}

/// The estimate of a method where so much is free: the nearest of a few. While other programs delay packets a method may have none, or one
/// that is off.
fn estimate(testbed: &Testbed, link: NarrowLink, (method, count): Method, free: f64) -> Option<Estimate> {
    let size = link.size.to_string();
    let words = ["--method", method, "--count", count, "--size", &size];
    let mut nearest: Option<Estimate> = None;
    for _ in 0..MAX_TRIES {
        let found = found(asked(testbed, "available", &words));
        let off = |estimate: &Estimate| (estimate.rate - free).abs();
        nearest = nearest.into_iter().chain(found).min_by(|a, b| off(a).total_cmp(&off(b)));
        if nearest.is_some_and(|estimate| estimate.is_within(ASKED_AGAIN_BEYOND, link, free)) {
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

/// A method that estimates what is free, and its count.
type Method = (&'static str, &'static str);

/// What a method says of a link of which others use a share.
#[derive(Debug)]
struct Answer {
    method: &'static str,
    busy: f64,
    link: NarrowLink,
    estimate: Option<Estimate>,
}

impl Answer {
    fn free(&self) -> f64 {
        (1.0 - self.busy) * self.link.bits_per_s
    }
}

/// What these methods say, one after the other. `None` without the rights that a lab takes.
fn answers(link: NarrowLink, bucket: u32, methods: &[Method], busy: f64) -> Option<Vec<Answer>> {
    let testbed = routed()?;
    link.shape(&testbed, bucket);
    let _reflector = reflector(&testbed);
    let traffic = (busy > 0.0).then(|| others(&testbed, link.others_payload, busy * link.bits_per_s));
    let mut answers = Vec::new();
    for method in methods {
        let estimate = estimate(&testbed, link, *method, (1.0 - busy) * link.bits_per_s);
        answers.push(Answer { method: method.0, busy, link, estimate });
    }
    if let Some((is_over, thread)) = traffic {
        is_over.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
    Some(answers)
}

/// The same of idle and of busy links, side by side: probes mostly wait for their time.
fn answers_of_all() -> Option<Vec<Answer>> {
    const SPRUCE: [Method; 1] = [("spruce", "120")];
    const OTHERS: [Method; 2] = [("pathload", "8"), ("pathchirp", "20")];
    let parts = [(FOR_SPRUCE, 768, &SPRUCE[..]), (USUAL, 1_600, &OTHERS)];
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for busy in [0.0, 0.5] {
            for (link, bucket, methods) in parts {
                threads.push(scope.spawn(move || answers(link, bucket, methods, busy)));
            }
        }
        let found: Option<Vec<_>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        Some(found?.into_iter().flatten().collect())
    })
}

#[test]
fn every_method_finds_what_others_leave() {
    let Some(answers) = answers_of_all() else { return };
    let have = answers.iter().filter(|answer| answer.estimate.is_some()).count();
    assert!(answers.len() == 6 && have >= 5, "{answers:?}");
    for answer in &answers {
        let Some(estimate) = answer.estimate else { continue };
        assert!(estimate.is_within(TOLERANCE, answer.link, answer.free()), "{answer:?}: {answers:?}");
    }
    // The same method sees that there is less.
    for method in ["spruce", "pathload", "pathchirp"] {
        let of = |is_busy: bool| {
            let mut of = answers.iter().filter(|one| one.method == method && (one.busy > 0.0) == is_busy);
            of.next().unwrap().estimate
        };
        if let (Some(idle), Some(busy)) = (of(false), of(true)) {
            assert!(busy.rate < idle.rate, "{answers:?}");
        }
    }
}

#[test]
fn token_bucket_hides_available_bandwidth_only_from_chirps() {
    let Some(testbed) = routed() else { return };
    USUAL.shape(&testbed, 9_000);
    let _reflector = reflector(&testbed);
    let is_hidden = |(code, said): &(Option<i32>, Value)| {
        *code == Some(7) && said["no_answer"]["detail"]["reason"] == "bucket"
    };
    let mut answers = Vec::new();
    while answers.len() < MAX_TRIES && !answers.last().is_some_and(is_hidden) {
        answers.push(asked(&testbed, "available", &["--method", "pathchirp"]));
    }
    assert!(answers.last().is_some_and(is_hidden), "{answers:?}");
    let Some(answer) = estimate(&testbed, USUAL, ("pathload", "8"), USUAL.bits_per_s) else { return };
    assert!(answer.is_within(TOLERANCE, USUAL, USUAL.bits_per_s), "{answer:?}");
}

/// Trains of long frames do not show a bucket of one of them, but it holds five short probes of a stream.
#[test]
fn one_frame_bucket_does_not_inflate_rate() {
    let Some(testbed) = routed() else { return };
    shape(&testbed, "tbf rate 5mbit burst 1600 limit 200000");
    let _reflector = reflector(&testbed);
    let (code, said) = asked(&testbed, "available", &["--count", "5"]);
    // A machine that stands still may hide what is free; it makes nothing free.
    let Some(low) = said["estimate"]["low"].as_f64() else {
        return assert_eq!(code, Some(7), "{said}");
    };
    assert!(low <= 5e6, "{said}");
}

#[test]
fn reflector_without_burst_gives_no_rate() {
    let Some(testbed) = routed() else { return };
    USUAL.shape(&testbed, 1_600);
    let netns = testbed.lab.ports()[1].namespace().to_owned();
    let words = ["probe", "reflect", "198.18.2.2:862", "--netns", &netns, "--allow", "198.18.0.0/15"];
    let mut closed = Running::start(&[&words[..], &["--burst", "1", "--min-interval", "1s"]].concat(), "");
    closed.await_remark("listening");
    let (code, said) = asked(&testbed, "available", &["--method", "spruce"]);
    assert_eq!(code, Some(7), "{said}");
    assert_eq!(said["no_answer"]["detail"]["reason"], "too_few", "{said}");
}

#[test]
fn forward_capacity_comes_from_reflector() {
    let Some(testbed) = routed() else { return };
    USUAL.shape(&testbed, 5_000);
    let _reflector = reflector(&testbed);
    let (code, said) = asked(&testbed, "capacity", &["--count", "60"]);
    assert_eq!((code, &said["way"]), (Some(0), &"there".into()), "{said}");
    let rate = said["estimate"]["bits_per_s"].as_f64().unwrap();
    assert!((rate / USUAL.bits_per_s - 1.0).abs() < 0.05, "{said}");
}
