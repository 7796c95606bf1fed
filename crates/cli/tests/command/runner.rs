//! Runs the built binary with a clean environment and an empty home.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Exit code and output of the binary.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) results: String,
    /// Standard error.
    pub(crate) remarks: String,
}

pub(crate) fn packetrig(arguments: &[&str]) -> Ended {
    ended(&command(arguments).stdin(Stdio::null()).output().unwrap())
}

pub(crate) fn packetrig_at_home(home: &str, arguments: &[&str]) -> Ended {
    let mut command = command(arguments);
    ended(&command.env("HOME", home).env("XDG_DATA_HOME", home).stdin(Stdio::null()).output().unwrap())
}

pub(crate) fn packetrig_with_input(arguments: &[&str], input: &[u8]) -> Ended {
    let mut command = command(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may refuse before it has read everything: then writing fails, which is its right.
    drop(child.stdin.take().unwrap().write_all(input));
    ended(&child.wait_with_output().unwrap())
}

pub(crate) fn packetrig_into_closed_pipe(arguments: &[&str]) -> Ended {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    ended(&command(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().unwrap())
}

pub(crate) fn packetrig_into_file(arguments: &[&str], file: &str) -> Ended {
    let file = File::options().write(true).open(file).unwrap();
    ended(&command(arguments).stdin(Stdio::null()).stdout(file).stderr(Stdio::piped()).output().unwrap())
}

fn command(arguments: &[&str]) -> Command {
    let home = std::env::temp_dir().join("packetrig-tests-no-such-home");
    let mut command = Command::new(env!("CARGO_BIN_EXE_packetrig"));
    command.args(arguments).env_remove("RUST_BACKTRACE").env("HOME", &home).env("XDG_DATA_HOME", home);
    command
}

fn ended(output: &Output) -> Ended {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap_or(-1);
    Ended { code, results: text(&output.stdout), remarks: text(&output.stderr) }
}
