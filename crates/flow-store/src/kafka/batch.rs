//! Record batches in Kafka's format 2: the rows that one request carries to one partition.

use super::TopicPartition;
use super::wire::{KafkaWriter, kafka_length};
use crate::checksum::crc32c;
use crate::columns::ExporterRow;
use crate::json;
use packetrig_units::clamp_to_usize;
use std::collections::BTreeMap;

/// Maximum number of rows of a batch: a line has about 1.2 kB, and brokers accept one megabyte by default.
const ROWS_PER_BATCH: usize = 500;
/// Number of bytes of a batch up to the end of the checksum, which covers all bytes after it.
const CHECKSUM_END_OFFSET: usize = 21;

/// Rows for a partition, with their position in the producer's sequence once it is assigned.
#[derive(Debug)]
pub(super) struct RecordBatch {
    pub(super) partition: i32,
    pub(super) rows: Vec<ExporterRow>,
    place: Option<RowPlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowPlace {
    id: i64,
    epoch: i16,
    sequence: i32,
}

/// The id that the broker gave this producer, and the next sequence number of each partition.
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

    /// Assigns the next `records` sequence numbers of a partition.
    fn assign_sequence_numbers(&mut self, partition: i32, records: i32) -> RowPlace {
        let next = self.next.entry(partition).or_default();
        let place = RowPlace { id: self.id, epoch: self.epoch, sequence: *next };
        // Sequence numbers wrap from `i32::MAX` to 0.
        *next = next.checked_add(records).unwrap_or_else(|| records - (i32::MAX - *next) - 1);
        place
    }
}

/// Splits rows into batches by partition. All records of a flow go into the same partition. While a partition has no
/// leader, its flows go into the next partition with a leader. The flows of the other partitions do not move.
pub(super) fn split_into_batches(rows: Vec<ExporterRow>, partitions: &[TopicPartition]) -> Vec<RecordBatch> {
    let mut by_partition: BTreeMap<i32, Vec<ExporterRow>> = BTreeMap::new();
    for row in rows {
        // The count is at least one, so that the remainder is defined. Without partitions, all rows would go into
        // partition 0, but `fetch_partitions` returns no empty list.
        let count = (partitions.len() as u64).max(1);
        let index = clamp_to_usize(row.record.flow_id % count);
        let mut from_index = partitions.iter().cycle().skip(index).take(partitions.len());
        let partition =
            from_index.find(|partition| partition.leader.is_some()).map_or(0, |found| found.number);
        by_partition.entry(partition).or_default().push(row);
    }
    let mut batches = Vec::new();
    for (partition, rows) in by_partition {
        for rows in rows.chunks(ROWS_PER_BATCH) {
            batches.push(RecordBatch { partition, rows: rows.to_vec(), place: None });
        }
    }
    batches
}

impl RecordBatch {
    /// Encodes the batch. For the same producer it always gets the same sequence numbers, so the broker recognises a
    /// repeated batch. A new producer assigns new numbers.
    pub(super) fn encode_for(&mut self, producer: &mut KafkaProducer) -> Vec<u8> {
        let records = kafka_length(self.rows.len());
        let place = match self.place {
            Some(place) if (place.id, place.epoch) == (producer.id, producer.epoch) => place,
            _ => producer.assign_sequence_numbers(self.partition, records),
        };
        self.place = Some(place);
        let mut checked = KafkaWriter::default();
        // Attributes (no compression), offset of the last record, and both times, -1 for none.
        checked.put_i16(0).put_i32(records - 1).put_i64(-1).put_i64(-1);
        checked.put_i64(place.id).put_i16(place.epoch).put_i32(place.sequence).put_i32(records);
        let mut line = String::new();
        for (index, row) in (0..).zip(&self.rows) {
            line.clear();
            json::append_record(row, &mut line);
            let record = encode_record(index, &row.record.flow_id.to_be_bytes(), line.as_bytes());
            checked.put_varint(i64::from(kafka_length(record.len()))).put_raw_bytes(&record);
        }
        let mut batch = KafkaWriter::default();
        // Offset, length of what follows these 12 bytes, epoch of the leader (unknown), format 2, checksum.
        batch.put_i64(0).put_i32(kafka_length(checked.0.len() + CHECKSUM_END_OFFSET - 12));
        batch
            .put_i32(-1)
            .put_i8(2)
            .put_raw_bytes(&crc32c(&checked.0).to_be_bytes())
            .put_raw_bytes(&checked.0);
        batch.0
    }
}

