//! What is lost is counted where it was lost, and the sum is what was sent.

use super::{ledger, ledger_of, mixture, number, send, udp};
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::ReservedPort;
use packetrig_sys::{sched, xdp};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::Signal;
use serde_json::Value;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::thread::{self, sleep};
use std::time::Duration;

/// More than a ring of this size holds.
const FRAMES: usize = 60_000;
const RING: &str = "1MiB";

/// A meter that does not run while its ring fills up.
fn overload(source: &[&str], frames: usize) {
    if source[1] != "packet" && !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return;
    }
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let location = lab.location(1);
    let mut running =
        Running::start(&[&["meter", &location, "--direction", "in", "--json"], source].concat(), "");
    running.await_remark("listening");
    running.signal(Signal::STOP);
    send_from_one_processor(&lab.ports()[0], frames);
    running.signal(Signal::CONT);
    running.signal(Signal::TERM);
    let result = ledger(&running.finish());
    let (dropped, delivered) =
        (number(&result, "/ledger/capture/ring_dropped"), number(&result, "/ledger/capture/delivered"));
    assert!(dropped > 0 && delivered > 0, "{result}");
    assert_eq!(dropped + delivered, frames as u64, "{result}");
    assert_eq!(number(&result, "/ledger/capture/arrived"), frames as u64);
}

/// Each processor has a ring in the driver: a sender that changes its own fills several, and none of them to the end.
fn send_from_one_processor(port: &LabPort, frames: usize) {
    let first = sched::read_allowed_cpus().unwrap()[0];
    let sending = || {
        sched::pin_thread(first).unwrap();
        send(port, &mixture(), frames);
    };
    thread::scope(|scope| scope.spawn(sending).join().unwrap());
}

#[test]
fn packet_ring_drops_are_counted() {
    overload(&["--source", "packet", "--ring", RING], FRAMES);
}

#[test]
fn shared_ring_drops_are_counted() {
    overload(&["--source", "packet", "--ring", RING, "--workers", "2"], FRAMES);
}

#[test]
fn driver_ring_drops_are_counted() {
    overload(&["--source", "xdp"], 6 * FRAMES);
    overload(&["--source", "headers"], 6 * FRAMES);
}

/// A port at which nobody listens, and that no other test gets.
fn closed_port() -> ReservedPort {
    ReservedPort::reserve_any_tcp(&NetNs::current().unwrap(), Ipv4Addr::LOCALHOST.into()).unwrap()
}

/// That port as the target of an export.
fn target_at(closed: &ReservedPort) -> String {
    format!("tcp://127.0.0.1:{}", closed.port())
}

#[test]
fn unreachable_collector_costs_only_counted_records() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let location = lab.location(1);
    let closed = closed_port();
    let target = target_at(&closed);
    let flags = ["--export", &target, "--format", "sim", "--queue", "64KiB", "--direction", "in", "--json"];
    let mut running = Running::start(&[&["meter", location.as_str()], &flags[..]].concat(), "");
    running.await_remark("listening");
    send(&lab.ports()[0], &[udp(1, false), udp(1, true)], FRAMES);
    running.signal(Signal::TERM);
    let result = ledger_of(&running.finish(), 4);
    let of = |what: &str| number(&result, &format!("/outputs/0/{what}/packets"));
    assert_eq!(number(&result, "/ledger/packets/metered"), FRAMES as u64);
    assert_eq!((of("offered"), of("sent"), of("waiting")), (FRAMES as u64, 0, 0), "{result}");
    assert!(of("queue_dropped") > 0, "{result}");
    assert_eq!(of("queue_dropped") + of("refused"), FRAMES as u64, "{result}");
}

#[test]
fn full_flow_table_evicts_early_without_loss() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let location = lab.location(1);
    let flags = ["--flows", "16", "--direction", "in", "--json"];
    let mut running = Running::start(&[&["meter", location.as_str()], &flags[..]].concat(), "");
    running.await_remark("listening");
    send(&lab.ports()[0], &mixture(), 1200);
    running.signal(Signal::INT);
    let result = ledger(&running.finish());
    assert!(number(&result, "/ledger/packets/evicted") > 0, "{result}");
    assert_eq!(number(&result, "/ledger/packets/untracked"), 0);
    assert_eq!(number(&result, "/ledger/packets/recorded"), 1000);
}

