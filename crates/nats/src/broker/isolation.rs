//! The user of the server, and the files that this user can reach: the program and the directory.
//!
//! If root starts the server, the server gets its own user, so that it can read neither the keys beside its directory
//! nor any other file of root. The thread that starts the server acts as that user, and so do threads that write files
//! for it: root must not open files in a directory where the server may have put links. The user needs no access to
//! the directories above its program and its own directory, because this process opens both and passes descriptors.
//!
//! The isolation must be prepared before this process gives up its capabilities. Afterwards it needs none.

mod user;

use super::{BrokerSetup, Error, find_program, server_io_error};
use packetrig_sys::held_directory::{HeldDirectory, WORKING_DIRECTORY};
use packetrig_sys::resident::ResidentThread;
use packetrig_sys::sandbox::{self, ProcessCapabilities, ProcessUser};
use packetrig_sys::{child, private_files};
use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mode bit that lets every user start a program, or open files in a directory by name.
const OTHERS_EXECUTE_MODE: u32 = 0o001;

/// The user that the server runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerUser {
    /// A user as which no other program runs.
    Own(ProcessUser),
    /// The server runs as the user of this process; the text is the reason.
    Starter(String),
}

impl fmt::Display for ServerUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(user) if user.name == user.uid.to_string() => {
                write!(f, "nats-server: uid {}", user.uid)
            }
            Self::Own(user) => write!(f, "nats-server: uid {} ({user})", user.uid),
            Self::Starter(reason) => write!(f, "missing: a user of its own for nats-server: {reason}"),
        }
    }
}

/// The server's user, program and directory, ready for a start.
#[derive(Debug)]
pub struct PreparedServer {
    user: ServerUser,
    program: ServerProgram,
    directory: HeldDirectory,
    shown_directory: PathBuf,
    /// Starts threads that act as the server's user.
    threads: ResidentThread,
}

impl PreparedServer {
    /// Finds the program, prepares the directory of `setup`, and chooses the user. Programs that this function starts,
    /// and a server without its own user, get at most the capabilities `most`.
    pub fn prepare(setup: &BrokerSetup, most: ProcessCapabilities) -> Result<Self, Error> {
        let program = run_with_limited_rights(most, || find_program(setup.program.as_deref()))??;
        let program = ServerProgram::open(program)?;
        let shown = setup.directory.clone();
        private_files::create_directories(&shown).map_err(server_io_error(shown.display().to_string()))?;
        let (user, directory, threads) = match DedicatedServerUser::take(setup, &program) {
            Ok(own) => (ServerUser::Own(own.user), own.directory, own.threads),
            Err(reason) => {
                let directory = user::reclaim_directory(&shown)?;
                let threads = run_with_limited_rights(most, start_threads)??;
                (ServerUser::Starter(reason), directory, threads)
            }
        };
        Ok(Self { user, program, directory, shown_directory: shown, threads })
    }

    pub fn user(&self) -> &ServerUser {
        &self.user
    }

    /// Path by which threads of [`Self::run_as_server`] reach the server's directory.
    pub(super) fn directory(&self) -> PathBuf {
        self.directory.path()
    }

    /// Path by which threads of [`Self::run_as_server`] reach the program.
    pub(super) fn program(&self) -> PathBuf {
        self.program.path()
    }

    /// Runs `work` on a thread that acts as the server's user.
    pub(super) fn run_as_server<'a, T: Send + 'a>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'a,
    ) -> Result<T, Error> {
        let done = self.threads.run_job(work).map_err(|error| Error::NotReady(error.to_string()))?;
        done.map_err(|error| self.replace_internal_paths_in_error(error))
    }

    /// Returns the command that starts the program in its directory as its user. The kernel ends the program together
    /// with the thread that starts it.
    pub(super) fn build_server_command(&self) -> Command {
        let mut command = Command::new(self.program.path());
        command.arg0(&self.program.shown).current_dir(self.directory.path());
        if matches!(self.user, ServerUser::Own(_)) {
            sandbox::set_command_user(&mut command);
        }
        child::terminate_with_thread(&mut command);
        command
    }

    pub(super) fn program_path_for_messages(&self) -> String {
        self.program.shown.display().to_string()
    }

    /// Replaces internal paths, which only this process or the server can use, by the path that the user knows.
    pub(super) fn replace_internal_paths(&self, text: &str) -> String {
        let shown = self.shown_directory.display().to_string();
        text.replace(&self.directory.path().display().to_string(), &shown).replace(WORKING_DIRECTORY, &shown)
    }

    pub(super) fn replace_internal_paths_in_error(&self, error: Error) -> Error {
        match error {
            Error::World { what, source } => {
                Error::World { what: self.replace_internal_paths(&what), source }
            }
            other => other,
        }
    }
}

