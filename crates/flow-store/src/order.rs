//! Finds the first records in a given order, in bounded memory.
//!
//! First the columns that the order needs are read from all records, then the other columns from the records that are shown.
//!
//! Invariant: each reading thread holds no more records than the user requested. Equal records keep the order of the
//! files.

use super::Error;
use super::columns::{find_column, flow_columns};
use super::filter::{ConditionOperand, FlowFilter, OperandCells};
use super::rows::filter_rows;
use super::scan::{RowChunk, RowPlace, ScanTerms, count_records, scan_rows};
use packetrig_flow::element::ElementKind;
use packetrig_units::clamp_to_u64;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;

/// An order of records: the value to order by, and which end comes first. As in filters, rates and sizes are
/// those from source to destination.
#[derive(Clone, Copy, Debug)]
pub struct RecordOrder {
    by: ConditionOperand,
    is_largest_first: bool,
}

/// The text is not an order of records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot order records by `{word}`; possible: duration, pps, bps, bpp, and columns: {}; append `:a` for the smallest first, or \
     `:d` for the largest",
    short_names()
)]
pub struct InvalidOrder {
    word: String,
}

fn short_names() -> String {
    flow_columns().iter().map(|column| column.short).collect::<Vec<_>>().join(", ")
}

impl FromStr for RecordOrder {
    type Err = InvalidOrder;

    fn from_str(text: &str) -> Result<Self, InvalidOrder> {
        parse_record_order(text).ok_or_else(|| InvalidOrder { word: text.to_owned() })
    }
}

fn parse_record_order(text: &str) -> Option<RecordOrder> {
    let (word, direction) = text.split_once(':').map_or((text, None), |(word, rest)| (word, Some(rest)));
    let found = OrderedBy::from_word(&word.to_ascii_lowercase())?;
    let is_largest_first = match direction {
        None => found.is_amount,
        Some("a") => false,
        Some("d") => true,
        Some(_) => return None,
    };
    Some(RecordOrder { by: found.value, is_largest_first })
}

const PACKETS_COLUMN: &str = "packetDeltaCount";
const OCTETS_COLUMN: &str = "octetDeltaCount";

/// A value that records can be ordered by.
struct OrderedBy {
    value: ConditionOperand,
    /// True if the value is an amount, such as bytes: by default the largest amount comes first. Of other values, such
    /// as times and addresses, the smallest comes first.
    is_amount: bool,
}

impl OrderedBy {
    fn from_word(word: &str) -> Option<Self> {
        let value = match word {
            "duration" => ConditionOperand::Duration { unit_ns: 1 },
            "pps" => ConditionOperand::PerSecond { column: PACKETS_COLUMN, factor: 1 },
            "bps" => ConditionOperand::PerSecond { column: OCTETS_COLUMN, factor: 8 },
            "bpp" => ConditionOperand::Ratio { of: OCTETS_COLUMN, per: PACKETS_COLUMN },
            "tstart" => return Self::from_column("start"),
            "tend" => return Self::from_column("end"),
            word => return Self::from_column(word),
        };
        Some(Self { value, is_amount: true })
    }

    fn from_column(word: &str) -> Option<Self> {
        let column = find_column(word)?;
        // Columns that count something have a unit. Times have one, too, and are no amounts.
        let is_amount = !column.unit.is_empty() && column.kind != ElementKind::Time;
        Some(Self { value: ConditionOperand::Column(column.name), is_amount })
    }
}

/// The value by which a record is ordered: a number, or a word of a column of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderKey<W> {
    number: u128,
    word: W,
}

impl<'a> OrderKey<&'a str> {
    fn from_cells(cells: &'a OperandCells<'_>, row: usize) -> Self {
        Self { number: cells.wide_value_at(row), word: cells.word_at(row) }
    }
}

/// A record that is among the first so far. If there are too many, the last in the order is dropped.
struct RankedRecord<W> {
    key: OrderKey<W>,
    place: RowPlace,
    is_largest_first: bool,
}

