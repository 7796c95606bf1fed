//! Batches of records as Kafka stores them (format 2): what one request carries to one partition.

use super::wire::{KafkaWriter, length};
use crate::flows::checksum::crc32c;
use crate::flows::columns::SourcedRow;
use crate::flows::json;
use std::collections::BTreeMap;

/// Rows of a batch: a line has about 1.2 kB, and brokers take one megabyte unless told otherwise.
const BATCH_ROWS: usize = 500;
/// Of bytes between the checksum and the batch's begin.
const BEFORE_CHECKED: usize = 21;

/// Some rows for a partition, and their place in the row of batches, once they have one.
#[derive(Debug)]
pub(super) struct RecordBatch {
    pub(super) partition: i32,
    pub(super) rows: Vec<SourcedRow>,
    place: Option<RowPlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowPlace {
    id: i64,
    epoch: i16,
    sequence: i32,
}

/// Who the broker thinks we are, and how many records it had from us for each partition.
#[derive(Debug)]
pub(super) struct KafkaProducer {
    pub(super) id: i64,
    pub(super) epoch: i16,
    next: BTreeMap<i32, i32>,
}

impl KafkaProducer {
    pub(super) fn new(id: i64, epoch: i16) -> Self {
        Self { id, epoch, next: BTreeMap::new() }
    }

    fn place(&mut self, partition: i32, records: i32) -> RowPlace {
        let next = self.next.entry(partition).or_default();
        let place = RowPlace { id: self.id, epoch: self.epoch, sequence: *next };
        // Numbers begin again at zero behind the greatest.
        *next = next.checked_add(records).unwrap_or_else(|| records - (i32::MAX - *next) - 1);
        place
    }
}

/// Rows by partition: all of a flow into one.
pub(super) fn batches(rows: Vec<SourcedRow>, partitions: &[i32]) -> Vec<RecordBatch> {
    let mut by_partition: BTreeMap<i32, Vec<SourcedRow>> = BTreeMap::new();
    for row in rows {
        let count = u64::try_from(partitions.len()).unwrap_or(1).max(1);
        let index = usize::try_from(row.record.flow_id % count).unwrap_or(0);
        by_partition.entry(partitions.get(index).copied().unwrap_or(0)).or_default().push(row);
    }
    let cut = |(partition, rows): (i32, Vec<SourcedRow>)| {
        let chunks: Vec<_> = rows.chunks(BATCH_ROWS).map(<[SourcedRow]>::to_vec).collect();
        chunks.into_iter().map(move |rows| RecordBatch { partition, rows, place: None })
    };
    by_partition.into_iter().flat_map(cut).collect()
}

impl RecordBatch {
    /// Its bytes. Sent again for the same producer, it has the same place.
    pub(super) fn encode(&mut self, producer: &mut KafkaProducer) -> Vec<u8> {
        let records = length(self.rows.len());
        let place = match self.place {
            Some(place) if (place.id, place.epoch) == (producer.id, producer.epoch) => place,
            _ => producer.place(self.partition, records),
        };
        self.place = Some(place);
        let mut checked = KafkaWriter::default();
        checked.i16(0).i32(records - 1).i64(-1).i64(-1);
        checked.i64(place.id).i16(place.epoch).i32(place.sequence).i32(records);
        let mut line = String::new();
        for (index, row) in (0..).zip(&self.rows) {
            line.clear();
            json::append(row, &mut line);
            let record = record(index, &row.record.flow_id.to_be_bytes(), line.as_bytes());
            checked.varint(i64::from(length(record.len()))).raw(&record);
        }
        let mut batch = KafkaWriter::default();
        batch.i64(0).i32(length(checked.0.len() + BEFORE_CHECKED - 12));
        batch.i32(-1).i8(2).raw(&crc32c(&checked.0).to_be_bytes()).raw(&checked.0);
        batch.0
    }
}

fn record(index: i64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = KafkaWriter::default();
    record.i8(0).varint(0).varint(index);
    record.varint(i64::from(length(key.len()))).raw(key);
    record.varint(i64::from(length(value.len()))).raw(value).varint(0);
    record.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::RecordMaker;
    use crate::flows::sample::records;

    fn rows(count: u16) -> Vec<SourcedRow> {
        records(count)
            .into_iter()
            .map(|record| SourcedRow { record, source: RecordMaker::default() })
            .collect()
    }

    #[test]
    fn all_rows_of_a_flow_go_to_one_partition_and_every_row_to_one() {
        let made = batches([rows(2000), rows(2000)].concat(), &[5, 0, 2]);
        let mut seen = BTreeMap::new();
        for batch in &made {
            assert!(batch.rows.len() <= BATCH_ROWS);
            for row in &batch.rows {
                let (partition, count) = seen.entry(row.record.flow_id).or_insert((batch.partition, 0));
                *count += 1;
                assert_eq!(*partition, batch.partition);
            }
        }
        assert_eq!(seen.len(), 2000);
        assert!(seen.values().all(|(_, count)| *count == 2));
        assert!([0, 2, 5].iter().all(|one| made.iter().any(|batch| batch.partition == *one)));
    }

    #[test]
    fn a_repeated_batch_has_the_same_number_and_a_later_one_the_next() {
        let mut producer = KafkaProducer::new(7, 1);
        let mut made = batches(rows(700), &[3]);
        let first = made[0].encode(&mut producer);
        assert_eq!(made[0].encode(&mut producer), first);
        assert_eq!(made[0].place.unwrap().sequence, 0);
        made[1].encode(&mut producer);
        assert_eq!(made[1].place.unwrap().sequence, 500);
        made[0].encode(&mut KafkaProducer::new(8, 0));
        assert_eq!(made[0].place, Some(RowPlace { id: 8, epoch: 0, sequence: 0 }));
        producer.next.insert(3, i32::MAX - 1);
        assert_eq!(producer.place(3, 5).sequence, i32::MAX - 1);
        assert_eq!(producer.place(3, 5).sequence, 3);
    }

    #[test]
    fn lengths_and_checksum_are_right() {
        let bytes = batches(rows(10), &[0])[0].encode(&mut KafkaProducer::new(7, 1));
        assert_eq!(i32::from_be_bytes(bytes[8..12].try_into().unwrap()), length(bytes.len() - 12));
        assert_eq!(u32::from_be_bytes(bytes[17..21].try_into().unwrap()), crc32c(&bytes[BEFORE_CHECKED..]));
    }
}
