//! Agents of sFlow: datagrams that are written here, word by word, beside nfdump's collector.
//!
//! What Debian's sfcapd 1.7.1 does in its own way: it multiplies counts by the sampling rate, and counts the bytes of frames with
//! their check sequence.

use super::{Collected, Collector, FLOWS, frame, known, packets, recorded, total};
use packetrig_tests::nfcapd::Nfcapd;
use packetrig_tests::skip;
use serde_json::Value;
use std::net::{Ipv6Addr, UdpSocket};
use std::process::Command;

const RATE: u32 = 512;
const FCS: usize = 4;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn low_32(number: usize) -> u32 {
    u32::try_from(number).unwrap()
}

fn framed(kind: u32, content: Vec<u8>) -> Vec<u8> {
    let mut content = content;
    content.resize(content.len().next_multiple_of(4), 0);
    [words(&[kind, low_32(content.len())]), content].concat()
}

/// A sample of a frame of which the first 128 bytes were captured, with all that the agent knows of its way.
fn sample(number: u32, frame: &[u8]) -> Vec<u8> {
    let header = &frame[..frame.len().min(128)];
    let raw = [words(&[1, low_32(frame.len() + FCS), low_32(FCS), low_32(header.len())]), header.to_vec()];
    let switch = words(&[200, 0, 300, 0]);
    let router = words(&[1, 0xc612_0005, 24, 16]);
    let gateway = words(&[1, 0xc612_0006, 64_496, 64_497, 64_498, 1, 2, 2, 64_500, 64_501, 0, 100]);
    let parts = [(1, raw.concat()), (1001, switch), (1002, router), (1003, gateway)];
    let head = words(&[number, 3, RATE, number * RATE, 0, 3, 4, low_32(parts.len())]);
    framed(1, [head, parts.map(|(kind, content)| framed(kind, content)).concat()].concat())
}

fn counters(index: u32) -> Vec<u8> {
    let generic =
        [&[index, 6, 0, 1_000_000_000, 1, 3, 0, 5000][..], &[7; 5], &[0, 0, 6000], &[8; 7]].concat();
    framed(2, [words(&[1, index, 1]), framed(1, words(&generic))].concat())
}

/// Datagrams with all frames of the capture file, ten samples in each, and the counters of two interfaces.
fn datagrams() -> Vec<Vec<u8>> {
    let frames: Vec<_> = recorded().into_iter().map(|recorded| recorded.bytes).collect();
    let samples: Vec<_> = (1..).zip(&frames).map(|(number, frame)| sample(number, frame)).collect();
    let with_counters = samples.chunks(10).map(<[_]>::to_vec).chain([vec![counters(3), counters(4)]]);
    (1..)
        .zip(with_counters)
        .map(|(number, samples)| {
            let head = words(&[5, 1, 0xc612_0009, 7, number, 1000 * number, low_32(samples.len())]);
            [head, samples.concat()].concat()
        })
        .collect()
}

