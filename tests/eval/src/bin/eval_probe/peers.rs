//! Other projects' programs that send the same train: trafgen with its gap, tcpreplay with a capture file of those times.

use crate::frames::{self, Key};
use anyhow::{Context, ensure};
use packetrig_testkit::lab::{INTERFACE, LabPort};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Trafgen,
    Tcpreplay,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Trafgen => "trafgen",
            Self::Tcpreplay => "tcpreplay",
        }
    }
}

/// A peer with its train written down.
#[derive(Debug)]
pub(crate) struct Ready {
    peer: Peer,
    file: PathBuf,
    frames: u16,
    gap_ns: u64,
}

impl Ready {
    /// Writes the train into a file; frames of all its trains have train number 0.
    pub(crate) fn new(
        peer: Peer,
        whose: u16,
        frames: u16,
        gap_ns: u64,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let file = directory.join(format!("{}-{whose}", peer.name()));
        let all = (0..frames).map(|number| frames::frame(Key { whose, train: 0, number }, frames::SIZE));
        match peer {
            Peer::Trafgen => std::fs::write(&file, configuration(all)),
            Peer::Tcpreplay => std::fs::write(&file, capture(all, gap_ns)),
        }?;
        Ok(Self { peer, file, frames, gap_ns })
    }

    /// Sends the train once; returns at its end.
    pub(crate) fn send(&self, from: &LabPort) -> anyhow::Result<()> {
        let mut command = match self.peer {
            Peer::Trafgen => {
                let mut command = Command::new("trafgen");
                command.args(["--cpus", "1", "--no-cpu-stats", "--out", INTERFACE, "--num"]);
                command.arg(self.frames.to_string()).args(["--gap", &format!("{}us", self.gap_ns / 1000)]);
                command.arg("--conf");
                command
            }
            Peer::Tcpreplay => {
                let mut command = Command::new("tcpreplay");
                command.args(["--quiet", "--preload-pcap", "--intf1", INTERFACE]);
                command
            }
        };
        command.arg(&self.file).stdin(Stdio::null());
        let ended = from.netns().run_in_namespace(|| command.output())?.context(self.peer.name())?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(ended.status.success(), "{}: {said}", self.peer.name());
        Ok(())
    }
}

/// One packet after another, which trafgen sends in turn.
fn configuration(frames: impl Iterator<Item = Vec<u8>>) -> String {
    let mut text = String::new();
    for frame in frames {
        let bytes: Vec<String> = frame.iter().map(|byte| format!("0x{byte:02x}")).collect();
        writeln!(text, "{{ {} }}", bytes.join(", ")).unwrap_or(());
    }
    text
}

/// A capture file with nanoseconds.
fn capture(frames: impl Iterator<Item = Vec<u8>>, gap_ns: u64) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (at, frame) in (0..).map(|n: u64| n * gap_ns).zip(frames) {
        let length = u32::try_from(frame.len()).unwrap_or(0);
        let seconds = u32::try_from(at / 1_000_000_000).unwrap_or(0) + 1;
        let rest = u32::try_from(at % 1_000_000_000).unwrap_or(0);
        for word in [seconds, rest, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}
