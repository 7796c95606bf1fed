//! `packetrig agent`: a node of a fleet. The user starts the supervisor, which starts the worker, which does the work.

mod describe;
mod membership;
mod metrics;
mod worker;

pub(crate) use worker::RESERVED_DISK_BYTES;

use crate::args::AgentArgs;
use crate::commands::fleet::request_sender_priority;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, print_remark, print_warning};
use crate::sandbox;
use packetrig_fleet_io::supervisor::{self, SendDeadlineFile, SupervisionEndReason};
use packetrig_nats::enrol::{self, FleetMembership, JoinLine, NodeKey};
use packetrig_report::NodeName;
use packetrig_sys::{clock, kernel, signal};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory (`--home`) with the files of a node: membership, permit, epoch, spool and captures.
#[derive(Clone, Debug)]
struct NodeHome(PathBuf);

impl NodeHome {
    fn open_or_create(arguments: &AgentArgs) -> Result<Self, Error> {
        let home = match &arguments.home {
            Some(home) => home.clone(),
            None => packetrig_store::default_store_directory()?.join("agent"),
        };
        // The directory is created first, because the node's key and its send deadline file are created in it.
        packetrig_sys::private_files::create_directories(&home)
            .map_err(|source| Error::Write { what: home.display().to_string(), source })?;
        Ok(Self(home))
    }

    fn membership_file(&self) -> PathBuf {
        self.0.join("membership.json")
    }

    fn directory(&self) -> &Path {
        &self.0
    }

