//! The units of systemd that come with the program: systemd understands them, and their walls are those of the program.

use packetrig_tests::{program, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// systemd's own measure of what a service may do, times ten; 100 is everything.
const MAX_EXPOSED: [(&str, u32); 8] = [
    ("packetrig-agent.service", 40),
    ("packetrig-collect.service", 20),
    ("packetrig-log@.service", 30),
    ("packetrig-meter@.service", 30),
    ("packetrig-probe-serve.service", 40),
    ("packetrig-reflect.service", 20),
    ("packetrig-serve.service", 40),
    ("packetrig-tap@.service", 40),
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests are a folder of the project")
        .join("systemd")
}

fn text(unit: &str) -> String {
    fs::read_to_string(directory().join(unit)).expect("there is such a unit")
}

fn settings<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn every_unit_is_walled_as_the_program_is() {
    let mut units: Vec<String> = fs::read_dir(directory())
        .expect("there is a folder of units")
        .map(|entry| entry.expect("it is read").file_name().into_string().expect("a plain name"))
        .collect();
    units.sort();
    assert_eq!(units, MAX_EXPOSED.map(|(unit, _)| unit));
    for unit in units {
        let text = text(&unit);
        assert_eq!(settings(&text, "NoNewPrivileges"), ["yes"], "{unit}");
        assert_eq!(settings(&text, "ProtectSystem"), ["strict"], "{unit}");
        let bounding = settings(&text, "CapabilityBoundingSet").join(" ");
        assert!(!bounding.is_empty() && !bounding.contains("SYS_ADMIN"), "{unit}: {bounding}");
        let calls = settings(&text, "SystemCallFilter").join(" ");
        assert!(calls.contains("landlock_restrict_self") && calls.contains("seccomp"), "{unit}: {calls}");
        // Who is not root in the program is not root in the unit.
        let is_nobody = ["collect", "meter", "log", "reflect"].iter().any(|name| unit.contains(name));
        assert_eq!(!settings(&text, "DynamicUser").is_empty(), is_nobody, "{unit}");
    }
}

#[test]
fn units_listen_locally_with_own_users() {
    for (unit, _) in MAX_EXPOSED {
        let text = text(unit);
        // Without a file of its owner, a unit has the options of `Environment`.
        let start = [settings(&text, "ExecStart"), settings(&text, "Environment")].concat().join(" ");
        let listens = start.split([' ', '"']).filter(|word| word.contains("://"));
        for address in listens {
            assert!(address.contains("//127.0.0.1:") || address.contains("//[::1]:"), "{unit}: {address}");
        }
        // A shared user, such as nobody, could read and stop the services of others.
        assert!(settings(&text, "User").is_empty() && settings(&text, "Group").is_empty(), "{unit}");
    }
}

#[test]
fn units_pass_systemd_security_analysis() {
    if !skip::has_tool("systemd-analyze") {
        return;
    }
    let place = tempfile::tempdir().expect("there is room for a directory");
    let binary = program::binary().display().to_string();
    for (unit, most) in MAX_EXPOSED {
        let file = place.path().join(unit);
        let text = text(unit);
        assert!(text.contains("ExecStart=/usr/local/bin/packetrig "), "{unit}");
        fs::write(&file, text.replace("/usr/local/bin/packetrig", &binary))
            .expect("there is room for a unit");
        let analyse = |arguments: &[&str]| {
            let output =
                Command::new("systemd-analyze").args(arguments).arg(&file).output().expect("it runs");
            let said = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&said).into_owned())
        };
        let (is_understood, said) = analyse(&["verify"]);
        let own = said.lines().find(|line| line.contains(unit));
        assert!(is_understood && own.is_none(), "{unit}: {said}");
        let most = format!("--threshold={most}");
        let (is_tight, said) = analyse(&["security", "--offline=true", "--no-pager", &most]);
        assert!(is_tight, "{unit}: {said}");
    }
}
