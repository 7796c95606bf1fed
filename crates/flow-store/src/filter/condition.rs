//! One condition on a value of a record: a column, some bits of a column, or a value computed from several columns.

use super::ranges::{RangeSet, ValueRange};
use crate::cells::ColumnCells;
use crate::columns::counterpart_column;
use crate::rows::filter_rows;
use crate::scan::RowChunk;
use packetrig_units::clamp_to_u64;
use parquet::basic::LogicalType;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;

const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A value and the test that it has to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlowCondition {
    pub(super) operand: ConditionOperand,
    pub(super) test: ValueTest,
}

/// The value that a condition tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConditionOperand {
    Column(&'static str),
    Bits {
        column: &'static str,
        shift: u8,
        mask: u64,
    },
    /// Time from the first to the last packet of both directions, in units of `unit_ns`.
    Duration {
        unit_ns: u64,
    },
    /// A count times `factor`, divided by the duration in seconds, rounded down; zero if the duration is zero.
    PerSecond {
        column: &'static str,
        factor: u64,
    },
    /// One count divided by another, rounded down; zero if the divisor is zero.
    Ratio {
        of: &'static str,
        per: &'static str,
    },
    /// One number minus another; zero if the second number is greater.
    Difference {
        of: &'static str,
        less: &'static str,
    },
}

/// The test that a value has to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueTest {
    Values(RangeSet),
    AllFlags(u64),
    NoFlags(u64),
    Word(String),
    NotWord(String),
}

const FLOW_START_COLUMN: &str = "flowStartNanoseconds";
const FLOW_END_COLUMN: &str = "flowEndNanoseconds";

impl ConditionOperand {
    pub(super) const DURATION_MILLIS: Self = Self::Duration { unit_ns: NANOS_PER_MILLI };

    /// The columns that the operand is computed from.
    pub(crate) fn needed_columns(self) -> Vec<&'static str> {
        match self {
            Self::Column(column) | Self::Bits { column, .. } => vec![column],
            Self::Duration { .. } => vec![FLOW_START_COLUMN, FLOW_END_COLUMN],
            Self::PerSecond { column, .. } => vec![column, FLOW_START_COLUMN, FLOW_END_COLUMN],
            Self::Ratio { of, per } => vec![of, per],
            Self::Difference { of, less } => vec![of, less],
        }
    }

    /// Rough cost of computing the value. Cheap conditions are tested first.
    const fn cost(self) -> usize {
        match self {
            Self::Column(_) | Self::Bits { .. } => 1,
            Self::Duration { .. } | Self::Difference { .. } => 2,
            Self::PerSecond { .. } | Self::Ratio { .. } => 3,
        }
    }

    /// The operand that has the same meaning for the reverse direction.
    fn to_reversed(self) -> Self {
        match self {
            Self::Column(column) => Self::Column(counterpart_column(column)),
            Self::Bits { column, shift, mask } => {
                Self::Bits { column: counterpart_column(column), shift, mask }
            }
            Self::Duration { .. } => self,
            Self::PerSecond { column, factor } => {
                Self::PerSecond { column: counterpart_column(column), factor }
            }
            Self::Ratio { of, per } => {
                Self::Ratio { of: counterpart_column(of), per: counterpart_column(per) }
            }
            Self::Difference { of, less } => {
                Self::Difference { of: counterpart_column(of), less: counterpart_column(less) }
            }
        }
    }

    /// Finds the operand's columns in a chunk, once for all rows.
    pub(crate) fn find_operand_columns(self, chunk: &RowChunk) -> OperandCells<'_> {
        match self {
            Self::Column(column) => {
                OperandCells::Bits { cells: chunk.column(column), shift: 0, mask: u64::MAX }
            }
            Self::Bits { column, shift, mask } => {
                OperandCells::Bits { cells: chunk.column(column), shift, mask }
            }
            Self::Duration { unit_ns } => {
                OperandCells::Duration { lifetime: FlowLifetime::from_chunk(chunk), unit_ns }
            }
            Self::PerSecond { column, factor } => OperandCells::PerSecond {
                count: chunk.column(column),
                factor,
                lifetime: FlowLifetime::from_chunk(chunk),
            },
            Self::Ratio { of, per } => OperandCells::Ratio { of: chunk.column(of), per: chunk.column(per) },
            Self::Difference { of, less } => {
                OperandCells::Difference { of: chunk.column(of), less: chunk.column(less) }
            }
        }
    }
}

/// The columns of an operand in a chunk.
pub(crate) enum OperandCells<'a> {
    Bits { cells: &'a ColumnCells, shift: u8, mask: u64 },
    Duration { lifetime: FlowLifetime<'a>, unit_ns: u64 },
    PerSecond { count: &'a ColumnCells, factor: u64, lifetime: FlowLifetime<'a> },
    Ratio { of: &'a ColumnCells, per: &'a ColumnCells },
    Difference { of: &'a ColumnCells, less: &'a ColumnCells },
}

/// The columns with the start and the end of flows, in a chunk.
pub(crate) struct FlowLifetime<'a> {
    start: &'a ColumnCells,
    end: &'a ColumnCells,
}

