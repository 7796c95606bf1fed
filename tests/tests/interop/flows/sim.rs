//! Our dissector for SIM, in tshark.

use super::{NOW, address, received, write_pcap};
use packetrig_flow::sim::{SIM_PORT, SimEvent};
use packetrig_flow::{FlowKey, MeterLedger, TunnelKind};
use packetrig_flow_io::BackpressurePolicy;
use packetrig_flow_io::export::{
    ExportContent, ExportDestination, MeterExport, open_export_queue, spawn_export,
};
use packetrig_tests::skip;
use std::path::Path;
use std::process::Command;

fn flow(v6: bool, flow_id: u64) -> SimEvent {
    let key = FlowKey {
        source: address(v6, 1),
        destination: address(v6, 2),
        source_port: 1024,
        destination_port: 53,
        protocol: 17,
        tunnel: TunnelKind::Vxlan,
        vlan: 100,
        inner_vlan: 7,
        tunnel_id: 4242,
    };
    SimEvent::Flow { flow_id, key, at_ns: NOW }
}

/// Two new flows, 400 packets, and one that is so late that it takes the long form.
fn events() -> Vec<SimEvent> {
    let packet = |n: u32| SimEvent::Packet {
        flow_id: 1 + u64::from(n % 2),
        bytes: 46 + n,
        at_ns: NOW + u64::from(n) * 1000,
    };
    let late = SimEvent::Packet { flow_id: 2, bytes: 1500, at_ns: NOW + 9_000_000_000 };
    [flow(false, 1), flow(true, 2)].into_iter().chain((0..400).map(packet)).chain([late]).collect()
}

fn export(target: &str) {
    let (queue, incoming) = open_export_queue(4 << 20, &BackpressurePolicy::default());
    let destination = ExportDestination { target: target.parse().unwrap(), content: ExportContent::Sim };
    let options = MeterExport { destinations: vec![destination], domain: 77, ..MeterExport::default() };
    let ledger = || {
        let mut ledger = MeterLedger::default();
        ledger.packets.seen = 401;
        ledger
    };
    let thread = spawn_export(&options, incoming, ledger).unwrap();
    let mut outbox = queue.make_outbox();
    for event in events() {
        outbox.add_event(event);
    }
    drop((outbox, queue));
    assert_eq!(thread.join_threads().0.sent.packets, 401);
}

/// The values of fields, one after the other, over all datagrams.
fn values(file: &Path, field: &str) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/packetrig_sim.lua");
    let output = Command::new("tshark")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(file)
        .args(["-n", "-T", "fields", "-E", "occurrence=a", "-e", field])
        .output()
        .unwrap();
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split([',', '\n']).filter(|value| !value.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_dissector_shows_every_event() {
    if !skip::has_tool("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sim.pcap");
    let datagrams = received(export);
    assert!(datagrams.iter().filter(|datagram| datagram.len() == 1472).count() >= 3, "filled exactly");
    write_pcap(&file, SIM_PORT, &datagrams);
    let strings = |numbers: Vec<u64>| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
    let mut bytes: Vec<u64> = (0..400).map(|n| 46 + n).collect();
    bytes.push(1500);
    assert_eq!(values(&file, "packetrig_sim.bytes"), strings(bytes));
    let mut ids: Vec<u64> = vec![1, 2];
    ids.extend((0..400).map(|n| 1 + n % 2));
    ids.push(2);
    assert_eq!(values(&file, "packetrig_sim.flow"), strings(ids));
    let mut times: Vec<u64> = vec![NOW, NOW];
    times.extend((0..400).map(|n| NOW + n * 1000));
    times.push(NOW + 9_000_000_000);
    assert_eq!(values(&file, "packetrig_sim.time"), strings(times));
    for (field, wanted) in [
        ("source4", "198.18.0.1"),
        ("destination6", "2001:2::2"),
        ("vlan", "100"),
        ("tunnel_id", "4242"),
        ("source_port", "1024"),
        ("protocol", "17"),
    ] {
        assert!(values(&file, &format!("packetrig_sim.{field}")).contains(&wanted.to_owned()), "{field}");
    }
    assert!(values(&file, "packetrig_sim.exporter").iter().all(|exporter| exporter == "77"));
    let sequence = values(&file, "packetrig_sim.datagram");
    assert_eq!(sequence, strings((0..datagrams.len() as u64).collect()));
    assert!(values(&file, "packetrig_sim.account").contains(&"401".to_owned()), "the ledger");
    assert_eq!(values(&file, "packetrig_sim.undecoded"), Vec::<String>::new());
}
