//! Memory order: every interleaving, and every order of memory that the language allows, of what threads and the kernel
//! share without a lock.
//!
//! The files of the crate that hold such a protocol are compiled here a second time, over memory and atomics of [loom]. The other side, a
//! BPF program or the kernel, is played by the model. [`explore::check`] then does two things: the protocol must hold, and it must
//! fail as soon as any one of its orderings is weakened. So a model that cannot fail does not pass, and an ordering
//! that nothing needs is found.
//!
//! Processors of other makes than ours (ARM) use what the language allows; the tests of the rings themselves run on one order only.
#![expect(unsafe_code, reason = "the memory that both sides share")]

mod area;
#[path = "../../src/convert.rs"]
#[expect(dead_code, reason = "the models use what their protocols need")]
mod convert;
mod explore;
mod held;
#[path = "../../src/layout.rs"]
mod layout;
mod packet;
mod rights;
mod sync;
mod xdp;
mod xsk;

/// Lines of the programs that a model plays: whoever changes one looks at the model, too.
fn assert_plays(source: &str, lines: &[&str]) {
    for line in lines {
        assert!(source.contains(line), "the program no longer says `{line}`: does the model still play it?");
    }
}
