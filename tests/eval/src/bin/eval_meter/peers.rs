//! The whole programs on the same capture file, theirs and ours: packets per second of processor time.

use anyhow::Context;
use packetrig_eval::process::children_seconds;
use packetrig_eval::traffic::FRAMES;
use packetrig_tests::program::binary;
use std::path::Path;
use std::process::{Command, Stdio};

/// Who reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// `packetrig meter`, records counted and exported nowhere.
    Ours,
    /// softflowd without a collector, with room for every flow.
    Softflowd,
    /// nfpcapd of nfdump, which also writes its flows to a file.
    Nfpcapd,
}

impl Tool {
    pub(crate) const PEERS: [Self; 2] = [Self::Softflowd, Self::Nfpcapd];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "packetrig meter FILE",
            Self::Softflowd => "softflowd",
            Self::Nfpcapd => "nfpcapd",
        }
    }
}

/// Millions of packets per second of processor time, user's and system's; `None` if the tool is not installed.
pub(crate) fn rate(tool: Tool, file: &Path, flows: u32) -> anyhow::Result<Option<f64>> {
    let files = tempfile::tempdir_in("/var/tmp")?;
    let mut command = command(tool, file, files.path(), flows);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let before = children_seconds()?;
    let status = match command.status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        status => status.with_context(|| tool.name())?,
    };
    anyhow::ensure!(status.success(), "{}: {status}", tool.name());
    let spent = (children_seconds()? - before).max(0.01);
    Ok(Some(FRAMES as f64 / spent / 1e6))
}

fn command(tool: Tool, file: &Path, files: &Path, flows: u32) -> Command {
    let mut command = Command::new(if tool == Tool::Ours { binary() } else { Path::new(tool.name()) });
    match tool {
        Tool::Ours => {
            command.args(["meter", "--quiet", "--json", "--flows", &flows.to_string()]).arg(file);
            command.env("HOME", files);
        }
        Tool::Softflowd => {
            let most = (flows + 16).to_string();
            command.args(["-d", "-m", &most, "-p"]).arg(files.join("pid"));
            command.arg("-c").arg(files.join("ctl")).arg("-r").arg(file);
        }
        Tool::Nfpcapd => {
            command.arg("-B").arg((flows + 16).max(524_288).to_string());
            command.arg("-w").arg(files).arg("-r").arg(file);
        }
    }
    command
}
