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
    checks_with(file, &[]);
}

/// The same with more clients: the variable that names one to the checks, and its program.
fn checks_with(file: &str, clients: &[(&str, &Path)]) {
    let Some(python) = skip::client("snappi") else { return };
    let Some(_turn) = skip::lab(Lab::cabled_pair) else { return };
    let mut command = Command::new(python);
    command.args(["-m", "pytest", file]).current_dir(suite()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PACKETRIG_BIN", program::binary()).envs(clients.iter().copied());
    let output = command.output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // A check that does not run is none: what cannot run is skipped here, by name.
    assert!(output.status.success() && !said.contains(" skipped"), "{file}\n{said}");
}

#[test]
fn patterns_are_on_the_wire_as_described() {
    checks("test_patterns.py");
}

#[test]
fn otg_sizes_and_payloads_match_the_wire() {
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

#[test]
fn answers_say_what_clients_expect() {
    checks("test_answers.py");
}

#[test]
fn server_survives_configuration_and_client_churn() {
    checks("test_churn.py");
}

#[test]
fn captures_hold_what_arrived() {
    checks("test_captures.py");
}

#[test]
fn devices_find_their_neighbours() {
    checks("test_devices.py");
}

#[test]
fn an_old_client_still_works() {
    let Some(old) = skip::client("old") else { return };
    checks_with("test_old.py", &[("OLD_CLIENT", &old)]);
}

#[test]
fn documents_are_posted_with_curl() {
    if skip::has_tool("curl") {
        checks("test_curl.py");
    }
}

#[test]
fn scripts_send_the_token_with_their_location() {
    checks("test_token.py");
}

#[test]
fn gosnappi_drives_the_server() {
    let Some(gosnappi) = skip::client("gosnappi") else { return };
    checks_with("test_gosnappi.py", &[("GOSNAPPI", &gosnappi)]);
}

#[test]
fn otgen_drives_the_server() {
    let Some(otgen) = skip::client("otgen") else { return };
    checks_with("test_otgen.py", &[("OTGEN", &otgen)]);
}
