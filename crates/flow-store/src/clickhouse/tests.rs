use super::*;
use crate::sample::records;
use packetrig_flow::CarriedRecords;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

/// A server that answers so, one request after the other, and says what it was asked: first line and length of body.
fn server(answers: &'static [&'static str]) -> (ClickHouseOptions, JoinHandle<Vec<(String, usize)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            let mut some = [0; 8192];
            let (head, length) = loop {
                let read = stream.read(&mut some).unwrap();
                bytes.extend_from_slice(&some[..read]);
                let text = String::from_utf8_lossy(&bytes);
                if let Some((head, _)) = text.split_once("\r\n\r\n") {
                    let length: usize = head.rsplit_once("Content-Length: ").unwrap().1.parse().unwrap();
                    break (head.to_owned(), length);
                }
            };
            while bytes.len() < head.len() + 4 + length {
                let read = stream.read(&mut some).unwrap();
                assert!(read > 0);
                bytes.extend_from_slice(&some[..read]);
            }
            asked.push((head.lines().next().unwrap().to_owned(), length));
            stream.write_all(answer.as_bytes()).unwrap();
        }
        asked
    });
    let mut options = ClickHouseOptions::new(address, "default".into(), "flows".into());
    options.wait = Nanos::from_millis(1);
    (options, thread)
}

const FINE: &str = "HTTP/1.0 200 OK\r\n\r\n";
const BUSY: &str = "HTTP/1.0 503 Busy\r\n\r\ncome back later";

fn offered(options: ClickHouseOptions) -> (SinkRecordCounts, Result<(), Error>) {
    let mut sink = ClickHouseSink::new(options).unwrap();
    sink.write_records(&records(10), RecordExporter::default()).unwrap();
    let (kept, done) = sink.close_sink();
    assert!(kept.is_balanced() && kept.waiting == CarriedRecords::default());
    (kept, done)
}

#[test]
fn clickhouse_table_is_created_and_rows_inserted_once() {
    let (options, server) = server(&[FINE, FINE, FINE]);
    let (kept, done) = offered(options);
    done.unwrap();
    assert_eq!((kept.stored.records, kept.failures), (10, 0));
    let asked = server.join().unwrap();
    assert!(
        asked[0].0.starts_with("POST /?wait%5Fend%5Fof%5Fquery=1 HTTP/1.0")
            || asked[0].0.starts_with("POST /?wait_end_of_query=1 HTTP/1.0")
    );
    assert!(
        asked[2].0.contains("query=INSERT%20INTO%20%60default%60%2E%60flows%60%20%28flowStartNanoseconds")
    );
    assert!(!asked[2].0.contains("input%28"), "the table has the types of the rows");
}

#[test]
fn insert_works_without_permission_to_add_columns() {
    let (options, server) = server(&[FINE, BUSY, FINE]);
    let (kept, done) = offered(options);
    done.unwrap();
    assert_eq!((kept.stored.records, kept.failures), (10, 0));
    let asked = server.join().unwrap();
    assert_eq!(asked.len(), 3);
    assert!(asked[2].0.contains("SELECT%20flowStartNanoseconds") && asked[2].0.contains("input%28"));
}

#[test]
fn busy_clickhouse_is_retried_with_same_token() {
    let (options, server) = server(&[FINE, FINE, BUSY, FINE, FINE, FINE]);
    let (kept, done) = offered(options);
    done.unwrap();
    assert_eq!((kept.stored.records, kept.failures), (10, 1));
    let asked = server.join().unwrap();
    // Refused, so the table is looked after again.
    assert_eq!(asked[2], asked[5]);
}

#[test]
fn user_who_may_only_insert_stores_rows() {
    const DENIED: &str =
        "HTTP/1.1 403 Forbidden\r\n\r\nCode: 497. DB::Exception: me: Not enough privileges. (ACCESS_DENIED)";
    let (options, server) = server(&[DENIED, FINE]);
    let (kept, done) = offered(options);
    done.unwrap();
    assert_eq!((kept.stored.records, kept.failures), (10, 0));
    assert!(server.join().unwrap()[1].0.contains("INSERT"));
}

#[test]
fn rows_refused_after_retries_are_lost_with_reason() {
    let (mut options, server) = server(&[BUSY, BUSY]);
    options.attempts = 2;
    let (kept, done) = offered(options);
    let error = done.unwrap_err().to_string();
    assert!(error.contains("status 503: come back later"), "{error}");
    assert_eq!((kept.lost.records, kept.failures), (10, 2));
    server.join().unwrap();
}

#[test]
fn non_http_answer_is_reported_and_rows_lost() {
    let (mut options, server) = server(&["220 mail.example.org ESMTP\r\n"]);
    options.attempts = 1;
    let (kept, done) = offered(options);
    assert!(done.unwrap_err().to_string().contains("is not HTTP"));
    assert_eq!(kept.lost.records, 10);
    server.join().unwrap();
}

#[test]
fn names_that_would_be_statements_are_refused() {
    let options = ClickHouseOptions::new("localhost".into(), "default".into(), "flows; DROP".into());
    assert!(ClickHouseSink::new(options).is_err());
}
