//! The program of a controller, with a fleet and runs of its own in one directory.

use crate::process::pause;
use anyhow::bail;
use packetrig_tests::program::binary;
use std::fs::{File, read_to_string};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The program, as the controller of the fleet in this directory.
pub fn packetrig(directory: &Path) -> Command {
    let mut command = Command::new(binary());
    command.env("XDG_DATA_HOME", directory.join("ctl")).env("PACKETRIG_FLEET", directory.join("fleet"));
    command
}

/// `fleet up`, which says everything into a log.
pub fn fleet_up(directory: &Path, arguments: &[&str]) -> anyhow::Result<Child> {
    let log = File::create(directory.join("up.log"))?;
    let mut command = packetrig(directory);
    command.args(["fleet", "up"]).args(arguments);
    Ok(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// The line by which nodes join, once `up` has said it.
pub fn wait_for_join_line(directory: &Path, up: &mut Child) -> anyhow::Result<String> {
    let said = || read_to_string(directory.join("up.log")).unwrap_or_default();
    for _ in 0..600 {
        if let Some(line) = said().split_whitespace().find(|word| word.starts_with("prig1:")) {
            return Ok(line.to_owned());
        }
        if let Some(status) = up.try_wait()? {
            bail!("`fleet up` ended with {status}: {}", said());
        }
        pause(50);
    }
    bail!("`fleet up` prints no line: {}", said())
}
