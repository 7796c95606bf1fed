//! Offsets and sizes of the structures that programs and user space share, generated from `bpf/layout/` by `build.rs`: a module
//! for each file, and in it one for each structure.
#![expect(dead_code, reason = "the programs need more fields than user space reads")]
#![expect(
    clippy::unreadable_literal,
    clippy::module_inception,
    reason = "the code is generated from the layouts of the BPF programs"
)]

include!(concat!(env!("OUT_DIR"), "/layout.rs"));