/// The server's program, reached through an open descriptor of its directory: the server's user may have no access
/// to the directories above.
#[derive(Debug)]
struct ServerProgram {
    /// Path without symbolic links.
    shown: PathBuf,
    directory: HeldDirectory,
}

impl ServerProgram {
    fn open(program: PathBuf) -> Result<Self, Error> {
        let shown = fs::canonicalize(&program).map_err(server_io_error(program.display().to_string()))?;
        let directory = shown.parent().unwrap_or_else(|| Path::new("/"));
        let directory = HeldDirectory::open(directory).map_err(|error| Error::NotReady(error.to_string()))?;
        Ok(Self { shown, directory })
    }

    /// Path of the program through the open directory. Its last component becomes the name of the process.
    fn path(&self) -> PathBuf {
        self.directory.path().join(self.shown.file_name().unwrap_or_default())
    }

    /// Returns true if every user may start the program.
    fn is_world_executable(&self) -> bool {
        [self.path(), self.directory.path()].iter().all(|path| {
            fs::metadata(path).is_ok_and(|found| found.permissions().mode() & OTHERS_EXECUTE_MODE != 0)
        })
    }
}

/// The server's own user, its directory, which this user owns, and threads that act as this user.
struct DedicatedServerUser {
    user: ProcessUser,
    directory: HeldDirectory,
    threads: ResidentThread,
}

impl DedicatedServerUser {
    /// Chooses a user as which no other program runs, and makes it the owner of the directory. An error is the reason
    /// why the server cannot have its own user.
    fn take(setup: &BrokerSetup, program: &ServerProgram) -> Result<Self, String> {
        user::check_can_switch_user(setup.listen.port())?;
        if !program.is_world_executable() {
            let shown = program.shown.display();
            return Err(format!(
                "other users may not start {shown}; run `chmod o+x` on it and on its directory, \
                 or name another program with --server"
            ));
        }
        let directory =
            HeldDirectory::open_directory_itself(&setup.directory).map_err(|error| error.to_string())?;
        let owner = fs::metadata(directory.path()).map_err(|error| error.to_string())?.uid();
        let user = user::choose_user(&setup.directory, owner)?;
        // The thread is started before the files change their owner: without a thread that acts as the new owner, this
        // process could not use the files.
        let threads = start_threads_as_user(&user)?;
        directory.change_owner_to(&user).map_err(|error| error.to_string())?;
        Ok(Self { user, directory, threads })
    }
}

fn start_threads() -> Result<ResidentThread, Error> {
    ResidentThread::start_thread_here("broker").map_err(|error| Error::NotReady(error.to_string()))
}

fn start_threads_as_user(user: &ProcessUser) -> Result<ResidentThread, String> {
    run_on_own_thread(|| {
        sandbox::act_as_user(user).map_err(|error| error.to_string())?;
        // A thread inherits user and capabilities from the thread that starts it.
        start_threads().map_err(|error| error.to_string())
    })
}

/// Runs `work` on a thread with at most these capabilities. The limit also applies to programs that the thread starts.
fn run_with_limited_rights<T: Send>(
    most: ProcessCapabilities,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    run_on_own_thread(|| sandbox::limit_rights(most).map(|()| work()))
        .map_err(|error| Error::NotReady(error.to_string()))
}

fn run_on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests;
