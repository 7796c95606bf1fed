//! Judges: Python programs that stand for the world. They print where they are, then answer lines with lines.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/flows").join(name)
}

pub(crate) struct Judge {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Judge {
    /// Starts one; returns the line by which it says that it is ready.
    pub(crate) fn start(python: &Path, name: &str, arguments: &[&OsStr]) -> (Self, String) {
        let mut command = Command::new(python);
        command.arg(script(name)).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut judge = Self { child, input, output };
        let line = judge.line();
        (judge, line)
    }

    /// The answer to a line.
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        let answer = self.line();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).unwrap();
        assert!(read > 0, "it ended without an answer");
        line.trim().to_owned()
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        // At the end of its input it ends what it has started, then itself.
        self.input = None;
        drop(self.child.wait());
    }
}
