//! Feeds `packetrig_tests::fuzz::flow_names` from the fuzzer, with a bound on what an input may cost.
#![no_main]

use packetrig_tests::fuzz;

#[global_allocator]
static ALLOCATOR: packetrig_sys::memory::MeteredAllocator = packetrig_sys::memory::MeteredAllocator;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::cost::assert_linear(data.len(), || fuzz::flow_names(data)));
