//! Hostile datagrams from forged addresses into `packetrig collect`, at the full rate that one thread sends, beside three exporters
//! that behave.

use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_sys::clock;
use packetrig_tests::exporters::{Attack, RECORDS, Spoofer, honest_message};
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the collector is told to hold at most.
const MEMORY_MIB: u64 = 64;
/// What the program takes beside that, as the book says.
const PROGRAM_MIB: u64 = 48;
/// Exporters that behave, and datagrams a second of each.
const HONEST: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 9, 1), Ipv4Addr::new(127, 0, 9, 2), Ipv4Addr::new(127, 0, 9, 3)];
const PACE: u64 = 1000;
/// A hostile byte may take this much more processor time than an honest one.
const MAX_RATIO: f64 = 40.0;
const SECOND_NS: u64 = 1_000_000_000;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let asked = std::env::var("EVAL_SECONDS").ok().and_then(|seconds| seconds.parse::<u64>().ok());
    let seconds = asked.unwrap_or(if effort.quick { 20 } else { 600 });
    output.say(&format!(
        "## Collector\n\nOne thread sends hostile datagrams of 1400 bytes from forged addresses as fast as it can. \
         `packetrig collect --memory {MEMORY_MIB}MiB`, without sinks. Attacks: {:?}.\n",
        Attack::ALL
    ))?;
    costs(if effort.quick { 1 } else { 5 }, output)?;
    open_to_all(seconds / 2, output)?;
    with_a_list(seconds - seconds / 2, output)
}

/// A collector at work and the sender that attacks it.
struct Scene {
    running: Running,
    spoofer: Spoofer,
    to: SocketAddrV4,
    sent: u64,
}

/// What the collector said at its end, and what it took.
struct Ended {
    said: Value,
    peak_mib: u64,
    processor_s: f64,
}

impl Scene {
    fn open(more: &[&str]) -> anyhow::Result<Self> {
        let memory = format!("{MEMORY_MIB}MiB");
        let flags = ["collect", "--json", "--quiet", "--listen", "udp://127.0.0.1:0", "--memory", &memory];
        let mut running = Running::start(&[&flags[..], more].concat(), "");
        running.await_remark("uses at most");
        let said = running.remarks();
        let place = said.split("listening at udp://").nth(1).and_then(|rest| rest.lines().next());
        let to = place.context("where it listens")?.parse()?;
        Ok(Self { running, spoofer: Spoofer::open(to)?, to, sent: 0 })
    }

