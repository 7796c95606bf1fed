//! Frames by hand, innermost first: `eth(0x0800, &v4(17, &udp(1, 2, b"...")))`.

pub(super) const LEFT: [u8; 4] = [198, 18, 0, 1];
pub(super) const RIGHT: [u8; 4] = [198, 19, 0, 2];
pub(super) const LEFT6: [u8; 16] = [0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub(super) const RIGHT6: [u8; 16] = [0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
pub(super) const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(super) const FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn be(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap().to_be_bytes()
}

pub(super) fn eth(kind: u16, inside: &[u8]) -> Vec<u8> {
    [&TO[..], &FROM, &kind.to_be_bytes(), inside].concat()
}

/// Builds a tag between an `eth` of the tag's kind and the tagged payload.
pub(super) fn tag(vlan: u16, kind: u16, inside: &[u8]) -> Vec<u8> {
    [&(0x6000 | vlan).to_be_bytes()[..], &kind.to_be_bytes(), inside].concat()
}

pub(super) fn v4(protocol: u8, inside: &[u8]) -> Vec<u8> {
    v4_of(LEFT, RIGHT, protocol, inside)
}

pub(super) fn v4_of(source: [u8; 4], destination: [u8; 4], protocol: u8, inside: &[u8]) -> Vec<u8> {
    v4_with(0x45, [0, 7], 0, &[], source, destination, protocol, inside)
}

/// A fragment of packet 7, `offset` in bytes.
pub(super) fn fragment4(protocol: u8, offset: usize, more: bool, inside: &[u8]) -> Vec<u8> {
    let bits = (offset / 8) | if more { 0x2000 } else { 0 };
    v4_with(0x45, [0, 7], bits, &[], LEFT, RIGHT, protocol, inside)
}

/// Builds an IPv4 packet with options, whose length is in words of four bytes.
pub(super) fn v4_options(options: &[u8], protocol: u8, inside: &[u8]) -> Vec<u8> {
    let first = 0x45 + u8::try_from(options.len() / 4).unwrap();
    v4_with(first, [0, 7], 0, options, LEFT, RIGHT, protocol, inside)
}

#[expect(clippy::too_many_arguments, reason = "the fields of a header")]
fn v4_with(
    first: u8,
    id: [u8; 2],
    offset: usize,
    options: &[u8],
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    inside: &[u8],
) -> Vec<u8> {
    let total = be(20 + options.len() + inside.len());
    let mut head =
        [&[first, 0x28][..], &total, &id, &be(offset), &[63, protocol, 0, 0], &source, &destination, options]
            .concat();
    let mut sum: u32 = head.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    head[10..12].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
    [&head[..], inside].concat()
}

/// Traffic class 0xb8, hop limit 61.
pub(super) fn v6(next: u8, inside: &[u8]) -> Vec<u8> {
    [&[0x6b, 0x80, 0, 5][..], &be(inside.len()), &[next, 61], &LEFT6, &RIGHT6, inside].concat()
}

/// An extension header of `8 * (1 + more)` bytes.
pub(super) fn extension(next: u8, more: u8, inside: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 8 * (1 + usize::from(more))];
    header[..2].copy_from_slice(&[next, more]);
    [&header[..], inside].concat()
}

pub(super) fn authentication(next: u8, inside: &[u8]) -> Vec<u8> {
    [&[next, 4, 0, 0][..], &[0xab; 20], inside].concat()
}

pub(super) fn fragment6(next: u8, offset: usize, more: bool, inside: &[u8]) -> Vec<u8> {
    [&[next, 0][..], &be(offset | usize::from(more)), &[0, 0, 0, 9], inside].concat()
}

pub(super) fn udp(source: u16, destination: u16, inside: &[u8]) -> Vec<u8> {
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &be(8 + inside.len()), &[0, 0], inside].concat()
}

pub(super) fn tcp(source: u16, destination: u16, flags: u8, inside: &[u8]) -> Vec<u8> {
    let rest = [0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0];
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &rest, inside].concat()
}

pub(super) fn icmp(kind: u8, code: u8) -> Vec<u8> {
    vec![kind, code, 0, 0, 0, 1, 0, 2, 1, 2, 3, 4]
}

/// Labels, outermost first.
pub(super) fn mpls(labels: &[u32], inside: &[u8]) -> Vec<u8> {
    let last = labels.len() - 1;
    let entries = labels.iter().enumerate().flat_map(|(i, label)| entry(*label, i == last).to_be_bytes());
    entries.chain(inside.iter().copied()).collect()
}

pub(super) fn entry(label: u32, is_last: bool) -> u32 {
    label << 12 | u32::from(is_last) << 8 | 64
}

pub(super) fn pppoe(protocol: &[u8], inside: &[u8]) -> Vec<u8> {
    [&[0x11, 0, 0, 1][..], &be(protocol.len() + inside.len()), protocol, inside].concat()
}

/// `bits`: 0x80 checksum, 0x20 key, 0x10 sequence number.
pub(super) fn gre(bits: u8, kind: u16, inside: &[u8]) -> Vec<u8> {
    let mut header = vec![bits, 0];
    header.extend(kind.to_be_bytes());
    for (bit, word) in [(0x80, [0xee; 4]), (0x20, [0, 0, 1, 5]), (0x10, [0xdd; 4])] {
        header.extend(word.iter().filter(|_| bits & bit != 0));
    }
    [&header[..], inside].concat()
}

