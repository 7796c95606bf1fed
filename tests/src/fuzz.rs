//! Bodies of the fuzz targets: one function a target, which panics when a promise is broken.
//!
//! `fuzz/fuzz_targets` feeds them from a fuzzer; `tests/fuzz_replay.rs` from the committed corpus and from seeded bytes, so
//! that an ordinary test run holds the same promises.

pub mod cost;
mod flow_collect;
mod flow_file;
mod flow_filter;
mod flow_names;
mod flow_parse;
mod hello;
mod letter;
mod otg;
mod release;
mod segment;
mod stamp;
mod tap_state;

pub use flow_collect::{flow_ipfix, flow_netflow, flow_sflow, flow_sim};
pub use flow_file::flow_file;
pub use flow_filter::flow_filter;
pub use flow_names::flow_names;
pub use flow_parse::{flow_parse, frames};
pub use hello::hello;
pub use letter::letter;
pub use otg::{answer_to, otg_document, otg_http, request};
pub use release::release;
pub use segment::segment;
pub use stamp::stamp;
pub use tap_state::tap_state;

use packetrig_plan::Plan;
use packetrig_units::{BitRate, FrameSize};
use packetrig_wire::bpf::{ClassicInsn, EbpfInsn, FilterEndings, FilterProgram};
use packetrig_wire::foreign::{self, FrameRewrite, PayloadTagPosition, VlanEdit};
use packetrig_wire::header::{HeaderKind, PacketHeader};
use packetrig_wire::pattern::{FieldPattern, keyed_mix};
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::pcap::{CaptureDecoder, DecodedElement, MAX_DECODER_INPUT_BYTES};
use packetrig_wire::size::SizePattern;
use packetrig_wire::tag::{self, TagKey, TagStamp};
use packetrig_wire::{FrameComparison, FrameSpec, FrameTemplate};

const KEY: TagKey = TagKey(0x7061_636b_6574);

/// Takes numbers from fuzzed bytes; zeros when they are used up.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

fn headers(source: &mut Source<'_>) -> Vec<PacketHeader> {
    let count = source.byte() % 7;
    let headers = (0..count).map(|_| {
        let kind = HeaderKind::ALL[usize::from(source.byte()) % HeaderKind::ALL.len()];
        let mut header = PacketHeader::new(kind);
        if kind == HeaderKind::Custom {
            return PacketHeader::custom((0..source.byte() % 9).collect());
        }
        for _ in 0..source.byte() % 3 {
            let field = &kind.fields()[usize::from(source.byte()) % kind.fields().len()];
            // A header that changes its length from frame to frame is refused by the plan.
            if field.name != "checksum_present" {
                header = header.with_field(field.name, pattern(source));
            }
        }
        header
    });
    headers.collect()
}

fn pattern(source: &mut Source<'_>) -> FieldPattern {
    let (a, b) = (u128::from(source.word()), u128::from(source.word()));
    let count = u64::from(source.byte()) + 1;
    match source.byte() % 4 {
        0 => FieldPattern::Value(a),
        1 => FieldPattern::Values(vec![a, b]),
        2 => FieldPattern::Step { start: a, step: b, count, down: count % 2 == 0 },
        _ => FieldPattern::Random { min: a.min(b), max: a.max(b), seed: count, count },
    }
}

/// Any header stack that compiles renders frames that are found again and verify as sent; one flipped bit is noticed.
pub fn wire(data: &[u8]) {
    let mut source = Source(data);
    let headers = headers(&mut source);
    let size = FrameSize::new(64 + source.word() % 1500);
    let spec = FrameSpec {
        headers,
        size: SizePattern::Fixed(size),
        payload: PayloadPattern::IncrementByte,
        tagged: true,
        routed: false,
    };
    let Ok(template) = FrameTemplate::new(spec) else { return };
    let n = u64::from(source.word());
    let stamp = TagStamp { key: KEY, stream: 7, time: u64::from(source.word()) };
    let mut frame = vec![0; size.kernel_len()];
    assert_eq!(template.render_frame(n, stamp, &mut frame), frame.len());
    let mut scratch = vec![0; template.header_len()];
    let Some(form) = template.tag_form(size) else { return };
    let found = tag::find_tag(&frame, KEY).expect("a rendered frame carries its tag");
    if found.tag.form != form {
        return; // Payload bytes looked like a full tag by chance: once in 65536.
    }
    assert_eq!(template.verify_frame(n, KEY, &found, &frame, &mut scratch), FrameComparison::Intact);
    let at = source.word() as usize % frame.len();
    frame[at] ^= 1 << (source.byte() % 8);
    if let Some(found) = tag::find_tag(&frame, KEY).filter(|found| found.tag.stream == 7) {
        assert_ne!(
            template.verify_frame(n, KEY, &found, &frame, &mut scratch),
            FrameComparison::Intact,
            "bit at byte {at}"
        );
    }
}

