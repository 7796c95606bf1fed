//! The small program as it is run: it has the commands of `packetrig probe`, measures with them, and says what it lacks.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_packetrig-probe");
const ALLOW: [&str; 2] = ["--allow", "127.0.0.0/8"];
/// The exit code for missing rights.
const NO_RIGHTS: Option<i32> = Some(5);

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).args(ALLOW).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn small_program_has_probe_commands_at_top_level() {
    let help = text(&Command::new(PROGRAM).arg("--help").output().unwrap().stdout);
    let commands = [
        "allowed",
        "ping",
        "stamp",
        "reflect",
        "oneway",
        "oneprobe",
        "capacity",
        "available",
        "send",
        "serve",
        "caps",
        "calibrate",
    ];
    for command in commands {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
}

#[test]
fn parquet_file_is_refused_before_sending() {
    let directory = std::env::temp_dir();
    let file = directory.join(format!("small-{}.parquet", std::process::id()));
    let name = file.to_str().unwrap();
    for command in [&["send", "lo", "--to", "127.0.0.1"][..], &["capacity", "127.0.0.1"]] {
        let done = run(&[command, &["--write", name]].concat());
        assert_eq!(done.status.code(), Some(2), "{command:?}");
        assert!(text(&done.stderr).contains("this build cannot write Parquet"), "{}", text(&done.stderr));
    }
    assert!(!file.exists());
}

#[test]
fn two_small_programs_measure_a_session() {
    let mut reflector = Command::new(PROGRAM)
        .args(["reflect", "127.0.0.1:0", "--time", "60s"])
        .args(ALLOW)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let remarks = BufReader::new(reflector.stderr.take().unwrap()).lines();
    let address = remarks
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("reflect: listening on ").map(str::to_owned));
    let Some(address) = address else {
        assert_eq!(reflector.wait().unwrap().code(), NO_RIGHTS);
        println!("skipped: no rights for stamps of the kernel");
        return;
    };
    let done = run(&["stamp", &address, "--count", "5", "--interval", "20ms", "--json"]);
    reflector.kill().unwrap();
    reflector.wait().unwrap();
    if done.status.code() == NO_RIGHTS {
        println!("skipped: no rights for raw sockets");
        return;
    }
    let said = text(&done.stdout);
    let said: serde_json::Value =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}{}", text(&done.stderr)));
    assert_eq!((&said["counts"]["sent"], &said["counts"]["answered"]), (&5.into(), &5.into()), "{said}");
}