impl<'a> FlowLifetime<'a> {
    fn from_chunk(chunk: &'a RowChunk) -> Self {
        Self { start: chunk.column(FLOW_START_COLUMN), end: chunk.column(FLOW_END_COLUMN) }
    }

    fn duration_at(&self, row: usize) -> u64 {
        // Exporters may report an end before the start; such a flow has no duration.
        self.end.number_at(row).saturating_sub(self.start.number_at(row))
    }
}

impl OperandCells<'_> {
    fn value_at(&self, row: usize) -> u64 {
        match self {
            Self::Bits { cells, shift, mask } => cells.number_at(row) >> shift & mask,
            Self::Duration { lifetime, unit_ns } => lifetime.duration_at(row) / unit_ns,
            Self::PerSecond { count, factor, lifetime } => {
                per_second(count.number_at(row), *factor, lifetime.duration_at(row))
            }
            Self::Ratio { of, per } => of.number_at(row).checked_div(per.number_at(row)).unwrap_or(0),
            Self::Difference { of, less } => of.number_at(row).saturating_sub(less.number_at(row)),
        }
    }

    /// The values of all rows, if the operand is a whole column of numbers.
    pub(crate) const fn numbers(&self) -> Option<&[u64]> {
        match self {
            Self::Bits { cells: ColumnCells::Numbers(numbers), shift: 0, mask: u64::MAX } => {
                Some(numbers.as_slice())
            }
            _ => None,
        }
    }

    /// The value in a row as a number. Addresses become numbers in the same order.
    pub(crate) fn wide_value_at(&self, row: usize) -> u128 {
        match self {
            Self::Bits { cells: cells @ ColumnCells::Addresses(_), .. } => {
                u128::from_be_bytes(cells.address_at(row))
            }
            Self::Bits { cells: cells @ ColumnCells::Macs(_), .. } => mac_number(cells.mac_at(row)).into(),
            _ => self.value_at(row).into(),
        }
    }

    pub(crate) fn word_at(&self, row: usize) -> &str {
        if let Self::Bits { cells, .. } = self { cells.word_at(row) } else { "" }
    }
}

/// Returns `count` times `factor` per second, rounded down; zero if the duration is zero, as in nfdump.
pub(crate) fn per_second(count: u64, factor: u64, duration_ns: u64) -> u64 {
    if duration_ns == 0 {
        return 0;
    }
    // A division of 128 bits takes several times as long, and only more than 10^9 packets or bytes need it.
    let small = count.checked_mul(factor).and_then(|scaled| scaled.checked_mul(NANOS_PER_SECOND));
    small.map_or_else(
        || {
            let scaled = u128::from(count) * u128::from(factor) * u128::from(NANOS_PER_SECOND);
            clamp_to_u64(scaled / u128::from(duration_ns))
        },
        |scaled| scaled / duration_ns,
    )
}

impl FlowCondition {
    /// The negated condition. The negation of "all these flags are set" is that none of them is set, as in nfdump.
    pub(super) fn to_negated(&self) -> Self {
        let test = match &self.test {
            ValueTest::Values(set) => ValueTest::Values(set.complement()),
            ValueTest::AllFlags(mask) => ValueTest::NoFlags(*mask),
            ValueTest::NoFlags(mask) => ValueTest::AllFlags(*mask),
            ValueTest::Word(word) => ValueTest::NotWord(word.clone()),
            ValueTest::NotWord(word) => ValueTest::Word(word.clone()),
        };
        Self { operand: self.operand, test }
    }

    pub(super) const fn cost(&self) -> usize {
        self.operand.cost()
    }

    pub(super) fn to_reversed(&self) -> Self {
        Self { operand: self.operand.to_reversed(), test: self.test.clone() }
    }

    /// Removes the rows for which the condition does not hold.
    pub(super) fn retain_rows(&self, chunk: &RowChunk, rows: &mut Vec<usize>) {
        // The common case: a whole column is tested, without a branch for each row.
        if let (ValueTest::Values(set), ConditionOperand::Column(column)) = (&self.test, self.operand) {
            retain_values(chunk.column(column), set, rows);
            return;
        }
        let operand = self.operand.find_operand_columns(chunk);
        match &self.test {
            ValueTest::Values(set) => filter_rows(rows, |row| set.contains(operand.value_at(row).into())),
            ValueTest::AllFlags(mask) => filter_rows(rows, |row| operand.value_at(row) & mask == *mask),
            ValueTest::NoFlags(mask) => filter_rows(rows, |row| operand.value_at(row) & mask == 0),
            ValueTest::Word(word) => filter_rows(rows, |row| operand.word_at(row) == word),
            ValueTest::NotWord(word) => filter_rows(rows, |row| operand.word_at(row) != word),
        }
    }

