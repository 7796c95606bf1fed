//! Records in an order of their own: the first so many, in bounded memory.
//!
//! Invariant: no more records are held than are asked for. Of equal ones, those that come first in the files come first.

use super::Error;
use super::cells::Cells;
use super::columns::{Column, columns, find_column};
use super::filter::{Filter, per_second};
use super::scan::{Chunk, scan};
use packetrig_flow::element::Kind;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;

/// By what records are ordered, and which end comes first.
#[derive(Clone, Copy, Debug)]
pub struct RecordOrder {
    by: OrderedValue,
    is_largest_first: bool,
}

/// The value by which records are ordered. Rates and sizes are those from source to destination, as filters have them.
#[derive(Clone, Copy, Debug)]
enum OrderedValue {
    Column(&'static Column),
    Duration,
    PacketRate,
    BitRate,
    PacketSize,
}

/// What is no order of records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "records are not ordered by `{word}`; possible: duration, pps, bps, bpp, and columns: {}; with `:a` or `:d` behind it the smallest \
     or largest are first",
    short_names()
)]
pub struct NoOrder {
    word: String,
}

fn short_names() -> String {
    columns().iter().map(|column| column.short).collect::<Vec<_>>().join(", ")
}

impl FromStr for RecordOrder {
    type Err = NoOrder;

    fn from_str(text: &str) -> Result<Self, NoOrder> {
        let refuse = || NoOrder { word: text.to_owned() };
        let (word, direction) = text.split_once(':').map_or((text, None), |(word, rest)| (word, Some(rest)));
        let by = match word.to_ascii_lowercase().as_str() {
            "duration" => OrderedValue::Duration,
            "pps" => OrderedValue::PacketRate,
            "bps" => OrderedValue::BitRate,
            "bpp" => OrderedValue::PacketSize,
            "tstart" => OrderedValue::Column(find_column("start").ok_or_else(refuse)?),
            "tend" => OrderedValue::Column(find_column("end").ok_or_else(refuse)?),
            word => OrderedValue::Column(find_column(word).ok_or_else(refuse)?),
        };
        let is_largest_first = match direction {
            None => by.is_amount(),
            Some("a") => false,
            Some("d") => true,
            Some(_) => return Err(refuse()),
        };
        Ok(Self { by, is_largest_first })
    }
}

const START: &str = "flowStartNanoseconds";
const END: &str = "flowEndNanoseconds";
const PACKETS: &str = "packetDeltaCount";
const BYTES: &str = "octetDeltaCount";

impl OrderedValue {
    /// Of amounts people want the largest first, of times, addresses and names the smallest.
    fn is_amount(self) -> bool {
        !matches!(self, Self::Column(column) if matches!(column.kind, Kind::Time) || column.unit.is_empty())
    }

    fn columns(self) -> Vec<&'static str> {
        match self {
            Self::Column(column) => vec![column.name],
            Self::Duration => vec![START, END],
            Self::PacketRate => vec![PACKETS, START, END],
            Self::BitRate => vec![BYTES, START, END],
            Self::PacketSize => vec![BYTES, PACKETS],
        }
    }

    fn key(self, chunk: &Chunk, row: usize) -> OrderKey {
        let number = |name: &str| chunk.column(name).number(row);
        let duration_ns = || number(END).saturating_sub(number(START));
        let number = match self {
            Self::Column(column) => return column_key(chunk.column(column.name), row),
            Self::Duration => duration_ns(),
            Self::PacketRate => per_second(number(PACKETS), 1, duration_ns()),
            Self::BitRate => per_second(number(BYTES), 8, duration_ns()),
            Self::PacketSize => number(BYTES).checked_div(number(PACKETS)).unwrap_or(0),
        };
        OrderKey { number: number.into(), word: String::new() }
    }
}

/// Where a record comes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderKey {
    number: u128,
    word: String,
}

fn column_key(cells: &Cells, row: usize) -> OrderKey {
    let number = match cells {
        Cells::Addresses(_) => u128::from_be_bytes(cells.address(row)),
        Cells::Macs(_) => cells.mac(row).iter().fold(0, |number, &byte| number << 8 | u128::from(byte)),
        _ => cells.number(row).into(),
    };
    OrderKey { number, word: cells.word(row).to_owned() }
}

/// A record that is among the first so far; the greatest is the one that goes first when there are too many.
struct RankedRecord<T> {
    key: OrderKey,
    /// Records before it in the files.
    before: u64,
    is_largest_first: bool,
    shown: T,
}

impl<T> Ord for RankedRecord<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare(other)
    }
}

impl<T> PartialOrd for RankedRecord<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for RankedRecord<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for RankedRecord<T> {}

/// The first records in an order, and how many there are in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstRecords<T> {
    /// As they are shown.
    pub shown: Vec<T>,
    /// All that the filter keeps.
    pub count: u64,
}

