//! Connections that are silent, slow or too many.

use super::*;

#[test]
fn silent_connections_keep_nobody_out() {
    let collecting = start(&[format!("tcp://{LOCAL}")], &[], None);
    let address = collecting.bound_addresses()[0].address;
    let reading = collecting.ledger_reader();
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let accepted = || {
        let intake = reading.read_ledger().intake.remove(0);
        intake.connections + intake.refused + intake.address_full
    };
    wait(|| accepted() == 200);
    let target = collecting.bound_addresses()[0].to_string().parse().unwrap();
    assert_eq!(export(target, IPFIX, 500, None).sent.records, 500);
    wait(|| reading.read_ledger().total.records == 500);
    wait(|| {
        let intake = &reading.read_ledger().intake[0];
        intake.open <= 16 && intake.made_room >= 64
    });
    let (ledger, _) = collecting.stop_and_join().unwrap();
    assert!(ledger.prometheus_text().contains(",cause=\"made_room\"} "), "{}", ledger.prometheus_text());
    drop(silent);
}

#[test]
fn tcp_connection_without_valid_messages_is_closed() {
    // The time limit is short in this test only: on a busy machine a good sender may pause for as long.
    let options = CollectOptions {
        listen: vec![format!("tcp://{LOCAL}").parse().unwrap()],
        message_timeout: Nanos::from_millis(300),
        ..CollectOptions::default()
    };
    let collecting = RunningCollector::start_listening(&options, KeptRecords::default()).unwrap();
    let address = collecting.bound_addresses()[0].address;
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(&[0, 10, 0, 60, 1]).unwrap();
    let reading = collecting.ledger_reader();
    wait(|| {
        let intake = &reading.read_ledger().intake[0];
        (intake.broken, intake.slow, intake.open) == (1, 1, 0)
    });
    let silent = TcpStream::connect(address).unwrap();
    wait(|| reading.read_ledger().intake[0].open == 1);
    let (ledger, _) = collecting.stop_and_join().unwrap();
    assert_eq!((ledger.intake[0].connections, ledger.intake[0].open), (3, 0));
    drop(silent);
}

#[test]
fn silent_connection_times_out_but_sender_stays() {
    let options = CollectOptions {
        listen: vec![format!("tcp://{LOCAL}").parse().unwrap()],
        message_timeout: Nanos::from_millis(100),
        first_message: Nanos::from_millis(200),
        ..CollectOptions::default()
    };
    let collecting = RunningCollector::start_listening(&options, KeptRecords::default()).unwrap();
    let address = collecting.bound_addresses()[0].address;
    let mut sent = TcpStream::connect(address).unwrap();
    sent.write_all(&[&[0, 10, 0, 20][..], &[0; 16]].concat()).unwrap();
    let silent = TcpStream::connect(address).unwrap();
    let reading = collecting.ledger_reader();
    // A connection is counted as silent first, and as no longer open once it is shut down.
    wait(|| {
        let intake = &reading.read_ledger().intake[0];
        (intake.silent, intake.open) == (1, 1)
    });
    let intake = reading.read_ledger().intake.remove(0);
    assert_eq!((intake.connections, intake.open, intake.slow), (2, 1, 0));
    drop((sent, silent));
    collecting.stop_and_join().unwrap();
}

#[test]
fn address_cannot_exceed_its_connection_share() {
    let options = CollectOptions {
        listen: vec![format!("tcp://{LOCAL}").parse().unwrap()],
        connections: 8,
        ..CollectOptions::default()
    };
    let collecting = RunningCollector::start_listening(&options, KeptRecords::default()).unwrap();
    let reading = collecting.ledger_reader();
    // A connection with messages only gives way, so these have a record.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("one.ipfix");
    export(ExportTarget::File(file.clone()), IPFIX, 1, None);
    let message = std::fs::read(file).unwrap();
    let mut open = Vec::new();
    for records in 1..=2 {
        let mut stream = TcpStream::connect(collecting.bound_addresses()[0].address).unwrap();
        stream.write_all(&message).unwrap();
        wait(|| reading.read_ledger().total.records == records);
        open.push(stream);
    }
    open.push(TcpStream::connect(collecting.bound_addresses()[0].address).unwrap());
    wait(|| reading.read_ledger().intake[0].address_full == 1);
    assert_eq!(reading.read_ledger().intake[0].open, 2);
    collecting.stop_and_join().unwrap();
}

#[test]
fn a_handshake_that_drips_ends_in_time() {
    let directory = tempfile::tempdir().unwrap();
    // Many times as long as it is between two bytes.
    let options = CollectOptions {
        listen: vec![format!("tls://{LOCAL}").parse().unwrap()],
        tls: Some(identity(directory.path())),
        message_timeout: Nanos::from_secs(1),
        ..CollectOptions::default()
    };
    let collecting = RunningCollector::start_listening(&options, KeptRecords::default()).unwrap();
    let mut stream = TcpStream::connect(collecting.bound_addresses()[0].address).unwrap();
    // The head of a handshake record of 16 KiB, then a byte now and then: 5 minutes of it.
    stream.write_all(&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc]).unwrap();
    let mut dripped = 0;
    while dripped < 16_000 && stream.write_all(&[0]).is_ok() {
        dripped += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(dripped < 8_000, "it was open until {dripped} bytes had come");
    let (ledger, _) = collecting.stop_and_join().unwrap();
    assert_eq!((ledger.intake[0].refused, ledger.intake[0].open), (1, 0));
}
