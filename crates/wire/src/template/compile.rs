//! Compiles a spec into a template: places the headers, and divides their fields into constant,
//! varying and computed ones.

use super::{
    ChangingField, ChecksumCover, ChecksumField, Error, FrameSpec, FrameTemplate, LengthField,
    MAC_ADDRESSES_BYTES, PseudoHeader,
};
use crate::bits;
use crate::checksum::ones_complement_sum;
use crate::header::{
    AbsentValue, ComputedField, FieldDef, FieldSetting, HeaderKind, NumberSpace, PacketHeader,
};
use crate::pattern::FieldPattern;
use packetrig_units::{FrameSize, clamp_to_u32};

/// Number of bytes that each Ethernet header except the outermost one reserves for its FCS at the end of the
/// frame. The FCS of the outermost header is not part of a frame as the kernel sees it. The FCS of an inner
/// header is, and the inner packet ends before it.
const INNER_FCS_BYTES: usize = 4;

impl FrameTemplate {
    /// Compiles `spec` into a template. Fails if the headers do not fit into the smallest frame.
    pub fn new(mut spec: FrameSpec) -> Result<Self, Error> {
        if spec.headers.is_empty() {
            spec.headers.push(PacketHeader::new(HeaderKind::Ethernet));
        }
        let mut layout = TemplateLayout::default();
        for index in 0..spec.headers.len() {
            layout.place_header(&spec.headers, index);
        }
        // Reversed, the order is: inner checksums before outer ones, because the outer ones cover them.
        layout.checks.reverse();
        let header_len = layout.image.len();
        let needed = header_len + layout.trim;
        // The smallest frame must be large enough, because one template is used for all sizes of the stream.
        if spec.size.min_size().kernel_len() < needed {
            return Err(Error::TooSmall {
                headers: header_len,
                needed: needed + FrameSize::FCS as usize,
                smallest: spec.size.min_size().bytes(),
            });
        }
        // This is the fill of the longest frame; the fill of a shorter frame is its beginning.
        let fill = spec.payload.fill_bytes(spec.size.max_size().kernel_len() - header_len);
        let prefix_sums = compute_prefix_sums(&fill);
        let hop_limit = if spec.routed { find_outer_hop_limit(&spec.headers) } else { None };
        let mut constant = layout.constant_bits();
        // Routers change these bytes, so they do not identify the stream.
        if let Some(at) = hop_limit {
            constant[..MAC_ADDRESSES_BYTES].fill(0);
            constant[at] = 0;
        }
        let mut image = layout.image;
        image.extend_from_slice(&fill);
        Ok(Self {
            spec,
            image,
            header_len,
            vary: layout.vary,
            lengths: layout.lengths,
            checks: layout.checks,
            prefix_sums,
            constant,
            hop_limit,
        })
    }
}

/// Returns the offset of the outermost time to live or hop limit; `None` if the frame does not begin with
/// Ethernet or has no IP header.
fn find_outer_hop_limit(headers: &[PacketHeader]) -> Option<usize> {
    headers.first().filter(|first| first.kind() == HeaderKind::Ethernet)?;
    let mut at = 0;
    for header in headers {
        match header.kind() {
            HeaderKind::Ipv4 => return Some(at + 8),
            HeaderKind::Ipv6 => return Some(at + 7),
            _ => at += header.len(),
        }
    }
    None
}

/// Returns the folded sums of the first 0, 1, 2 … bytes.
fn compute_prefix_sums(fill: &[u8]) -> Vec<u16> {
    // The sum is folded at every step, so each entry has 16 bits. After an odd number of bytes, the last word
    // is only half complete: its entry is computed from the last even entry, and so is the next one.
    let mut sums = Vec::with_capacity(fill.len() + 1);
    let mut even = 0u16;
    sums.push(0);
    for pair in fill.chunks(2) {
        let high = u16::from(pair[0]) << 8;
        sums.push(ones_complement_sum(&[even.to_be_bytes(), high.to_be_bytes()].concat()));
        if let [_, low] = pair {
            even =
                ones_complement_sum(&[even.to_be_bytes(), (high | u16::from(*low)).to_be_bytes()].concat());
            sums.push(even);
        }
    }
    sums
}

#[derive(Default)]
struct TemplateLayout {
    image: Vec<u8>,
    vary: Vec<ChangingField>,
    lengths: Vec<LengthField>,
    checks: Vec<ChecksumField>,
    /// The IP header that was placed last, with its offset.
    ip: Option<(HeaderKind, usize)>,
    ethernets: usize,
    trim: usize,
}

/// The header whose fields are being placed, the next header, and the offset in the frame.
struct HeaderPosition<'a> {
    header: &'a PacketHeader,
    next: Option<&'a PacketHeader>,
    at: usize,
}

