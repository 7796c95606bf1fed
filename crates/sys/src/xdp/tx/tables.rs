//! Tables of headers, field changes, values and fills, from which `bpf/send.bpf.c` makes the frames that it
//! sends (`BPF_F_TEST_XDP_LIVE_FRAMES`). Each table is copied to a separate BPF map.

use super::{MAX_CHECKSUMS, MAX_FILL_BYTES, MAX_IMAGE_BYTES, MAX_VARYING_FIELDS};
use crate::Error;
use crate::bpf::{BpfMap, MapKind};
use crate::layout::send::{check, op, shape, value};
use packetrig_units::clamp_to_u32;

/// How a field changes from frame to frame; the numbers are those of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FieldChangeKind {
    /// Values from the table of values.
    Values = 0,
    StepUp = 1,
    StepDown = 2,
    /// `start` plus a random number below `step`.
    Random = 3,
    /// All bits at random.
    RandomWhole = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Rule for the values of the field.
    pub kind: FieldChangeKind,
    pub start: u128,
    /// Distance of two values; for [`FieldChangeKind::Random`] the number of values to draw from.
    pub step: u128,
    /// Number of values before they repeat; 0 if they never do.
    pub count: u64,
    pub seed: u64,
    /// As many one bits as the field has bits, in the lowest positions.
    pub mask: u128,
    /// Offset of the 8 bytes (16 if `wide`) of the frame that contain the field, called the window. The offset is even,
    /// because checksums add words of 16 bits.
    pub at: u32,
    /// Number of bits of the window after the field; 0 if wide.
    pub shift: u32,
    /// The window has 16 bytes.
    pub wide: bool,
    /// Checksums of the shape that cover the field, one bit for each.
    pub checks: u32,
    /// For [`FieldChangeKind::Values`]: index of the field's first value in [`FrameTables::values`].
    pub values_from: u32,
}

/// A checksum of a shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeChecksum {
    /// One's-complement sum of those covered bytes that do not vary.
    pub base: u32,
    pub at: u16,
    /// The program writes a wrong checksum on purpose.
    pub bad: bool,
    /// Zero is written as all ones.
    pub never_zero: bool,
    /// Words of the tag that the checksum covers, one bit for each: mark, (stream or upper half of the short word),
    /// upper and lower half of the number (or lower half of the short word), three of the time.
    pub tag_words: u8,
    /// The tag is at an odd distance from where the checksum starts.
    pub tag_swapped: bool,
    /// Later checksums that cover this one, one bit for each.
    pub into: u8,
}

/// The frames of one lane and one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameShape {
    /// Lane that counts the frames of this shape.
    pub lane: u32,
    /// Frame length without FCS.
    pub len: u32,
    /// The beginning of the frame, with all varying bits zero; at most [`MAX_IMAGE_BYTES`] bytes.
    pub image: Vec<u8>,
    /// Index of the fill in [`FrameTables::fills`].
    pub fill: u32,
    /// Offset of the fill in the frame.
    pub fill_at: u32,
    /// Number of bytes of the fill in the frame; 0 if the image holds the whole frame.
    pub fill_len: u32,
    /// Offset of the tag in the frame.
    pub tag_at: u32,
    /// Bytes of the tag: 16 or 6; 0 without a tag.
    pub tag_len: u32,
    /// The number of the stream, which is in the tag.
    pub stream: u16,
    /// The tag, with zeros in place of everything that varies.
    pub tail: [u8; 16],
    /// Index of the first varying field in [`FrameTables::ops`], and number of varying fields.
    pub ops: (u32, u32),
    /// Checksums of the frame, inner ones before outer ones.
    pub checks: Vec<ShapeChecksum>,
}

/// All tables from which frames are made.
#[derive(Clone, Debug, Default)]
pub struct FrameTables {
    pub shapes: Vec<FrameShape>,
    /// Varying fields, by index.
    pub ops: Vec<FieldChange>,
    /// Values of the fields that use a list, one list after the other. `ops` refers to them by index.
    pub values: Vec<u128>,
    /// Fills, by index; at most [`MAX_FILL_BYTES`] bytes each.
    pub fills: Vec<Vec<u8>>,
    pub lanes: u32,
}

/// The tables as maps of the program.
pub(super) struct TableMaps {
    pub(super) shapes: BpfMap,
    pub(super) ops: BpfMap,
    pub(super) values: BpfMap,
    pub(super) fills: BpfMap,
}

