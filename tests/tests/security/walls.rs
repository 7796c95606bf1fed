//! What each long-running program still may do once it has started, as the kernel says: the table of `docs/book/sandbox.md`.

use packetrig_sys::caps::ThreadRights;
use packetrig_sys::sandbox::{ProcessCapabilities, ProcessUser, read_thread_statuses};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::program::{self, Running};
use packetrig_tests::skip;
use packetrig_tests::tools::post;
use packetrig_tests::walls::{Holding, RIG};
use rustix::process::Signal;
use serde_json::json;
use std::process::Command;

/// Once the program has said that its sandbox stands.
fn holding(program: &'static str, running: &mut Running) -> Holding {
    running.await_remark(&format!("{program}: sandbox: "));
    running.await_remark(", seccomp");
    Holding::of(program, running.process(), &running.remarks())
}

fn start(arguments: &[&str]) -> Running {
    Running::start(arguments, "")
}

fn is_root() -> bool {
    ThreadRights::current().user == 0
}

#[test]
fn a_collector_holds_nothing_and_is_nobody() {
    let places = ["--listen", "udp://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0"];
    let mut running = start(&[&["collect", "--time", "60s"][..], &places].concat());
    let held = holding("collect", &mut running);
    assert!(held.threads.len() > 3, "threads that were there before have given up their rights, too");
    held.assert_at_most(ProcessCapabilities::NONE);
    if is_root() {
        held.assert_user("nobody");
    }
}

#[test]
fn collector_runs_as_owner_of_its_directory() {
    if !is_root() || ProcessUser::find_by_name("nobody").is_err() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let owned = place.path().join("owned");
    std::fs::create_dir(&owned).unwrap();
    let nobody = ProcessUser::find_by_name("nobody").unwrap();
    std::os::unix::fs::chown(&owned, Some(nobody.uid), Some(nobody.gid)).unwrap();
    let mut permissions = std::fs::metadata(place.path()).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(place.path(), permissions).unwrap();
    let listen = ["collect", "--time", "60s", "--listen", "udp://127.0.0.1:0", "--directory"];
    let mut running = start(&[&listen[..], &[owned.to_str().unwrap()]].concat());
    holding("collect", &mut running).assert_user("nobody");
    // What is root's stays usable for root only, and the line says so.
    let of_root = place.path().join("of-root");
    let mut running = start(&[&listen[..], &[of_root.to_str().unwrap()]].concat());
    let held = holding("collect", &mut running);
    held.assert_user("root");
    held.assert_at_most(ProcessCapabilities::NONE);
    assert!(running.remarks().contains("root because"), "{}", running.remarks());
}

#[test]
fn meter_keeps_no_capabilities_for_any_source() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let location = LabPort::location(&lab.ports()[0]);
    let has_bpf = skip::may_use_bpf(packetrig_sys::xdp::bpf_obstacle().map_or(Ok(()), Err));
    for source in ["packet", "xdp", "headers"].into_iter().take(if has_bpf { 3 } else { 1 }) {
        let mut running = start(&["meter", &location, "--source", source, "--time", "60s"]);
        let held = holding("meter", &mut running);
        held.assert_at_most(ProcessCapabilities::NONE);
        held.assert_user("nobody");
        // Its end takes no rights either.
        running.signal(Signal::INT);
        let finished = running.finish();
        assert_eq!(finished.code, Some(0), "{source}: {}", finished.stderr);
    }
}

#[test]
fn a_reflector_holds_nothing() {
    let mut running = start(&["probe", "reflect", "127.0.0.1:18620", "--time", "60s"]);
    let held = holding("reflect", &mut running);
    held.assert_at_most(ProcessCapabilities::NONE);
    if is_root() {
        held.assert_user("nobody");
    }
}

#[test]
fn server_confines_capabilities_from_requests() {
    let Some(_lab) = skip::lab(Lab::cabled_pair) else { return };
    let mut running = start(&["serve", "--plain-http", "--http", "127.0.0.1:0", "--no-grpc"]);
    // By then the threads that read requests are there.
    running.await_printed("OTG over HTTP");
    let held = holding("serve", &mut running);
    held.assert_at_most(RIG);
    held.assert_confined("server");
    held.assert_confined("packetrig");
}

#[test]
fn a_page_of_results_holds_nothing() {
    let mut running = start(&["page", "--listen", "127.0.0.1:0", "--store", "{out}"]);
    running.await_printed("Page:");
    holding("page", &mut running).assert_at_most(ProcessCapabilities::NONE);
}

#[test]
fn run_in_namespace_needs_no_extra_capability() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    if !skip::has_tool("curl") {
        return;
    }
    let locations: Vec<String> = lab.ports().iter().map(LabPort::location).collect();
    assert!(locations.iter().all(|location| location.contains('/')), "in namespaces: {locations:?}");
    let mut running = start(&["serve", "--plain-http", "--http", "127.0.0.1:18980", "--no-grpc"]);
    running.await_printed("OTG over HTTP");
    let ports =
        [json!({"name": "a", "location": locations[0]}), json!({"name": "b", "location": locations[1]})];
    let answered = post("http://127.0.0.1:18980/config", &json!({ "ports": ports }).to_string());
    assert_eq!(answered, r#"{"warnings":[]}"#);
    let held = holding("serve", &mut running);
    held.assert_at_most(RIG);
    assert!(held.threads.iter().any(|thread| thread.name.starts_with("rx-")), "{:?}", held.threads);
}

#[test]
fn without_a_sandbox_the_first_lines_say_so() {
    let mut running =
        start(&["collect", "--sandbox", "off", "--time", "60s", "--listen", "udp://127.0.0.1:0"]);
    running.await_remark("collect: sandbox off: ");
    let threads = read_thread_statuses(running.process()).unwrap();
    assert!(threads.iter().all(|thread| !thread.is_filtered), "{threads:?}");
}

#[test]
fn unknown_user_is_refused_before_opening() {
    let finished = start(&["collect", "--user", "no-such-user", "--time", "1s"]).finish();
    if is_root() {
        finished.assert_refused(super::USAGE, &["no-such-user", "--user"]);
    }
}

#[test]
fn root_without_setuid_stays_root_and_warns() {
    if !is_root() || !skip::has_tool("setpriv") {
        return;
    }
    let start = |more: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--"]).arg(program::binary());
        command.args(["collect", "--listen", "udp://127.0.0.1:0", "--time", "200ms"]).args(more);
        command.output().unwrap()
    };
    let output = start(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("uid 0 (root), no capability") && said.contains("CAP_SETUID"), "{said}");
    let output = start(&["--user", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(super::USAGE) && said.contains("--user 1"), "{said}");
}
