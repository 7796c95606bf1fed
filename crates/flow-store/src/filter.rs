//! Filters of records: conditions in nfdump's language, and conditions that command-line options add.

mod condition;
mod error;
mod expression;
mod fields;
mod parser;
mod ranges;
mod terms;
mod tokens;
mod values;

use super::names::FlowNames;
use super::scan::{RowChunk, TimeSpan};
pub(super) use condition::{ConditionOperand, OperandCells, per_second};
use condition::{FlowCondition, ValueTest};
pub use error::FilterError;
use expression::FilterExpression;
use packetrig_flow::IPV4_MAPPED_PREFIX;
use parquet::file::metadata::RowGroupMetaData;
use ranges::RangeSet;
pub(super) use ranges::ValueRange;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
pub use terms::{FILTER_TERMS, FilterTerm, NfdumpRelation, TermSyntax, UNSUPPORTED_FILTER_TERMS};
pub(crate) use values::parse_count;

/// Selects records. The default selects all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    expression: FilterExpression,
    /// The time span that [`FlowFilter::started_in`] was given.
    pub span: TimeSpan,
}

impl Default for FlowFilter {
    fn default() -> Self {
        Self::from_expression(FilterExpression::All(Vec::new()))
    }
}

impl FromStr for FlowFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        Self::parse_with_names(text, &FlowNames::default())
    }
}

impl FlowFilter {
    fn from_expression(expression: FilterExpression) -> Self {
        Self { expression, span: TimeSpan::default() }
    }

    /// Parses a filter, in which terms such as `country` may use the lists in `names`.
    pub fn parse_with_names(text: &str, names: &FlowNames) -> Result<Self, FilterError> {
        parser::parse_filter_expression(text, names).map(Self::from_expression)
    }

    /// Selects flows that began in this time span.
    pub fn started_in(span: TimeSpan) -> Self {
        // A condition that always holds would still read and test a column.
        if span == TimeSpan::default() {
            return Self::default();
        }
        let from = u128::from(span.from_ns.unwrap_or(0));
        // `to_ns` is exclusive, and ranges include both ends. A span that ends at 0 has no times at all.
        let to = span.to_ns.map_or(Some(u128::MAX), |to| u128::from(to).checked_sub(1));
        let range = to.filter(|&to| from <= to).map(|greatest| ValueRange { least: from, greatest });
        let filter = filter_in_ranges(&["flowStartNanoseconds"], range.into_iter().collect());
        Self { span, ..filter }
    }

    /// Selects records with a source or destination address in any of these prefixes; all records without prefixes.
    pub fn either_address(prefixes: &[AddressPrefix]) -> Self {
        filter_in_ranges_or_all(
            &["sourceIPv6Address", "destinationIPv6Address"],
            prefixes.iter().map(AddressPrefix::address_range).collect(),
        )
    }

    /// Selects records with any of these ports as source or destination port; all records if `ports` is empty.
    pub fn either_port(ports: &[u16]) -> Self {
        let ranges = ports.iter().map(|&port| ValueRange::from_value(port.into())).collect();
        filter_in_ranges_or_all(&["sourceTransportPort", "destinationTransportPort"], ranges)
    }

    /// Selects records with any of these protocols; all records if `protocols` is empty.
    pub fn any_protocol(protocols: &[u8]) -> Self {
        let ranges = protocols.iter().map(|&protocol| ValueRange::from_value(protocol.into())).collect();
        filter_in_ranges_or_all(&["protocolIdentifier"], ranges)
    }

