//! The public clients of the OTG API drive the built server, whose frames other programs read: `tests/interop/otg`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_testkit::Lab;
use packetrig_tests::{program, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

fn suite() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/interop/otg")
}

/// Runs a file of checks. Each makes a network of its own; one at a time has the machine.
fn checks(file: &str) {
    let Some(python) = skip::otg_client() else { return };
    let Some(_turn) = skip::lab(Lab::pair) else { return };
    let mut command = Command::new(python);
    command.args(["-m", "pytest", file]).current_dir(suite()).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.env("PACKETRIG_BIN", program::binary()).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{file}\n{said}");
}

#[test]
fn patterns_are_on_the_wire_as_described() {
    checks("test_patterns.py");
}

#[test]
fn sizes_and_payloads_are_on_the_wire_as_described() {
    checks("test_sizes.py");
}

#[test]
fn headers_are_on_the_wire_as_described() {
    checks("test_headers.py");
}

#[test]
fn rates_and_durations_are_kept() {
    checks("test_rates.py");
}

#[test]
fn flows_are_controlled_one_by_one() {
    checks("test_control.py");
}
