//! The listener's filter in the kernel, as classic BPF.
//!
//! The kernel removes a VLAN tag before the filter sees the frame; answers to untagged probes have no tag.
//! Jumps in classic BPF are relative and only forward. So each block either decides, or continues with the
//! block of the next address.

use super::{PacketsToAllPorts, WantedPackets};
use packetrig_sys::pcap::ClassicInsn;
use packetrig_units::clamp_to_u8;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERTYPE_OFFSET: u32 = 12;
const NETWORK_HEADER_OFFSET: u32 = 14;

// Codes of classic BPF.
const LOAD_WORD: u16 = 0x20;
const BPF_LOAD_HALF: u16 = 0x28;
const BPF_LOAD_BYTE: u16 = 0x30;
const BPF_LOAD_HALF_INDEXED: u16 = 0x48;
/// Sets the index register to the length of the IPv4 header at an offset (`ldxb 4*([k]&0xf)`), which
/// depends on its options.
const BPF_LOAD_IPV4_HEADER_LENGTH: u16 = 0xb1;
const BPF_JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

const fn classic_instruction(code: u16, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt: 0, jf: 0, k }
}

/// Skips `then` instructions if the loaded value is `k`, else `other`.
const fn jump_if_equal(k: u32, then: u8, other: u8) -> ClassicInsn {
    ClassicInsn { code: BPF_JUMP_EQUAL, jt: then, jf: other, k }
}

const PASS_INSTRUCTION: ClassicInsn = classic_instruction(RETURN, u32::MAX);
const DROP_INSTRUCTION: ClassicInsn = classic_instruction(RETURN, 0);

/// Passes ICMP to each address, and TCP and UDP to the port at each address. The filter only reduces the
/// load: `answer::read_answer` checks every frame again.
pub(super) fn compile_filter(wanted: &WantedPackets) -> Vec<ClassicInsn> {
    // A loaded half word has sixteen bits, so it never equals the number that means "no port".
    let port = wanted.port.map_or(u32::MAX, u32::from);
    // The jump precedes `PASS_INSTRUCTION, DROP_INSTRUCTION`. If the port matches, the jump leads to the first of them.
    compile_addresses(&wanted.addresses, jump_if_equal(port, 0, 1))
}

/// Passes ICMP, TCP and UDP to all ports of each address.
pub(super) fn compile_all_ports(wanted: &PacketsToAllPorts) -> Vec<ClassicInsn> {
    // Both branches of the jump lead to `PASS_INSTRUCTION`, so every port passes.
    compile_addresses(&wanted.addresses, jump_if_equal(0, 0, 0))
}

fn compile_addresses(addresses: &[IpAddr], port: ClassicInsn) -> Vec<ClassicInsn> {
    // One block after another: a frame for the second address falls through the first block.
    let mut program = Vec::new();
    for address in addresses {
        program.extend(match address {
            IpAddr::V4(ip) => ipv4_block(*ip, port),
            IpAddr::V6(ip) => ipv6_block(*ip, port),
        });
    }
    program.push(DROP_INSTRUCTION);
    program
}

/// Returns the instructions that pass or drop frames to this address. For frames to other addresses, the
/// program continues after the last of these instructions.
fn ipv4_block(ip: Ipv4Addr, port: ClassicInsn) -> Vec<ClassicInsn> {
    let body = vec![
        // IP protocol: 1 (ICMP) jumps to PASS, 6 (TCP) and 17 (UDP) continue with the destination port, every
        // other protocol jumps to DROP.
        classic_instruction(BPF_LOAD_BYTE, NETWORK_HEADER_OFFSET + 9),
        jump_if_equal(1, 5, 0),
        jump_if_equal(6, 1, 0),
        jump_if_equal(17, 0, 4),
        classic_instruction(BPF_LOAD_IPV4_HEADER_LENGTH, NETWORK_HEADER_OFFSET),
        classic_instruction(BPF_LOAD_HALF_INDEXED, NETWORK_HEADER_OFFSET + 2),
        port,
        PASS_INSTRUCTION,
        DROP_INSTRUCTION,
    ];
    let conditions = [
        LoadCondition { load: BPF_LOAD_HALF, at: ETHERTYPE_OFFSET, value: 0x0800 },
        LoadCondition { load: LOAD_WORD, at: NETWORK_HEADER_OFFSET + 16, value: u32::from(ip) },
    ];
    run_body_if_conditions_hold(&conditions, body)
}

