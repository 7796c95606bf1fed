//! A hostile client of the OTG API against the built server: `tests/hostile/otg_client.py`. Each test is one of its checks; what
//! they all assert is what remains possible for an honest client.

use packetrig_testkit::Lab;
use packetrig_tests::{program, skip};
use std::path::Path;
use std::process::Command;

/// Runs a check. It makes a network of its own and acts as other users in it.
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#[expect(clippy::print_stdout, reason = "the runner keeps what was measured")]
fn check(name: &str) {
    let Some(_turn) = skip::lab(Lab::cabled_pair) else { return };
    if !skip::has_tool("python3") || !skip::has_other_users() {
        return;
    }
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile");
    let mut command = Command::new("python3");
    command.args(["otg_client.py", name]).current_dir(suite).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.env("PACKETRIG_BIN", program::binary()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(&format!("ok: {name}")), "{name}\n{said}\n{why}");
    print!("{said}");
}

#[test]
fn web_pages_change_nothing() {
    check("pages");
}

#[test]
fn other_users_are_refused_without_the_token() {
    check("users");
}

#[test]
fn refused_bodies_do_not_lock_out_token_holder() {
    check("refused_bodies");
}

#[test]
fn rapid_resets_leave_the_server_as_it_was() {
    check("rapid_reset");
}

#[test]
fn huge_heads_are_cut_off() {
    check("huge_heads");
}

/// These wait for deadlines of the server to pass.
mod slow {
    use super::check;

    #[test]
    fn idle_connections_take_no_place() {
        check("idle");
    }

    #[test]
    fn slow_heads_take_no_place() {
        check("slow_heads");
    }

    #[test]
    fn slow_bodies_take_no_place_for_long() {
        check("slow_bodies");
    }

    #[test]
    fn connections_without_a_preface_take_no_place() {
        check("no_preface");
    }

    #[test]
    fn slow_readers_take_no_place_for_long() {
        check("slow_readers");
    }
}
