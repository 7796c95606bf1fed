//! Exit codes, which name the party at fault. `docs/book/exit-codes.md` has the same table; a test compares the two.

use packetrig_units::Blame;
use std::process::{ExitCode, ExitStatus};

/// How a command ended; each variant has its own exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandExit {
    /// The command succeeded; a run passed.
    Ok,
    /// The verdict is FAIL: a criterion of a run or a check was not met.
    Fail,
    /// The command line is wrong, or names something that does not exist.
    Usage,
    /// The plan cannot be read or has errors.
    Plan,
    /// The kernel, an interface, the disk, the catalogue or another machine refused or failed.
    World,
    Rights,
    /// Another process holds a port.
    Busy,
    /// The verdict is INCONCLUSIVE: the rig cannot tell.
    Inconclusive,
    /// An interface looks like part of a real network and the user has not confirmed it, or a target may not be probed.
    Unconfirmed,
    Bug,
    /// Stopped by a signal before its end.
    Interrupted,
}

impl CommandExit {
    /// All variants, in the order of their exit codes.
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::Fail,
        Self::Usage,
        Self::Plan,
        Self::World,
        Self::Rights,
        Self::Busy,
        Self::Inconclusive,
        Self::Unconfirmed,
        Self::Bug,
        Self::Interrupted,
    ];

    /// Returns how a child process that runs packetrig ended. A child that was killed by a signal, or that has an exit
    /// code without a variant, counts as [`Self::World`].
    pub fn from_child_status(status: ExitStatus) -> Self {
        status
            .code()
            .and_then(|code| Self::ALL.into_iter().find(|exit| i32::from(exit.code()) == code))
            .unwrap_or(Self::World)
    }

    /// Returns the exit code of the process.
    pub const fn code(self) -> u8 {
        // 70 is EX_SOFTWARE of sysexits.h; 130 is what shells report for a program that SIGINT ended.
        // 2 is also the code of clap and of shells for a command line that they cannot read.
        match self {
            Self::Ok => 0,
            Self::Fail => 1,
            Self::Usage => 2,
            Self::Plan => 3,
            Self::World => 4,
            Self::Rights => 5,
            Self::Busy => 6,
            Self::Inconclusive => 7,
            Self::Unconfirmed => 8,
            Self::Bug => 70,
            Self::Interrupted => 130,
        }
    }
}

impl From<Blame> for CommandExit {
    fn from(blame: Blame) -> Self {
        match blame {
            Blame::Usage => Self::Usage,
            Blame::Plan => Self::Plan,
            // A failed node and a failed network have the same exit code, because the user checks both with
            // `packetrig fleet status`.
            Blame::World | Blame::Peer => Self::World,
            Blame::Rights => Self::Rights,
            Blame::Busy => Self::Busy,
            Blame::Unconfirmed => Self::Unconfirmed,
            Blame::Bug => Self::Bug,
        }
    }
}

impl From<CommandExit> for ExitCode {
    fn from(exit: CommandExit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Rows of the page's table as (code, name).
    fn documented() -> Vec<(u8, String)> {
        let page = include_str!("../../../docs/book/exit-codes.md");
        let rows = page.lines().filter(|line| line.starts_with("| ")).filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let code = cells.next()?.parse().ok()?;
            Some((code, cells.next()?.trim_matches('`').to_owned()))
        });
        rows.collect()
    }

    #[test]
    fn the_page_lists_exactly_the_codes_there_are() {
        let here: Vec<_> = CommandExit::ALL.iter().map(|exit| (exit.code(), format!("{exit:?}"))).collect();
        assert_eq!(documented(), here);
    }

    #[test]
    fn the_end_of_a_child_is_passed_on() {
        use std::os::unix::process::ExitStatusExt;
        for exit in CommandExit::ALL {
            assert_eq!(
                CommandExit::from_child_status(ExitStatus::from_raw(i32::from(exit.code()) << 8)),
                exit
            );
        }
        assert_eq!(CommandExit::from_child_status(ExitStatus::from_raw(9)), CommandExit::World);
        assert_eq!(CommandExit::from_child_status(ExitStatus::from_raw(99 << 8)), CommandExit::World);
    }

    #[test]
    fn no_two_ends_share_a_code() {
        let codes: BTreeSet<_> = CommandExit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes.len(), CommandExit::ALL.len());
    }
}
