//! Feeds `packetrig_tests::fuzz::flow_file` from the fuzzer, with an allocator that measures what each input takes.
#![no_main]

#[global_allocator]
static ALLOCATOR: packetrig_sys::memory::MeteredAllocator = packetrig_sys::memory::MeteredAllocator;

libfuzzer_sys::fuzz_target!(|data: &[u8]| packetrig_tests::fuzz::flow_file(data));
