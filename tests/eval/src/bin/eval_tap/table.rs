//! The table of the reference monitor R4: a UDP flood at full speed, and what is lost of it at the forwarder, at the mirror and
//! at the logger, beside a bridge, `tc mirred` and tcpdump.

use crate::flood;
use crate::rig::{End, Middle, Rig, pause};
use anyhow::{Context, ensure};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::program::Running;
use rustix::process::{Pid, Signal, kill_process};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes of UDP payload, as in R4.
const PAYLOADS: [usize; 6] = [10, 100, 500, 700, 1000, 1400];
const PORT: u16 = 9;
/// The buffer of each logger.
const BUFFER_MIB: u32 = 64;
/// What tcpdump has for getting ready, and both loggers for writing what they still hold.
const SETTLE_MS: u64 = 1_200;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Ours,
    Peer,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "packetrig tap and log",
            Self::Peer => "bridge, tc mirred and tcpdump",
        }
    }
}

/// Frames of some runs.
#[derive(Clone, Copy, Default)]
struct Frames {
    sent: u64,
    forwarded: u64,
    mirrored: u64,
    logged: u64,
    /// Nanoseconds of flooding.
    time: u64,
}

impl Frames {
    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.forwarded += other.forwarded;
        self.mirrored += other.mirrored;
        self.logged += other.logged;
        self.time += other.time;
    }

    /// (got - sent) / sent, percent.
    fn loss(&self, got: u64) -> String {
        if got == self.sent {
            return "0".to_owned();
        }
        format!("{:.4} %", (got as f64 - self.sent as f64) / self.sent.max(1) as f64 * 100.0)
    }
}

/// A system that stands, ready for runs.
struct Standing {
    system: System,
    rig: Rig,
    far: SocketAddr,
    /// Takes the flood, and is never read: what it has no room for is dropped behind the kernel's counter.
    _sink: UdpSocket,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (runs, flood_ns) = if effort.quick { (2, 400_000_000) } else { (10, 1_000_000_000) };
    output.say(&format!(
        "## Loss at forwarder, mirror and logger (R4)\n\nA flood from one UDP socket for {} ms, {runs} runs of each payload, in turn. Loss is \
         (got - sent) / sent, by the kernel's counters at the interfaces of the two ends (forwarder) and of the logging node (mirror), and by the frames \
         in the files as capinfos counts them (logger). Whole frames are logged, to /var/tmp; both loggers have buffers of {BUFFER_MIB} MiB. (R4: 0.8 % lost \
         at 10 B, almost nothing at 1400 B.)\n",
        flood_ns / 1_000_000
    ))?;
    let systems = [stand(System::Ours)?, stand(System::Peer)?];
    let mut frames = [[Frames::default(); 2]; PAYLOADS.len()];
    for _ in 0..runs {
        for (payload, frames) in PAYLOADS.into_iter().zip(&mut frames) {
            for (system, frames) in systems.iter().zip(frames) {
                frames.add(once(system, payload, flood_ns)?);
            }
        }
    }
    let mut table =
        Table::new(&["payload", "system", "sent", "frames/s", "loss at forwarder", "at mirror", "at logger"]);
    let mut sums = [Frames::default(); 2];
    for (payload, frames) in PAYLOADS.iter().zip(&frames) {
        for ((system, frames), sum) in systems.iter().zip(frames).zip(&mut sums) {
            table.rows.push(row(*payload, system.system, frames));
            sum.add(*frames);
        }
    }
    output.table("table", &table)?;
    judge(output, sums);
    for system in systems {
        system.rig.end()?;
    }
    Ok(())
}

fn row(payload: usize, system: System, frames: &Frames) -> Vec<String> {
    let rate = frames.sent as f64 * 1e9 / frames.time.max(1) as f64;
    let mut cells =
        vec![format!("{payload} B"), system.name().to_owned(), frames.sent.to_string(), format!("{rate:.0}")];
    cells.extend([frames.forwarded, frames.mirrored, frames.logged].map(|got| frames.loss(got)));
    cells
}

fn judge(output: &mut Output, [ours, peer]: [Frames; 2]) {
    type Got = fn(&Frames) -> u64;
    let goals: [(&str, Got); 3] = [
        ("forwarder", |frames| frames.forwarded),
        ("mirror", |frames| frames.mirrored),
        ("logger", |frames| frames.logged),
    ];
    for (name, got) in goals {
        let lost = |frames: &Frames| i128::from(frames.sent) - i128::from(got(frames));
        output.goal(
            &format!("table_{name}"),
            &format!("{} of {} frames lost (peer: {} of {})", lost(&ours), ours.sent, lost(&peer), peer.sent),
            "= 0",
            &(lost(&ours) == 0 && ours.sent > 0).into(),
        );
    }
}

