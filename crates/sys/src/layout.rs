//! Where programs and user space find what they share, made of `bpf/layout/` by `build.rs`: a module for each file, in it one for
//! each structure with an offset for each field and its size.
#![expect(dead_code, reason = "the programs need more fields than user space reads")]
#![expect(
    clippy::unreadable_literal,
    clippy::module_inception,
    reason = "made by a program from the layouts of others"
)]

include!(concat!(env!("OUT_DIR"), "/layout.rs"));
