//! When probes of programs that nobody here wrote leave: as the programs are, and with the preload library, which hands their packets over
//! to `probe serve`.
//!
//! Both ways are to send a packet every 10 ms. With the library a program is told to send a little more often: the library keeps it
//! back, so that it is never late for the schedule.

use crate::figures::{Series, difference, micros};
use crate::lab::Cable;
use crate::load::{FAR, Load, NEAR};
use crate::referee::Referee;
use anyhow::{Context, ensure};
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_sys::clock;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::hosts;
use packetrig_tests::program::Running;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const EVERY_NS: u64 = 10_000_000;
/// The library hands packets over this long before they are due: longer than a busy machine keeps a program waiting.
const AHEAD: &str = "100ms";
/// The error with the library is to be at most this share of the error without.
const SHARE: f64 = 0.1;
/// Echo requests of a series: a thousand distances, of which ten lie above the 99th percentile. Of 199, one late packet decided.
const PACKETS: usize = 1001;
/// Many hosts for scamper, which sends one host at most one packet each second. The far station is all of them.
const HOSTS: &str = "198.19.0.0/16";
/// Blocks of the far end's ring are handed over after this time; it is read afterwards.
const RETIRE_MS: u32 = 100;
const PERMIT: &str =
    "[[target]]\nnetwork = \"198.18.0.0/15\"\nprobes_per_s = 100000\nbits_per_s = \"1Gbps\"\nburst = 1000\n";

#[derive(Clone, Copy, Debug)]
enum Tool {
    Fping,
    Scamper,
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Fping => "fping",
            Self::Scamper => "scamper",
        }
    }

    /// Its arguments for this many echo requests, one every 10 ms, or every 9 ms where the library keeps it back.
    fn arguments(self, is_preloaded: bool, packets: usize, list: &Path) -> Vec<String> {
        let words = match (self, is_preloaded) {
            (Self::Fping, false) => format!("-q -t 1000 -i 1 -p 10 -c {packets} {FAR}"),
            (Self::Fping, true) => format!("-q -t 1000 -i 1 -p 9 -c {packets} {FAR}"),
            (Self::Scamper, false) => "-p 100 -c".to_owned(),
            (Self::Scamper, true) => "-p 111 -c".to_owned(),
        };
        let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        if matches!(self, Self::Scamper) {
            let list = list.display().to_string();
            words.extend(["ping -c 1", "-f", &list, "-O", "warts", "-o", "/dev/null"].map(str::to_owned));
        }
        words
    }
}

/// A service at one end of a cable, and who sends there.
struct Bench {
    cable: Cable,
    referee: Referee,
    service: Running,
    files: TempDir,
    packets: usize,
}

impl Bench {
    fn new(packets: usize) -> anyhow::Result<Self> {
        let cable = Cable::new(false)?;
        introduce(&cable)?;
        let files = tempfile::tempdir()?;
        build_library(files.path())?;
        write_targets(&files.path().join("list"), packets)?;
        let [socket, permit] =
            ["release.sock", "permit.toml"].map(|name| files.path().join(name).display().to_string());
        std::fs::write(&permit, PERMIT)?;
        let at = cable.lab.location(0);
        let serve = ["probe", "serve", &at, "--socket", &socket, "--permit", &permit, "--mechanism", "spin"];
        let mut service = Running::start(&serve, "");
        service.await_remark("listening on");
        let referee = Referee::of_echo_requests(&cable.lab.ports()[1], RETIRE_MS)?;
        Ok(Self { cable, referee, service, files, packets })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Distances between arrivals minus the planned distance.
    fn send(&mut self, tool: Tool, is_preloaded: bool) -> anyhow::Result<Series> {
        let mut command = Command::new(tool.name());
        command.args(tool.arguments(is_preloaded, self.packets, &self.path("list")));
        command.stdin(Stdio::null());
        if is_preloaded {
            self.preload(&mut command);
        }
        self.referee.clear();
        let ended =
            self.cable.lab.ports()[0].netns().run_in_namespace(|| command.output())?.context(tool.name())?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        clock::sleep_until_ns(clock::monotonic_ns() + 2 * u64::from(RETIRE_MS) * 1_000_000);
        let arrivals = self.referee.collect_all(self.packets)?;
        ensure!(arrivals.len() == self.packets, "{} of {} arrived: {said}", arrivals.len(), self.packets);
        if is_preloaded {
            let sent = self.take_sent()?;
            ensure!(sent == self.packets, "the service sent {sent} of {}: {said}", self.packets);
        }
        let mut errors = Series::default();
        errors.extend(arrivals.windows(2).map(|pair| difference(pair[0] + EVERY_NS, pair[1])));
        Ok(errors)
    }

    fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.path("libpacketrig_sendto.so"));
        command.env("PACKETRIG_RELEASE_SOCKET", self.path("release.sock"));
        command.env("PACKETRIG_SCHEDULE", format!("every=10ms,ahead={AHEAD},per=program"));
        command.env("PACKETRIG_REPORTS", self.path("reports.csv"));
    }

    /// How many packets the service has sent since last time.
    fn take_sent(&self) -> anyhow::Result<usize> {
        let file = self.path("reports.csv");
        let reports = std::fs::read_to_string(&file).context("the library's reports")?;
        std::fs::remove_file(&file)?;
        Ok(reports.lines().filter(|line| line.ends_with(",sent")).count())
    }
}

