//! Two guests as nodes of a fleet: with separate kernels and clocks, and a run across them.
//!
//! ```text
//!   here, in a private network            guest a                 guest b
//!   10.0.2.2: server, controller --------- eth0                    eth0 ---- 10.0.2.2
//!                                          eth1 ===== cable ====== eth1
//! ```
//! The run must be complete. Its clock figures are compared with the clock readings on the guests' consoles.
//! Invariant: latencies and rates are only checked for possible values, because the processors are emulated.

mod guest;
mod judge;

use super::MissingGuestFile;
use anyhow::{Context, Result, bail, ensure};
use guest::Guest;
use judge::{NodeClockReadings, incompleteness_of_report, judge_fleet_report};
use packetrig_sys::{clock, userns};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const FLEET_PLAN: &str = include_str!("fleet/plan.yaml");
/// How QEMU's network of one calls the host.
const HOST_ADDRESS: &str = "10.0.2.2";
/// Frames a second, and frames: on a machine that has much else to do an emulated sender may not renew its lease in time
/// and then has to stop, so it is tried again with less to do.
const TRIAL_RATES_AND_FRAMES: [(u32, u64); 3] = [(100, 2000), (50, 1000), (25, 500)];
const FLEET_TIMEOUT_NS: u64 = 120_000_000_000;
const STATUS_CHECK_INTERVAL_NS: u64 = 500_000_000;

/// Programs that the test needs beside a guest's parts: packetrig, and the message server.
pub(super) struct TestedPrograms {
    packetrig: PathBuf,
    server: PathBuf,
}

pub(super) fn programs() -> Result<Result<TestedPrograms, MissingGuestFile>> {
    let own = std::env::current_exe().context("we have no path")?;
    let packetrig =
        std::env::var_os("PACKETRIG_BIN").map_or_else(|| own.with_file_name("packetrig"), PathBuf::from);
    // The guests have other working directories.
    let packetrig = std::path::absolute(packetrig).context("the program has no path")?;
    ensure!(packetrig.is_file(), "{} is missing: `cargo build -p packetrig`", packetrig.display());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is in the workspace")?;
    let asked = Command::new("sh").args(["scripts/clients.sh", "nats"]).current_dir(root).output()?;
    if !asked.status.success() {
        let why = String::from_utf8_lossy(&asked.stderr);
        return Ok(Err(MissingGuestFile::Server(why.lines().last().unwrap_or("no reason given").to_owned())));
    }
    let server = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    Ok(Ok(TestedPrograms { packetrig, server }))
}

/// Boots, runs, compares.
pub(super) fn run(programs: &TestedPrograms, target: &Path) -> Result<()> {
    let place = target.join(format!("fleet-{}", std::process::id()));
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    userns::enter_lab().context("no private network can be had")?;
    // The address at which the guests reach the host also belongs to this machine, so one join line
    // works for all nodes.
    ip("link set lo up")?;
    ip(&format!("address add {HOST_ADDRESS}/32 dev lo"))?;
    let rig = Rig { programs, place: &place };
    for line in rig.measure()? {
        crate::report(&format!("vm-fleet: {line}"));
    }
    fs::remove_dir_all(&place).with_context(|| place.display().to_string())
}

fn ip(words: &str) -> Result<()> {
    let status = Command::new("ip").args(words.split(' ')).status().context("ip does not run")?;
    ensure!(status.success(), "ip {words}");
    Ok(())
}

struct Rig<'a> {
    programs: &'a TestedPrograms,
    place: &'a Path,
}

