//! Filter expressions mean the same everywhere: in libpcap, in our interpreter, and translated into eBPF in the kernel.

use packetrig_engine::{Error, filter};
use packetrig_sys::bpf;
use packetrig_sys::pcap::{self, PcapError};
use packetrig_wire::bpf::{ClassicInsn, EbpfInsn, FilterEndings, FilterProgram};
use packetrig_wire::pattern::keyed_mix;

const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "arp",
    "icmp",
    "icmp6",
    "udp",
    "tcp",
    "sctp",
    "igmp",
    "ip proto 47",
    "host 198.18.0.1",
    "src host 198.18.0.1 and dst host 198.19.0.2",
    "net 198.18.0.0/15",
    "not net 10.0.0.0/8",
    "ip6 host 2001:2::1",
    "ip6 net 2001:2::/48",
    "port 53",
    "src port 1024",
    "udp dst port 53",
    "tcp portrange 1000-2000",
    "not portrange 1-1023",
    "ether host 02:00:00:00:00:01",
    "ether src 02:00:00:00:00:01",
    "ether dst 02:00:00:00:00:02 or ether broadcast",
    "ether multicast",
    "ether proto 0x88cc",
    "ip multicast",
    "vlan",
    "vlan 100",
    "vlan 100 and ip",
    "vlan and vlan 200 and udp",
    "vlan and host 198.18.0.1 and port 53",
    "mpls",
    "mpls 1000 and ip",
    "pppoes",
    "pppoes and ip",
    "tcp[13] & 2 != 0",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[tcpflags] == tcp-syn|tcp-ack",
    "icmp[icmptype] == icmp-echo or icmp[0] = 0",
    "ip[2:2] > 576",
    "ip[6:2] & 0x1fff = 0",
    "ip[0] & 0xf != 5",
    "ip[8] < 64",
    "ip6[7] = 64",
    "ether[0] & 1 != 0",
    "ether[0] & 1 = 0 and ip[16] >= 224",
    "ether[100:4] = ether[104:4]",
    "ether[1500] = 0",
    "ether[40000:2] = 1",
    "ether[0x10000] = 1",
    "len > 100",
    "len <= 128",
    "less 64 or greater 1000",
    "len - 14 != ip[2:2]",
    "len % 7 = 3",
    "len / 64 >= 4 and len * 3 < 2000",
    "ip[2:2] / ip[9] > 20",
    "ip[2:2] % ip[8] = 1",
    "(ip[15] ^ ip[19]) = 1",
    "1 << (ip[9] & 31) > 1000",
    "ip[4:2] << ip[8] != 0",
    "ip[4:2] >> (ip[9] - 1) = 0",
    "udp[4:2] < len - 34",
    "udp[8:4] = 0x7061636b",
    "tcp[(tcp[12] >> 2):4] = 0x47455420",
    "ether[ip[8]:2] > ether[ip[9]:2]",
    "ether[ether[20:4]:1] = 0",
    "ether[len - 1] = 0",
    "(ip and (udp port 53 or tcp port 80)) or (ip6 and not (udp or tcp))",
    "not (ip and not (host 198.18.0.1 or host 198.18.0.2)) and not arp",
    "(host 198.18.0.1 or host 198.18.0.2 or host 198.18.0.3) and (port 53 or port 80 or port 443) and not icmp",
    "ip and udp and (udp[0:2] > udp[2:2] or udp[0:2] + udp[2:2] = 1077)",
];

const MATCH: u32 = 2;
const MISMATCH: u32 = 1;
const ENDINGS: FilterEndings<'static> = FilterEndings {
    on_match: &[EbpfInsn::set_result(2), EbpfInsn::exit()],
    on_mismatch: &[EbpfInsn::set_result(1), EbpfInsn::exit()],
};

/// Random numbers that depend only on the seed.
struct Dice(u64, u64);

impl Dice {
    fn below(&mut self, n: u64) -> usize {
        self.1 += 1;
        usize::try_from(keyed_mix(self.0, self.1) % n).expect("a small number")
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).expect("below 256")
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64)]
    }

    fn push(&mut self, frame: &mut Vec<u8>, count: usize) {
        for _ in 0..count {
            let byte = self.byte();
            frame.push(byte);
        }
    }
}

