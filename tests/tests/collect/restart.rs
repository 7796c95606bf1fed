//! A collector that is killed and started again while a real meter exports to it over UDP.

use packetrig_tests::listening::await_place;
use packetrig_tests::own_place::own_place;
use packetrig_tests::program::Running;
use packetrig_tests::recording::{Recorded, stored, udp};
use packetrig_tests::scraping;
use rustix::process::Signal;
use serde_json::Value;

const SECOND: u64 = 1_000_000_000;
const BEGAN_NS: u64 = 1_789_984_800 * SECOND;
/// Flows of one packet each, which end by silence one after the other.
const FLOWS: u32 = 3000;

fn capture() -> Vec<Recorded> {
    let frame = |n: u32| {
        let mut bytes = udp(1, 1, 20);
        bytes[26..30].copy_from_slice(&(0xc612_0000 + n).to_be_bytes());
        Recorded { at: BEGAN_NS + u64::from(n) * 1_000_000, bytes }
    };
    (0..FLOWS).map(frame).collect()
}

fn start(listen: &str) -> (Running, String) {
    let flags =
        ["collect", "--json", "--quiet", "--time", "100s", "--directory", "records", "--listen", listen];
    let mut running = Running::start(&flags, "");
    let place = await_place(&mut running);
    (running, place)
}

/// Waits until a meter has so many records in an account. How many datagrams the socket at a port of 127.0.0.1 has received only
/// its program can tell, so this is how the collector is killed when its exporter is surely under way.
fn await_records(metrics: &str, account: &str, least: u64) {
    let name = format!("packetrig_meter_output_{account}_records_total");
    for _ in 0..10_000 {
        let text = scraping::scrape(metrics);
        let line = text.lines().find(|line| line.starts_with(&name));
        let records = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        if records.is_some_and(|records| records >= least as f64) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the meter never had {least} records {account}");
}

#[test]
fn collector_decodes_again_after_kill_and_restart() {
    // Of its own: until it is started again nobody listens there.
    let (mut first, place) = start(&format!("udp://{}", own_place()));
    let (_directory, file) = stored(&capture());
    let file = file.display().to_string();
    let flags = ["meter", &file, "--json", "--pace", "1x", "--idle", "500ms", "--export", &place];
    let mut meter = Running::start(&[&flags[..], &["--metrics", "127.0.0.1:0"]].concat(), "");
    let metrics = scraping::await_metrics(&mut meter);
    await_records(&metrics, "sent", 300);
    first.signal(Signal::KILL);
    assert_eq!(first.finish().code, None);
    await_records(&metrics, "refused", 1);
    // However long the second one takes to start, most is left for it.
    meter.signal(Signal::STOP);
    let (mut second, _) = start(&place);
    meter.signal(Signal::CONT);
    let metered = meter.finish();
    let metered: Value = serde_json::from_str(&metered.stdout).unwrap();
    second.signal(Signal::INT);
    let finished = second.finish();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let total = &report["total"];
    let found =
        ["undecoded_bytes", "pending_bytes", "lost", "untold", "restarts"].map(|what| total[what].as_u64());
    assert_eq!(found, [Some(0); 5], "{report:#}");
    assert!(total["records"].as_u64().unwrap() >= 1000, "{report:#}");
    // What is missing is said: by the meter what was refused, by the collector what never came.
    let number = |path: &str| metered.pointer(path).and_then(Value::as_u64).unwrap();
    assert!(number("/outputs/0/refused/records") > 0, "{metered:#}");
    let balance = &report["balance"];
    let losses: u64 =
        balance["losses"].as_array().unwrap().iter().map(|loss| loss["packets"].as_u64().unwrap()).sum();
    assert_eq!(
        balance["arrived"].as_u64().unwrap(),
        balance["stored"].as_u64().unwrap() + losses,
        "{balance:#}"
    );
    assert_eq!(
        (balance["arrived"].as_u64(), report["imbalances"].as_array().unwrap().len()),
        (Some(FLOWS.into()), 0)
    );
}