fn ipv6_block(ip: Ipv6Addr, port: ClassicInsn) -> Vec<ClassicInsn> {
    let body = vec![
        // Next header: as the IP protocol in `ipv4_block`, but 58 (ICMPv6) instead of 1. Answers with extension
        // headers are dropped: classic BPF has no loop to follow them.
        classic_instruction(BPF_LOAD_BYTE, NETWORK_HEADER_OFFSET + 6),
        jump_if_equal(58, 4, 0),
        jump_if_equal(6, 1, 0),
        jump_if_equal(17, 0, 3),
        classic_instruction(BPF_LOAD_HALF, NETWORK_HEADER_OFFSET + 40 + 2),
        port,
        PASS_INSTRUCTION,
        DROP_INSTRUCTION,
    ];
    // The accumulator has 32 bits, so an address is compared in four words.
    let halves = ip.segments().map(u32::from);
    let words = [0, 2, 4, 6].map(|first| halves[first] << 16 | halves[first + 1]);
    let mut conditions = vec![LoadCondition { load: BPF_LOAD_HALF, at: ETHERTYPE_OFFSET, value: 0x86dd }];
    conditions.extend(
        (NETWORK_HEADER_OFFSET + 24..).step_by(4).zip(words).map(|(at, value)| LoadCondition {
            load: LOAD_WORD,
            at,
            value,
        }),
    );
    run_body_if_conditions_hold(&conditions, body)
}

/// A value that a frame must have at an offset.
struct LoadCondition {
    load: u16,
    at: u32,
    value: u32,
}

/// Returns instructions that run `body` if a frame meets all conditions, and otherwise continue after it.
fn run_body_if_conditions_hold(conditions: &[LoadCondition], body: Vec<ClassicInsn>) -> Vec<ClassicInsn> {
    let mut program = Vec::new();
    for (nth, condition) in conditions.iter().enumerate() {
        // The instructions to skip: two for each further condition, and the body. With five conditions that is 16, far below 255.
        let rest = 2 * (conditions.len() - nth - 1) + body.len();
        program.push(classic_instruction(condition.load, condition.at));
        program.push(jump_if_equal(condition.value, 0, jump_over_instructions(rest)));
    }
    program.extend(body);
    program
}

/// Returns the offset of a forward jump. Blocks have at most 18 instructions, so the offset is never clamped.
fn jump_over_instructions(instructions: usize) -> u8 {
    clamp_to_u8(instructions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_probe::frame::{ProbeFrameEndpoints, TcpSegment};
    use packetrig_wire::bpf::{self, FilterProgram};

    fn program(addresses: &[&str], port: Option<u16>) -> FilterProgram {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        loaded(&compile_filter(&WantedPackets { addresses, port }))
    }

    fn loaded(compiled: &[ClassicInsn]) -> FilterProgram {
        let of = |i: &ClassicInsn| bpf::ClassicInsn { code: i.code, jt: i.jt, jf: i.jf, k: i.k };
        FilterProgram::new(compiled.iter().map(of).collect()).unwrap()
    }

    /// Returns which of an echo, a datagram and a segment to an address and port pass.
    fn passing(program: &FilterProgram, to: &str, port: u16) -> [bool; 3] {
        let target: IpAddr = to.parse().unwrap();
        let from = if target.is_ipv4() { "192.0.2.9" } else { "2001:db8::9" };
        let source = from.parse().unwrap();
        let ends = ProbeFrameEndpoints { own_mac: [2; 6], next_mac: [4; 6], source, target, class: 0 };
        let mut frame = Vec::new();
        ends.write_echo_frame(1, 1, &[], &mut frame);
        let echo = program.matches_frame(&frame);
        ends.write_udp_frame(9, port, &[], &mut frame);
        let udp = program.matches_frame(&frame);
        let segment = TcpSegment { source_port: 9, target_port: port, ..TcpSegment::default() };
        ends.write_tcp_frame(&segment, &mut frame);
        [echo, udp, program.matches_frame(&frame)]
    }

    #[test]
    fn listener_filter_passes_icmp_and_own_port_only() {
        for port in [Some(4000), None] {
            let program = program(&["192.0.2.1", "2001:db8::1", "192.0.2.2"], port);
            for own in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
                assert_eq!(passing(&program, own, 4000), [true, port.is_some(), port.is_some()], "{own}");
                assert_eq!(passing(&program, own, 4001), [true, false, false], "{own}");
            }
            for other in ["192.0.2.3", "2001:db8::2", "2001:db9::1"] {
                assert_eq!(passing(&program, other, 4000), [false; 3], "{other}");
            }
        }
        assert_eq!(passing(&program(&[], Some(1)), "192.0.2.1", 1), [false; 3]);
    }

    #[test]
    fn all_ports_filter_passes_own_addresses_only() {
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap()).to_vec();
        let program = loaded(&compile_all_ports(&PacketsToAllPorts { addresses }));
        for own in ["192.0.2.1", "2001:db8::1"] {
            assert_eq!((passing(&program, own, 1), passing(&program, own, 65_535)), ([true; 3], [true; 3]));
        }
        for other in ["192.0.2.3", "2001:db8::2"] {
            assert_eq!(passing(&program, other, 1), [false; 3], "{other}");
        }
    }
}
