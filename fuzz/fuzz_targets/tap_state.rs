//! Feeds `packetrig_tests::fuzz::tap_state` from the fuzzer, with a bound on what an input may cost.
#![no_main]

#[path = "../cost.rs"]
mod cost;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    cost::bounded(data.len(), &cost::LINEAR, || packetrig_tests::fuzz::tap_state(data));
});
