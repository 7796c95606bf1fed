//! Compiles the user's filter expressions with libpcap, and checks the programs that libpcap makes.

use crate::Error;
use packetrig_sys::pcap;
use packetrig_wire::bpf::{ClassicInsn, FilterProgram};

/// Compiles a tcpdump expression; an empty one accepts every frame. Fails if packetrig cannot run the program.
pub fn compile_filter(expression: &str) -> Result<FilterProgram, Error> {
    let insns = pcap::compile_filter_expression(expression)?.into_iter();
    let insns = insns.map(|insn| ClassicInsn { code: insn.code, jt: insn.jt, jf: insn.jf, k: insn.k });
    FilterProgram::new(insns.collect())
        .map_err(|reason| Error::Filter { filter: format!("filter `{expression}`"), reason })
}
