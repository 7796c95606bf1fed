//! A private network for a command: changes there cannot affect the machine, and vanish with the network.

use anyhow::{Context, Result};
use packetrig_sys::userns;
use std::process::{Command, ExitCode};

/// Runs `command` in fresh network and mount namespaces; an ordinary user also gets a user namespace, root there.
pub(crate) fn run(command: &str, arguments: &[&str]) -> Result<ExitCode> {
    userns::enter_lab().context("no private network can be had")?;
    run_command(command, arguments)
}

/// Runs a command to its end and passes its exit code on.
pub(crate) fn run_command(command: &str, arguments: &[&str]) -> Result<ExitCode> {
    let status =
        Command::new(command).args(arguments).status().with_context(|| format!("cannot run {command}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
