//! Flow records that are drawn from a seed, in messages made by hand, for exporters' peers and for ours.

use crate::nfcapd::Nfcapd;
use crate::program;
use anyhow::Context;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

/// Records in a message.
const TOGETHER: u32 = 6;
/// 2026-11-21 13:00:00 UTC, milliseconds.
const BEGAN_MS: u64 = 1_795_266_000_000;
/// All flows begin within a day.
const LASTS_MS: u64 = 86_400_000;
/// When messages say that they were sent: behind all flows.
const SENT_S: u32 = 1_795_400_000;

/// Numbers that look random (splitmix64).
#[derive(Clone, Debug)]
pub struct Draw(pub u64);

impl Draw {
    /// A number below another.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ value >> 31) % bound
    }

    /// One of some, of which there is at least one.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap_or(0)]
    }

    fn byte_below(&mut self, bound: u64) -> u8 {
        u8::try_from(self.below(bound)).unwrap_or(0)
    }

    fn port(&mut self) -> u16 {
        let any = u16::try_from(self.below(65_536)).unwrap_or(0);
        self.of(&[53, 80, 443, 1024, any])
    }
}

/// Elements and their lengths, first those of IPv4 or IPv6 records.
const FOUR: [(u16, u16); 4] = [(8, 4), (12, 4), (15, 4), (18, 4)];
const SIX: [(u16, u16); 4] = [(27, 16), (28, 16), (62, 16), (63, 16)];
const COMMON: [(u16, u16); 20] = [
    (7, 2),
    (11, 2),
    (4, 1),
    (6, 1),
    (5, 1),
    (55, 1),
    (2, 8),
    (1, 8),
    (10, 4),
    (14, 4),
    (58, 2),
    (59, 2),
    (56, 6),
    (80, 6),
    (152, 8),
    (153, 8),
    (225, 4),
    (226, 4),
    (227, 2),
    (228, 2),
];

fn address(draw: &mut Draw, is_six: bool) -> Vec<u8> {
    let low = draw.byte_below(8);
    if is_six {
        let net = draw.byte_below(3);
        return [&[0x20, 1, 0x0d, 0xb8, 0, net][..], &[0; 9], &[low]].concat();
    }
    [&draw.of(&[[10, 1, 2], [198, 18, 0], [198, 18, 1]])[..], &[low]].concat()
}

/// Values of a record, in the order of the template. Its bytes are its number: that is how answers name it.
fn record(draw: &mut Draw, n: u32, is_six: bool) -> Vec<u8> {
    let protocol = draw.of(&[6_u8, 6, 6, 17, 17, 1, 58, 47]);
    let is_icmp = matches!(protocol, 1 | 58);
    let ports =
        if is_icmp { [0, draw.of(&[0x0800, 0, 0x0301, 0x0303, 0x8000])] } else { [draw.port(), draw.port()] };
    let flags = if protocol == 6 { draw.byte_below(64) } else { 0 };
    let began = BEGAN_MS + u64::from(n) * 37 % LASTS_MS;
    let any = draw.below(100_000);
    let lasts = draw.of(&[0, 0, 1, 999, 1000, 1001, 5000, any]);
    let any = 1 + draw.below(5000);
    let packets = draw.of(&[1, 2, 10, 100, 1000, any]);
    let mut bytes: Vec<u8> = (0..4).flat_map(|_| address(draw, is_six)).collect();
    bytes.extend(ports.map(u16::to_be_bytes).as_flattened());
    bytes.extend([protocol, flags, draw.of(&[0, 16, 184]), draw.of(&[0, 8])]);
    bytes.extend([packets, u64::from(100_000 + n)].map(u64::to_be_bytes).as_flattened());
    bytes.extend(
        [draw.of(&[0_u32, 1, 2, 3, 4]), draw.of(&[0, 1, 2, 3, 4])].map(u32::to_be_bytes).as_flattened(),
    );
    bytes.extend([draw.of(&[0_u16, 100, 101]), draw.of(&[0, 100, 200])].map(u16::to_be_bytes).as_flattened());
    bytes.extend([2, 0, 0, 0, 0, draw.of(&[0, 1, 2]), 2, 0, 0, 0, 1, draw.of(&[0, 1, 2])]);
    bytes.extend([began, began + lasts].map(u64::to_be_bytes).as_flattened());
    bytes.extend([203, 0, 113, draw.of(&[0, 1, 2, 3]), 203, 0, 113, draw.of(&[0, 1, 2, 3])]);
    bytes.extend([draw.of(&[0_u16, 1, 2, 3]), draw.of(&[0, 1, 2, 3])].map(u16::to_be_bytes).as_flattened());
    bytes
}