impl TemplateLayout {
    fn place_header(&mut self, headers: &[PacketHeader], index: usize) {
        let header = &headers[index];
        let place = HeaderPosition { header, next: headers.get(index + 1), at: self.image.len() };
        self.image.resize(place.at + header.len() - header.trailing_bytes().len(), 0);
        self.image.extend_from_slice(header.trailing_bytes());
        match header.kind() {
            HeaderKind::Ethernet => {
                self.ethernets += 1;
                self.trim = (self.ethernets - 1) * INNER_FCS_BYTES;
            }
            kind @ (HeaderKind::Ipv4 | HeaderKind::Ipv6) => self.ip = Some((kind, place.at)),
            _ => {}
        }
        // Fields beyond the length of the header belong to a part that this header does not have, such as the
        // checksum of GRE.
        for field in header.kind().fields() {
            if (field.at + field.bits) as usize <= (header.len() - header.trailing_bytes().len()) * 8 {
                self.place_field(&place, field);
            }
        }
    }

    fn place_field(&mut self, place: &HeaderPosition<'_>, field: &FieldDef) {
        match (place.header.field_setting(field.name), field.absent) {
            (Some(FieldSetting::Pattern(pattern)), _) => self.place_pattern(place.at, field, pattern),
            (Some(FieldSetting::BadChecksum), AbsentValue::Computed(computed)) => {
                self.place_computed(place, field, computed, true);
            }
            (None, AbsentValue::Computed(computed)) => self.place_computed(place, field, computed, false),
            (None, AbsentValue::Value(value)) => self.place_constant(place.at, field, value),
            (None, AbsentValue::Nothing) | (Some(FieldSetting::BadChecksum), _) => {}
        }
    }

    fn place_pattern(&mut self, at: usize, field: &FieldDef, pattern: &FieldPattern) {
        if pattern.varies() {
            let at = bit_offset(at, field);
            self.vary.push(ChangingField { at, bits: field.bits, pattern: pattern.clone() });
        } else {
            self.place_constant(at, field, pattern.value_at(0, field.bits));
        }
    }

    fn place_constant(&mut self, at: usize, field: &FieldDef, value: u128) {
        bits::write_bits(&mut self.image, bit_offset(at, field), field.bits, value);
    }

    fn place_computed(
        &mut self,
        place: &HeaderPosition<'_>,
        field: &FieldDef,
        computed: ComputedField,
        bad: bool,
    ) {
        let next = place.next.map(PacketHeader::kind);
        let at = place.at + field.at as usize / 8;
        let start = place.at;
        let end = start + place.header.len();
        match computed {
            ComputedField::NextHeader { space, none } => {
                let number = next.and_then(|kind| space.written_number(kind)).unwrap_or(none);
                self.place_constant(start, field, number.into());
            }
            ComputedField::HeaderWords => self.place_constant(start, field, (place.header.len() / 4) as u128),
            ComputedField::OptionWords => {
                self.place_constant(start, field, (place.header.trailing_bytes().len() / 4) as u128);
            }
            ComputedField::BottomOfStack => {
                self.place_constant(start, field, u128::from(next != Some(HeaderKind::Mpls)));
            }
            // An inner Ethernet header reserves bytes for its FCS at the end of the frame, which belong to no
            // packet in the frame. So from that header on, every length is smaller by `trim`.
            ComputedField::LengthFromHere => self.lengths.push(LengthField { at, minus: start + self.trim }),
            ComputedField::LengthBehind => self.lengths.push(LengthField { at, minus: end + self.trim }),
            ComputedField::HeaderChecksum => {
                self.checks.push(ChecksumField {
                    at,
                    covers: ChecksumCover::Header { start, end },
                    bad,
                    never_zero: false,
                });
            }
            ComputedField::Checksum { pseudo, never_zero } => {
                let pseudo = if pseudo { self.find_pseudo_header(place.header.kind()) } else { None };
                let covers = ChecksumCover::Rest { start, trim: self.trim, pseudo };
                self.checks.push(ChecksumField { at, covers, bad, never_zero });
            }
        }
    }

    fn find_pseudo_header(&self, kind: HeaderKind) -> Option<PseudoHeader> {
        let protocol = u8::try_from(NumberSpace::IpProtocol.written_number(kind)?).ok()?;
        // The IP header that was placed last carries this header.
        self.ip.map(|(ip, at)| match ip {
            HeaderKind::Ipv6 => PseudoHeader { addresses: at + 8, len: 32, protocol },
            _ => PseudoHeader { addresses: at + 12, len: 8, protocol },
        })
    }

    /// Returns a mask of the header bits that are the same in every frame.
    fn constant_bits(&self) -> Vec<u8> {
        // Bits that are computed for each frame do not identify the stream, so they are excluded.
        let mut mask = vec![0xff; self.image.len()];
        for vary in &self.vary {
            bits::write_bits(&mut mask, vary.at, vary.bits, 0);
        }
        for at in self.lengths.iter().map(|l| l.at).chain(self.checks.iter().map(|c| c.at)) {
            mask[at..at + 2].fill(0);
        }
        mask
    }
}

fn bit_offset(at: usize, field: &FieldDef) -> u32 {
    // The value is limited only for headers of more than 512 MiB. `FrameTemplate::new` refuses these, because
    // no frame is as long.
    clamp_to_u32(at * 8).saturating_add(field.at)
}
