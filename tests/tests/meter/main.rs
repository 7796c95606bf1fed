//! `packetrig meter`: every packet in one account, from files and from interfaces, also when something is too slow or gone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
mod live;
mod losses;
mod merged;
mod order;
mod outputs;
mod shares;

use packetrig_testkit::lab::LabPort;
use packetrig_tests::program::Finished;
use packetrig_tests::station;
use serde_json::Value;

/// What a meter printed. It balances, or the test ends here.
fn ledger(finished: &Finished) -> Value {
    ledger_of(finished, 0)
}

/// The same of one that ended with this code.
fn ledger_of(finished: &Finished, code: i32) -> Value {
    assert_eq!(finished.code, Some(code), "{}{}", finished.stdout, finished.stderr);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(result["imbalances"], serde_json::json!([]), "{result}");
    result
}

/// A number of the result by its path.
fn number(result: &Value, path: &str) -> u64 {
    result.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {path} in {result}"))
}

/// Sends frames, over and over, so many in all.
fn send(port: &LabPort, frames: &[Vec<u8>], count: usize) {
    station::send(port, frames.iter().cycle().take(count));
}

/// UDP over IPv4 from one of many ports to another machine, or back.
fn udp(flow: u16, is_back: bool) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0];
    let ends = [[198, 18, 0, 1], [198, 18, 0, 2]];
    let ports = [1024 + flow, 53];
    let order = if is_back { [1, 0] } else { [0, 1] };
    frame.extend(order.iter().flat_map(|end| ends[*end]));
    frame.extend(order.iter().flat_map(|end| ports[*end].to_be_bytes()));
    frame.extend([0, 26, 0, 0]);
    frame.resize(60, 0x5a);
    frame
}

/// ARP, padded.
fn arp() -> Vec<u8> {
    let mut frame = udp(0, false);
    frame[12..14].copy_from_slice(&[8, 6]);
    frame
}

/// Both directions of 50 flows, and some ARP: 120 frames.
fn mixture() -> Vec<Vec<u8>> {
    let both = (0..50).flat_map(|flow| [udp(flow, false), udp(flow, true)]);
    both.chain((0..20).map(|_| arp())).collect()
}
