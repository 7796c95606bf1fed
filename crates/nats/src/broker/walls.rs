//! Restricts the server's access to this machine. It reads messages of strangers, and the keys that sign claims and
//! commands are near its directory.
//!
//! Landlock restricts the thread that starts the server, and so the server. It can read and write its own directory,
//! start no other program than itself, and use its own port only.

use super::{BrokerSetup, Error};
use packetrig_sys::sandbox::{self, FileRules, MissingWall, SandboxPolicy, TcpRules};
use std::path::{Path, PathBuf};

/// Restricts the calling thread and the programs that it starts. Returns the restriction that this kernel lacks.
pub(super) fn restrict_this_thread(
    program: &Path,
    setup: &BrokerSetup,
) -> Result<Option<MissingWall>, Error> {
    let walls = sandbox::restrict_thread(&sandbox_policy(program, setup));
    walls.map(Result::err).map_err(|error| Error::NotReady(error.to_string()))
}

fn sandbox_policy(program: &Path, setup: &BrokerSetup) -> SandboxPolicy {
    let port = Some(vec![setup.listen.port()]);
    let mut files = FileRules::system_files();
    // The rule would allow the directory of the process that starts the server, not of the server.
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
    use std::process::Command;

    /// Starts a program in the place of the server that tries to print a file, to write one, and to start another program.
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
            let missing = restrict_this_thread(&shell, &setup).expect("walls");
            let run = |script: String| {
                let output = Command::new(&shell).arg("-c").arg(script).output().expect("it starts");
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            let read = |path: PathBuf| run(format!("read line < {}; echo \"$line\"", path.display()));
            let own = read(setup.directory.join("own"));
            let keys = ["authority/operator.key", "fleet.json"]
                .map(|name| read(setup.directory.parent().expect("above").join(name)));
            let written = run(format!("echo more > {0}/new && echo done", setup.directory.display()));
            let beside = run(format!("echo more > {0}/../new && echo done", setup.directory.display()));
            let other = run("/bin/cat /dev/null && echo done".to_owned());
            (missing, own, keys, [written, beside, other])
        });
        let (missing, own, keys, done) = walled.join().expect("no panic");
        if missing.is_some() {
            return;
        }
        assert_eq!(own.trim(), "own");
        assert_eq!(keys.map(|key| key.trim().to_owned()), ["", ""]);
        assert_eq!(done.map(|done| done.trim().to_owned()), ["done", "", ""]);
    }
}
