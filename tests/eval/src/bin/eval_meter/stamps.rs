//! How true the meter's stamps are: of each packet beside the sender's own stamp in the packet, and the kernel's as a socket gets it.
//!
//! ```text
//!   sender writes the time into the datagram -> sendto -> veth -> meter's stamp ... kernel's stamp (SO_TIMESTAMPING) -> socket
//! ```
//! All three are of this machine's wall clock. The meter's are those of its SIM export, which has a line for every packet; a packet's
//! length names it, so that a lost one cannot shift the others.

use anyhow::{Context, ensure};
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, process, quantile};
use packetrig_flow::sim::{HEADER, SimDecoder, SimEvent, SimItem};
use packetrig_sys::clock;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::stamping::{self, WantedStamps};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::program::Running;
use rustix::process::Signal;
use std::collections::{BTreeMap, VecDeque};
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const SOURCES: [&str; 3] = ["packet", "xdp", "headers"];
const ENDS: [&str; 2] = ["198.18.0.1", "198.18.0.2"];
const PORT: u16 = 4000;
/// Between two packets.
const EVERY_NS: u64 = 100_000;
/// IPv4 and UDP.
const HEADERS: u32 = 28;
/// Number and time.
const LEAST: usize = 16;
/// A prime: so many lengths, one after the other.
const LENGTHS: usize = 199;
/// Half of the time between two packets of the same length.
const APART_NS: f64 = EVERY_NS as f64 * LENGTHS as f64 / 2.0;
/// The driver's clock is read by the meter when it starts; the wall clock may be set meanwhile by so much.
const WANTED_NS: f64 = 2000.0;

/// One packet's three stamps, nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Stamped {
    sender: u64,
    kernel: u64,
    meter: u64,
}

/// What came of all packets.
struct StampedPackets {
    stamped: Vec<Stamped>,
    /// By the socket, which may have had no room for some.
    received: usize,
    /// By the meter.
    metered: usize,
}

impl Stamped {
    fn after(later: u64, earlier: u64) -> f64 {
        later.cast_signed().wrapping_sub(earlier.cast_signed()) as f64
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let packets: u64 = if effort.quick { 5000 } else { 30_000 };
    output.say(&format!(
        "## Stamps\n\n{packets} datagrams, one every {} us, over a veth pair. Each has the sender's time in it; the socket that gets it is told the kernel's \
         (SO_TIMESTAMPING, software), and the meter says its own. Nanoseconds: median, 99 of 100 below.\n",
        EVERY_NS / 1000
    ))?;
    let mut table = Table::new(&[
        "source",
        "metered",
        "received by the socket",
        "meter - sender",
        "kernel - sender",
        "meter - kernel",
        "apart from the kernel's, 99 %",
        "meter before sender",
    ]);
    let mut measured = Vec::new();
    let mut is_met = true;
    for source in SOURCES {
        let StampedPackets { stamped, received, metered } = stamp(source, packets)?;
        let of = |difference: &dyn Fn(&Stamped) -> f64| stamped.iter().map(difference).collect::<Vec<f64>>();
        let way = of(&|s| Stamped::after(s.meter, s.sender));
        let kernel = of(&|s| Stamped::after(s.kernel, s.sender));
        let between = of(&|s| Stamped::after(s.meter, s.kernel));
        let apart: Vec<f64> = between.iter().map(|difference| difference.abs()).collect();
        let both = |figures: &[f64]| {
            let at = |share| quantile(figures, share).unwrap_or(f64::NAN);
            format!("{:.0}, {:.0}", at(0.5), at(0.99))
        };
        let early = way.iter().filter(|way| **way < 0.0).count();
        let median = quantile(&apart, 0.5).context("no packet")?;
        let most = quantile(&apart, 0.99).context("no packet")?;
        table.rows.push(vec![
            source.to_owned(),
            metered.to_string(),
            received.to_string(),
            both(&way),
            both(&kernel),
            both(&between),
            format!("{most:.0}"),
            early.to_string(),
        ]);
        measured.push(format!("{source}: median {median:.0} ns, 99 % {most:.0} ns from the kernel's, {early} before the sender's"));
        is_met &= median <= WANTED_NS && early == 0 && stamped.len() == received && metered as u64 == packets;
    }
    output.table("stamps", &table)?;
    let wanted = format!(
        "median <= {WANTED_NS:.0} ns from the kernel's, none before the sender's, every packet metered and every received one matched"
    );
    output.goal("stamps", &measured.join("; "), &wanted, &is_met.into());
    Ok(())
}

fn stamp(source: &str, packets: u64) -> anyhow::Result<StampedPackets> {
    let lab = Lab::cabled_pair()?;
    for (port, address) in lab.ports().iter().zip(ENDS) {
        let mut links = NamespaceLinks::open_in(port.netns())?;
        links.add_address(port.link.index, address.parse()?, 24)?;
        EthtoolCalls::open_in(port.netns())?.set_offload(INTERFACE, Offload::Gro, true)?;
    }
    let bound = |port: usize| -> anyhow::Result<UdpSocket> {
        Ok(lab.ports()[port].netns().run_in_namespace(|| UdpSocket::bind((ENDS[port], PORT)))??)
    };
    let (sender, receiver) = (bound(0)?, bound(1)?);
    sender.connect((ENDS[1], PORT))?;
    stamping::request_stamps(&receiver, WantedStamps { arrival: true, ..WantedStamps::default() })?;
    let location = lab.location(1);
    let arguments =
        ["meter", &location, "--json", "--source", source, "--direction", "in", "--format", "sim"];
    let mut meter = Running::start(&[&arguments[..], &["--export", "file:stamps.sim"]].concat(), "");
    meter.await_remark("listening");
    let over = AtomicBool::new(false);
    let kernel = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, &over));
        let sent = send(&sender, packets);
        process::pause(200);
        over.store(true, Ordering::Release);
        let received = receiving.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))?;
        sent.and(received)
    })?;
    meter.signal(Signal::INT);
    let finished = meter.finish();
    ensure!(finished.code == Some(0), "the meter said: {}{}", finished.stdout, finished.stderr);
    matched(&kernel, &events(&finished.directory.path().join("stamps.sim"))?)
}

