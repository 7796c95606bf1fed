//! Compiles streams into the tables of `bpf/send.bpf.c`: for each stream and frame size one shape (the layout of the
//! frame), its varying fields, and its fill (the payload).
//!
//! Pure. Streams that exceed the program's limits are refused, with the reason.

use crate::Error;
use crate::stream::StreamSpec;
use packetrig_sys::xdp::tx::{
    FieldChange, FieldChangeKind, FrameShape, FrameTables, MAX_CHECKSUMS, MAX_FILL_BYTES, MAX_IMAGE_BYTES,
    MAX_LIVE_FRAME_BYTES, MAX_VARYING_FIELDS, ShapeChecksum,
};
use packetrig_units::{FrameSize, clamp_to_u32};
use packetrig_wire::FrameTemplate;
use packetrig_wire::parts::{PartialChecksum, TemplateParts, VaryingField};
use packetrig_wire::pattern::FieldPattern;
use packetrig_wire::tag::TagForm;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Capacity of the table of shapes.
const MAX_SHAPES: usize = 1 << 17;

/// Tables, and the index of each stream's shapes.
#[derive(Debug, Default)]
pub(super) struct CompiledTables {
    pub(super) tables: FrameTables,
    /// For each lane (stream), the index of the shape of every frame size.
    pub(super) shapes: Vec<BTreeMap<FrameSize, u32>>,
}

/// Compiles the tables of these streams, one lane each.
pub(super) fn compile_tables(streams: &[Arc<StreamSpec>]) -> Result<CompiledTables, Error> {
    let mut compiled = CompiledTables::default();
    for (lane, spec) in (0u32..).zip(streams) {
        let shapes = compiled
            .compile_stream(lane, spec.number, spec.source.template().map(AsRef::as_ref))
            .map_err(|reason| Error::NotForBackEnd { stream: spec.number, back_end: "xdp", reason })?;
        compiled.shapes.push(shapes);
    }
    compiled.tables.lanes = clamp_to_u32(streams.len());
    Ok(compiled)
}

/// Returns why the frames of stream `number` cannot be live frames, if they cannot.
pub(super) fn explain_live_refusal(number: u16, template: Option<&FrameTemplate>) -> Option<String> {
    CompiledTables::default().compile_stream(0, number, template).err()
}

/// The part of a [`FieldChange`] that is computed from the pattern of the field.
struct FieldValues {
    kind: FieldChangeKind,
    start: u128,
    step: u128,
    count: u64,
    seed: u64,
    /// Index of the first listed value.
    from: u32,
}

impl FieldValues {
    const fn with_kind(kind: FieldChangeKind) -> Self {
        Self { kind, start: 0, step: 0, count: 0, seed: 0, from: 0 }
    }
}

impl CompiledTables {
    fn compile_stream(
        &mut self,
        lane: u32,
        number_in_tag: u16,
        template: Option<&FrameTemplate>,
    ) -> Result<BTreeMap<FrameSize, u32>, String> {
        let Some(template) = template else {
            return Err("its frames come from a capture file".to_owned());
        };
        let mut shapes = BTreeMap::new();
        let mut ops = None;
        for size in template.spec().size.all_sizes() {
            let parts = template.split_into_parts(size, number_in_tag);
            check_limits(&parts)?;
            let ops = match ops {
                Some(ops) => ops,
                // Fields and the checksums that cover them are the same in every size.
                None => *ops.insert(self.compile_fields(&parts)?),
            };
            let shape = self.compile_shape(lane, number_in_tag, &parts, ops)?;
            if self.tables.shapes.len() == MAX_SHAPES {
                return Err(format!(
                    "the plan has more than {MAX_SHAPES} combinations of stream and frame size"
                ));
            }
            shapes.insert(size, clamp_to_u32(self.tables.shapes.len()));
            self.tables.shapes.push(shape);
        }
        Ok(shapes)
    }

    fn compile_fields(&mut self, parts: &TemplateParts) -> Result<(u32, u32), String> {
        let first = clamp_to_u32(self.tables.ops.len());
        for field in &parts.fields {
            let op = self.compile_field(field)?;
            self.tables.ops.push(op);
        }
        Ok((first, clamp_to_u32(parts.fields.len())))
    }

    fn compile_field(&mut self, field: &VaryingField) -> Result<FieldChange, String> {
        // The program changes a field within a window of 8 bytes that starts at an even byte, so that it can
        // correct checksums of 16-bit words from the window alone. A window of 16 bytes is for IPv6 addresses; in
        // it nothing is shifted.
        let window = field.at / 16 * 16;
        let end = field.at + field.bits;
        let is_wide = end > window + 64;
        if is_wide && end != window + 128 {
            return Err(format!(
                "the varying field at bit {} ({} bits) crosses a 64-bit window, so live frames cannot vary it",
                field.at, field.bits
            ));
        }
        let values = self.compile_values(&field.pattern)?;
        Ok(FieldChange {
            kind: values.kind,
            start: values.start,
            step: values.step,
            count: values.count,
            seed: values.seed,
            // A shift by all 128 bits would overflow.
            mask: if field.bits >= 128 { u128::MAX } else { (1 << field.bits) - 1 },
            at: window / 8,
            shift: if is_wide { 0 } else { window + 64 - end },
            wide: is_wide,
            checks: field.checks.iter().fold(0, |bits, check| bits | 1 << check),
            values_from: values.from,
        })
    }

