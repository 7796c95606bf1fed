//! Feeds `packetrig_tests::fuzz::filter` from the fuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| packetrig_tests::fuzz::filter(data));
