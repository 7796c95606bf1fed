//! A program in a pseudo-terminal that `script` makes, and the screen that its output draws.

use packetrig_sys::clock;
use packetrig_tests::{program::binary, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use tempfile::TempDir;

const PATIENCE_NS: u64 = 60_000_000_000;
const LOOK_NS: u64 = 20_000_000;
const WIDTH: usize = 110;
const HEIGHT: usize = 30;

pub(crate) struct WatchedTerminal {
    script: Child,
    keys: Option<ChildStdin>,
    directory: TempDir,
}

impl WatchedTerminal {
    /// Starts `packetrig` with these arguments; `None` without `script`.
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        if !skip::has_tool("script") {
            return None;
        }
        let directory = tempfile::tempdir().expect("there is room for temporary files");
        let output = File::create(directory.path().join("output")).expect("there is room for output");
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let command =
            format!("stty rows {HEIGHT} cols {WIDTH} && exec '{}' {}", binary().display(), words.join(" "));
        let mut script = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .env("XDG_STATE_HOME", directory.path())
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(Stdio::inherit())
            .spawn()
            .expect("script starts");
        let keys = script.stdin.take();
        Some(Self { script, keys, directory })
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let terminal = self.keys.as_mut().expect("taken only at the end");
        terminal.write_all(keys.as_bytes()).and_then(|()| terminal.flush()).expect("the terminal takes keys");
    }

    /// Sends a signal to the program in the terminal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.program(), signal).expect("a child may be sent a signal");
    }

    /// The program in the terminal, which is the only child of `script`.
    fn program(&self) -> Pid {
        let number = self.script.id();
        let children = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children"));
        let child = children.expect("script runs").trim().parse().ok().and_then(Pid::from_raw);
        child.expect("script has one child")
    }

    /// Ends the terminal under the program, and waits until the program has ended, too.
    pub(crate) fn hang_up(mut self) {
        let program = self.program();
        self.script.kill().and_then(|()| self.script.wait()).expect("a child may be killed");
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        while is_alive(program) {
            if clock::monotonic_ns() > deadline {
                kill_process(program, Signal::KILL).expect("it is there");
                panic!("it outlives its terminal");
            }
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
    }

    fn output(&self) -> String {
        let bytes = std::fs::read(self.directory.path().join("output")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The first screen for which `condition` holds.
    pub(crate) fn await_screen(&mut self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        loop {
            let screen = DrawnScreen::of(&self.output());
            let text = screen.text();
            if screen.is_alternate && condition(&text) {
                return text;
            }
            let has_ended = self.script.try_wait().expect("a child can be waited for").is_some();
            assert!(!has_ended && clock::monotonic_ns() < deadline, "never: {what}; at last\n{text}");
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
    }

    /// Waits for the end, which must be a good one that leaves the terminal's first screen, with its cursor. Returns what is on it.
    pub(crate) fn finish(self) -> String {
        self.finish_with(&[0])
    }

    /// The same with one of these exit codes.
    pub(crate) fn finish_with(mut self, codes: &[i32]) -> String {
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        let status = loop {
            if let Some(status) = self.script.try_wait().expect("a child can be waited for") {
                break status;
            }
            assert!(clock::monotonic_ns() < deadline, "it does not end");
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        };
        let output = self.output();
        assert!(status.code().is_some_and(|code| codes.contains(&code)), "{status}: {output:?}");
        let screen = DrawnScreen::of(&output);
        assert!(!screen.is_alternate && screen.has_cursor, "{output:?}");
        screen.text().trim().to_owned()
    }
}

impl Drop for WatchedTerminal {
    fn drop(&mut self) {
        // A test that fails must not leave its programs behind: without `script`, the terminal hangs up.
        if matches!(self.script.try_wait(), Ok(None)) {
            drop(self.script.kill());
            drop(self.script.wait());
        }
    }
}

/// Whether a process is there and not only waits for somebody to ask how it ended.
fn is_alive(process: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    status.is_ok_and(|status| !status.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

/// What the sequences of a program have drawn: the few that a screen of full redraws needs.
struct DrawnScreen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// Place of the cursor on the first screen, while the second one is shown.
    first_place: (usize, usize),
    is_alternate: bool,
    has_cursor: bool,
}

impl DrawnScreen {
    fn of(output: &str) -> Self {
        let cells = vec![vec![' '; WIDTH]; HEIGHT];
        let mut screen =
            Self { cells, row: 0, column: 0, first_place: (0, 0), is_alternate: false, has_cursor: true };
        let mut characters = output.chars();
        while let Some(c) = characters.next() {
            match c {
                '\u{1b}' if characters.as_str().starts_with('[') => {
                    let mut sequence = String::new();
                    for c in characters.by_ref().skip(1) {
                        sequence.push(c);
                        // The last one is a letter or a sign beside the letters.
                        if ('@'..='~').contains(&c) {
                            break;
                        }
                    }
                    screen.obey(&sequence);
                }
                '\r' => screen.column = 0,
                '\n' => screen.row += 1,
                c if c.is_control() => {}
                c => screen.put(c),
            }
        }
        screen
    }

    fn put(&mut self, c: char) {
        if let Some(cell) = self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
            *cell = c;
        }
        self.column += 1;
    }

    fn obey(&mut self, sequence: &str) {
        let (parameters, end) = sequence.split_at(sequence.len().saturating_sub(1));
        match (parameters, end) {
            (place, "H") => {
                let mut numbers = place.split(';').map(|number| number.parse().unwrap_or(1).max(1) - 1);
                (self.row, self.column) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            }
            (_, "J") => self.clear(),
            ("?1049", "h" | "l") => {
                self.is_alternate = end == "h";
                if self.is_alternate {
                    self.first_place = (self.row, self.column);
                } else {
                    (self.row, self.column) = self.first_place;
                }
                self.clear();
            }
            ("?25", "h" | "l") => self.has_cursor = end == "h",
            _ => {}
        }
    }

    fn clear(&mut self) {
        self.cells = vec![vec![' '; WIDTH]; HEIGHT];
    }

    fn text(&self) -> String {
        let lines = self.cells.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n");
        lines.collect()
    }
}