    fn compile_values(&mut self, pattern: &FieldPattern) -> Result<FieldValues, String> {
        Ok(match pattern {
            FieldPattern::Value(value) => {
                FieldValues { start: *value, count: 1, ..FieldValues::with_kind(FieldChangeKind::StepUp) }
            }
            FieldPattern::Values(values) => {
                let from = clamp_to_u32(self.tables.values.len());
                self.tables.values.extend(values);
                FieldValues {
                    count: values.len() as u64,
                    from,
                    ..FieldValues::with_kind(FieldChangeKind::Values)
                }
            }
            FieldPattern::Step { start, step, count, down } => {
                let kind = if *down { FieldChangeKind::StepDown } else { FieldChangeKind::StepUp };
                FieldValues { start: *start, step: *step, count: *count, ..FieldValues::with_kind(kind) }
            }
            FieldPattern::Random { min, max, seed, count } => {
                // The span of all 128-bit numbers does not fit 128 bits: such values are drawn without a remainder.
                let Some(span) = max.saturating_sub(*min).checked_add(1) else {
                    let whole = FieldValues::with_kind(FieldChangeKind::RandomWhole);
                    return Ok(FieldValues { count: *count, seed: *seed, ..whole });
                };
                if span > u128::from(u64::MAX) {
                    return Err(
                        "a random field has 2^64 or more values; live frames support fewer, or the full 128-bit range".into()
                    );
                }
                let random = FieldValues::with_kind(FieldChangeKind::Random);
                FieldValues { start: *min, step: span, count: *count, seed: *seed, ..random }
            }
        })
    }

    fn compile_shape(
        &mut self,
        lane: u32,
        stream: u16,
        parts: &TemplateParts,
        ops: (u32, u32),
    ) -> Result<FrameShape, String> {
        let len = parts.image.len();
        let tag_len = parts.tag.map_or(0, TagForm::bytes);
        let tag_at = len - tag_len;
        // Short frames are one image. For longer ones the image holds the headers, and the payload comes from a fill
        // that all sizes of a stream share, so that the tables stay small.
        let whole = len <= MAX_IMAGE_BYTES;
        let fill = &parts.image[parts.header_len..tag_at];
        let image = if whole { &parts.image[..] } else { &parts.image[..parts.header_len] };
        let mut tail = [0; 16];
        tail[..tag_len].copy_from_slice(&parts.image[tag_at..]);
        let checks = parts.checks.iter().map(|check| compile_checksum(check, tag_at));
        Ok(FrameShape {
            lane,
            len: clamp_to_u32(len),
            image: image.to_vec(),
            fill: if whole { 0 } else { self.find_or_add_fill(fill) },
            fill_at: clamp_to_u32(parts.header_len),
            fill_len: if whole { 0 } else { clamp_to_u32(fill.len()) },
            tag_at: clamp_to_u32(tag_at),
            tag_len: clamp_to_u32(tag_len),
            stream,
            tail,
            ops,
            checks: checks.collect::<Result<_, _>>()?,
        })
    }

    /// Returns a fill that begins with these bytes: sizes share one fill, because a shorter payload is the beginning
    /// of a longer one.
    fn find_or_add_fill(&mut self, bytes: &[u8]) -> u32 {
        let fills = &mut self.tables.fills;
        // Only the last fill can belong to this stream.
        if let Some(last) = fills.last_mut().filter(|fill| fill.iter().zip(bytes).all(|(a, b)| a == b)) {
            if last.len() < bytes.len() {
                *last = bytes.to_vec();
            }
        } else {
            fills.push(bytes.to_vec());
        }
        clamp_to_u32(fills.len() - 1)
    }
}

fn check_limits(parts: &TemplateParts) -> Result<(), String> {
    let limits = [
        (parts.image.len(), MAX_LIVE_FRAME_BYTES, "bytes in a frame"),
        (parts.header_len, MAX_IMAGE_BYTES, "bytes of headers"),
        (parts.image.len() - parts.header_len, MAX_FILL_BYTES, "bytes of payload"),
        (parts.fields.len(), MAX_VARYING_FIELDS, "varying fields"),
        (parts.checks.len(), MAX_CHECKSUMS, "checksums"),
    ];
    match limits.into_iter().find(|(found, most, _)| found > most) {
        Some((found, most, what)) => {
            Err(format!("it has {found} {what}, but live frames have room for {most}"))
        }
        None => Ok(()),
    }
}

fn compile_checksum(check: &PartialChecksum, tag_at: usize) -> Result<ShapeChecksum, String> {
    if !check.start.is_multiple_of(2) {
        return Err("a checksum covers data that begins at an odd byte".into());
    }
    Ok(ShapeChecksum {
        base: check.base.into(),
        at: u16::try_from(check.at).map_err(|_| "a checksum lies more than 64 KiB into the frame")?,
        bad: check.bad,
        never_zero: check.never_zero,
        // The tag differs in every frame, so the program adds those of its words that the checksum covers.
        tag_words: (0..7).filter(|word| 2 * word + 2 <= check.tag).fold(0, |bits, word| bits | 1 << word),
        // A word at an odd distance counts with its bytes swapped (RFC 1071 section 2 B).
        tag_swapped: tag_at % 2 == 1,
        into: check.into.iter().fold(0, |bits, outer| bits | 1 << outer),
    })
}

#[cfg(test)]
mod tests;