impl<W: AsRef<str>> RankedRecord<W> {
    fn compare_rank<V: AsRef<str>>(&self, other: &RankedRecord<V>) -> Ordering {
        // Records with equal keys stay in the order of the files, also if the largest comes first.
        let numbers = self.key.number.cmp(&other.key.number);
        let by_key = numbers.then_with(|| self.key.word.as_ref().cmp(other.key.word.as_ref()));
        let by_key = if self.is_largest_first { by_key.reverse() } else { by_key };
        by_key.then(self.place.cmp(&other.place))
    }
}

impl RankedRecord<&str> {
    /// A copy that outlives its chunk.
    fn to_owned(&self) -> RankedRecord<String> {
        let Self { key, place, is_largest_first } = *self;
        let key = OrderKey { number: key.number, word: key.word.to_owned() };
        RankedRecord { key, place, is_largest_first }
    }
}

impl Ord for RankedRecord<String> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare_rank(other)
    }
}

impl PartialOrd for RankedRecord<String> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RankedRecord<String> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RankedRecord<String> {}

/// The first records in an order, and the number of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstRecords<T> {
    /// Results of the callback `show` of [`first_records`], one for each of the first records.
    pub shown: Vec<T>,
    /// Number of records that the filter selects.
    pub count: u64,
}

