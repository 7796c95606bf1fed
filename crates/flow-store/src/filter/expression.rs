//! Conditions joined by *and* and *or*. Negations are moved into the conditions.

use super::condition::FlowCondition;
use super::fields::{FieldCondition, OTHER_FIELDS};
use crate::scan::RowChunk;
use parquet::file::metadata::RowGroupMetaData;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilterExpression {
    One(FlowCondition),
    Field(FieldCondition),
    /// An empty list holds for every record.
    All(Vec<Self>),
    /// An empty list holds for no record.
    Any(Vec<Self>),
}

impl FilterExpression {
    /// Makes an expression that holds if all parts hold. The cheapest part is tested first, so that the
    /// expensive parts test fewer rows.
    pub(super) fn conjunction_of_parts(mut parts: Vec<Self>) -> Self {
        parts.sort_by_key(Self::cost);
        Self::All(parts)
    }

    /// Rough cost of testing a row.
    fn cost(&self) -> usize {
        match self {
            Self::One(condition) => condition.cost(),
            // This test parses a text for each row, so it comes late.
            Self::Field(_) => 16,
            // The parser bounds the number of conditions, so the sum cannot overflow.
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::cost).sum::<usize>() + parts.len(),
        }
    }

    pub(super) fn to_negated(&self) -> Self {
        match self {
            Self::One(condition) => Self::One(condition.to_negated()),
            Self::Field(condition) => Self::Field(condition.to_negated()),
            // De Morgan: the parts are negated, and *and* and *or* are exchanged.
            Self::All(parts) => Self::Any(parts.iter().map(Self::to_negated).collect()),
            Self::Any(parts) => Self::All(parts.iter().map(Self::to_negated).collect()),
        }
    }

    /// The same expression for the reverse direction of a record.
    pub(super) fn to_reversed(&self) -> Self {
        match self {
            Self::One(condition) => Self::One(condition.to_reversed()),
            // The fields of `otherFields` belong to both directions.
            Self::Field(_) => self.clone(),
            Self::All(parts) => Self::All(parts.iter().map(Self::to_reversed).collect()),
            Self::Any(parts) => Self::Any(parts.iter().map(Self::to_reversed).collect()),
        }
    }

    /// Returns whether the form of the expression alone shows that it holds for every record.
    pub(super) fn always_holds(&self) -> bool {
        match self {
            Self::One(_) | Self::Field(_) => false,
            Self::All(parts) => parts.iter().all(Self::always_holds),
            Self::Any(parts) => parts.iter().any(Self::always_holds),
        }
    }

    /// Removes the rows for which the expression does not hold. Rows are in order.
    pub(super) fn retain_rows(&self, chunk: &RowChunk, rows: &mut Vec<usize>) {
        // Without this check, an *any* with a part that holds for every record would copy and sort
        // the rows for nothing.
        if self.always_holds() {
            return;
        }
        match self {
            Self::One(condition) => condition.retain_rows(chunk, rows),
            Self::Field(condition) => condition.retain_rows(chunk, rows),
            Self::All(parts) => {
                for part in parts {
                    part.retain_rows(chunk, rows);
                }
            }
            Self::Any(parts) => {
                // Each part tests only rows that no part before it has selected.
                let mut kept = Vec::new();
                for part in parts {
                    let mut found = rows.clone();
                    part.retain_rows(chunk, &mut found);
                    if found.is_empty() {
                        continue;
                    }
                    remove_rows(rows, &found);
                    if kept.is_empty() {
                        kept = found;
                    } else {
                        kept.append(&mut found);
                        kept.sort_unstable();
                    }
                }
                *rows = kept;
            }
        }
    }

    /// Returns whether the expression may hold for a row of a row group.
    pub(super) fn may_match_group(&self, group: &RowGroupMetaData) -> bool {
        match self {
            Self::One(condition) => condition.may_match_group(group),
            Self::Field(condition) => condition.may_match_group(group),
            Self::All(parts) => parts.iter().all(|part| part.may_match_group(group)),
            Self::Any(parts) => parts.iter().any(|part| part.may_match_group(group)),
        }
    }

    pub(super) fn collect_needed_columns(&self, columns: &mut Vec<&'static str>) {
        match self {
            Self::One(condition) => columns.extend(condition.operand.needed_columns()),
            Self::Field(_) => columns.push(OTHER_FIELDS),
            Self::All(parts) | Self::Any(parts) => {
                for part in parts {
                    part.collect_needed_columns(columns);
                }
            }
        }
    }
}

/// Removes the rows `gone` from `rows`; both are in order.
fn remove_rows(rows: &mut Vec<usize>, gone: &[usize]) {
    let mut gone = gone.iter().peekable();
    rows.retain(|row| gone.next_if_eq(&row).is_none());
}