fn set(id: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 4).unwrap_or(u16::MAX);
    [&id.to_be_bytes()[..], &length.to_be_bytes(), content].concat()
}

fn template(id: u16, ends: &[(u16, u16)]) -> Vec<u8> {
    let fields: Vec<_> = ends.iter().chain(&COMMON).copied().collect();
    let mut bytes = [id, u16::try_from(fields.len()).unwrap_or(u16::MAX)].map(u16::to_be_bytes).concat();
    bytes.extend(fields.iter().flat_map(|(id, length)| [*id, *length].map(u16::to_be_bytes).concat()));
    bytes
}

/// Messages of so many records, which has to be a multiple of six. Every fourth record is IPv6. Every message has its templates,
/// so that none can be lost.
pub fn messages(seed: u64, records: u32) -> impl Iterator<Item = Vec<u8>> {
    let mut draw = Draw(seed);
    let templates = set(2, &[template(256, &FOUR), template(257, &SIX)].concat());
    (0..records / TOGETHER).map(move |at| message(&mut draw, at * TOGETHER, &templates))
}

fn message(draw: &mut Draw, number: u32, templates: &[u8]) -> Vec<u8> {
    let mut sets = templates.to_vec();
    for n in number..number + TOGETHER {
        let is_six = n % 4 == 3;
        sets.extend(set(256 + u16::from(is_six), &record(draw, n, is_six)));
    }
    let length = u16::try_from(sets.len() + 16).unwrap_or(u16::MAX);
    let head = [&10_u16.to_be_bytes()[..], &length.to_be_bytes()].concat();
    let numbers = [SENT_S, number, 0].map(u32::to_be_bytes).concat();
    [head, numbers, sets].concat()
}

/// Messages that are collected at a time: fewer records than a sink's queue holds.
const COLLECTED: usize = 40_000;

/// Gives the same records to nfcapd and to our collector: files are in `nf` and in `ours` below the directory.
pub fn give_to_both(directory: &Path, seed: u64, records: u32) -> anyhow::Result<()> {
    let nf = directory.join("nf");
    std::fs::create_dir(&nf)?;
    let mut nfcapd = Nfcapd::start(&nf)?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut waiting = Vec::new();
    let mut stored = 0;
    for (number, message) in (1..).zip(messages(seed, records)) {
        nfcapd.send(&socket, &message)?;
        waiting.extend(message);
        if number % COLLECTED == 0 {
            stored += collect(directory, &std::mem::take(&mut waiting))?;
        }
    }
    nfcapd.finish()?;
    if !waiting.is_empty() {
        stored += collect(directory, &waiting)?;
    }
    anyhow::ensure!(stored == u64::from(records), "{stored} of {records} records were stored");
    Ok(())
}

/// Has our collector read messages from a file; gives how many records it stored.
fn collect(directory: &Path, messages: &[u8]) -> anyhow::Result<u64> {
    let path = directory.join("messages.ipfix");
    std::fs::write(&path, messages)?;
    let mut collect = Command::new(program::binary());
    collect.args(["collect", "--quiet", "--json", "--directory"]).arg(directory.join("ours")).arg(&path);
    let output = collect.output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(path)?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    report["sinks"][0]["stored"]["records"].as_u64().context("a report of what was stored")
}
