//! The sandbox of each program that runs long and reads what others send: [`needs`] has the table, this file enters it and says what is
//! in force. See `docs/book/walls.md`.

pub(crate) mod needs;

use crate::args::{SandboxFlags, SandboxMode};
use crate::error::Error;
use crate::output::{Style, remark};
use needs::{BecomeUser, Needs};
use packetrig_sys::sandbox::{self, Policy, Sandbox, ThreadClass, User, Walls};

/// A program that has one thread and opens what it needs.
#[derive(Debug)]
#[must_use = "the rights that opening takes are given up by `close`"]
pub(crate) struct Opening {
    program: &'static str,
    class: ThreadClass,
    user: Option<User>,
    /// Why it stays root.
    reason: Option<String>,
    /// `None`: the user wants none.
    sandbox: Option<Sandbox>,
}

/// To be called before there is a second thread.
pub(crate) fn begin(flags: &SandboxFlags, needs: Needs) -> Result<Opening, Error> {
    let Needs { program, opening, kept, files, tcp, class, user } = needs;
    // Rigs ask who holds a port.
    let asks_processes = class == ThreadClass::Rig;
    if flags.sandbox == SandboxMode::Off {
        return Ok(Opening { program, class, user: None, reason: None, sandbox: None });
    }
    let becoming = if sandbox::is_root() { choose(user)? } else { Choice::default() };
    let policy = Policy { opening, kept, files, tcp, asks_processes, starts_programs: false };
    let sandbox = Some(Sandbox::begin(&policy)?);
    Ok(Opening { program, class, user: becoming.user, reason: becoming.reason, sandbox })
}

impl Opening {
    /// Gives up what is not needed any more, and says what is in force.
    pub(crate) fn close(self) -> Result<(), Error> {
        let Some(sandbox) = self.sandbox else {
            let style = Style::of_remarks();
            let warning = style.bad("sandbox off:");
            remark(format_args!(
                "{}: {warning} foreign input is read with all rights of this user",
                self.program
            ));
            return Ok(());
        };
        let walls = sandbox.close(self.class, self.user)?;
        say(self.program, &walls, self.reason.as_deref());
        Ok(())
    }
}

fn say(program: &str, walls: &Walls, reason: Option<&str>) {
    let reason = reason.filter(|_| walls.user == 0);
    let reason = reason.map_or_else(String::new, |reason| format!(" (root because {reason})"));
    remark(format_args!("{program}: sandbox: {walls}{reason}"));
    for missing in &walls.missing {
        remark(format_args!("{program}: sandbox: missing: {missing}"));
    }
}

/// The user to become, or why root stays root.
#[derive(Default)]
struct Choice {
    user: Option<User>,
    reason: Option<String>,
}

fn choose(wish: BecomeUser) -> Result<Choice, Error> {
    let wanted = match wish {
        BecomeUser::Stay(reason) => return Ok(Choice { user: None, reason: Some(reason.to_owned()) }),
        // What was named has to be there.
        BecomeUser::Named(name) => {
            let user = User::find(&name).map_err(|error| Error::Usage(format!("--user {name}: {error}")))?;
            return Ok(Choice { user: Some(user), reason: None });
        }
        BecomeUser::OwnerOf(path) => {
            let owner = std::fs::metadata(&path).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
            let owner = owner.map_err(|source| Error::Write { what: path.display().to_string(), source })?;
            if owner == 0 {
                let reason =
                    format!("{} is root's; give it to a user, or name one with --user", path.display());
                return Ok(Choice { user: None, reason: Some(reason) });
            }
            owner.to_string()
        }
        BecomeUser::Nobody => "nobody".to_owned(),
    };
    Ok(match User::find(&wanted) {
        Ok(user) => Choice { user: Some(user), reason: None },
        Err(error) => Choice { user: None, reason: Some(error.to_string()) },
    })
}