    /// Selects the records that both filters select.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        // If both filters have a span, the result has the first one. That is harmless: the span only chooses
        // the buckets of a timeline.
        let span = if self.span == TimeSpan::default() { other.span } else { self.span };
        Self { expression: FilterExpression::All(vec![self.expression, other.expression]), span }
    }

    /// Selects the records that this filter would select if the two directions were exchanged. Records without a
    /// reverse direction are not selected.
    #[must_use]
    pub(super) fn to_reversed(&self) -> Self {
        let is_some = RangeSet::new(vec![ValueRange { least: 1, ..ValueRange::ALL }]);
        // A one-way record has no reverse direction, so it must not match as an empty one.
        let has_reverse = ["reversePacketDeltaCount", "reverseOctetDeltaCount"].map(|column| {
            FilterExpression::One(FlowCondition {
                operand: ConditionOperand::Column(column),
                test: ValueTest::Values(is_some.clone()),
            })
        });
        let has_reverse = FilterExpression::Any(has_reverse.to_vec());
        Self::from_expression(FilterExpression::All(vec![has_reverse, self.expression.to_reversed()]))
    }

    /// Selects records that this filter or `other` selects.
    #[must_use]
    pub(super) fn or(&self, other: &Self) -> Self {
        Self::from_expression(FilterExpression::Any(vec![self.expression.clone(), other.expression.clone()]))
    }

    /// The columns that the filter reads, each once.
    pub fn needed_columns(&self) -> Vec<&'static str> {
        let mut columns = Vec::new();
        self.expression.collect_needed_columns(&mut columns);
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The selected rows of a chunk, in order. The chunk must have the filter's columns.
    pub fn select_rows(&self, chunk: &RowChunk) -> Vec<usize> {
        self.select_among(chunk, (0..chunk.rows).collect())
    }

    /// Returns whether the form of the filter alone shows that it selects every record.
    pub(super) fn selects_all(&self) -> bool {
        self.expression.always_holds()
    }

    /// Returns those of `rows` that the filter selects. `rows` must be in order.
    pub(super) fn select_among(&self, chunk: &RowChunk, mut rows: Vec<usize>) -> Vec<usize> {
        self.expression.retain_rows(chunk, &mut rows);
        rows
    }

    /// Returns whether a row group may have selected rows, according to the file's statistics.
    pub(super) fn may_select_rows_of(&self, group: &RowGroupMetaData) -> bool {
        self.expression.may_match_group(group)
    }
}

/// Selects records in which at least one of these columns is in a range; no records if there are no ranges.
fn filter_in_ranges(columns: &[&'static str], ranges: Vec<ValueRange>) -> FlowFilter {
    let test = ValueTest::Values(RangeSet::new(ranges));
    let conditions = columns.iter().map(|&column| {
        FilterExpression::One(FlowCondition { operand: ConditionOperand::Column(column), test: test.clone() })
    });
    FlowFilter::from_expression(FilterExpression::Any(conditions.collect()))
}

/// Selects records in which at least one of these columns is in a range; all records if there are no ranges.
fn filter_in_ranges_or_all(columns: &[&'static str], ranges: Vec<ValueRange>) -> FlowFilter {
    if ranges.is_empty() { FlowFilter::default() } else { filter_in_ranges(columns, ranges) }
}

/// An address prefix of IPv6. An IPv4 prefix is mapped into IPv6, which adds 96 to its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPrefix {
    bits: u128,
    length: u32,
}

impl AddressPrefix {
    /// The range from the first to the last address of the prefix.
    pub(super) fn address_range(&self) -> ValueRange {
        // A shift by all 128 bits overflows: a prefix of full length has no free bits.
        let rest = u128::MAX.checked_shr(self.length).unwrap_or(0);
        ValueRange { least: self.bits & !rest, greatest: self.bits | rest }
    }
}

/// The text is neither an address nor a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is neither a valid address nor a valid prefix; write 198.18.0.0/15, 198.18.0.1 or 2001:2::/48"
)]
pub struct InvalidPrefix(String);

impl FromStr for AddressPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        parse_address_prefix(text).ok_or_else(|| InvalidPrefix(text.to_owned()))
    }
}

fn parse_address_prefix(text: &str) -> Option<AddressPrefix> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().ok()?;
    // The user's prefix length belongs to the address family of the written address: at most 32 or 128 bits.
    let own_bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(length) => length.parse::<u32>().ok().filter(|length| *length <= own_bits)?,
        None => own_bits,
    };
    let mapped = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    // Records store an IPv4 address as an IPv4-mapped IPv6 address, after 96 fixed bits.
    Some(AddressPrefix { bits: u128::from_be_bytes(mapped.octets()), length: 128 - own_bits + length })
}

/// The address as people write it: an IPv4-mapped address becomes an IPv4 address.
pub fn canonical_address(bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [.., a, b, c, d] if bytes.starts_with(&IPV4_MAPPED_PREFIX) => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(bytes)),
    }
}

#[cfg(test)]
mod tests;