fn stand(system: System) -> anyhow::Result<Standing> {
    let (middle, logger) = match system {
        System::Ours => (Middle::TapXdp, End::Merging),
        System::Peer => (Middle::Mirred, End::Stack),
    };
    let rig = Rig::new(middle, [End::Stack, End::Stack, logger], false)?;
    let [_, far] = rig.address()?;
    let far = SocketAddr::from((far, PORT));
    let sink = rig
        .station(1)
        .netns()
        .run_in_namespace(|| UdpSocket::bind(far))?
        .context("a socket at the far end")?;
    Ok(Standing { system, rig, far, _sink: sink })
}

/// One run: a logger of its own, a flood, and what was counted where.
fn once(standing: &Standing, payload: usize, flood_ns: u64) -> anyhow::Result<Frames> {
    let (rig, files) = (&standing.rig, tempfile::tempdir_in("/var/tmp")?);
    let logger = Logger::start(standing, files.path())?;
    let before = [rig.count(0)?, rig.count(1)?, rig.count(2)?];
    flood::udp(rig.station(0).netns(), standing.far, payload, flood_ns)?;
    pause(SETTLE_MS);
    let after = [rig.count(0)?, rig.count(1)?, rig.count(2)?];
    logger.stop()?;
    let given = |at: usize| after[at].given - before[at].given;
    let taken = |at: usize| after[at].taken - before[at].taken;
    Ok(Frames {
        sent: given(0) + given(1),
        forwarded: taken(0) + taken(1),
        mirrored: taken(2),
        logged: frames_in(files.path())?,
        time: flood_ns,
    })
}

/// Who writes what arrives at the mirror's far end.
enum Logger {
    Ours(Running),
    Peer(Child),
}

impl Logger {
    fn start(standing: &Standing, directory: &Path) -> anyhow::Result<Self> {
        let port = standing.rig.station(2);
        if standing.system == System::Ours {
            let (location, into) = (port.location(), directory.join("log").display().to_string());
            let queue = format!("{BUFFER_MIB}MiB");
            let arguments =
                ["log", &location, "--into", &into, "--queue", &queue, "--back-end", "xdp", "--json"];
            let mut running = Running::start(&arguments, "");
            running.await_remark("listening");
            return Ok(Self::Ours(running));
        }
        let mut command = Command::new("tcpdump");
        let buffer = (BUFFER_MIB * 1024).to_string();
        command
            .args(["-i", INTERFACE, "-n", "-B", &buffer, "-Z", "root", "-w"])
            .arg(directory.join("frames.pcap"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = port.netns().run_in_namespace(|| command.spawn())?.context("tcpdump")?;
        pause(SETTLE_MS);
        Ok(Self::Peer(child))
    }

    fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::Ours(mut running) => {
                running.signal(Signal::TERM);
                let finished = running.finish();
                ensure!(finished.code.is_some(), "the log died: {}", finished.stderr);
            }
            Self::Peer(mut child) => {
                let pid = Pid::from_raw(i32::try_from(child.id())?).context("a child has a number")?;
                kill_process(pid, Signal::INT)?;
                child.wait()?;
            }
        }
        Ok(())
    }
}

/// Frames in all capture files below a directory, by the program of another project.
fn frames_in(directory: &Path) -> anyhow::Result<u64> {
    let mut files = captures(directory)?;
    let log = directory.join("log");
    if log.is_dir() {
        files.extend(captures(&log)?);
    }
    ensure!(!files.is_empty(), "nothing was logged");
    let output =
        Command::new("capinfos").args(["-c", "-M", "-T", "-r"]).args(&files).output().context("capinfos")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = |line: &str| line.split_whitespace().next_back().and_then(|count| count.parse::<u64>().ok());
    let counts: Vec<u64> = text.lines().filter_map(count).collect();
    ensure!(counts.len() == files.len(), "capinfos: {}", String::from_utf8_lossy(&output.stderr));
    Ok(counts.iter().sum())
}

fn captures(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "pcap" || end == "pcapng") {
            found.push(path);
        }
    }
    Ok(found)
}
