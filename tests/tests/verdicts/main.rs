//! The verdict is right: every fault of the rig with every fault of the device on every back end, next to a forwarder that
//! knows what it did to each frame and shares no code with the product.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod account;
mod bursts;
mod contents;
mod delays;
mod matrix;
mod table;

use table::BACK_ENDS;

/// Runs this on all back ends and collects what is wrong.
fn check_on_all(on: impl Fn(&'static str) -> Vec<String> + Sync) {
    check_on(&BACK_ENDS, on);
}

/// The same on these back ends, at the same time.
fn check_on(back_ends: &[&'static str], on: impl Fn(&'static str) -> Vec<String> + Sync) {
    let all: Vec<String> = std::thread::scope(|scope| {
        let on = &on;
        let start = |back_end| (back_end, scope.spawn(move || on(back_end)));
        let runs: Vec<_> = back_ends.iter().map(|back_end| start(*back_end)).collect();
        let found = runs.into_iter().map(|(back_end, run)| (back_end, run.join().unwrap()));
        found
            .flat_map(|(back_end, found)| found.into_iter().map(move |one| format!("{back_end}: {one}")))
            .collect()
    });
    assert!(all.is_empty(), "{} differences:\n{}", all.len(), all.join("\n"));
}

/// A difference in words, unless the two are equal.
fn differs<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Option<String> {
    (got != wanted).then(|| format!("{what}: {got:?}, wanted {wanted:?}"))
}
