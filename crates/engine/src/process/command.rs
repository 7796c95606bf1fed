//! Program of an engine: an adapter that packetrig ships for a known generator, or the user's own.
//!
//! Only the user who starts a run on this machine names an engine; no plan and no message can.

use packetrig_sys::{UnsupportedFeature, private_files};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

/// Directories of network tools, searched in addition to the user's PATH.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// A program that speaks the engine protocol for a generator that does not.
#[derive(Debug, PartialEq, Eq)]
pub struct EngineAdapter {
    /// Name of the generator and of the engine.
    pub name: &'static str,
    /// Debian package of the generator.
    pub package: &'static str,
    /// Source of the adapter, in Python.
    script: &'static str,
}

/// Code that all adapters share.
const SHARED_ADAPTER_CODE: &str = include_str!("../../../../engines/adapter.py");

/// Adapters that packetrig ships.
pub const ENGINE_ADAPTERS: [EngineAdapter; 2] = [
    EngineAdapter {
        name: "trafgen",
        package: "netsniff-ng",
        script: include_str!("../../../../engines/trafgen.py"),
    },
    EngineAdapter {
        name: "tcpreplay",
        package: "tcpreplay",
        script: include_str!("../../../../engines/tcpreplay.py"),
    },
];

/// Program of an engine, as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineCommand {
    Adapter(&'static EngineAdapter),
    /// A program that the user names by its path.
    Program(PathBuf),
}

impl FromStr for EngineCommand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A name without a slash is always an adapter, so a file in the working directory never shadows one.
        if text.contains('/') {
            return Ok(Self::Program(text.into()));
        }
        let known = ENGINE_ADAPTERS.iter().find(|adapter| adapter.name == text);
        known.map(Self::Adapter).ok_or_else(|| {
            let names: Vec<&str> = ENGINE_ADAPTERS.iter().map(|adapter| adapter.name).collect();
            format!(
                "`{text}` is not a known engine; use {}, or the path of a program, such as ./{text}",
                names.join(" or ")
            )
        })
    }
}

impl EngineCommand {
    /// Returns the name that the user gave.
    pub fn name(&self) -> String {
        match self {
            Self::Adapter(adapter) => adapter.name.to_owned(),
            Self::Program(program) => program.display().to_string(),
        }
    }

    /// Prepares the command that starts the engine. Writes the scripts of an adapter into `directory`, which exists for
    /// this engine process only.
    pub(super) fn prepare_command(&self, directory: &Path) -> Result<Command, packetrig_sys::Error> {
        let mut command = match self {
            Self::Program(program) => {
                // The engine runs in another working directory, so the path must not be relative.
                let program = std::path::absolute(program).unwrap_or_else(|_| program.clone());
                Command::new(program)
            }
            Self::Adapter(adapter) => {
                // The program is checked here, so that the error names the Debian package.
                adapter.require_program(adapter.name, adapter.package)?;
                let python = adapter.require_program("python3", "python3")?;
                let shared = directory.join("adapter.py");
                let script = directory.join(format!("{}.py", adapter.name));
                for (file, text) in [(&shared, SHARED_ADAPTER_CODE), (&script, adapter.script)] {
                    private_files::write_file(file, text)
                        .map_err(|error| file_error("write", file, error))?;
                }
                let mut command = Command::new(python);
                // The user's Python settings must not change the imports; the directory belongs to this process alone.
                command.args(["-E", "-s", "-B"]).arg(script);
                command
            }
        };
        command.current_dir(directory).env("PATH", program_search_path());
        Ok(command)
    }
}

impl EngineAdapter {
    /// Returns the path of a program that the adapter needs; the error names the Debian package of the program.
    fn require_program(&self, program: &str, package: &str) -> Result<PathBuf, UnsupportedFeature> {
        find_program(program).ok_or_else(|| UnsupportedFeature {
            feature: "sending with another program",
            needs: format!("the program {program} for engine {} (Debian package {package})", self.name),
            found: "no such program".to_owned(),
        })
    }

    /// Returns whether the generator and Python are installed.
    pub fn is_installed(&self) -> bool {
        find_program(self.name).is_some() && find_program("python3").is_some()
    }
}

pub(super) fn file_error(call: &'static str, path: &Path, source: std::io::Error) -> packetrig_sys::Error {
    packetrig_sys::Error::Call { call, object: path.display().to_string(), source, remedy: None }
}

fn program_search_path() -> OsString {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&own).chain(SYSTEM_DIRECTORIES.map(PathBuf::from));
    std::env::join_paths(all).unwrap_or(own)
}

fn find_program(program: &str) -> Option<PathBuf> {
    let path = program_search_path();
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_command_name_is_adapter_path_is_program() {
        let read = str::parse::<EngineCommand>;
        assert_eq!(read("trafgen").unwrap(), EngineCommand::Adapter(&ENGINE_ADAPTERS[0]));
        assert_eq!(read("./mine.pl").unwrap(), EngineCommand::Program("./mine.pl".into()));
        let refused = read("scapy").unwrap_err();
        assert!(refused.contains("trafgen or tcpreplay") && refused.contains("./scapy"), "{refused}");
    }

    #[test]
    fn a_missing_generator_is_named_with_its_package() {
        let lacking = ENGINE_ADAPTERS[0].require_program("no-such-program", "none").unwrap_err().to_string();
        assert_eq!(
            lacking,
            "sending with another program needs the program no-such-program for engine trafgen (Debian package none); \
                found no such program"
        );
    }
}