fn send(socket: &UdpSocket, packets: u64) -> anyhow::Result<()> {
    let began_ns = clock::monotonic_ns();
    let mut datagram = [0; LEAST + LENGTHS];
    for number in 0..packets {
        clock::sleep_until_ns(began_ns + number * EVERY_NS);
        datagram[..8].copy_from_slice(&number.to_be_bytes());
        datagram[8..LEAST].copy_from_slice(&clock::wall_clock_ns().to_be_bytes());
        socket.send(&datagram[..length(number)])?;
    }
    Ok(())
}

/// Of a datagram, by its number.
fn length(number: u64) -> usize {
    LEAST + usize::try_from(number % LENGTHS as u64).unwrap_or(0)
}

/// Number, the sender's stamp and the kernel's.
fn receive(socket: &UdpSocket, over: &AtomicBool) -> anyhow::Result<Vec<(u64, u64, u64)>> {
    let mut stamps = Vec::new();
    let mut buffer = [0; LEAST + LENGTHS];
    while !over.load(Ordering::Acquire) {
        let Some(received) = stamping::receive_packet(socket, &mut buffer)? else {
            process::pause(1);
            continue;
        };
        let number =
            |at: usize| buffer[at..at + 8].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let kernel = received.stamps.software_ns.context("the kernel did not stamp")?;
        stamps.push((number(0), number(8), kernel));
    }
    Ok(stamps)
}

/// Length and time of every packet of our flow, as the meter says.
fn events(file: &Path) -> anyhow::Result<Vec<(u32, u64)>> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let mut rest = &bytes[..];
    let mut events = Vec::new();
    let mut ours = None;
    while rest.len() >= HEADER {
        let length = usize::from(SimDecoder::read_header(rest)?.length);
        let datagram = rest.get(..length).context("a cut datagram")?;
        SimDecoder::decode_datagram(datagram, &mut |item| match item {
            SimItem::Event(SimEvent::Flow { flow_id, key, .. }) if key.source_port == PORT => {
                ours = Some(flow_id);
            }
            SimItem::Event(SimEvent::Packet { flow_id, bytes, at_ns }) if ours == Some(flow_id) => {
                events.push((bytes, at_ns));
            }
            _ => {}
        })?;
        rest = &rest[length..];
    }
    Ok(events)
}

/// Packets of a length come so far apart that none is taken for another; a source with a ring for each processor may give neighbours
/// in another order.
fn matched(received: &[(u64, u64, u64)], metered: &[(u32, u64)]) -> anyhow::Result<StampedPackets> {
    let mut by_length = BTreeMap::<u32, VecDeque<u64>>::new();
    for &(bytes, at_ns) in metered {
        by_length.entry(bytes).or_default().push_back(at_ns);
    }
    let mut stamped = Vec::new();
    for &(number, sender, kernel) in received {
        let alike = by_length.entry(HEADERS + u32::try_from(length(number))?).or_default();
        let is_past = |meter: &u64| Stamped::after(*meter, kernel) < -APART_NS;
        while alike.front().is_some_and(is_past) {
            alike.pop_front();
        }
        let is_ours = |meter: &u64| Stamped::after(*meter, kernel) <= APART_NS;
        if alike.front().is_some_and(is_ours) {
            let meter = alike.pop_front().context("it is there")?;
            stamped.push(Stamped { sender, kernel, meter });
        }
    }
    ensure!(!stamped.is_empty(), "the meter stamped none of {} packets", received.len());
    Ok(StampedPackets { stamped, received: received.len(), metered: metered.len() })
}