/// A frame for which expressions differ: real headers, often with values that they name, cut anywhere.
fn frame(seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed, 0);
    let mut frame = dice.of(&[[2, 0, 0, 0, 0, 2], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]]).to_vec();
    frame.extend([2, 0, 0, 0, 0, dice.of(&[1, 2, 3])]);
    for _ in 0..dice.of(&[0, 0, 0, 1, 2]) {
        let (tpid, id) = (dice.of(&[[0x81, 0], [0x88, 0xa8]]), dice.of(&[100, 200, 7]));
        frame.extend([tpid[0], tpid[1], 0x60, id]);
    }
    match dice.below(8) {
        0 => frame.extend([8, 6]),
        1 => ipv6(&mut dice, &mut frame),
        2 => frame.extend([0x88, 0x47, 0, 0x3e, dice.of(&[0x81, 0x80]), 64, 0x45]),
        3 => frame.extend([0x88, 0x64, 0x11, 0, 0, 1, 0, 40, 0, 0x21, 0x45]),
        4 => frame.extend([dice.of(&[0x88, 0]), dice.byte()]),
        _ => ipv4(&mut dice, &mut frame),
    }
    let most = dice.of(&[0, 4, 30, 60, 100, 1400, 2800]);
    let rest = dice.below(most + 1);
    if dice.below(3) == 0 {
        frame.resize(frame.len() + rest, 0);
    } else {
        dice.push(&mut frame, rest);
    }
    if dice.below(4) == 0 {
        frame.truncate(dice.below(frame.len() as u64));
    }
    frame
}

fn ipv4(dice: &mut Dice, frame: &mut Vec<u8>) {
    let options = dice.of(&[0, 0, 0, 1, 10]);
    frame.extend([8, 0, 0x45 + options, 0, dice.of(&[0, 1, 5]), dice.byte(), dice.of(&[0, 1]), dice.byte()]);
    frame.extend(dice.of(&[[0, 0], [0x40, 0], [0x20, 0], [0, 1]]));
    frame.extend([dice.of(&[0, 1, 3, 64, 255]), dice.of(&[1, 2, 6, 6, 17, 17, 47, 132, 0]), 0, 0]);
    for _ in 0..2 {
        frame.extend(dice.of(&[
            [198, 18, 0, 1],
            [198, 19, 0, 2],
            [198, 18, 0, 3],
            [10, 0, 0, 1],
            [224, 0, 0, 1],
        ]));
    }
    dice.push(frame, usize::from(options) * 4);
    layer_4(dice, frame);
}

fn ipv6(dice: &mut Dice, frame: &mut Vec<u8>) {
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, dice.of(&[6, 17, 44, 58, 132]), dice.of(&[64, 1])]);
    for _ in 0..2 {
        frame.extend([0x20, 1, 0, dice.of(&[2, 3]), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, dice.of(&[1, 2])]);
    }
    layer_4(dice, frame);
}

fn layer_4(dice: &mut Dice, frame: &mut Vec<u8>) {
    for _ in 0..2 {
        let port: u16 = dice.of(&[53, 80, 443, 1024, 1500, 8, 0]);
        frame.extend(port.to_be_bytes());
    }
    frame.extend([0, dice.of(&[8, 64, 255]), 0, 0]);
    frame.extend(*dice.of(&[b"GET ", b"pack", b"\0\0\0\0"]));
    frame.extend([dice.of(&[0x50, 0x60, 0xf0]), dice.of(&[2, 16, 18, 1])]);
    dice.push(frame, 6);
    frame.extend(*dice.of(&[b"GET ", b"pack", b"\0\0\0\0"]));
}

/// Compiles all expressions; empty where libpcap is missing, with a message.
fn programs() -> Vec<(&'static str, FilterProgram)> {
    let compiled = |expression: &&'static str| match filter::compile_filter(expression) {
        Ok(program) => Some((*expression, program)),
        Err(Error::Expression(PcapError::Unsupported(missing))) => {
            say(&missing);
            None
        }
        Err(error) => panic!("{expression}: {error}"),
    };
    EXPRESSIONS.iter().filter_map(compiled).collect()
}

#[expect(clippy::print_stderr, reason = "a skipped test has to be seen")]
fn say(missing: &dyn std::fmt::Display) {
    eprintln!("skipped: {missing}");
}

fn libpcap(program: &FilterProgram, frame: &[u8]) -> bool {
    let insns = program.insns().iter();
    let insns: Vec<_> = insns
        .map(|insn| pcap::ClassicInsn { code: insn.code, jt: insn.jt, jf: insn.jf, k: insn.k })
        .collect();
    pcap::run_filter(&insns, frame).expect("libpcap is there") != 0
}

