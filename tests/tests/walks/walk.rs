//! A page is followed: its commands run in one shell, with networks and a home of its own, and each must end as the page says.

use crate::page::{Block, PageLine, TypedCommand, missing_lines, read_blocks};
use packetrig_sys::clock;
use packetrig_tests::program::binary;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, read_to_string};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A walk takes half a minute. A machine under load needs longer, because methods make trials again.
const LIMIT_NS: u64 = 240_000_000_000;
const LOOK_NS: u64 = 20_000_000;
/// Before what the script says of its own: a character that no program prints.
const MARK: char = '\u{1e}';
/// The exit code of an INCONCLUSIVE result.
const INCONCLUSIVE: i32 = 7;
/// What packetrig says if this machine was too busy to measure: no fault of the page.
const TOO_BUSY: [&str; 6] = [
    "frames left up to",
    "the rig could not sustain",
    "were not sent in time",
    "perhaps by the rig",
    "the difference may be wrong",
    "no answer",
];

/// A page, and the place where it is followed.
#[derive(Debug)]
pub(crate) struct Walk {
    page: PathBuf,
    blocks: Vec<Block>,
    place: TempDir,
}

/// What a command printed, and how it ended; `None` if it did not.
#[derive(Debug, Default)]
struct Outcome {
    output: String,
    exit_code: Option<i32>,
}

impl Walk {
    /// Reads a page of the book.
    pub(crate) fn read_page(name: &str) -> Self {
        let page = docs().join("book").join(name).with_extension("md");
        let blocks = read_blocks(&read_to_string(&page).unwrap());
        assert!(blocks.iter().any(|block| matches!(block, Block::Commands(_))), "{name} has no commands");
        Self { page, blocks, place: tempfile::tempdir().unwrap() }
    }

    /// Runs all commands; panics at the first one that does not end as the page says, or at a quoted line that does not come.
    pub(crate) fn follow(&self) {
        let output = self.run();
        let outcomes = outcomes_by_line(&output);
        let mut printed = String::new();
        let mut was_too_busy = false;
        for block in &self.blocks {
            match block {
                Block::Commands(commands) => {
                    (printed, was_too_busy) = self.check_commands(commands, &outcomes, &output);
                }
                Block::Quoted(quoted) if !was_too_busy => self.check_quoted(quoted, &printed),
                Block::Quoted(_) => {}
            }
        }
    }

    /// Returns what the commands of a block printed, and whether the machine was too busy for one of them.
    fn check_commands(
        &self,
        commands: &[TypedCommand],
        outcomes: &BTreeMap<usize, Outcome>,
        output: &str,
    ) -> (String, bool) {
        let nothing = Outcome::default();
        let mut printed = String::new();
        let mut was_too_busy = false;
        for command in commands {
            let outcome = outcomes.get(&command.line).unwrap_or(&nothing);
            printed.push_str(&outcome.output);
            let is_due_to_load = outcome.exit_code == Some(INCONCLUSIVE)
                && TOO_BUSY.iter().any(|words| output.contains(words));
            assert!(
                outcome.exit_code == Some(command.exit_code) || is_due_to_load,
                "{}:{}: exit code {:?}, not {}, of\n{}\nIt printed\n{}\nThe whole walk\n{output}",
                self.page.display(),
                command.line,
                outcome.exit_code,
                command.exit_code,
                command.text,
                outcome.output,
            );
            was_too_busy |= outcome.exit_code != Some(command.exit_code);
        }
        (printed, was_too_busy)
    }

    fn check_quoted(&self, quoted: &[PageLine], printed: &str) {
        if let Some(line) = missing_lines(quoted, printed).first() {
            panic!("{}:{}: no line like\n{}\nin\n{printed}", self.page.display(), line.number, line.text);
        }
    }

    /// Runs the script in a shell with its own networks, and returns what it and all that it started printed.
    fn run(&self) -> String {
        let place = self.place.path();
        let [home, work, programs] = ["home", "work", "programs"].map(|name| place.join(name));
        for directory in [&home, &work, &programs] {
            std::fs::create_dir(directory).unwrap();
        }
        symlink(binary(), programs.join("packetrig")).unwrap();
        std::fs::write(place.join("script"), self.script()).unwrap();
        let printed = place.join("printed");
        let out = File::create(&printed).unwrap();
        let path = format!("{}:{}:/usr/sbin:/sbin", programs.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("unshare");
        shell
            .args(["--net", "--mount", "sh", "../script"])
            .current_dir(work)
            .env("HOME", home)
            .env("PATH", path)
            .env("WIRESHARK", docs())
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .process_group(0);
        Shell(shell.spawn().unwrap()).await_meter_end();
        String::from_utf8_lossy(&std::fs::read(printed).unwrap()).into_owned()
    }

    /// The commands with marks around them. The first one with an exit code that neither the page nor a busy machine explains is the last.
    fn script(&self) -> String {
        let mut script = "mount -t tmpfs run /run || exit 1\n".to_owned();
        let commands = self.blocks.iter().filter_map(|block| match block {
            Block::Commands(commands) => Some(commands),
            Block::Quoted(_) => None,
        });
        for TypedCommand { line, text, exit_code } in commands.flatten() {
            writeln!(script, "printf '\\036begin {line}\\n'\n{text}").unwrap();
            writeln!(script, "walk_code=$?\nprintf '\\036end {line} %d\\n' $walk_code").unwrap();
            writeln!(script, "case $walk_code in {exit_code}|{INCONCLUSIVE}) ;; *) exit 1;; esac").unwrap();
        }
        script
    }
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs")
}

fn outcomes_by_line(output: &str) -> BTreeMap<usize, Outcome> {
    let mut outcomes = BTreeMap::<usize, Outcome>::new();
    let mut current = 0;
    for part in output.split(MARK) {
        let (mark, printed) = part.split_once('\n').unwrap_or((part, ""));
        let mut words = mark.split(' ');
        let (kind, line) = (words.next(), words.next().and_then(|line| line.parse().ok()));
        if let (Some("begin"), Some(line)) = (kind, line) {
            current = line;
        }
        let outcome = outcomes.entry(current).or_default();
        if kind == Some("end") {
            outcome.exit_code = words.next().and_then(|code| code.parse().ok());
        }
        // What a program in the background prints between two commands is of the one before.
        outcome.output.push_str(printed);
    }
    outcomes
}

/// A shell; ends with all that it started.
struct Shell(Child);

impl Shell {
    fn await_meter_end(&mut self) {
        let deadline = clock::monotonic_ns() + LIMIT_NS;
        while matches!(self.0.try_wait(), Ok(None)) && clock::monotonic_ns() < deadline {
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        // An error says that all of them have ended.
        let _ended = group.map(|group| kill_process_group(group, Signal::KILL));
        drop(self.0.wait());
    }
}
