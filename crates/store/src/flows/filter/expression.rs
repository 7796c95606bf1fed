//! Conditions that are joined by *and* and *or*. What was negated is in the conditions themselves.

use super::condition::FlowCondition;
use super::fields::{FieldCondition, OTHER_FIELDS};
use crate::flows::scan::RowChunk;
use parquet::file::metadata::RowGroupMetaData;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilterExpression {
    One(FlowCondition),
    Field(FieldCondition),
    /// Without any: every record.
    All(Vec<Self>),
    /// Without any: no record.
    Any(Vec<Self>),
}

impl FilterExpression {
    /// All of some, those first that cost least: they leave fewer rows to the others.
    pub(super) fn all(mut parts: Vec<Self>) -> Self {
        parts.sort_by_key(Self::cost);
        Self::All(parts)
    }

    /// What asking it of a row costs, roughly.
    fn cost(&self) -> usize {
        match self {
            Self::One(condition) => condition.cost(),
            // A text is read.
            Self::Field(_) => 16,
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::cost).sum::<usize>() + parts.len(),
        }
    }

    pub(super) fn negated(&self) -> Self {
        let all_negated = |parts: &[Self]| parts.iter().map(Self::negated).collect();
        match self {
            Self::One(condition) => Self::One(condition.negated()),
            Self::Field(condition) => Self::Field(condition.negated()),
            Self::All(parts) => Self::Any(all_negated(parts)),
            Self::Any(parts) => Self::All(all_negated(parts)),
        }
    }

    /// The same for the other direction of a record.
    pub(super) fn reversed(&self) -> Self {
        let all_reversed = |parts: &[Self]| parts.iter().map(Self::reversed).collect();
        match self {
            Self::One(condition) => Self::One(condition.reversed()),
            // They are the exporter's, of the record as a whole.
            Self::Field(_) => self.clone(),
            Self::All(parts) => Self::All(all_reversed(parts)),
            Self::Any(parts) => Self::Any(all_reversed(parts)),
        }
    }

    /// Whether it holds for every record, as far as that is seen without one.
    fn is_everything(&self) -> bool {
        match self {
            Self::One(_) | Self::Field(_) => false,
            Self::All(parts) => parts.iter().all(Self::is_everything),
            Self::Any(parts) => parts.iter().any(Self::is_everything),
        }
    }

    /// Leaves the rows for which it holds. Rows are in order.
    pub(super) fn retain(&self, chunk: &RowChunk, rows: &mut Vec<usize>) {
        if self.is_everything() {
            return;
        }
        match self {
            Self::One(condition) => condition.retain(chunk, rows),
            Self::Field(condition) => condition.retain(chunk, rows),
            Self::All(parts) => {
                for part in parts {
                    part.retain(chunk, rows);
                }
            }
            Self::Any(parts) => {
                let mut kept = Vec::new();
                for part in parts {
                    let mut found = rows.clone();
                    part.retain(chunk, &mut found);
                    if found.is_empty() {
                        continue;
                    }
                    remove(rows, &found);
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

    /// Whether it may hold for a row of a row group.
    pub(super) fn may_hold(&self, group: &RowGroupMetaData) -> bool {
        match self {
            Self::One(condition) => condition.may_hold(group),
            Self::Field(condition) => condition.may_hold(group),
            Self::All(parts) => parts.iter().all(|part| part.may_hold(group)),
            Self::Any(parts) => parts.iter().any(|part| part.may_hold(group)),
        }
    }

    pub(super) fn add_columns(&self, columns: &mut Vec<&'static str>) {
        match self {
            Self::One(condition) => columns.extend(condition.operand.columns()),
            Self::Field(_) => columns.push(OTHER_FIELDS),
            Self::All(parts) | Self::Any(parts) => {
                for part in parts {
                    part.add_columns(columns);
                }
            }
        }
    }
}

/// Takes some rows out of others; both are in order.
fn remove(rows: &mut Vec<usize>, gone: &[usize]) {
    let mut gone = gone.iter().peekable();
    rows.retain(|row| gone.next_if_eq(&row).is_none());
}