fn collect(wanted: impl Fn(usize) -> bool) -> Collected {
    let collector = Collector::start("udp", &[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (_, datagram) in datagrams().iter().enumerate().filter(|(at, _)| wanted(*at)) {
        socket.send_to(datagram, collector.address()).unwrap();
    }
    collector.finish()
}

#[test]
fn sampled_packets_are_stored_with_their_route() {
    let collected = collect(|_| true);
    let sums = known(|_| true);
    assert_eq!(collected.kept(), sums);
    assert_eq!((collected.number("/total/packets"), collected.number("/total/bytes")), total(&sums));
    collected.assert_in_order();
    assert_eq!(collected.number("/total/flow_samples"), total(&sums).0);
    let exporter = &collected.report["exporters"][0];
    assert_eq!((&exporter["protocol"], &exporter["agent"]), (&"sflow".into(), &"198.18.0.9".into()));
    let interfaces = exporter["interfaces"].as_array().unwrap();
    let of = |name: &str| interfaces.iter().map(|one| one[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((of("index"), of("speed")), (vec![3, 4], vec![1_000_000_000; 2]));
    assert_eq!((of("in_octets"), of("out_octets")), (vec![5000; 2], vec![6000; 2]));
    for row in collected.rows() {
        assert_eq!(row["samplingInterval"], RATE);
        assert_eq!((&row["ingressInterface"], &row["egressInterface"]), (&3.into(), &4.into()));
        assert_eq!(row["exporterIPv6Address"], "::ffff:198.18.0.9");
        assert_eq!(
            (&row["bgpSourceAsNumber"], &row["bgpDestinationAsNumber"]),
            (&64_497.into(), &64_501.into())
        );
        assert_eq!(row["otherFields"]["bgpAsPath"], "64500 64501");
    }
}

#[test]
fn missing_datagram_and_its_samples_are_counted() {
    let collected = collect(|at| at != 3);
    assert_eq!((collected.number("/total/lost"), collected.number("/total/lost_samples")), (1, 10));
    let missing = collected.report["missing"].as_array().unwrap();
    assert!(!missing.is_empty(), "{:#}", collected.report);
}

/// Key, packets, frame bytes and route of one record, as both collectors have them.
type Line = (String, String, [u64; 3], [u64; 2], [u64; 4], [String; 2]);

/// A record of sfcapd: counts are multiplied there.
fn line_of_peer(flow: &Value) -> Line {
    let number = |name: &str| flow[name].as_u64().unwrap_or(0);
    let text = |names: [&str; 2]| names.iter().find_map(|name| flow[*name].as_str()).unwrap().to_owned();
    let rate = u64::from(RATE);
    (
        text(["src4_addr", "src6_addr"]),
        text(["dst4_addr", "dst6_addr"]),
        [number("src_port"), number("dst_port"), number("proto")],
        [number("in_packets") / rate, number("in_bytes") / rate - FCS as u64],
        [number("input_snmp"), number("output_snmp"), number("src_as"), number("dst_as")],
        [text(["in_src_mac"; 2]), text(["bgp4_next_hop", "bgp6_next_hop"])],
    )
}

fn line_of_ours(row: &Value) -> Line {
    let number = |name: &str| row[name].as_u64().unwrap();
    let text = |name: &str| row[name].as_str().unwrap().to_owned();
    let address = |name: &str| text(name).parse::<Ipv6Addr>().unwrap().to_canonical().to_string();
    (
        address("sourceIPv6Address"),
        address("destinationIPv6Address"),
        [number("sourceTransportPort"), number("destinationTransportPort"), number("protocolIdentifier")],
        [number("packetDeltaCount"), number("layer2OctetDeltaCount")],
        [
            number("ingressInterface"),
            number("egressInterface"),
            number("bgpSourceAsNumber"),
            number("bgpDestinationAsNumber"),
        ],
        [text("sourceMacAddress"), address("bgpNextHopIPv6Address")],
    )
}

#[test]
fn sfcapd_agrees_on_every_sample() {
    if !skip::has_tool("sfcapd") || !skip::has_tool("nfdump") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut peer = Nfcapd::start_program("sfcapd", directory.path()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in datagrams() {
        peer.send(&socket, &datagram).unwrap();
    }
    peer.finish().unwrap();
    let mut nfdump = Command::new("nfdump");
    let output = nfdump.arg("-R").arg(directory.path()).args(["-o", "json"]).output().unwrap();
    assert!(output.status.success(), "nfdump: {}", String::from_utf8_lossy(&output.stderr));
    let flows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut theirs: Vec<_> = flows.iter().map(line_of_peer).collect();
    let mut ours: Vec<_> = collect(|_| true).rows().iter().map(line_of_ours).collect();
    theirs.sort();
    ours.sort();
    let count: usize = (0..FLOWS).map(|n| packets(n).count()).sum();
    assert_eq!(ours.len(), count);
    assert_eq!(ours, theirs);
    let bytes: usize = (0..FLOWS).flat_map(|n| packets(n).map(move |is_back| frame(n, is_back).len())).sum();
    let counted: u64 = ours.iter().map(|line| line.3[1]).sum();
    assert_eq!(counted, bytes as u64);
}