    /// Sends as fast as the kernel takes it, for so long.
    fn send_for(
        &mut self,
        duration_ns: u64,
        mut datagram: impl FnMut(u32) -> (Ipv4Addr, Vec<u8>),
    ) -> anyhow::Result<()> {
        let until_ns = clock::monotonic_ns() + duration_ns;
        for n in 0.. {
            if n % 64 == 0 && clock::monotonic_ns() >= until_ns {
                break;
            }
            let (from, message) = datagram(n);
            self.spoofer.send(from, 2055, &message)?;
            self.sent += 1;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<Ended> {
        // What the last datagrams cost is in it, what ending costs is not.
        clock::sleep_until_ns(clock::monotonic_ns() + SECOND_NS / 2);
        let peak_mib = self.running.peak_kib() / 1024;
        let processor_s = self.running.processor_seconds();
        self.running.signal(Signal::INT);
        let finished = self.running.finish();
        let said = serde_json::from_str(&finished.stdout).with_context(|| finished.stderr.clone())?;
        Ok(Ended { said, peak_mib, processor_s })
    }
}

impl Ended {
    fn number(&self, path: &str) -> anyhow::Result<u64> {
        self.said.pointer(path).and_then(Value::as_u64).with_context(|| path.to_owned())
    }

    /// Datagrams that are neither read nor counted by their cause; and accounts that do not add up.
    fn missing(&self, sent: u64) -> anyhow::Result<u64> {
        let known = self.number("/intake/0/messages")? + self.number("/intake/0/dropped")?;
        let imbalances = self.said["imbalances"].as_array().map_or(1, Vec::len);
        Ok(sent.abs_diff(known) + imbalances as u64)
    }

    fn ns_per_byte(&self) -> anyhow::Result<f64> {
        Ok(self.processor_s * 1e9 / self.number("/intake/0/bytes")?.max(1) as f64)
    }
}

/// Source and message of attack `number` of all: every other datagram is from an address of its own.
fn hostile(attacks: &[Attack], n: u32) -> (Ipv4Addr, Vec<u8>) {
    let at = n as usize % attacks.len();
    let round = n / u32::try_from(attacks.len()).unwrap_or(1);
    let address = if round.is_multiple_of(2) { 0x0a00_0000 + n % 0x00ff_ffff } else { 0x0b00_0000 + n % 97 };
    (Ipv4Addr::from_bits(address), attacks[at].message(round))
}

/// What a byte costs, honest and hostile, each kind on its own.
fn costs(seconds: u64, output: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new(&["datagrams of", "read, MB", "ns/byte", "ratio", "peak, MiB"]);
    let mut scene = Scene::open(&[])?;
    scene.send_for(seconds * SECOND_NS, |n| {
        let host = n % 3;
        (HONEST[host as usize], honest_message(1, n / 3 * RECORDS))
    })?;
    let ended = scene.finish()?;
    let honest = ended.ns_per_byte()?;
    let mut worst: f64 = 0.0;
    let megabytes = |ended: &Ended| Ok::<_, anyhow::Error>(ended.number("/intake/0/bytes")? as f64 / 1e6);
    let mut row = |what: String, ended: &Ended| -> anyhow::Result<f64> {
        let (cost, read) = (ended.ns_per_byte()?, megabytes(ended)?);
        let cells = [format!("{read:.0}"), format!("{cost:.1}"), format!("{:.1}", cost / honest)];
        table.rows.push([vec![what], cells.to_vec(), vec![ended.peak_mib.to_string()]].concat());
        Ok(cost / honest)
    };
    row("three exporters that behave".to_owned(), &ended)?;
    for attack in Attack::ALL {
        let mut scene = Scene::open(&[])?;
        scene.send_for(seconds * SECOND_NS, |n| hostile(&[attack], n))?;
        worst = worst.max(row(format!("{attack:?}"), &scene.finish()?)?);
    }
    let mut scene = Scene::open(&[])?;
    scene.send_for(seconds * SECOND_NS, |n| hostile(&Attack::ALL, n))?;
    worst = worst.max(row("all of them in turn".to_owned(), &scene.finish()?)?);
    output.table("collector_cost", &table)?;
    output.goal(
        "collector_cost",
        &format!("a hostile byte takes up to {worst:.1} times the {honest:.1} ns of an honest one"),
        &format!("<= {MAX_RATIO} times"),
        &(worst <= MAX_RATIO).into(),
    );
    Ok(())
}

/// Everything at once, into a collector that hears anybody.
fn open_to_all(seconds: u64, output: &mut Output) -> anyhow::Result<()> {
    let mut scene = Scene::open(&[])?;
    scene.send_for(seconds * SECOND_NS, |n| hostile(&Attack::ALL, n))?;
    let sent = scene.sent;
    let ended = scene.finish()?;
    let most = MEMORY_MIB + PROGRAM_MIB;
    output.goal(
        "collector_memory",
        &format!("{} MiB at most under {sent} hostile datagrams in {seconds} s", ended.peak_mib),
        &format!("<= {MEMORY_MIB} (--memory) + {PROGRAM_MIB} MiB"),
        &(ended.peak_mib <= most).into(),
    );
    let missing = ended.missing(sent)?;
    let what = format!("{missing} of {sent} datagrams without a cause");
    output.goal("collector_books", &what, "0", &(missing == 0).into());
    output.say(&format!(
        "Open to all: {} read in {:.1} s of processor time, {} dropped by the socket; forgotten {}; refused {}.\n",
        ended.number("/intake/0/messages")?,
        ended.processor_s,
        ended.number("/intake/0/dropped")?,
        ended.said["forgotten"],
        ended.said["refused"]
    ))
}

/// The same beside three exporters, who alone are on the list.
fn with_a_list(seconds: u64, output: &mut Output) -> anyhow::Result<()> {
    let listed = HONEST.map(|address| address.to_string());
    let flags: Vec<&str> = listed.iter().flat_map(|address| ["--allow-exporter", address]).collect();
    let mut scene = Scene::open(&flags)?;
    let (to, is_over) = (scene.to, AtomicBool::new(false));
    let honest_sent = std::thread::scope(|scope| {
        let honest = scope.spawn(|| send_honest(to, &is_over));
        let attacked = scene.send_for(seconds * SECOND_NS, |n| hostile(&Attack::ALL, n));
        is_over.store(true, Ordering::Relaxed);
        let sent = honest.join().map_err(|_| anyhow::anyhow!("the honest exporters panicked"))?;
        attacked.and(sent)
    })?;
    let sent = scene.sent + honest_sent;
    let ended = scene.finish()?;
    let mine = ended.number("/intake/0/messages")? - ended.number("/intake/0/not_allowed")?;
    let (read, records) = (ended.number("/total/messages")?, ended.number("/total/records")?);
    let lost = mine.abs_diff(read) + (mine * u64::from(RECORDS)).abs_diff(records) / u64::from(RECORDS);
    output.goal(
        "collector_listed_loss",
        &format!("{lost} of the {mine} messages that the socket received of 3 exporters at {PACE}/s each"),
        "0",
        &(lost == 0).into(),
    );
    let missing = ended.missing(sent)?;
    output.goal(
        "collector_listed_books",
        &format!("{missing} of {sent} datagrams without a cause"),
        "0",
        &(missing == 0).into(),
    );
    output.say(&format!(
        "With a list: exporters on it sent {honest_sent}, {mine} read; {} of others read and dropped as not allowed, {} of \
         all dropped by the socket; peak {} MiB.\n",
        ended.number("/intake/0/not_allowed")?,
        ended.number("/intake/0/dropped")?,
        ended.peak_mib
    ))
}

/// Sends of each exporter at its pace. Gives how many datagrams.
fn send_honest(to: SocketAddrV4, is_over: &AtomicBool) -> anyhow::Result<u64> {
    let mut sockets = Vec::new();
    for address in HONEST {
        let socket = UdpSocket::bind((address, 0))?;
        socket.connect(to)?;
        sockets.push(socket);
    }
    let began_ns = clock::monotonic_ns();
    for round in 0_u32.. {
        if is_over.load(Ordering::Relaxed) {
            return Ok(u64::from(round) * 3);
        }
        clock::sleep_until_ns(began_ns + u64::from(round) * SECOND_NS / PACE);
        for socket in &sockets {
            socket.send(&honest_message(1, round * RECORDS))?;
        }
    }
    Ok(0)
}
