use super::wire::KafkaWriter;
use super::*;
use crate::sample::records;
use packetrig_flow::CarriedRecords;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

/// A broker with two partitions that answers batches with these codes, then with 0; a code of -1 is no answer at all. Says which
/// producer and sequence each batch had, and how many records.
fn broker(codes: &'static [i16]) -> (KafkaOptions, mpsc::Receiver<(i32, i64, i32, i32)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, batches) = mpsc::channel();
    thread::spawn(move || {
        let mut codes = codes.iter().copied();
        let mut producers = 0;
        while let Ok((mut stream, _)) = listener.accept() {
            while serve(&mut stream, address.port(), &mut codes, &mut producers, &seen).is_some() {}
        }
    });
    let mut options = KafkaOptions::new(vec![address.to_string()], "flows".into());
    options.wait = Nanos::from_millis(1);
    (options, batches)
}

fn serve(
    stream: &mut TcpStream,
    port: u16,
    codes: &mut impl Iterator<Item = i16>,
    producers: &mut i64,
    seen: &mpsc::Sender<(i32, i64, i32, i32)>,
) -> Option<()> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut request = vec![0; u32::from_be_bytes(head) as usize];
    stream.read_exact(&mut request).ok()?;
    let i16_at = |at: usize| i16::from_be_bytes(request[at..at + 2].try_into().unwrap());
    let i32_at = |at: usize| i32::from_be_bytes(request[at..at + 4].try_into().unwrap());
    let mut answer = KafkaWriter::default();
    answer.put_i32(i32_at(4));
    match i16_at(0) {
        18 => {
            answer.put_i16(0).put_i32(3);
            for key in [0, 3, 22] {
                answer.put_i16(key).put_i16(0).put_i16(9);
            }
        }
        3 => {
            answer
                .put_i32(0)
                .put_i32(1)
                .put_i32(1)
                .put_text("127.0.0.1")
                .put_i32(i32::from(port))
                .put_i16(-1)
                .put_i16(-1)
                .put_i32(1);
            answer.put_i32(1).put_i16(0).put_text("flows").put_i8(0).put_i32(2);
            for partition in [0, 1] {
                answer.put_i16(0).put_i32(partition).put_i32(1).put_i32(0).put_i32(0);
            }
        }
        22 => {
            *producers += 1;
            answer.put_i32(0).put_i16(0).put_i64(*producers).put_i16(0);
        }
        0 => {
            // Header 10 + "packetrig", then null, acknowledgements, timeout, one topic, "flows", one partition.
            let at = 10 + 9 + 2 + 2 + 4 + 4 + 7 + 4;
            let (partition, batch) = (i32_at(at), at + 8);
            let id = i64::from_be_bytes(request[batch + 43..batch + 51].try_into().unwrap());
            seen.send((partition, id, i32_at(batch + 53), i32_at(batch + 57))).unwrap();
            let code = codes.next().unwrap_or(0);
            if code == -1 {
                return None;
            }
            answer
                .put_i32(1)
                .put_text("flows")
                .put_i32(1)
                .put_i32(partition)
                .put_i16(code)
                .put_i64(0)
                .put_i64(-1)
                .put_i64(0)
                .put_i32(0);
        }
        other => panic!("call {other}"),
    }
    let mut framed = KafkaWriter::default();
    framed.put_bytes(&answer.0);
    stream.write_all(&framed.0).ok()
}

fn offered(options: KafkaOptions, rounds: usize) -> (SinkRecordCounts, Vec<Result<(), Error>>) {
    let mut sink = KafkaSink::new(options);
    let mut done = Vec::new();
    for _ in 0..rounds {
        sink.write_records(&records(100), RecordExporter::default()).unwrap();
        done.push(sink.flush_records());
    }
    let (kept, closed) = sink.close_sink();
    done.push(closed);
    assert!(kept.is_balanced() && kept.waiting == CarriedRecords::default());
    (kept, done)
}

#[test]
fn every_record_is_sent_once_in_numbered_batches() {
    let (options, batches) = broker(&[]);
    let (kept, done) = offered(options, 2);
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!((kept.stored.records, kept.failures), (200, 0));
    let seen: Vec<_> = batches.try_iter().collect();
    assert_eq!(seen, [(0, 1, 0, 50), (1, 1, 0, 50), (0, 1, 50, 50), (1, 1, 50, 50)]);
}

#[test]
fn kafka_resend_after_lost_answer_keeps_sequence() {
    // The broker has it already: 46.
    let (options, batches) = broker(&[-1, 46, 6]);
    let (kept, done) = offered(options, 1);
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!((kept.stored.records, kept.failures), (100, 2));
    let seen: Vec<_> = batches.try_iter().collect();
    assert_eq!(seen, [(0, 1, 0, 50), (0, 1, 0, 50), (1, 1, 0, 50), (1, 1, 0, 50)]);
}

#[test]
fn unknown_producer_error_gets_new_producer_id() {
    let (options, batches) = broker(&[59]);
    let (kept, _) = offered(options, 1);
    assert_eq!((kept.stored.records, kept.failures), (100, 1));
    assert_eq!(batches.try_iter().collect::<Vec<_>>(), [(0, 1, 0, 50), (0, 2, 0, 50), (1, 2, 0, 50)]);
}

#[test]
fn oversized_batch_is_lost_with_reason() {
    let (options, batches) = broker(&[10]);
    let (kept, done) = offered(options, 1);
    let error = done[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("topic flows, partition 0: the batch is larger than the topic allows"), "{error}");
    assert_eq!((kept.stored.records, kept.lost.records), (50, 50));
    assert_eq!(batches.try_iter().count(), 2);
}

#[test]
fn dead_broker_gets_limited_then_single_attempts() {
    let (mut options, batches) = broker(&[7; 100]);
    options.attempts = 3;
    let (kept, done) = offered(options, 3);
    assert!(done[0].as_ref().unwrap_err().to_string().contains("in time"));
    assert_eq!((kept.lost.records, kept.failures), (300, 5));
    assert_eq!(batches.try_iter().count(), 5);
}

#[test]
fn nobody_there_is_said() {
    let mut options = KafkaOptions::new(vec!["127.0.0.1:1".into()], "flows".into());
    options.attempts = 1;
    let (kept, done) = offered(options, 1);
    let error = done[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("Kafka broker 127.0.0.1:1"), "{error}");
    assert_eq!(kept.lost.records, 100);
}