    fn open_deadline_file(&self) -> Result<SendDeadlineFile, Error> {
        let path = self.0.join("watch");
        SendDeadlineFile::open_file(&path)
            .map_err(|source| Error::Write { what: path.display().to_string(), source })
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

pub(crate) fn run_agent(arguments: &AgentArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    // The supervisor needs the priority of senders, too: it kills a worker that still sends after its lease has
    // expired, and busy senders must not keep the supervisor from the CPU.
    request_sender_priority();
    let home = NodeHome::open_or_create(arguments)?;
    if arguments.supervised {
        return worker::run_worker(arguments, &home, output);
    }
    // The worker reads the permit again. It is read here, too, so that a faulty file ends the command at once.
    let permit = worker::read_permit(arguments, &home)?;
    worker::read_probe_policy(&permit)?;
    // The worker enters other namespaces only if the permit lends ports there, and then needs more capabilities.
    sandbox::limit_supervisor_rights(
        &arguments.sandbox,
        !worker::list_lent_port_namespaces(&permit).is_empty(),
    )?;
    // The supervisor reads from the network only while it enrols the node. A thread without capabilities does that.
    sandbox::run_confined(&arguments.sandbox, || join_fleet(arguments, &home))??;
    // Signals are latched only after enrolment, which may try for two minutes: until then, a signal ends the
    // process at once.
    signal::record_end_signals()?;
    // The worker runs the same program file as this process, not the first `packetrig` in PATH: both use the send
    // deadline file, so they must have the same version.
    let own = std::env::current_exe().map_err(Error::StartWorker)?;
    let watch = home.open_deadline_file()?;
    let ended =
        supervisor::supervise_worker(&watch, &mut || worker_command(&own), &is_interrupted, &mut |text| {
            print_remark(text);
        });
    match ended.map_err(Error::StartWorker)? {
        SupervisionEndReason::Told => Ok(CommandExit::Ok),
        // The worker has printed its error itself.
        SupervisionEndReason::Worker(status) => Ok(CommandExit::from_child_status(status)),
    }
}

/// Command line of the worker: the same arguments and `--supervised`. The worker reads the permit and the membership
/// by itself.
fn worker_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--supervised");
    command
}

/// Joins the fleet with the join line of `--join`, unless this node has used it already. For a node that has joined
/// before, a missing or unreadable join line, or one that its own fleet refuses, is no error.
fn join_fleet(arguments: &AgentArgs, home: &NodeHome) -> Result<(), Error> {
    let file = home.membership_file();
    let earlier = file.exists().then(|| FleetMembership::load_from(&file)).transpose()?;
    // A systemd unit may keep `--join FILE` after the node has joined, even if the file no longer exists.
    let line = match read_join_line(arguments) {
        Err(error) if earlier.is_some() => {
            print_warning(
                "agent",
                format_args!("ignoring the join line ({error}): this node has joined already"),
            );
            return Ok(());
        }
        line => line?,
    };
    let Some(line) = line else {
        let none = "this machine has not joined a fleet; give --join FILE with the line that `packetrig fleet \
            up` printed";
        return earlier.map(drop).ok_or_else(|| Error::Usage(none.into()));
    };
    let Some(earlier) = earlier else { return enrol_node(arguments, home, &line, None) };
    // The join line may have expired in the meantime: a node that has joined with it stays a member.
    if earlier.was_issued_by(&line) {
        return Ok(());
    }
    // True for another join line of the node's own fleet if the user does not ask for another name.
    let is_its_own = earlier.fleet == line.authority && matches_requested_name(arguments, &earlier);
    match enrol_node(arguments, home, &line, Some(&earlier)) {
        // The node stays a member if another join line of its own fleet fails, for example because it is used up.
        Err(Error::Enrol(error)) if is_its_own => {
            print_warning(
                "agent",
                format_args!("ignoring the join line ({error}): this node is in the fleet already"),
            );
            Ok(())
        }
        done => done,
    }
}

fn matches_requested_name(arguments: &AgentArgs, membership: &FleetMembership) -> bool {
    arguments.name.as_ref().is_none_or(|name| *name == membership.name.0)
}

/// Default name of a node: the host name without its domain, in lower case. The name of a node has no dots.
fn name_from_host(host: &str) -> String {
    let first = host.split_once('.').map_or(host, |(first, _)| first);
    first.to_lowercase()
}

/// Joins the fleet of the join line. A new key is saved before the request is sent: if the answer is lost, the node
/// sends the request again with the same key, and the fleet admits it as the same node.
fn enrol_node(
    arguments: &AgentArgs,
    home: &NodeHome,
    line: &JoinLine,
    earlier: Option<&FleetMembership>,
) -> Result<(), Error> {
    let name = arguments.name.clone().or_else(|| earlier.map(|it| it.name.0.clone()));
    let name = NodeName(name.unwrap_or_else(|| name_from_host(&kernel::host_name())));
    let joining = home.file_path("joining.key");
    let key = match earlier.filter(|earlier| earlier.name == name) {
        Some(earlier) => NodeKey::from_membership(earlier)?,
        None => NodeKey::load_or_create(&joining)?,
    };
    // Temporary failures are retried for about two minutes; only the first of them is reported.
    let mut is_first = true;
    let membership = enrol::enrol_with_retries(line, &name, &key, &mut |error| {
        if std::mem::take(&mut is_first) {
            print_warning("agent", format_args!("cannot join the fleet yet: {error}; the agent tries again"));
        }
    })?;
    // The files are moved before the membership is saved: after a crash between the two steps, the new membership
    // must not be combined with the epoch of the old fleet.
    if let Some(earlier) = earlier.filter(|earlier| earlier.fleet != membership.fleet) {
        move_files_of_earlier_fleet(home, earlier)?;
    }
    membership.save_to(&home.membership_file())?;
    // The membership contains the key now. `joining.key` does not exist if the key of the earlier membership was used.
    drop(fs::remove_file(&joining));
    print_remark(format_args!("agent: joined the fleet at {} as {name}", membership.address));
    Ok(())
}

/// Renames the files of the earlier fleet. Its epoch could be higher, and the node would then refuse commands of the
/// new fleet. Its results must not be sent to the operator of the new fleet.
fn move_files_of_earlier_fleet(home: &NodeHome, earlier: &FleetMembership) -> Result<(), Error> {
    // The name of the other fleet is part of the path, so that files of two earlier fleets do
    // not overwrite each other.
    let print: String = earlier.fleet.chars().take(16).collect();
    for name in ["epoch", "epoch-proof", "spool", "captures"] {
        let from = home.file_path(name);
        let to = home.file_path(&format!("{name}-of-{print}"));
        match fs::rename(&from, &to) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Write { what: from.display().to_string(), source });
            }
            // If the node never ran for that fleet, the file does not exist.
            _ => {}
        }
    }
    Ok(())
}

fn read_join_line(arguments: &AgentArgs) -> Result<Option<JoinLine>, Error> {
    let Some(file) = &arguments.join else { return Ok(None) };
    let name = file.display().to_string();
    // /proc/PID/cmdline shows arguments to every user, and the line contains a secret.
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

/// Renews the certificate if a renewal is due; saves and returns the membership with the new certificate. `None` if no
/// renewal is due. After an error, callers try again later.
fn renew_membership_if_due(home: &NodeHome) -> Result<Option<FleetMembership>, Error> {
    let file = home.membership_file();
    let membership = FleetMembership::load_from(&file)?;
    if !membership.is_renewal_due(clock::wall_clock_ns() / 1_000_000_000) {
        return Ok(None);
    }
    let renewed = enrol::renew_membership(&membership)?;
    renewed.save_to(&file)?;
    Ok(Some(renewed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_name_defaults_to_short_hostname() {
        assert_eq!(name_from_host("Rack2.lab.example"), "rack2");
        assert_eq!(name_from_host("rack2"), "rack2");
    }
}
