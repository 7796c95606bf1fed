//! Frames through XDP: received into shared rings ([`rx`]), sent as live frames ([`tx`]).
//!
//! The BPF programs are `bpf/receive.bpf.c` and `bpf/send.bpf.c`; the layouts that both sides share are written down there
//! and here, and tests run the programs to hold them together.

pub mod buckets;
pub mod rx;
pub mod tx;

use crate::bpf::Object;

static RECEIVE: Object<'static> = Object::new(include_bytes!(concat!(env!("OUT_DIR"), "/receive.o")));
static SEND: Object<'static> = Object::new(include_bytes!(concat!(env!("OUT_DIR"), "/send.o")));

/// Section of the programs in their objects.
const SECTION: &str = "xdp";