/// Finds the first `most` records that a filter selects. Calls `show` once for each of them, with a chunk that has the
/// columns `wanted`, and the record's row in it. Of other records, only the columns of order and filter are read.
pub fn first_records<T>(
    files: &[PathBuf],
    filter: &FlowFilter,
    wanted: &[&'static str],
    order: RecordOrder,
    most: usize,
    show: &mut dyn FnMut(&RowChunk, usize) -> T,
) -> Result<FirstRecords<T>, Error> {
    let FirstRecordPositions { ranked, count } = find_first_row_positions(files, filter, order, most)?;
    // Records are read in the order of the files, each with its rank, and then sorted into the requested order.
    let mut by_place: Vec<_> = ranked.into_iter().zip(0..).collect();
    // No two positions are equal, so the ranks never decide.
    by_place.sort_unstable();
    let places: Vec<_> = by_place.iter().map(|(place, _)| *place).collect();
    let mut ranks = by_place.iter().map(|(_, rank): &(_, usize)| *rank);
    let mut shown = Vec::with_capacity(places.len());
    scan_rows(files, &places, wanted, &mut |chunk, rows| {
        shown.extend(
            rows.iter().map(|&row| show(chunk, row)).zip(ranks.by_ref()).map(|(text, rank)| (rank, text)),
        );
        ControlFlow::Continue(())
    })?;
    shown.sort_by_key(|(rank, _)| *rank);
    Ok(FirstRecords { shown: shown.into_iter().map(|(_, shown)| shown).collect(), count })
}

/// The positions of the first records, in the requested order.
struct FirstRecordPositions {
    ranked: Vec<RowPlace>,
    count: u64,
}

fn find_first_row_positions(
    files: &[PathBuf],
    filter: &FlowFilter,
    order: RecordOrder,
    most: usize,
) -> Result<FirstRecordPositions, Error> {
    let by = order.by.needed_columns();
    let new_ranking = || RankedRecords { order, most, first: BinaryHeap::new(), count: 0 };
    let rankings =
        count_records(&ScanTerms::default(), files, filter, &by, new_ranking, RankedRecords::rank_chunk)?;
    let merged = rankings.into_iter().reduce(RankedRecords::merge_with).unwrap_or_else(new_ranking);
    let ranked = merged.first.into_sorted_vec().into_iter().map(|ranked| ranked.place).collect();
    Ok(FirstRecordPositions { ranked, count: merged.count })
}

/// The first records among the records that one thread has read.
struct RankedRecords {
    order: RecordOrder,
    most: usize,
    first: BinaryHeap<RankedRecord<String>>,
    count: u64,
}

impl RankedRecords {
    fn rank_chunk(&mut self, chunk: &RowChunk, rows: &[usize]) {
        let RecordOrder { by, is_largest_first } = self.order;
        self.count += rows.len() as u64;
        // With `most` 0 only the count is wanted, and the heap stays empty.
        if self.most == 0 {
            return;
        }
        let cells = by.find_operand_columns(chunk);
        for row in self.promising_rows(&cells, rows) {
            let place = chunk.row_place(row);
            let ranked = RankedRecord { key: OrderKey::from_cells(&cells, row), place, is_largest_first };
            // The heap's top is the last of the held records, so one comparison dismisses most records without a copy.
            if self.first.len() < self.most {
                self.first.push(ranked.to_owned());
            } else if self.first.peek().is_some_and(|last| ranked.compare_rank(last).is_lt()) {
                self.first.pop();
                self.first.push(ranked.to_owned());
            }
        }
    }

    /// The rows that may be among the first. A reader's rows come in the order of the files, so a row with the same
    /// number as the last held record comes after that record.
    fn promising_rows(&self, cells: &OperandCells<'_>, rows: &[usize]) -> Vec<usize> {
        let mut promising = rows.to_vec();
        let Some(numbers) = cells.numbers() else { return promising };
        if let Some(last) = self.first.peek().filter(|_| self.first.len() == self.most) {
            let bound = clamp_to_u64(last.key.number);
            if self.order.is_largest_first {
                filter_rows(&mut promising, |row| numbers[row] > bound);
            } else {
                filter_rows(&mut promising, |row| numbers[row] < bound);
            }
        }
        // Each row of a chunk that is in order already would replace the one before it.
        if promising.len() > self.most {
            let reverse = if self.order.is_largest_first { u64::MAX } else { 0 };
            promising.select_nth_unstable_by_key(self.most, |&row| (numbers[row] ^ reverse, row));
            promising.truncate(self.most);
            promising.sort_unstable();
        }
        promising
    }

    fn merge_with(mut self, other: Self) -> Self {
        self.count += other.count;
        self.first.extend(other.first);
        while self.first.len() > self.most {
            self.first.pop();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::records;
    use crate::scan::list_flow_files;
    use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
    use packetrig_sys::clock;

    fn numbers(files: &[PathBuf], filter: &str, order: &str, most: usize) -> (Vec<u64>, u64, usize) {
        let mut shown = 0;
        let order = order.parse().unwrap();
        let first =
            first_records(files, &filter.parse().unwrap(), &["flowId"], order, most, &mut |chunk, row| {
                shown += 1;
                u64::MAX - chunk.column("flowId").number_at(row)
            });
        let first = first.unwrap();
        (first.shown, first.count, shown)
    }

    #[test]
    fn first_records_match_the_fully_sorted_order() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = ParquetOptions::new(directory.path());
        options.group_rows = 300;
        let mut sink = ParquetSink::new(options).unwrap();
        let given = records(2000);
        sink.write_records(&given, RecordExporter::default()).unwrap();
        sink.close_sink().1.unwrap();
        let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
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
        // Largest last in the files: each is among the first as it comes, and is not shown for that.
        assert_eq!(numbers(&files, "any", "packets", 10).2, 10);
    }

    /// Ten records of many: showing them costs little beside finding them, even with many columns.
    #[test]
    fn columns_are_read_only_for_shown_records() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = ParquetOptions::new(directory.path());
        options.group_rows = 1 << 14;
        let mut sink = ParquetSink::new(options).unwrap();
        for _ in 0..40 {
            sink.write_records(&records(3000), RecordExporter::default()).unwrap();
        }
        sink.close_sink().1.unwrap();
        let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
        let all: Vec<_> = flow_columns().iter().map(|column| column.name).collect();
        let cost = |wanted: &[&'static str]| {
            let begun_ns = clock::thread_cpu_ns();
            let order = "flow-id".parse().unwrap();
            let first = first_records(&files, &FlowFilter::default(), wanted, order, 10, &mut |_, row| row);
            assert_eq!(first.unwrap().count, 120_000);
            clock::thread_cpu_ns() - begun_ns
        };
        let [few, many] = [&["flowId"][..], &all].map(|wanted| (0..5).map(|_| cost(wanted)).min().unwrap());
        assert!(many < 4 * few, "{few} ns with one column, {many} ns with all");
    }

    #[test]
    fn unknown_record_order_is_refused_by_name() {
        for wrong in ["", "colour", "packets:x", "packets:", ":d"] {
            let said = wrong.parse::<RecordOrder>().unwrap_err().to_string();
            assert!(said.contains(&format!("`{wrong}`")) && said.contains("src-ip"), "{said}");
        }
    }
}