/// A frame of each of so many flows.
fn frames_of_flows(flows: u32) -> Vec<Vec<u8>> {
    let of = |number: u32| {
        let mut frame = udp(1, false);
        frame[26..30].copy_from_slice(&(0xc612_0000 + number).to_be_bytes());
        frame
    };
    (0..flows).map(of).collect()
}

/// Packets that an output has sent, that found its queue full, and that it refused.
fn fate(result: &Value, output: usize) -> [u64; 3] {
    ["sent", "queue_dropped", "refused"]
        .map(|what| number(result, &format!("/outputs/{output}/{what}/packets")))
}

#[test]
fn remaining_flows_are_exported_at_shutdown() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let location = lab.location(1);
    let flows: u64 = 100_000;
    let frames = frames_of_flows(100_000);
    for workers in ["1", "2"] {
        let outputs = ["--export", "file:out.ipfix", "--directory", "flows", "--workers", workers];
        let flags = ["--direction", "in", "--json"];
        let mut running = Running::start(&[&["meter", location.as_str()], &flags[..], &outputs].concat(), "");
        running.await_remark("listening");
        send(&lab.ports()[0], &frames, frames.len());
        running.signal(Signal::TERM);
        let result = ledger(&running.finish());
        assert_eq!(number(&result, "/ledger/packets/recorded"), flows);
        for output in 0..2 {
            assert_eq!(fate(&result, output), [flows, 0, 0], "{workers}: {result}");
        }
    }
}

/// Takes one connection and reads it to its end, a megabyte in a second.
fn read_slowly(listener: &TcpListener) -> usize {
    let mut connection = listener.accept().unwrap().0;
    let mut part = vec![0; 40_000];
    let mut bytes = 0;
    loop {
        match connection.read(&mut part).unwrap() {
            0 => return bytes,
            read => bytes += read,
        }
        sleep(Duration::from_millis(40));
    }
}

/// It takes several times as long as an output may take nothing.
#[test]
fn slow_collector_gets_remaining_flows_after_signal() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let location = lab.location(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, 64 << 10).unwrap();
    let target = format!("tcp://{}", listener.local_addr().unwrap());
    let flows = 100_000;
    let reading = thread::spawn(move || read_slowly(&listener));
    let flags = ["--export", &target, "--queue", "64KiB", "--direction", "in", "--json"];
    let mut running = Running::start(&[&["meter", location.as_str()], &flags[..]].concat(), "");
    running.await_remark("listening");
    send(&lab.ports()[0], &frames_of_flows(flows), flows as usize);
    running.signal(Signal::TERM);
    let result = ledger(&running.finish());
    assert_eq!(fate(&result, 0), [flows.into(), 0, 0], "{result}");
    assert_eq!(reading.join().unwrap() as u64, number(&result, "/outputs/0/message_bytes"));
}

#[test]
fn dead_output_costs_other_outputs_nothing() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let location = lab.location(1);
    let closed = closed_port();
    let targets = [target_at(&closed), "file:out.ipfix".to_owned()];
    // Twice as many as a queue of the others holds: without patience they would lose some.
    let flows = 150_000;
    let outputs = ["--export", &targets[0], "--export", &targets[1], "--directory", "flows"];
    let flags = ["--queue", "64KiB", "--direction", "in", "--json"];
    let mut running = Running::start(&[&["meter", location.as_str()], &outputs[..], &flags].concat(), "");
    running.await_remark("listening");
    send(&lab.ports()[0], &frames_of_flows(flows), flows as usize);
    running.signal(Signal::TERM);
    let result = ledger_of(&running.finish(), 4);
    let [sent, dropped, refused] = fate(&result, 0);
    assert!(sent == 0 && dropped > 0 && dropped + refused == u64::from(flows), "{result}");
    for output in [1, 2] {
        assert_eq!(fate(&result, output), [flows.into(), 0, 0], "{result}");
    }
}