impl FrameTables {
    pub(super) fn create_maps(&self) -> Result<TableMaps, Error> {
        Ok(TableMaps {
            shapes: create_table("shapes", shape::SIZE, &self.shapes, shape_bytes)?,
            ops: create_table("ops", op::SIZE, &self.ops, field_change_bytes)?,
            values: create_table("values", value::SIZE, &self.values, |value| wide_bytes(*value).to_vec())?,
            fills: create_table("fills", MAX_FILL_BYTES, &self.fills, |fill| fill_bytes(fill))?,
        })
    }
}

fn fill_bytes(fill: &[u8]) -> Vec<u8> {
    let mut bytes = fill.to_vec();
    bytes.resize(MAX_FILL_BYTES, 0);
    bytes
}

/// Creates a map with a value for each row. `bytes` encodes a row as the program's structure.
fn create_table<T>(
    name: &'static str,
    value: usize,
    rows: &[T],
    bytes: impl Fn(&T) -> Vec<u8>,
) -> Result<BpfMap, Error> {
    let map = BpfMap::create_zeroed(name, MapKind::Array, value, clamp_to_u32(rows.len()))?;
    for (index, row) in (0..).zip(rows) {
        map.set_value(index, &bytes(row))?;
    }
    Ok(map)
}

/// Two numbers of 64 bits in this machine's order, the upper half first.
fn wide_bytes(value: u128) -> [u8; 16] {
    let mut bytes = value.to_ne_bytes();
    if cfg!(target_endian = "little") {
        bytes.rotate_left(8);
    }
    bytes
}

/// A structure of the program. All fields that are not set are zero.
struct EncodedBpfStruct(Vec<u8>);

impl EncodedBpfStruct {
    fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    fn put_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_words<const N: usize>(&mut self, words: [(usize, u32); N]) {
        for (at, word) in words {
            self.put_bytes(at, &word.to_ne_bytes());
        }
    }
}

fn shape_bytes(shape: &FrameShape) -> Vec<u8> {
    assert!(
        shape.image.len() <= MAX_IMAGE_BYTES
            && shape.checks.len() <= MAX_CHECKSUMS
            && shape.ops.1 as usize <= MAX_VARYING_FIELDS
    );
    let mut encoded = EncodedBpfStruct::new(shape::SIZE);
    encoded.put_words([
        (shape::LANE, shape.lane),
        (shape::LEN, shape.len),
        (shape::IMAGE_LEN, clamp_to_u32(shape.image.len())),
        (shape::FILL, shape.fill),
        (shape::FILL_AT, shape.fill_at),
        (shape::FILL_LEN, shape.fill_len),
        (shape::TAG_AT, shape.tag_at),
        (shape::TAG_LEN, shape.tag_len),
        (shape::OPS_FROM, shape.ops.0),
        (shape::OPS, shape.ops.1),
        (shape::CHECKS_USED, clamp_to_u32(shape.checks.len())),
        (shape::STREAM, shape.stream.into()),
    ]);
    encoded.put_bytes(shape::TAIL, &shape.tail);
    for (index, check) in shape.checks.iter().enumerate() {
        encoded.put_bytes(shape::CHECKS + index * check::SIZE, &check_bytes(check));
    }
    encoded.put_bytes(shape::IMAGE, &shape.image);
    encoded.0
}

fn check_bytes(check: &ShapeChecksum) -> Vec<u8> {
    let mut encoded = EncodedBpfStruct::new(check::SIZE);
    encoded.put_bytes(check::BASE, &check.base.to_ne_bytes());
    encoded.put_bytes(check::AT, &check.at.to_ne_bytes());
    encoded.put_bytes(check::BAD, &[check.bad.into()]);
    encoded.put_bytes(check::NEVER_ZERO, &[check.never_zero.into()]);
    encoded.put_bytes(check::TAG_WORDS, &[check.tag_words]);
    encoded.put_bytes(check::TAG_SWAPPED, &[check.tag_swapped.into()]);
    encoded.put_bytes(check::INTO, &[check.into]);
    encoded.0
}

fn field_change_bytes(op: &FieldChange) -> Vec<u8> {
    let mut encoded = EncodedBpfStruct::new(op::SIZE);
    encoded.put_bytes(op::START_HI, &wide_bytes(op.start));
    encoded.put_bytes(op::STEP_HI, &wide_bytes(op.step));
    encoded.put_bytes(op::COUNT, &op.count.to_ne_bytes());
    encoded.put_bytes(op::SEED, &op.seed.to_ne_bytes());
    encoded.put_bytes(op::MASK_HI, &wide_bytes(op.mask));
    encoded.put_words([
        (op::KIND, op.kind as u32),
        (op::AT, op.at),
        (op::SHIFT, op.shift),
        (op::WIDE, op.wide.into()),
        (op::CHECKS, op.checks),
        (op::VALUES_FROM, op.values_from),
    ]);
    encoded.0
}
