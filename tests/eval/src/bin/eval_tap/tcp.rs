//! One TCP connection through a tap that copies all of it, against the bare bridge.

use crate::rig::{End, Middle, Rig};
use anyhow::Context;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, median};
use packetrig_sys::clock;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

const PORT: u16 = 5001;
const BLOCK: usize = 256 * 1024;
const WARM_UP_NS: u64 = 300_000_000;

/// Bytes per second of a sender that has no more: a link of a gigabit.
const GIGABIT: u64 = 117_000_000;

/// What the bytes go through, how the stations take frames, and how much is sent if not as much as goes.
type Case = (&'static str, Middle, End, Option<u64>);

const CASES: [Case; 6] = [
    ("bridge", Middle::Bridge, End::Merging, None),
    ("tap, way xdp, mirror on", Middle::TapXdp, End::Merging, None),
    ("tap, way packet, mirror on", Middle::TapPacket, End::Merging, None),
    ("bridge, segments of 64 KiB as no wire has them", Middle::Bridge, End::Virtual, None),
    ("bridge, sender of a gigabit", Middle::Bridge, End::Merging, Some(GIGABIT)),
    ("tap, way xdp, mirror on, sender of a gigabit", Middle::TapXdp, End::Merging, Some(GIGABIT)),
];

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, window) = if effort.quick { (3, 700_000_000) } else { (7, 1_500_000_000) };
    output.say(&format!(
        "## TCP\n\nOne connection, bits of payload per second that the far end read over {} ms, {rounds} rounds in turn; MTU 1500. Stations make checksums \
         and segments themselves, as on a wire, and merge what arrives (GRO), behind the bridge as behind the taps. The fourth line is \
         what a virtual cable does that leaves both undone; the last two are of a sender that sends no more than {} Mbit/s.\n",
        window / 1_000_000,
        GIGABIT * 8 / 1_000_000
    ))?;
    let mut rates: [Vec<f64>; CASES.len()] = Default::default();
    for _ in 0..rounds {
        for ((_, middle, end, load), rates) in CASES.into_iter().zip(&mut rates) {
            rates.push(measure(middle, end, load, window)?);
        }
    }
    let best = rates.each_ref().map(|rates| rates.iter().copied().fold(0.0, f64::max));
    let middle = rates.each_ref().map(|rates| median(rates).unwrap_or(0.0));
    let mut table =
        Table::new(&["between the ends", "Mbit/s, best", "Mbit/s, median", "best, to the bridge's"]);
    for (((name, ..), best_one), middle) in CASES.iter().zip(best).zip(middle) {
        let rates = [best_one, middle].map(|rate| format!("{:.0}", rate / 1e6));
        let share = format!("{:.3}", best_one / best[0].max(1.0));
        table.rows.push([&[(*name).to_owned()][..], &rates[..], &[share]].concat());
    }
    output.table("tcp", &table)?;
    let ratio = best[1] / best[0].max(1.0);
    output.goal(
        "tcp",
        &format!(
            "{ratio:.3}x of the bare bridge, best of {rounds} (medians: {:.3}x; to a bridge that passes on segments of 64 KiB: {:.3}x)",
            middle[1] / middle[0].max(1.0),
            best[1] / best[3].max(1.0)
        ),
        ">= 0.98x",
        &(ratio >= 0.98).into(),
    );
    let ratio = best[5] / best[4].max(1.0);
    output.goal(
        "tcp_gigabit",
        &format!("{ratio:.3}x of the bare bridge with a sender of a gigabit"),
        ">= 0.98x",
        &(ratio >= 0.98).into(),
    );
    Ok(())
}

/// Bits per second through it.
fn measure(middle: Middle, end: End, load: Option<u64>, window: u64) -> anyhow::Result<f64> {
    let rig = Rig::new(middle, [end, end, End::Drop], false)?;
    let [_, far] = rig.address()?;
    let address = SocketAddr::from((far, PORT));
    let listener =
        rig.station(1).netns().run_in_namespace(|| TcpListener::bind(address))?.context("listening")?;
    let mut near =
        rig.station(0).netns().run_in_namespace(|| TcpStream::connect(address))?.context("connecting")?;
    let (stream, _) = listener.accept()?;
    let sender = std::thread::spawn(move || {
        let (block, mut due) = (vec![0x5a; BLOCK], clock::monotonic_ns());
        // Until the far end has had enough and closes.
        while near.write_all(&block).is_ok() {
            due += load.map_or(0, |load| BLOCK as u64 * 1_000_000_000 / load);
            clock::sleep_until_ns(due);
        }
    });
    let rate = read(stream, window);
    sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?;
    rig.end()?;
    rate
}

/// Reads for a while; bits per second after the first moments.
fn read(mut stream: TcpStream, window: u64) -> anyhow::Result<f64> {
    let mut block = vec![0; BLOCK];
    let warm = clock::monotonic_ns() + WARM_UP_NS;
    let (mut bytes, mut begun) = (0, warm);
    loop {
        let read = stream.read(&mut block)?;
        anyhow::ensure!(read > 0, "the connection ended early");
        let now = clock::monotonic_ns();
        if now < warm {
            begun = now;
            continue;
        }
        bytes += read;
        if now >= begun + window {
            return Ok(bytes as f64 * 8e9 / (now - begun) as f64);
        }
    }
}