// Attributes, time and offset relative to the batch, key, value, no headers. Lengths and numbers are zigzag varints.
fn encode_record(index: i64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = KafkaWriter::default();
    record.put_i8(0).put_varint(0).put_varint(index);
    record.put_varint(i64::from(kafka_length(key.len()))).put_raw_bytes(key);
    record.put_varint(i64::from(kafka_length(value.len()))).put_raw_bytes(value).put_varint(0);
    record.0
}

#[cfg(test)]
mod tests {
    use super::super::PartitionLeader;
    use super::*;
    use crate::RecordExporter;
    use crate::sample::records;

    fn rows(count: u16) -> Vec<ExporterRow> {
        records(count)
            .into_iter()
            .map(|record| ExporterRow { record, source: RecordExporter::default() })
            .collect()
    }

    /// Partitions with these numbers, all with a leader.
    fn led(numbers: &[i32]) -> Vec<TopicPartition> {
        let leader = PartitionLeader { broker: 1, address: String::new() };
        numbers
            .iter()
            .map(|number| TopicPartition { number: *number, leader: Some(leader.clone()) })
            .collect()
    }

    #[test]
    fn only_flows_of_partition_without_leader_move() {
        let partition_of = |partitions: &[TopicPartition]| -> BTreeMap<u64, i32> {
            let made = split_into_batches(rows(2000), partitions);
            let of_batch = |batch: &RecordBatch| {
                batch.rows.iter().map(|row| (row.record.flow_id, batch.partition)).collect::<Vec<_>>()
            };
            made.iter().flat_map(of_batch).collect()
        };
        let mut partitions = led(&[0, 2, 5]);
        let before = partition_of(&partitions);
        partitions[1].leader = None;
        let after = partition_of(&partitions);
        assert!(
            before
                .iter()
                .all(|(flow, partition)| after[flow] == if *partition == 2 { 5 } else { *partition })
        );
    }

    #[test]
    fn rows_of_one_flow_share_a_partition() {
        let made = split_into_batches([rows(2000), rows(2000)].concat(), &led(&[5, 0, 2]));
        let mut seen = BTreeMap::new();
        for batch in &made {
            assert!(batch.rows.len() <= ROWS_PER_BATCH);
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
    fn repeated_batch_keeps_its_sequence_number() {
        let mut producer = KafkaProducer::new(7, 1);
        let mut made = split_into_batches(rows(700), &led(&[3]));
        let first = made[0].encode_for(&mut producer);
        assert_eq!(made[0].encode_for(&mut producer), first);
        assert_eq!(made[0].place.unwrap().sequence, 0);
        made[1].encode_for(&mut producer);
        assert_eq!(made[1].place.unwrap().sequence, 500);
        made[0].encode_for(&mut KafkaProducer::new(8, 0));
        assert_eq!(made[0].place, Some(RowPlace { id: 8, epoch: 0, sequence: 0 }));
        producer.next.insert(3, i32::MAX - 1);
        assert_eq!(producer.assign_sequence_numbers(3, 5).sequence, i32::MAX - 1);
        assert_eq!(producer.assign_sequence_numbers(3, 5).sequence, 3);
    }

    #[test]
    fn lengths_and_checksum_are_right() {
        let bytes = split_into_batches(rows(10), &led(&[0]))[0].encode_for(&mut KafkaProducer::new(7, 1));
        assert_eq!(i32::from_be_bytes(bytes[8..12].try_into().unwrap()), kafka_length(bytes.len() - 12));
        assert_eq!(
            u32::from_be_bytes(bytes[17..21].try_into().unwrap()),
            crc32c(&bytes[CHECKSUM_END_OFFSET..])
        );
    }
}
