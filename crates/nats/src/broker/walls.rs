//! Restricts the server's access to this machine, whatever [user](super::ServerUser) it runs as. This is needed
//! because the server reads messages of strangers, and the keys that sign claims and commands are near its directory.
//!
//! Landlock restricts the thread that starts the server, and through it the server. The server can write only to
//! its own directory, read only this directory and public system files, execute only its own program and files in the
//! library directories, and use only its own TCP port. A seccomp filter, which only the server gets, refuses the calls
//! that it does not need: signals to other processes, for example, and changes of the modes of files.

use super::{BrokerSetup, Error};
use packetrig_sys::sandbox::{self, FileRules, MissingProtection, SandboxPolicy, TcpRules, ThreadClass};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Restricts the calling thread and the programs that it starts. Returns the restriction that this kernel does not
/// support, if there is one.
pub(super) fn restrict_this_thread(
    program: &Path,
    setup: &BrokerSetup,
) -> Result<Option<MissingProtection>, Error> {
    let walls = sandbox::restrict_thread_with_landlock(&sandbox_policy(program, setup));
    walls.map(Result::err).map_err(|error| Error::NotReady(error.to_string()))
}

/// Restricts the system calls of the server that `command` starts. Returns the restriction that this kernel does not
/// support, if there is one.
pub(super) fn restrict_system_calls(command: &mut Command) -> Result<Option<MissingProtection>, Error> {
    let filter = sandbox::apply_seccomp_to_command(command, ThreadClass::ForeignServer);
    filter.map(Result::err).map_err(|error| Error::NotReady(error.to_string()))
}

fn sandbox_policy(program: &Path, setup: &BrokerSetup) -> SandboxPolicy {
    let port = Some(vec![setup.listen.port()]);
    let mut files = FileRules::system_files();
    // Landlock resolves a path when the rule is made, so `/proc/self` would allow the directory of packetrig's process
    // and not of the server's.
    files.read.retain(|path| path != Path::new("/proc/self"));
    files.write = vec![setup.directory.clone(), PathBuf::from("/dev/null")];
    // A dynamically linked program is started by a loader, so the loader must be executable too.
    files.execute =
        [program, Path::new("/lib"), Path::new("/lib64"), Path::new("/usr/lib")].map(PathBuf::from).into();
    SandboxPolicy {
        files,
        // The thread itself connects to check whether the server answers.
        tcp: TcpRules { listen: port.clone(), connect: port },
        ..SandboxPolicy::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::net::SocketAddr;

    /// Starts a program in the place of the server that tries to print a file, to write one, to start another program,
    /// to send a signal, and to fork.
    #[test]
    fn a_program_in_its_place_reads_no_key() {
        let place = tempfile::tempdir().expect("a place");
        let path = |name: &str| place.path().join(name);
        for directory in ["broker", "authority"] {
            fs::create_dir(path(directory)).expect("a directory");
        }
        for (name, text) in
            [("broker/own", "own"), ("authority/operator.key", "secret"), ("fleet.json", "{}")]
        {
            fs::write(path(name), text).expect("a file");
        }
        let Ok(shell) = fs::canonicalize("/bin/sh") else { return };
        let setup = BrokerSetup {
            program: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 4222)),
            directory: path("broker"),
            store_room: 7,
            security: None,
            nodes: Vec::new(),
        };
        let walled = std::thread::spawn(move || {
            let calls = restrict_system_calls(&mut Command::new(&shell)).expect("a filter");
            let missing = restrict_this_thread(&shell, &setup).expect("walls").or(calls);
            let run = |script: String| {
                let mut command = Command::new(&shell);
                command.arg("-c").arg(script);
                restrict_system_calls(&mut command).expect("a filter");
                let output = command.output().expect("it starts");
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            let read = |path: PathBuf| run(format!("read line < {}; echo \"$line\"", path.display()));
            let own = read(setup.directory.join("own"));
            let keys = ["authority/operator.key", "fleet.json"]
                .map(|name| read(setup.directory.parent().expect("above").join(name)));
            let written = run(format!("echo more > {0}/new && echo done", setup.directory.display()));
            let beside = run(format!("echo more > {0}/../new && echo done", setup.directory.display()));
            let start_other = format!("exec /bin/cat {}/own", setup.directory.display());
            let others = [&start_other, "kill -0 $$ && echo done", "(echo done)"];
            (missing, own, keys, [written, beside], others.map(|script| run(script.to_owned())))
        });
        let (missing, own, keys, done, others) = walled.join().expect("no panic");
        if missing.is_some() {
            return;
        }
        assert_eq!(own.trim(), "own");
        assert_eq!(keys.map(|key| key.trim().to_owned()), ["", ""]);
        assert_eq!(done.map(|done| done.trim().to_owned()), ["done", ""]);
        assert_eq!(others, ["", "", ""], "another program, a signal, a fork");
    }
}