#[test]
fn our_interpreter_agrees_with_libpcap() {
    let frames: Vec<_> = (0..3000).map(frame).collect();
    let mut undecided = Vec::new();
    for (expression, program) in programs() {
        let mut passed = 0;
        for frame in &frames {
            let wanted = libpcap(&program, frame);
            assert_eq!(program.matches_frame(frame), wanted, "`{expression}` on {frame:02x?}");
            passed += usize::from(wanted);
        }
        if passed == 0 || passed == frames.len() {
            undecided.push(expression);
        }
    }
    // A filter with the same answer for every frame would not be tested.
    let trivial = ["", "ether[40000:2] = 1", "ether[0x10000] = 1", "ether proto 0x88cc", "ip multicast"];
    undecided.retain(|expression| !trivial.contains(expression));
    assert_eq!(undecided, [""; 0]);
}

#[test]
fn translated_filters_pass_verifier_and_match_libpcap() {
    // The kernel runs tests on frames with an Ethernet header, and no longer than what fits into a page.
    let frames: Vec<_> = (0..600).map(frame).filter(|frame| frame.len() >= 14).collect();
    for (expression, program) in programs() {
        let code = program.translate_to_ebpf(ENDINGS).unwrap().into_iter();
        let code: Vec<u64> = code.map(|insn| u64::from_ne_bytes(EbpfInsn::to_bytes(insn))).collect();
        let loaded = match bpf::BpfProgram::load_xdp("filter", &code, false) {
            Ok(loaded) => loaded,
            Err(error) if error.is_permission_error() => return say(&error),
            Err(error) => panic!("`{expression}`: {error}"),
        };
        for frame in &frames {
            let wanted = if libpcap(&program, frame) { MATCH } else { MISMATCH };
            assert_eq!(loaded.run_program_once(frame).unwrap().0, wanted, "`{expression}` on {frame:02x?}");
        }
    }
}

/// A random program of all instructions, valid more often than not.
fn random_program(seed: u64) -> Option<FilterProgram> {
    let mut dice = Dice(seed, 0);
    let codes = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x07, 0x0c, 0x14, 0x15, 0x1c, 0x1d, 0x20, 0x24, 0x25, 0x28, 0x2c,
        0x2d, 0x30, 0x34, 0x35, 0x3c, 0x3d, 0x40, 0x44, 0x45, 0x48, 0x4c, 0x4d, 0x50, 0x54, 0x5c, 0x60, 0x61,
        0x64, 0x6c, 0x74, 0x7c, 0x80, 0x81, 0x84, 0x87, 0x94, 0x9c, 0xa4, 0xac, 0xb1,
    ];
    let length = 3 + dice.below(40);
    let mut insns: Vec<ClassicInsn> = (0..length)
        .map(|_| {
            let small = u32::from(dice.byte());
            let k =
                dice.of(&[small % 16, small % 16, small, small << 24, u32::MAX - small, 60_000 + small * 40]);
            ClassicInsn { code: dice.of(&codes), jt: dice.byte() % 4, jf: dice.byte() % 4, k }
        })
        .collect();
    // Jumps may lead here: the last instruction returns the accumulator.
    insns.extend([0, 1, 0].map(|k| ClassicInsn { code: 6, jt: 0, jf: 0, k }));
    insns.push(ClassicInsn { code: 0x16, jt: 0, jf: 0, k: 0 });
    let jumps_to_the_end = ClassicInsn { code: 0x05, jt: 0, jf: 0, k: 3 };
    insns.insert(length, jumps_to_the_end);
    FilterProgram::new(insns).ok()
}

#[test]
fn random_translations_pass_verifier_and_match_interpreter() {
    let frames: Vec<_> = (0..40).map(frame).filter(|frame| frame.len() >= 14).collect();
    let (mut programs, mut passed) = (0, 0);
    for program in (0..3000).filter_map(random_program) {
        let code = program.translate_to_ebpf(ENDINGS).unwrap().into_iter();
        let code: Vec<u64> = code.map(|insn| u64::from_ne_bytes(EbpfInsn::to_bytes(insn))).collect();
        let loaded = match bpf::BpfProgram::load_xdp("filter", &code, false) {
            Ok(loaded) => loaded,
            Err(error) if error.is_permission_error() => return say(&error),
            Err(error) => panic!("{:?}: {error}", program.insns()),
        };
        programs += 1;
        for frame in &frames {
            let wanted = if program.matches_frame(frame) { MATCH } else { MISMATCH };
            passed += usize::from(wanted == MATCH);
            assert_eq!(
                loaded.run_program_once(frame).unwrap().0,
                wanted,
                "{:?} on {frame:02x?}",
                program.insns()
            );
        }
    }
    assert!(programs > 500 && passed > 1000, "{programs} programs, {passed} passed: too few to tell");
}