/// Neighbours know each other, and the far station is all hosts.
fn introduce(cable: &Cable) -> anyhow::Result<()> {
    let (near, far) = (&cable.lab.ports()[0], &cable.lab.ports()[1]);
    for (port, other, address) in [(near, far, FAR), (far, near, NEAR)] {
        let mac = other.link.mac.context("an Ethernet address")?.map(|byte| format!("{byte:02x}")).join(":");
        let known = format!("neigh replace {address} lladdr {mac} dev {INTERFACE} nud permanent");
        hosts::tool(port.netns(), "ip", &known)?;
    }
    hosts::tool(far.netns(), "ip", "link set lo up")?;
    hosts::tool(far.netns(), "ip", &format!("route add local {HOSTS} dev lo"))?;
    hosts::tool(near.netns(), "ip", &format!("route add {HOSTS} via {FAR}"))
}

fn write_targets(file: &Path, count: usize) -> anyhow::Result<()> {
    let targets: Vec<String> = (0..count).map(|n| format!("198.19.{}.{}", n / 250, n % 250 + 1)).collect();
    std::fs::write(file, targets.join("\n") + "\n").with_context(|| file.display().to_string())
}

fn build_library(directory: &Path) -> anyhow::Result<()> {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(clients).arg(format!("OUT={}", directory.display())).env_remove("MAKEFLAGS");
    let made = make.output().context("make")?;
    ensure!(made.status.success(), "the preload library: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let rounds = if effort.quick { 1 } else { 3 };
    let packets = PACKETS;
    output.say(&format!(
        "## Programs of others through the service\n\n{rounds} times {packets} echo requests, 10 ms apart, without and with the preload library (mechanism \
         spin, {AHEAD} ahead), by turns. Distances between arrivals at the far end minus 10 ms, microseconds, without their signs. With the library fping runs \
         with `-p 9` for `-p 10` and scamper with `-p 111` for `-p 100`: the library keeps them back.\n"
    ))?;
    let mut bench = Bench::new(packets)?;
    let mut table = Table::new(&["program", "load", "library", "distances", "p50", "p90", "p99", "most"]);
    for load in [Load::Idle, Load::Hogs] {
        for tool in [Tool::Fping, Tool::Scamper] {
            let running = load.begin(&[])?;
            let measured = measure(&mut bench, tool, rounds);
            drop(running);
            match measured {
                Ok([without, with]) => {
                    table.rows.push(row(tool, load, "without", &without));
                    table.rows.push(row(tool, load, "with", &with));
                    compare(output, tool, load, &without, &with);
                }
                Err(error) => goal(output, tool, load, "nothing", &Goal::Unsupported(format!("{error:#}"))),
            }
        }
    }
    output.table("foreign", &table)?;
    bench.service.signal(Signal::INT);
    let ended = bench.service.finish();
    output.say(&format!("The service says:\n\n```\n{}```\n", ended.stdout))
}

fn row(tool: Tool, load: Load, library: &str, errors: &Series) -> Vec<String> {
    let names = [tool.name(), load.name(), library].map(str::to_owned);
    let figures = [500, 900, 990, 1000].map(|share| micros(errors.permille(share)));
    [&names[..], &[errors.len().to_string()], &figures].concat()
}

fn measure(bench: &mut Bench, tool: Tool, rounds: u32) -> anyhow::Result<[Series; 2]> {
    let mut both = [Series::default(), Series::default()];
    for _ in 0..rounds {
        for (is_preloaded, errors) in [false, true].into_iter().zip(&mut both) {
            errors.append(&bench.send(tool, is_preloaded)?.absolute());
        }
    }
    Ok(both)
}

fn compare(output: &mut Output, tool: Tool, load: Load, without: &Series, with: &Series) {
    let (Some(before), Some(after)) = (without.permille(990), with.permille(990)) else { return };
    let share = after as f64 / before.max(1) as f64;
    let measured = format!(
        "{share:.4}x of the same tool without (p99 of {} distances {} us, without {} us)",
        with.len(),
        micros(Some(after)),
        micros(Some(before))
    );
    goal(output, tool, load, &measured, &(share <= SHARE).into());
}

fn goal(output: &mut Output, tool: Tool, load: Load, measured: &str, goal: &Goal) {
    output.goal(
        &format!("foreign_{}_{}", tool.name(), load.short()),
        measured,
        &format!("<= {SHARE}x"),
        goal,
    );
}
