//! What a capture on the sending machine says of departures (E5.5): tcpdump's stamps against the far end's, on a bare cable, in front of a
//! slower link, and behind a shaper of the sender's own.
//!
//! The slower link stands for what is behind the tap on a real machine: a driver's queue and a line. A virtual cable has neither.

use crate::figures::{Series, difference, micros};
use crate::frames;
use crate::lab::{Cable, tc};
use crate::sender::{Sender, Train, Way};
use anyhow::{Context, ensure};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_probe::ReleaseMechanism;
use packetrig_sys::clock;
use packetrig_testkit::lab::{INTERFACE, LabPort};
use packetrig_units::{MonoTime, Nanos};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const FRAMES: u16 = 50;
const GAP: Nanos = Nanos::from_micros(50);
const SIZE: usize = 1514;
/// Frames of that size, 121 us apart at best. The bucket holds one.
const SHAPER: &str = "root tbf rate 100mbit burst 1600 limit 1000000";
const SETTLE_NS: u64 = 1_200_000_000;
/// Of a file and of a record.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Cable,
    Slower,
    Shaped,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Cable => "cable",
            Self::Slower => "a link of 100 Mbit/s behind the interface",
            Self::Shaped => "100 Mbit/s by the sender's own queueing discipline",
        }
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let trains = if effort.quick { 5 } else { 40 };
    output.say(&format!(
        "## A capture's own stamps\n\n{trains} trains of {FRAMES} frames of {SIZE} B, {GAP} apart, by `spin`: distances of neighbours as tcpdump on the \
         sending machine stamps them, and as they arrive; medians and p99 errors of tcpdump's, microseconds, and the rate that each means.\n"
    ))?;
    let mut table = Table::new(&[
        "behind the capture",
        "planned",
        "tcpdump says",
        "arrived",
        "tcpdump's error p99",
        "tcpdump's rate, Mbit/s",
        "rate on arrival",
    ]);
    for case in [Case::Cable, Case::Slower, Case::Shaped] {
        let (said, true_ones, errors) = measure(case, trains)?;
        let rate = |gaps: &Series| {
            let ns = gaps.permille(500).unwrap_or(0).max(1);
            format!("{:.1}", (SIZE * 8) as f64 * 1e3 / ns as f64)
        };
        table.rows.push(vec![
            case.name().to_owned(),
            micros(Some(difference(0, GAP.as_u64()))),
            micros(said.permille(500)),
            micros(true_ones.permille(500)),
            micros(errors.absolute().permille(990)),
            rate(&said),
            rate(&true_ones),
        ]);
    }
    output.table("capture", &table)
}

/// Distances as captured, as they arrived, and one minus the other.
fn measure(case: Case, trains: u32) -> anyhow::Result<(Series, Series, Series)> {
    let mut cable = if case == Case::Slower { Cable::through()? } else { Cable::new(false)? };
    match case {
        Case::Cable => {}
        Case::Slower => {
            tc(cable.lab.device_netns().context("a middle")?, &format!("qdisc add dev port1 {SHAPER}"))?;
        }
        Case::Shaped => tc(cable.lab.ports()[0].netns(), &format!("qdisc add dev {INTERFACE} {SHAPER}"))?,
    }
    let files = tempfile::tempdir()?;
    let file = files.path().join("sent.pcap");
    let mut sender = Sender::open(&cable.lab.ports()[0], &Way::usual(ReleaseMechanism::Spin), 1)?;
    let tcpdump = Tcpdump::start(&cable.lab.ports()[0], &file)?;
    let mut arrived = Vec::new();
    for number in 0..trains {
        let start = MonoTime::from_nanos(clock::monotonic_ns()) + Nanos::from_millis(8);
        sender.send(Train { number, frames: FRAMES, gap: GAP, start, size: SIZE })?;
        arrived.extend(cable.referee.collect(FRAMES.into())?);
    }
    tcpdump.stop()?;
    let said = read(&std::fs::read(&file)?)?;
    let (mut by_capture, mut by_referee, mut errors) =
        (Series::default(), Series::default(), Series::default());
    for two in arrived.windows(2).filter(|two| two[0].key.train == two[1].key.train) {
        let stamp = |key| said.iter().find(|(of, _)| *of == key).map(|(_, at)| *at);
        let (Some(first), Some(second)) = (stamp(two[0].key), stamp(two[1].key)) else { continue };
        let (claimed, true_one) = (difference(first, second), difference(two[0].at, two[1].at));
        by_capture.push(claimed);
        by_referee.push(true_one);
        errors.push(claimed - true_one);
    }
    ensure!(by_capture.len() > 0, "tcpdump captured nothing of the {} frames that arrived", arrived.len());
    Ok((by_capture, by_referee, errors))
}

struct Tcpdump(Child);

impl Tcpdump {
    fn start(at: &LabPort, file: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new("tcpdump");
        command.args([
            "-i",
            INTERFACE,
            "-n",
            "-p",
            "-Z",
            "root",
            "--time-stamp-precision=nano",
            "-s",
            "64",
            "-w",
        ]);
        command.arg(file).arg("udp port 7001");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = at.netns().run_in_namespace(|| command.spawn())?.context("tcpdump")?;
        clock::sleep_until_ns(clock::monotonic_ns() + SETTLE_NS);
        Ok(Self(child))
    }

    fn stop(mut self) -> anyhow::Result<()> {
        clock::sleep_until_ns(clock::monotonic_ns() + SETTLE_NS);
        let pid = Pid::from_raw(i32::try_from(self.0.id())?).context("a child has a number")?;
        kill_process(pid, Signal::INT)?;
        self.0.wait()?;
        Ok(())
    }
}

/// Frames of ours in a capture file with nanoseconds, and their stamps.
fn read(file: &[u8]) -> anyhow::Result<Vec<(frames::Key, u64)>> {
    ensure!(file.starts_with(&0xa1b2_3c4d_u32.to_le_bytes()), "not a capture file with nanoseconds");
    let mut rest = file.get(FILE_HEADER..).unwrap_or_default();
    let mut found = Vec::new();
    while let Some((head, behind)) = rest.split_at_checked(RECORD_HEADER) {
        let word = |at: usize| {
            head.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        let Some((frame, next)) = behind.split_at_checked(word(8) as usize) else { break };
        if let Some(key) = frames::read(frame) {
            found.push((key, u64::from(word(0)) * 1_000_000_000 + u64::from(word(4))));
        }
        rest = next;
    }
    Ok(found)
}