impl Rig<'_> {
    fn measure(&self) -> Result<Vec<String>> {
        let (_middle, join) = self.fleet()?;
        let cable = self.place.join("cable");
        let path = cable.to_str().context("the target directory has a strange name")?;
        let a = Guest::boot("a", 1, ["--listen", path], &self.programs.packetrig)?;
        poll_until_found("the first guest to start", || Ok(cable.exists().then_some(())))?;
        let b = Guest::boot("b", 2, ["--connect", path], &self.programs.packetrig)?;
        let mut guests = [a, b];
        for guest in &mut guests {
            guest.wait_until_ready()?;
            guest.send_line(&join)?;
        }
        poll_until_found("the nodes to join", || {
            let status = self.packetrig().args(["fleet", "status"]).output()?;
            let text = String::from_utf8_lossy(&status.stdout).into_owned();
            Ok((text.lines().filter(|line| line.contains(" idle ")).count() == guests.len()).then_some(()))
        })?;
        let told = self.runs(&mut guests)?;
        guests.into_iter().try_for_each(Guest::shut_down)?;
        Ok(told)
    }

    /// Runs until one is complete, and judges that.
    fn runs(&self, guests: &mut [Guest]) -> Result<Vec<String>> {
        for (rate, frames) in TRIAL_RATES_AND_FRAMES {
            let before = guests.iter_mut().map(Guest::sample_clock).collect::<Result<Vec<_>>>()?;
            let report = self.run_plan(rate, frames)?;
            let after = guests.iter_mut().map(Guest::sample_clock).collect::<Result<Vec<_>>>()?;
            if let Some(why) = incompleteness_of_report(&report) {
                crate::report(&format!("vm-fleet: at {rate} frames/s: {why}"));
                continue;
            }
            let looks = guests.iter().zip(before).zip(after);
            let witness = |((guest, before), after): ((&Guest, _), _)| NodeClockReadings {
                node: guest.name,
                before,
                after,
            };
            return judge_fleet_report(&report, &looks.map(witness).collect::<Vec<_>>(), frames);
        }
        bail!("no run was complete, not even the slowest")
    }

    fn run_plan(&self, rate: u32, frames: u64) -> Result<Value> {
        let plan = self.place.join("plan.yaml");
        let text = FLEET_PLAN.replace("RATE", &rate.to_string()).replace("FRAMES", &frames.to_string());
        fs::write(&plan, text).with_context(|| plan.display().to_string())?;
        let output = self.packetrig().arg("run").arg(&plan).output().context("packetrig does not run")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        crate::report(&text);
        let files = text.lines().rev().find_map(|line| line.strip_prefix("Files: "));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = Path::new(files.with_context(|| format!("the run left no report: {complaint}"))?)
            .join("report.json");
        let report = fs::read(&report).with_context(|| report.display().to_string())?;
        serde_json::from_slice(&report).context("the report is not JSON")
    }

    fn packetrig(&self) -> Command {
        let mut command = Command::new(&self.programs.packetrig);
        command.env("XDG_DATA_HOME", self.place).env("PACKETRIG_FLEET", self.place.join("fleet"));
        command.stdin(Stdio::null());
        command
    }

    /// The host side of the fleet, and the line with which nodes join.
    fn fleet(&self) -> Result<(FleetUpProcess, String)> {
        let log = self.place.join("fleet.log");
        let mut command = self.packetrig();
        command
            .args(["fleet", "up", "--uses", "2", "--address", HOST_ADDRESS, "--server"])
            .arg(&self.programs.server);
        let middle =
            FleetUpProcess(command.stdout(File::create(&log)?).spawn().context("packetrig does not run")?);
        let line = poll_until_found("the fleet's line", || {
            let text = fs::read_to_string(&log)?;
            let start = text.find("prig1:").filter(|at| text[*at..].contains('\n'));
            Ok(start.and_then(|at| text[at..].split_whitespace().next()).map(str::to_owned))
        })?;
        Ok((middle, line))
    }
}

/// `packetrig fleet up`; it gets a request to end, because it must end its server.
struct FleetUpProcess(Child);

impl Drop for FleetUpProcess {
    fn drop(&mut self) {
        let told = Command::new("kill").arg(self.0.id().to_string()).status();
        if told.is_ok_and(|status| status.success()) {
            drop(self.0.wait());
        }
    }
}

/// Looks until it finds something; fails after [`FLEET_TIMEOUT_NS`].
fn poll_until_found<T>(what: &str, look: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let deadline = clock::monotonic_ns() + FLEET_TIMEOUT_NS;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(clock::monotonic_ns() < deadline, "waited in vain for {what}");
        clock::sleep_until_ns(clock::monotonic_ns() + STATUS_CHECK_INTERVAL_NS);
    }
}