pub(super) fn vxlan(network: u32, inside: &[u8]) -> Vec<u8> {
    let header = [&[8, 0, 0, 0][..], &(network << 8).to_be_bytes()].concat();
    udp(50_000, 4789, &[&header[..], inside].concat())
}

/// `options`: their bytes, in whole words.
pub(super) fn geneve(network: u32, kind: u16, options: &[u8], inside: &[u8]) -> Vec<u8> {
    let words = u8::try_from(options.len() / 4).unwrap();
    let header = [&[words, 0][..], &kind.to_be_bytes(), &(network << 8).to_be_bytes(), options].concat();
    udp(50_000, 6081, &[&header[..], inside].concat())
}

/// `extensions`: kind and length in words of each.
pub(super) fn gtp(tunnel: u32, bits: u8, extensions: &[(u8, u8)], inside: &[u8]) -> Vec<u8> {
    let mut header = vec![0x30 | bits, 255, 0, 0];
    header.extend(tunnel.to_be_bytes());
    if bits != 0 {
        header.extend([0, 1, 0, extensions.first().map_or(0, |(kind, _)| *kind)]);
    }
    for (i, (_, words)) in extensions.iter().enumerate() {
        let mut extension = vec![0; usize::from(*words) * 4];
        extension[0] = *words;
        *extension.last_mut().unwrap() = extensions.get(i + 1).map_or(0, |(kind, _)| *kind);
        header.extend(extension);
    }
    udp(2152, 2152, &[&header[..], inside].concat())
}

/// One frame of every kind, whose metered packet is from `LEFT` to `RIGHT`, or their like in IPv6.
pub(super) fn every_kind() -> Vec<(&'static str, Vec<u8>)> {
    let plain = udp(1000, 2000, b"something to carry");
    let (four, six) = (v4(17, &plain), v6(17, &plain));
    let (outer, other) = ([198, 18, 9, 1], [198, 18, 9, 2]);
    let carried = |protocol, inside: &[u8]| eth(0x0800, &v4_of(outer, other, protocol, inside));
    vec![
        ("udp", eth(0x0800, &four)),
        ("tcp", eth(0x0800, &v4(6, &tcp(1000, 2000, 0x12, b"x")))),
        ("sctp", eth(0x0800, &v4(132, &plain))),
        ("icmp", eth(0x0800, &v4(1, &icmp(8, 0)))),
        ("esp", eth(0x0800, &v4(50, &plain))),
        ("options", eth(0x0800, &v4_options(&[1; 8], 17, &plain))),
        ("authenticated", eth(0x0800, &v4(51, &authentication(17, &plain)))),
        ("udp6", eth(0x86dd, &six)),
        ("tcp6", eth(0x86dd, &v6(6, &tcp(1000, 2000, 0x02, b"")))),
        ("icmp6", eth(0x86dd, &v6(58, &icmp(128, 0)))),
        ("extensions", eth(0x86dd, &v6(0, &extension(43, 0, &extension(60, 2, &extension(17, 1, &plain)))))),
        ("authenticated6", eth(0x86dd, &v6(51, &authentication(17, &plain)))),
        ("fragment", eth(0x0800, &fragment4(17, 0, true, &plain))),
        ("later fragment", eth(0x0800, &fragment4(17, 24, false, &plain))),
        ("fragment6", eth(0x86dd, &v6(44, &fragment6(17, 0, true, &plain)))),
        ("later fragment6", eth(0x86dd, &v6(44, &fragment6(17, 24, false, &plain)))),
        ("tag", eth(0x8100, &tag(5, 0x0800, &four))),
        ("two tags", eth(0x88a8, &tag(5, 0x8100, &tag(6, 0x86dd, &six)))),
        ("mpls", eth(0x8847, &mpls(&[16, 17], &four))),
        ("mpls6", eth(0x8847, &mpls(&[16], &six))),
        (
            "wire",
            eth(0x8847, &mpls(&[16, 17], &[&[0; 4][..], &eth(0x8100, &tag(5, 0x0800, &four))].concat())),
        ),
        ("pppoe", eth(0x8864, &pppoe(&[0, 0x21], &four))),
        ("pppoe6", eth(0x8864, &pppoe(&[0x57], &six))),
        (
            "snap",
            eth(
                u16::try_from(8 + four.len()).unwrap(),
                &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &four].concat(),
            ),
        ),
        ("gre", carried(47, &gre(0, 0x0800, &four))),
        ("gre with all", carried(47, &gre(0xb0, 0x86dd, &six))),
        ("ethernet in gre", carried(47, &gre(0x20, 0x6558, &eth(0x8100, &tag(5, 0x0800, &four))))),
        ("vxlan", carried(17, &vxlan(70_000, &eth(0x0800, &four)))),
        ("geneve", carried(17, &geneve(70_001, 0x6558, &[], &eth(0x0800, &four)))),
        ("geneve with options", carried(17, &geneve(70_001, 0x86dd, &[7; 252], &six))),
        ("gtp", carried(17, &gtp(80_000, 0, &[], &four))),
        ("gtp with all", carried(17, &gtp(80_000, 7, &[(0x85, 1), (0xc0, 2)], &six))),
        ("ip in ip", carried(4, &four)),
        ("six in four", carried(41, &six)),
        ("four in six", eth(0x86dd, &v6(4, &four))),
    ]
}