    /// Returns whether the condition may hold for a row of a row group, according to the file's statistics.
    pub(super) fn may_match_group(&self, group: &RowGroupMetaData) -> bool {
        // The file has statistics of columns only, not of bits or of values that are computed from several columns.
        let ConditionOperand::Column(column) = self.operand else { return true };
        match &self.test {
            ValueTest::Values(set) => {
                column_bounds(group, column).is_none_or(|bounds| set.intersects(bounds))
            }
            // A value with all these bits is at least as large as the mask.
            ValueTest::AllFlags(mask) => {
                column_bounds(group, column).is_none_or(|bounds| bounds.greatest >= u128::from(*mask))
            }
            // The bounds of a column say nothing about single bits. Bounds of words are not used.
            ValueTest::NoFlags(_) | ValueTest::Word(_) | ValueTest::NotWord(_) => true,
        }
    }
}

fn retain_values(cells: &ColumnCells, set: &RangeSet, rows: &mut Vec<usize>) {
    match cells {
        ColumnCells::Numbers(values) => set.retain_numbers(values, rows),
        ColumnCells::Addresses(cells) => {
            cells.retain_rows(rows, |address| set.contains(u128::from_be_bytes(*address)));
        }
        ColumnCells::Macs(cells) => cells.retain_rows(rows, |mac| set.contains(mac_number(*mac).into())),
        ColumnCells::Flags(_) => filter_rows(rows, |row| set.contains(cells.number_at(row).into())),
        // A missing column counts as zero in every row, and so does a column of words.
        ColumnCells::Missing | ColumnCells::Words(_) => {
            if !set.contains(0) {
                rows.clear();
            }
        }
    }
}

/// A MAC address as a number.
pub(super) fn mac_number(mac: [u8; 6]) -> u64 {
    mac.into_iter().fold(0, |number, byte| number << 8 | u64::from(byte))
}

/// The least and greatest value of a column in a row group, if the file has them. A missing column and a
/// null count as zero.
fn column_bounds(group: &RowGroupMetaData, name: &str) -> Option<ValueRange> {
    let Some(column) = group.columns().iter().find(|column| column.column_path().parts() == [name]) else {
        return Some(ValueRange::from_value(0));
    };
    let statistics = column.statistics()?;
    let bounds = statistics_bounds(column, statistics)?;
    // Statistics leave nulls out, and do not always count them.
    let has_null = column.column_descr().max_def_level() > 0 && statistics.null_count_opt() != Some(0);
    Some(if has_null { ValueRange { least: 0, ..bounds } } else { bounds })
}

fn statistics_bounds(column: &ColumnChunkMetaData, statistics: &Statistics) -> Option<ValueRange> {
    // The deprecated statistics compare all values as signed ones.
    if statistics.is_min_max_deprecated() {
        return None;
    }
    match statistics {
        Statistics::Boolean(of) => {
            Some(ValueRange { least: u128::from(*of.min_opt()?), greatest: u128::from(*of.max_opt()?) })
        }
        Statistics::Int32(of) => {
            let least = *of.min_opt()?;
            let greatest = *of.max_opt()?;
            are_bounds_in_unsigned_order(column, least.into()).then(|| ValueRange {
                least: least.cast_unsigned().into(),
                greatest: greatest.cast_unsigned().into(),
            })
        }
        Statistics::Int64(of) => {
            let least = *of.min_opt()?;
            let greatest = *of.max_opt()?;
            are_bounds_in_unsigned_order(column, least).then(|| ValueRange {
                least: least.cast_unsigned().into(),
                greatest: greatest.cast_unsigned().into(),
            })
        }
        // Byte arrays are compared from the left as unsigned bytes, which is the order of big-endian numbers.
        Statistics::FixedLenByteArray(_) | Statistics::ByteArray(_) => Some(ValueRange {
            least: address_as_number(statistics.min_bytes_opt()?)?,
            greatest: address_as_number(statistics.max_bytes_opt()?)?,
        }),
        _ => None,
    }
}

/// Returns whether the bounds are in the order of unsigned numbers: the column is unsigned, or no value is negative.
fn are_bounds_in_unsigned_order(column: &ColumnChunkMetaData, least: i64) -> bool {
    let is_unsigned = matches!(
        column.column_descr().logical_type_ref(),
        Some(LogicalType::Integer(kind)) if !kind.is_signed
    );
    is_unsigned || least >= 0
}

/// An IPv6 or MAC address as a number; `None` for bytes of another length, which are not an address or were truncated.
fn address_as_number(bytes: &[u8]) -> Option<u128> {
    matches!(bytes.len(), 6 | 16)
        .then(|| bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte)))
}
