//! Which records are asked for: conditions of nfdump's language, and what options add to them.

mod condition;
mod error;
mod expression;
mod fields;
mod parser;
mod ranges;
mod terms;
mod tokens;
mod values;

use super::scan::{RowChunk, TimeSpan};
pub(super) use condition::{ConditionOperand, OperandCells, per_second};
use condition::{FlowCondition, ValueTest};
pub use error::FilterError;
use expression::FilterExpression;
use packetrig_flow::MAPPED;
use parquet::file::metadata::RowGroupMetaData;
use ranges::{RangeSet, ValueRange};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
pub use terms::{FilterTerm, MISSING, NfdumpForm, TERMS, TermSyntax};

/// Which records are asked for. The usual one lets all through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    expression: FilterExpression,
    /// When their flows began, as far as [`FlowFilter::started`] says.
    pub span: TimeSpan,
}

impl Default for FlowFilter {
    fn default() -> Self {
        Self::of(FilterExpression::All(Vec::new()))
    }
}

impl FromStr for FlowFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        parser::parse(text).map(Self::of)
    }
}

impl FlowFilter {
    fn of(expression: FilterExpression) -> Self {
        Self { expression, span: TimeSpan::default() }
    }

    /// Flows that began in this time.
    pub fn started(span: TimeSpan) -> Self {
        let from = u128::from(span.from_ns.unwrap_or(0));
        let to = span.to_ns.map_or(Some(u128::MAX), |to| u128::from(to).checked_sub(1));
        let range = to.filter(|&to| from <= to).map(|greatest| ValueRange { least: from, greatest });
        let filter = any_of(&["flowStartNanoseconds"], range.into_iter().collect());
        Self { span, ..filter }
    }

    /// One end is in one of these; all records if there are none.
    pub fn either_address(prefixes: &[AddressPrefix]) -> Self {
        either(
            &["sourceIPv6Address", "destinationIPv6Address"],
            prefixes.iter().map(AddressPrefix::range).collect(),
        )
    }

    /// One end's port is one of these; all records if there are none.
    pub fn either_port(ports: &[u16]) -> Self {
        let ranges = ports.iter().map(|&port| ValueRange::one(port.into())).collect();
        either(&["sourceTransportPort", "destinationTransportPort"], ranges)
    }

    /// The protocol is one of these; all records if there are none.
    pub fn protocol(protocols: &[u8]) -> Self {
        let ranges = protocols.iter().map(|&protocol| ValueRange::one(protocol.into())).collect();
        either(&["protocolIdentifier"], ranges)
    }

    /// What both let through.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let span = if self.span == TimeSpan::default() { other.span } else { self.span };
        Self { expression: FilterExpression::All(vec![self.expression, other.expression]), span }
    }

    /// The records of which it keeps what came back.
    #[must_use]
    pub(super) fn of_way_back(&self) -> Self {
        let is_some = RangeSet::new(vec![ValueRange { least: 1, ..ValueRange::ALL }]);
        let has = |column| {
            FilterExpression::One(FlowCondition {
                operand: ConditionOperand::Column(column),
                test: ValueTest::Values(is_some.clone()),
            })
        };
        let came_back = ["reversePacketDeltaCount", "reverseOctetDeltaCount"].map(has).to_vec();
        Self::of(FilterExpression::All(vec![FilterExpression::Any(came_back), self.expression.reversed()]))
    }

    /// What one of them lets through.
    #[must_use]
    pub(super) fn or(&self, other: &Self) -> Self {
        Self::of(FilterExpression::Any(vec![self.expression.clone(), other.expression.clone()]))
    }

    /// The columns that it looks at, each once.
    pub fn columns(&self) -> Vec<&'static str> {
        let mut columns = Vec::new();
        self.expression.add_columns(&mut columns);
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The rows of a chunk that are asked for, in order. The chunk has to have its columns.
    pub fn rows(&self, chunk: &RowChunk) -> Vec<usize> {
        self.rows_among(chunk, (0..chunk.rows).collect())
    }

    /// Those of some rows that are asked for; rows are in order.
    pub(super) fn rows_among(&self, chunk: &RowChunk, mut rows: Vec<usize>) -> Vec<usize> {
        self.expression.retain(chunk, &mut rows);
        rows
    }

    /// Whether a row of a row group may be asked for, as far as the file's statistics say.
    pub(super) fn may_keep(&self, group: &RowGroupMetaData) -> bool {
        self.expression.may_hold(group)
    }
}

fn any_of(columns: &[&'static str], ranges: Vec<ValueRange>) -> FlowFilter {
    let test = ValueTest::Values(RangeSet::new(ranges));
    let condition = |&column| {
        FilterExpression::One(FlowCondition { operand: ConditionOperand::Column(column), test: test.clone() })
    };
    FlowFilter::of(FilterExpression::Any(columns.iter().map(condition).collect()))
}

/// Without ranges everything is asked for.
fn either(columns: &[&'static str], ranges: Vec<ValueRange>) -> FlowFilter {
    if ranges.is_empty() { FlowFilter::default() } else { any_of(columns, ranges) }
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPrefix {
    bits: u128,
    length: u32,
}

impl AddressPrefix {
    /// From its first to its last address.
    fn range(&self) -> ValueRange {
        let rest = u128::MAX.checked_shr(self.length).unwrap_or(0);
        ValueRange { least: self.bits & !rest, greatest: self.bits | rest }
    }
}

/// What is no address or prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address or prefix; write 198.18.0.0/15, 198.18.0.1 or 2001:2::/48")]
pub struct NoPrefix(String);

impl FromStr for AddressPrefix {
    type Err = NoPrefix;

    fn from_str(text: &str) -> Result<Self, NoPrefix> {
        let wrong = || NoPrefix(text.to_owned());
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (mapped, own_bits) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped(), 32),
            IpAddr::V6(address) => (address, 128),
        };
        let length = length.map_or(Ok(own_bits), str::parse).map_err(|_| wrong())?;
        if length > own_bits {
            return Err(wrong());
        }
        Ok(Self { bits: u128::from_be_bytes(mapped.octets()), length: 128 - own_bits + length })
    }
}

/// An address as people write it: IPv4 where it is mapped.
pub fn address(bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [.., a, b, c, d] if bytes.starts_with(&MAPPED) => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(bytes)),
    }
}

#[cfg(test)]
mod tests;
