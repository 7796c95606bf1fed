//! Manual pages and completions of packages, made from the definition of the command line. They are made by a test, so
//! that the program that users get does not contain what makes them.

use super::CommandLine;
use clap::CommandFactory;
use clap_complete::Shell;
use packetrig_sys::private_files;
use std::path::{Path, PathBuf};

/// Environment variable with the output directory; `scripts/dist/manual.sh` sets it.
const MANUAL_DIRECTORY_VARIABLE: &str = "PACKETRIG_MANUAL";

fn write_manual(directory: &Path) {
    let pages = directory.join("man1");
    let completions = directory.join("completions");
    for part in [&pages, &completions] {
        private_files::create_directories(part).expect("there is room for a directory");
    }
    clap_mangen::generate_to(CommandLine::command(), &pages).expect("there is room for pages");
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut CommandLine::command(), "packetrig", &completions)
            .expect("there is room for completions");
    }
}

#[test]
fn every_command_has_a_page() {
    let temporary = tempfile::tempdir().expect("there is room for a directory");
    let wanted = std::env::var_os(MANUAL_DIRECTORY_VARIABLE).map(PathBuf::from);
    let directory = wanted.as_deref().unwrap_or_else(|| temporary.path());
    write_manual(directory);
    for subcommand in CommandLine::command().get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
    {
        let page = directory.join("man1").join(format!("packetrig-{}.1", subcommand.get_name()));
        let text = std::fs::read_to_string(&page).unwrap_or_default();
        assert!(text.contains(".SH SYNOPSIS"), "{}", page.display());
    }
    for file in ["packetrig.bash", "_packetrig", "packetrig.fish"] {
        let text = std::fs::read_to_string(directory.join("completions").join(file)).unwrap_or_default();
        assert!(text.contains("mlrsearch"), "{file}");
    }
}
