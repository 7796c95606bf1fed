//! Feeds `packetrig_tests::fuzz::flow_sflow` from the fuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| packetrig_tests::fuzz::flow_sflow(data));