/// The first `most` records that a filter keeps. `show` is called for those only that are among the first so far, with their chunk,
/// which has the wanted columns, and their row.
pub fn first_records<T>(
    files: &[PathBuf],
    filter: &Filter,
    wanted: &[&'static str],
    order: RecordOrder,
    most: usize,
    show: &mut dyn FnMut(&Chunk, usize) -> T,
) -> Result<FirstRecords<T>, Error> {
    let mut first: BinaryHeap<RankedRecord<T>> = BinaryHeap::new();
    let mut count = 0;
    let mut columns = [wanted, &order.by.columns()].concat();
    columns.sort_unstable();
    columns.dedup();
    scan(files, filter, &columns, &mut |chunk, rows| {
        for &row in rows {
            let ranked = RankedRecord {
                key: order.by.key(chunk, row),
                before: count,
                is_largest_first: order.is_largest_first,
                shown: (),
            };
            count += 1;
            let is_behind_all = first.peek().is_some_and(|last| ranked.compare(last).is_gt());
            if most == 0 || first.len() >= most && is_behind_all {
                continue;
            }
            if first.len() >= most {
                first.pop();
            }
            first.push(ranked.with(show(chunk, row)));
        }
        ControlFlow::Continue(())
    })?;
    Ok(FirstRecords {
        shown: first.into_sorted_vec().into_iter().map(|ranked| ranked.shown).collect(),
        count,
    })
}

impl<T> RankedRecord<T> {
    fn compare<U>(&self, other: &RankedRecord<U>) -> Ordering {
        let by_key = self.key.cmp(&other.key);
        let by_key = if self.is_largest_first { by_key.reverse() } else { by_key };
        by_key.then(self.before.cmp(&other.before))
    }

    fn with<U>(self, shown: U) -> RankedRecord<U> {
        let Self { key, before, is_largest_first, .. } = self;
        RankedRecord { key, before, is_largest_first, shown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::sample::records;
    use crate::flows::scan::flow_files;
    use crate::flows::{ParquetOptions, ParquetSink, RecordSink, Source};

    fn numbers(files: &[PathBuf], filter: &str, order: &str, most: usize) -> (Vec<u64>, u64, usize) {
        let mut shown = 0;
        let order = order.parse().unwrap();
        let first =
            first_records(files, &filter.parse().unwrap(), &["flowId"], order, most, &mut |chunk, row| {
                shown += 1;
                u64::MAX - chunk.column("flowId").number(row)
            });
        let first = first.unwrap();
        (first.shown, first.count, shown)
    }

    #[test]
    fn the_first_records_are_those_of_the_sorted_whole() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = ParquetOptions::new(directory.path());
        options.group_rows = 300;
        let mut sink = ParquetSink::new(options).unwrap();
        let given = records(2000);
        sink.write(&given, Source::default()).unwrap();
        sink.close().1.unwrap();
        let files = flow_files(&[directory.path().to_owned()]).unwrap();
        let of = |filter: &str, order: &str, most| numbers(&files, filter, order, most).0;
        // Record n has n + 1 packets and begins n seconds late; source ports are 40000 + n % 1000, protocols 6 or 17.
        assert_eq!(of("any", "packets", 3), [1999, 1998, 1997]);
        assert_eq!(of("any", "packets:a", 3), [0, 1, 2]);
        assert_eq!(of("any", "start", 2), [0, 1]);
        assert_eq!(of("any", "tstart:d", 2), [1999, 1998]);
        assert_eq!(of("any", "src-port", 5), [0, 1000, 1, 1001, 2]);
        assert_eq!(of("any", "src-ip:d", 2), [1999, 1998]);
        assert_eq!(of("any", "tunnel:d", 2), [1, 3]);
        assert_eq!(of("proto udp and packets < 100", "bps", 2), [95, 91]);
        assert_eq!(of("any", "bpp", 2), [0, 1], "all have 100: as they are in the files");
        // The one without a way back lasts 500 ns, the others 1500.
        assert_eq!(of("any", "duration:a", 2), [0, 1]);
        assert!(of("any", "packets", 0).is_empty());
        let (all, count, _) = numbers(&files, "any", "packets:a", 5000);
        assert_eq!((all, count), ((0..2000).collect(), 2000));
        // Largest last in the files: each is among the first as it comes. Smallest first: only the first are.
        assert_eq!(numbers(&files, "any", "start", 10).2, 10);
    }

    #[test]
    fn what_is_no_order_is_refused_by_name() {
        for wrong in ["", "colour", "packets:x", "packets:", ":d"] {
            let said = wrong.parse::<RecordOrder>().unwrap_err().to_string();
            assert!(said.contains(&format!("`{wrong}`")) && said.contains("src-ip"), "{said}");
        }
    }
}
