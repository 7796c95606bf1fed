//! `packetrig agent`: a node of a fleet. What the user starts is the supervisor; the worker it starts does the work.

mod describe;
mod worker;

use crate::args::AgentArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, remark};
use crate::sandbox;
use packetrig_fleet::NodeName;
use packetrig_nats::enrol::{self, FleetMembership, JoinLine, NodeKey};
use packetrig_node::supervisor::{self, SendDeadlineFile, SupervisionEnd};
use packetrig_sys::{clock, kernel, sched, signal};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of a node.
#[derive(Clone, Debug)]
struct NodeHome(PathBuf);

impl NodeHome {
    fn of(arguments: &AgentArgs) -> Result<Self, Error> {
        let usual = || Ok::<_, Error>(packetrig_store::default_place()?.join("agent"));
        let home = arguments.home.clone().map_or_else(usual, Ok)?;
        let failed = |source| Error::Write { what: home.display().to_string(), source };
        packetrig_sys::private_files::create_directories(&home).map_err(failed)?;
        Ok(Self(home))
    }

    fn membership(&self) -> PathBuf {
        self.0.join("membership.json")
    }

    fn directory(&self) -> &Path {
        &self.0
    }

    fn watch(&self) -> Result<SendDeadlineFile, Error> {
        let path = self.0.join("watch");
        SendDeadlineFile::open(&path)
            .map_err(|source| Error::Write { what: path.display().to_string(), source })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

pub(crate) fn perform(arguments: &AgentArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    // Senders take precedence over ordinary threads; what renews their lease, and what ends them, must not stand behind them.
    sched::request_precedence().unwrap_or(());
    let home = NodeHome::of(arguments)?;
    if arguments.supervised {
        return worker::perform(arguments, &home, output);
    }
    // Read once here, so that what the user has to put right is said at once.
    let permit = worker::permit(arguments, &home)?;
    sandbox::limit_supervisor(&arguments.sandbox, !worker::namespaces(&permit).is_empty())?;
    sandbox::run_confined(&arguments.sandbox, || join(arguments, &home))??;
    signal::latch()?;
    let own = std::env::current_exe().map_err(|source| Error::Write { what: "a worker".into(), source })?;
    let mut start = || {
        let mut command = Command::new(&own);
        command.args(std::env::args_os().skip(1)).arg("--supervised");
        command
    };
    let stop = || signal::received().is_some();
    let ended = supervisor::supervise(&home.watch()?, &mut start, &stop, &mut |text| remark(text));
    match ended.map_err(|source| Error::Write { what: "a worker".into(), source })? {
        SupervisionEnd::Told => Ok(CommandExit::Ok),
        // It has said why.
        SupervisionEnd::Worker(status) if status.success() => Ok(CommandExit::Ok),
        SupervisionEnd::Worker(_) => Ok(CommandExit::World),
    }
}

/// Joins by the line, if one is given that was not used yet; else the node must have joined before.
fn join(arguments: &AgentArgs, home: &NodeHome) -> Result<(), Error> {
    let file = home.membership();
    let earlier = file.exists().then(|| FleetMembership::load(&file)).transpose()?;
    let line = match read_line(arguments) {
        Err(error) if earlier.is_some() => {
            remark(format_args!("ignoring the join line ({error}): this node has joined already"));
            return Ok(());
        }
        line => line?,
    };
    let Some(line) = line else {
        let none = "this machine has not joined a fleet; give --join FILE with the line that `packetrig fleet \
            up` printed";
        return earlier.map(drop).ok_or_else(|| Error::Usage(none.into()));
    };
    let Some(earlier) = earlier else { return enter(arguments, home, &line, None) };
    if earlier.came_by(&line) {
        return Ok(());
    }
    let is_its_own = earlier.fleet == line.authority && is_called(arguments, &earlier);
    match enter(arguments, home, &line, Some(&earlier)) {
        // A line of its own fleet that is used up takes nothing from it.
        Err(Error::Enrol(error)) if is_its_own => {
            remark(format_args!("ignoring the join line ({error}): this node is in the fleet already"));
            Ok(())
        }
        done => done,
    }
}

fn is_called(arguments: &AgentArgs, membership: &FleetMembership) -> bool {
    arguments.name.as_ref().is_none_or(|name| *name == membership.name.0)
}

/// Joins the fleet of the line. The key is kept before it is shown, so that a node whose answer is lost is the same node when
/// it asks again.
fn enter(
    arguments: &AgentArgs,
    home: &NodeHome,
    line: &JoinLine,
    earlier: Option<&FleetMembership>,
) -> Result<(), Error> {
    let name = arguments.name.clone().or_else(|| earlier.map(|it| it.name.0.clone()));
    let name = NodeName(name.unwrap_or_else(|| kernel::host_name().to_lowercase()));
    let joining = home.file("joining.key");
    let key = match earlier.filter(|earlier| earlier.name == name) {
        Some(earlier) => NodeKey::of(earlier)?,
        None => NodeKey::kept_in(&joining)?,
    };
    let mut is_first = true;
    let membership = enrol::enrol_patiently(line, &name, &key, &mut |error| {
        if std::mem::take(&mut is_first) {
            remark(format_args!("cannot join the fleet yet: {error}; trying again"));
        }
    })?;
    if let Some(earlier) = earlier.filter(|earlier| earlier.fleet != membership.fleet) {
        leave(home, earlier)?;
    }
    membership.save(&home.membership())?;
    // The membership has it now.
    fs::remove_file(&joining).unwrap_or(());
    remark(format_args!("joined the fleet at {} as {name}", membership.address));
    Ok(())
}

/// Epochs of another fleet mean nothing to the new one, and its results are not for the new one's operator: they stay aside.
fn leave(home: &NodeHome, earlier: &FleetMembership) -> Result<(), Error> {
    let print: String = earlier.fleet.chars().take(16).collect();
    for name in ["epoch", "epoch-proof", "spool", "captures"] {
        let (from, to) = (home.file(name), home.file(&format!("{name}-of-{print}")));
        match fs::rename(&from, &to) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Write { what: from.display().to_string(), source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// The line to join by.
fn read_line(arguments: &AgentArgs) -> Result<Option<JoinLine>, Error> {
    let Some(file) = &arguments.join else { return Ok(None) };
    let name = file.display().to_string();
    if name.starts_with("prig1:") {
        return Err(Error::Usage(
            "every user of this machine can read command lines, so the join line must not be an argument; write \
                it to a file and give --join FILE, or pass it on standard input with --join -"
                .into(),
        ));
    }
    let text = if name == "-" { std::io::read_to_string(std::io::stdin()) } else { fs::read_to_string(file) };
    let text = text.map_err(|source| Error::ReadFile { name, source })?;
    Ok(Some(text.trim().parse()?))
}

/// Renews the certificate when little of its time is left; says whether there is a new one. What fails now is tried again.
fn renew(home: &NodeHome) -> Result<Option<FleetMembership>, Error> {
    let file = home.membership();
    let membership = FleetMembership::load(&file)?;
    if !membership.is_due(clock::wall_clock_ns() / 1_000_000_000) {
        return Ok(None);
    }
    let renewed = enrol::renew(&membership)?;
    renewed.save(&file)?;
    Ok(Some(renewed))
}
