//! The public OTG client drives the server, over both transports; behind it is a mock of a tester.

#[path = "../../../crates/server/tests/api/mock.rs"]
mod mock;

use mock::{Served, plain};
use packetrig_server::ServerOptions;
use packetrig_tests::skip;
use std::process::Command;

/// Runs one check of `otg_client.py`.
fn check(arguments: &[&str]) {
    let Some(python) = skip::client("snappi") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/otg_client.py");
    let output = Command::new(python).arg(script).args(arguments).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("all is well"), "{arguments:?}\n{said}");
}

fn drive(served: &Served, transport: &str) {
    let location = match transport {
        "https" => format!("https://{}", served.bound.http.unwrap()),
        "http" => format!("http://{}", served.bound.http.unwrap()),
        _ => served.bound.grpc.unwrap().to_string(),
    };
    check(&["drive", transport, &location]);
}

#[test]
fn snappi_drives_the_server_over_http() {
    drive(&Served::start(plain()), "http");
}

#[test]
fn snappi_drives_server_over_self_signed_https() {
    drive(&Served::start(ServerOptions { http_tls: true, ..plain() }), "https");
}

#[test]
fn snappi_drives_the_server_over_grpc() {
    drive(&Served::start(plain()), "grpc");
}

#[test]
fn snappi_drives_the_server_over_grpc_in_slices() {
    drive(&Served::start(plain()), "grpc-slices");
}

#[test]
fn otg_model_subset_matches_public_model() {
    let directory = tempfile::tempdir().unwrap();
    let descriptor = directory.path().join("otg.bin");
    std::fs::write(&descriptor, packetrig_server::OTG_DESCRIPTOR).unwrap();
    let refused = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/server/model/compiled/refused.txt");
    check(&["model", descriptor.to_str().unwrap(), refused]);
}
