//! STAMP sessions with an implementation that is not ours, at either end.

mod preload;

use crate::sessions::{Files, KEY, counted, reflect};
use crate::stations::{FAR, NEAR, Stations};
use packetrig_tests::skip;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The foreign implementation: stamp-suite 0.8.0.
fn foreign() -> Option<PathBuf> {
    skip::client("stamp")
}

#[test]
fn a_foreign_reflector_is_understood() {
    let (Some(stations), Some(tool)) = (Stations::cabled(), foreign()) else { return };
    let files = Files::new();
    let key = files.key(KEY);
    for (port, auth, theirs) in
        [(8630, &[][..], &[][..]), (8631, &["--auth", &key][..], &["-A", "A", "--hmac-key", KEY][..])]
    {
        let port_text = port.to_string();
        let words = ["-i", "-S", FAR, "-o", &port_text, "--stateful-reflector", "--tlv-mode", "echo"];
        let mut command = Command::new(&tool);
        command.args(words).args(theirs).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut reflector = stations.netns(1).run_in_namespace(move || command.spawn().unwrap()).unwrap();
        let target = format!("{FAR}:{port}");
        let asked = ["stamp", &target, "-c", "20", "-i", "100ms", "--size", "300"];
        let (finished, said) = stations.probe(&[&asked[..], auth].concat());
        reflector.kill().unwrap();
        reflector.wait().unwrap();
        assert_eq!(said["directions"]["invalid"]["too_short"], 0, "{said} {}", finished.stderr);
        // It may take a moment to listen; whatever it reflected is understood.
        assert!(said["counts"]["answered"].as_u64().unwrap() >= 10, "{said}");
        assert_eq!(said["counts"]["duplicates"], 0);
        assert!(said["one_way"]["path"]["samples"].as_u64().unwrap() >= 9, "{said}");
    }
}

#[test]
fn a_foreign_sender_is_answered() {
    let (Some(stations), Some(tool)) = (Stations::cabled(), foreign()) else { return };
    let files = Files::new();
    let key = files.key(KEY);
    for (port, auth, theirs) in [
        (8640, &[][..], &[][..]),
        (8641, &["--auth", &key][..], &["-A", "A", "--hmac-key", KEY, "--require-hmac"][..]),
    ] {
        let reflector = reflect(&stations, port, auth);
        let port_text = port.to_string();
        let words =
            ["-r", FAR, "-S", NEAR, "-p", &port_text, "-o", "8650", "-c", "10", "-d", "50", "-L", "1"];
        let tlvs =
            ["--follow-up-telemetry", "--location", "--timestamp-info", "--direct-measurement", "--cos"];
        let mut command = Command::new(&tool);
        command.args(words).args(tlvs).args(["--output-format", "json"]).args(theirs);
        let done = stations.netns(0).run_in_namespace(move || command.output().unwrap()).unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let counts = counted(reflector);
        let context = format!("{counts} {said} {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!((&counts["requests"], &counts["reflected"]), (&10.into(), &10.into()), "{context}");
        println!("{said}");
        let begin = said.rfind("\n{").map_or(0, |at| at + 1);
        let summary: Value =
            serde_json::from_str(said[begin..].trim()).unwrap_or_else(|error| panic!("{error}: {context}"));
        assert_eq!(summary["packets_received"], 10, "{context}");
    }
}
