//! Reads the headers of sFlow samples.

use super::super::reader::ByteReader;

/// Kinds of samples that are read. The upper 20 bits of a kind are the enterprise that defined it; 0 is sFlow itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleKind {
    /// In the expanded form, interface numbers have all 32 bits.
    Flow {
        is_expanded: bool,
    },
    Counters {
        is_expanded: bool,
    },
}

impl SampleKind {
    pub(super) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Flow { is_expanded: false },
            2 => Self::Counters { is_expanded: false },
            3 => Self::Flow { is_expanded: true },
            4 => Self::Counters { is_expanded: true },
            _ => return None,
        })
    }
}

/// Source of samples or counters: a kind (0: an interface) and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SampleSource {
    kind: u32,
    index: u32,
}

impl SampleSource {
    pub(super) fn read_source(reader: &mut ByteReader<'_>, is_expanded: bool) -> Option<Self> {
        let word = reader.read_u32()?;
        Some(if is_expanded {
            Self { kind: word, index: reader.read_u32()? }
        } else {
            Self { kind: word >> 24, index: word & 0x00ff_ffff }
        })
    }
}

/// Values from the header of a flow sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowSampleHead {
    pub(super) number: u32,
    pub(super) source: SampleSource,
    /// One of this many packets is sampled.
    pub(super) rate: u32,
    /// Samples that were dropped since the sampler began, for lack of resources; wraps.
    pub(super) drops: u32,
    /// Number of the interface where the packet came in; 0 if not known.
    pub(super) input: u32,
    pub(super) output: SampleOutput,
    /// Number of the parts that follow.
    pub(super) parts: u32,
}

/// The interface by which a packet left the agent, or the reason why it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleOutput {
    /// The packet left by this interface; 0 if it is not known.
    Interface(u32),
    /// The packet was dropped for this reason.
    Discarded(u32),
    /// The packet left by several interfaces.
    Several,
}

/// Interface number for an unknown interface, or for the agent itself.
const INTERNAL_INTERFACE: u32 = 0x3fff_ffff;

pub(super) fn read_flow_head(reader: &mut ByteReader<'_>, is_expanded: bool) -> Option<FlowSampleHead> {
    let number = reader.read_u32()?;
    let source = SampleSource::read_source(reader, is_expanded)?;
    let rate = reader.read_u32()?;
    let _pool = reader.read_u32()?;
    let drops = reader.read_u32()?;
    let (input_kind, input) = read_interface(reader, is_expanded)?;
    let (output_kind, output) = read_interface(reader, is_expanded)?;
    Some(FlowSampleHead {
        number,
        source,
        rate,
        drops,
        input: if input_kind == 0 { interface_or_zero(input) } else { 0 },
        output: match output_kind {
            0 => SampleOutput::Interface(interface_or_zero(output)),
            1 => SampleOutput::Discarded(output),
            _ => SampleOutput::Several,
        },
        parts: reader.read_u32()?,
    })
}

/// Reads the kind of an interface's number, and the number.
fn read_interface(reader: &mut ByteReader<'_>, is_expanded: bool) -> Option<(u32, u32)> {
    let word = reader.read_u32()?;
    Some(if is_expanded { (word, reader.read_u32()?) } else { (word >> 30, word & INTERNAL_INTERFACE) })
}

const fn interface_or_zero(number: u32) -> u32 {
    // In the expanded form the number has all bits set.
    if number == INTERNAL_INTERFACE || number == u32::MAX { 0 } else { number }
}
