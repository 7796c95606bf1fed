//! Hostile senders beside well-behaved exporters: real datagrams with false source addresses into a real collector.

use packetrig_tests::exporters::{Attack, RECORDS, Spoofer, honest_message};
use packetrig_tests::listening::await_place;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

/// What the collector is told to hold at most.
const MEMORY_MIB: u64 = 16;
/// What the program takes beside that: itself, its threads, and batches and records that are on their way.
const PROGRAM_MIB: u64 = 48;
/// Exporters that behave.
const HONEST: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 9, 1), Ipv4Addr::new(127, 0, 9, 2), Ipv4Addr::new(127, 0, 9, 3)];

/// A collector, a hostile sender, and exporters that behave.
struct Scene {
    running: Running,
    spoofer: Spoofer,
    honest: Vec<UdpSocket>,
    /// Messages of each of the exporters that behave.
    rounds: u32,
    /// Datagrams of the hostile sender.
    hostile: u64,
}

/// What the collector said at its end.
struct Said(Value);

impl Scene {
    /// `None` where packets with false addresses may not be sent, which is said.
    fn open(more: &[&str]) -> Option<Self> {
        let memory = format!("{MEMORY_MIB}MiB");
        let flags = ["collect", "--json", "--quiet", "--time", "100s", "--memory", &memory];
        let listen = ["--listen", "udp://127.0.0.1:0"];
        let mut running = Running::start(&[&flags[..], &listen, more].concat(), "");
        let place = await_place(&mut running);
        assert!(running.remarks().contains("uses at most 16 MiB (--memory)"), "{}", running.remarks());
        let to: SocketAddrV4 = place.strip_prefix("udp://").unwrap().parse().unwrap();
        let spoofer = skip::with_raw_packets(Spoofer::open(to))?;
        let open = |from: Ipv4Addr| {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            socket.connect(to).unwrap();
            socket
        };
        Some(Self { running, spoofer, honest: HONEST.map(open).into(), rounds: 0, hostile: 0 })
    }

    /// Each of the exporters that behave sends a message.
    fn send_honest(&mut self) {
        for (domain, socket) in (1..).zip(&self.honest) {
            socket.send(&honest_message(domain, self.rounds * RECORDS)).unwrap();
        }
        self.rounds += 1;
    }

    fn send_hostile(&mut self, from: Ipv4Addr, message: &[u8]) {
        self.spoofer.send(from, 2055, message).unwrap();
        self.hostile += 1;
    }

    /// Every attack from many addresses, and from few.
    fn attack(&mut self, messages: u32) {
        for n in 0..messages {
            for (number, attack) in (0..).zip(Attack::ALL) {
                let many = Ipv4Addr::from_bits(0x0a00_0000 + n * 16 + number);
                let few = Ipv4Addr::from_bits(0x0b00_0000 + number);
                self.send_hostile(many, &attack.message(n));
                self.send_hostile(few, &attack.message(n));
            }
            self.send_honest();
        }
    }

    fn finish(mut self) -> Said {
        self.running.signal(Signal::INT);
        let finished = self.running.finish();
        let said: Value = serde_json::from_str(&finished.stdout).unwrap();
        let is_whole = said["missing"] == serde_json::json!([]);
        assert_eq!(finished.code, Some(if is_whole { 0 } else { 7 }), "{said:#}{}", finished.stderr);
        Said(said)
    }
}

impl Said {
    fn number(&self, path: &str) -> u64 {
        let number = self.0.pointer(path).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no number at {path} in {:#}", self.0))
    }

    /// Every datagram is read, refused by cause or in the socket's drops.
    fn assert_balanced(&self, sent: u64) {
        assert_eq!(self.0["imbalances"], serde_json::json!([]), "{:#}", self.0);
        assert_eq!(
            self.number("/intake/0/messages") + self.number("/intake/0/dropped"),
            sent,
            "{:#}",
            self.0["intake"]
        );
    }

    /// Messages and records of an exporter that behaves.
    fn honest(&self, address: Ipv4Addr) -> (u64, u64) {
        let of = |counts: &Value, what: &str| counts["counts"][what].as_u64().unwrap();
        let all = self.0["exporters"].as_array().unwrap();
        let mine = all.iter().filter(|exporter| exporter["address"] == address.to_string());
        mine.fold((0, 0), |sum, counts| (sum.0 + of(counts, "messages"), sum.1 + of(counts, "records")))
    }
}

#[test]
fn collector_memory_is_bounded_under_hostile_senders() {
    let Some(mut scene) = Scene::open(&[]) else { return };
    scene.attack(2_000);
    let (sent, peak_mib) = (scene.hostile + u64::from(scene.rounds) * 3, scene.running.peak_kib() / 1024);
    let said = scene.finish();
    said.assert_balanced(sent);
    assert!(peak_mib <= MEMORY_MIB + PROGRAM_MIB, "{peak_mib} MiB");
    assert!(said.number("/memory") <= MEMORY_MIB << 20);
    assert!(
        said.number("/forgotten/on_trial") + said.number("/forgotten/for_memory") > 0,
        "{}",
        said.0["forgotten"]
    );
    assert!(said.number("/total/undecoded_no_room_bytes") > 0, "{:#}", said.0["total"]);
}

/// What is not on the list costs nothing but its count, so that exporters on the list lose nothing that the socket has received.
#[test]
fn allowed_exporters_lose_nothing_in_flood() {
    let listed = HONEST.map(|address| address.to_string());
    let flags: Vec<&str> = listed.iter().flat_map(|address| ["--allow-exporter", address]).collect();
    let Some(mut scene) = Scene::open(&flags) else { return };
    scene.attack(2_000);
    let (rounds, hostile) = (u64::from(scene.rounds), scene.hostile);
    let said = scene.finish();
    said.assert_balanced(hostile + 3 * rounds);
    let (read, refused) = (said.number("/intake/0/messages"), said.number("/intake/0/not_allowed"));
    let honest = HONEST.map(|address| said.honest(address));
    // What the socket received and is not refused is theirs, and every record of it is there.
    assert_eq!(honest.iter().map(|(messages, _)| messages).sum::<u64>(), read - refused);
    for (messages, records) in honest {
        assert_eq!(records, messages * u64::from(RECORDS), "{:#}", said.0["exporters"]);
        assert!(messages <= rounds && messages + said.number("/intake/0/dropped") >= rounds);
    }
    assert_eq!(said.0["exporters"].as_array().unwrap().len(), 3);
    assert_eq!(said.0["forgotten"], serde_json::json!({"on_trial": 0, "for_memory": 0, "silent": 0}));
}

#[test]
fn command_line_password_is_refused_and_masked() {
    let refused = Running::start(&["collect", "--clickhouse", "me:s3cret@127.0.0.1:1/flows"], "").finish();
    refused.assert_refused(2, &["me:***@127.0.0.1:1", "--clickhouse-password-file"]);
    assert!(!refused.stderr.contains("s3cret"), "{}", refused.stderr);
}