/// Any bytes can be searched for a tag, verified and compared, whatever lengths they claim.
pub fn tag(data: &[u8]) {
    let spec = FrameSpec {
        headers: vec![
            PacketHeader::new(HeaderKind::Ethernet),
            PacketHeader::new(HeaderKind::Ipv4),
            PacketHeader::new(HeaderKind::Udp),
        ],
        size: SizePattern::Random { min: FrameSize::MIN, max: FrameSize::new(1518), seed: 1 },
        payload: PayloadPattern::default(),
        tagged: true,
        routed: false,
    };
    let template = FrameTemplate::new(spec).expect("a plain spec compiles");
    let mut scratch = vec![0; template.header_len()];
    template.matches_constant_headers(data);
    // The key is guessed from the data, so that a fuzzer reaches what lies behind the mark.
    let key = TagKey(data.first().map_or(0, |byte| u64::from(*byte)));
    if let Some(found) = tag::find_tag(data, key) {
        assert!(found.end <= data.len() && found.end >= found.tag.form.bytes());
        template.verify_frame(u64::from(found.tag.sequence), key, &found, data, &mut scratch);
    }
}

/// Any bytes are a capture file, or damaged at some point; whatever frames it has can be rewritten, tagged and judged.
pub fn pcap(data: &[u8]) {
    let rewrite = FrameRewrite {
        addresses: ["0.0.0.0/0=198.18.0.0/0", "::/0=2001::/0"].map(|map| map.parse().expect("a map")).into(),
        vlan: Some(VlanEdit::Push(7)),
        ..FrameRewrite::default()
    };
    let (mut decoder, mut at) = (CaptureDecoder::new(), 0);
    while at < data.len() {
        match decoder.next_step(&data[at..]) {
            Ok(DecodedElement::Record { record, used }) => {
                assert!(used > 0 && used <= data.len() - at);
                let mut frame = record.bytes.to_vec();
                rewrite.rewrite_frame(&mut frame);
                if let Some(place) = PayloadTagPosition::from_frame(&frame) {
                    place.write_tag(1, TagStamp { key: KEY, stream: 1, time: 1 }, &mut frame);
                    let ours = tag::tag_candidates(&frame, KEY)
                        .any(|found| foreign::compare_payload_with_tag(&frame, &found).is_some());
                    assert!(ours, "a tag that was written is found");
                }
                at += used;
            }
            Ok(DecodedElement::Skip(bytes)) => {
                assert!(bytes > 0);
                at = usize::try_from(bytes).map_or(data.len(), |bytes| at.saturating_add(bytes));
            }
            Ok(DecodedElement::More(more)) => {
                return assert!(more > data.len() - at && more <= MAX_DECODER_INPUT_BYTES);
            }
            Err(_) => return,
        }
    }
}

/// Any text is a plan that binds and renders, or has at least one problem.
pub fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let plan = match Plan::from_text(text) {
        Ok(plan) => plan,
        Err(problems) => return assert!(!problems.0.is_empty(), "refused without a reason"),
    };
    for stream in &plan.streams {
        let Some(template) = stream.frames.template() else { continue };
        for n in 0..3 {
            let mut frame = vec![0; template.frame_size(n).kernel_len()];
            template.render_frame(n, TagStamp { key: KEY, stream: 0, time: 0 }, &mut frame);
        }
    }
    let speeds = vec![Some(BitRate::new(10_000_000_000)); plan.ports.len()];
    if let Ok(bound) = plan.bind_to_links(&speeds) {
        for stream in &bound.streams {
            assert!(stream.timeline.due_time(0) <= stream.timeline.due_time(1));
        }
    }
}

/// Any classic program that is sound ends on any frame, and translates into jumps that stay inside.
pub fn filter(data: &[u8]) {
    let mut source = Source(data);
    let count = source.byte();
    let insns = (0..count).map(|_| ClassicInsn {
        code: u16::from(source.byte()),
        jt: source.byte(),
        jf: source.byte(),
        k: source.word(),
    });
    // A return at the end lets more programs be sound.
    let insns: Vec<_> = insns
        .collect::<Vec<_>>()
        .into_iter()
        .chain([ClassicInsn { code: 6, k: 1, ..Default::default() }])
        .collect();
    let Ok(program) = FilterProgram::new(insns) else { return };
    program.matches_frame(source.0);
    program.matches_truncated_frame(source.0, u32::MAX);
    let endings = FilterEndings { on_match: &[EbpfInsn::exit()], on_mismatch: &[EbpfInsn::exit()] };
    let code = program.translate_to_ebpf(endings).expect("255 instructions are not too many");
    for (at, insn) in code.iter().enumerate().filter(|(_, insn)| **insn != EbpfInsn::exit()) {
        let skipped = if matches!(insn.code & 7, 5 | 6) { usize::try_from(insn.off) } else { Ok(0) };
        assert!(skipped.is_ok_and(|skipped| at + 1 + skipped < code.len()), "instruction {at} leads out");
    }
}

/// Seeded bytes of varying length, for runs without a fuzzer.
pub fn seeded(seed: u64, n: u64) -> Vec<u8> {
    let len = keyed_mix(seed, n) % 200;
    (0..len).map(|i| keyed_mix(seed ^ n, i).to_be_bytes()[0]).collect()
}
