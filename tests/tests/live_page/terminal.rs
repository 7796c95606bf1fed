//! A run is steered from a terminal, as somebody who has logged in over ssh does it.

use crate::screen::WatchedTerminal;
use packetrig_tests::program::Running;
use packetrig_tests::served_lab::ServedLab;
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::Value;

/// The number between two texts of the screen.
fn between(screen: &str, before: &str, after: &str) -> u64 {
    let rest = screen.split(before).nth(1).unwrap_or_default();
    let digits: String =
        rest.split(after).next().unwrap_or_default().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

fn received(screen: &str) -> u64 {
    // Up to the place of the rate, which is aligned.
    let line = screen.lines().find(|line| line.starts_with("Received ")).unwrap_or_default();
    between(&line.chars().take(24).collect::<String>(), "Received ", "pps")
}

fn lost_on_path(screen: &str) -> u64 {
    between(screen, "path or in doubt", "our receiver")
}

/// Frames that are in flight or lost.
fn open(screen: &str) -> u64 {
    if screen.contains("in flight or lost") { between(screen, " lost;", " other frame") } else { 0 }
}

#[test]
fn terminal_keys_start_change_and_stop_run() {
    let Some(mut rig) = ServedLab::start(18_921) else { return };
    let Some(mut terminal) = WatchedTerminal::start(&["watch", &rig.origin()]) else { return };
    terminal.await_screen("no configuration", |screen| screen.contains("has no configuration yet"));
    rig.post("/config", &rig.configuration());
    terminal.await_screen("two streams", |screen| screen.contains("0 of 2 streams send"));

    terminal.press("t");
    terminal.await_screen("frames", |screen| screen.contains("1 of 2 streams send") && received(screen) > 0);
    terminal.press("e2000pps\r");
    terminal.await_screen("the answer", |screen| screen.contains("done: set the rate of"));
    let rate = |rig: &ServedLab| rig.get("/config")["flows"][0]["rate"]["pps"].clone();
    assert_eq!(rate(&rig), "2000");
    terminal.press("-");
    terminal.await_screen("the answer", |screen| screen.contains("done: change the rate of"));
    assert_eq!(rate(&rig), "1820");
    terminal.press("p");
    terminal.await_screen("the pause", |screen| screen.contains("0 of 2 streams send, 1 paused"));
    terminal.press("r");
    terminal.await_screen("the end of the pause", |screen| screen.contains("1 of 2 streams send;"));

    rig.cut_the_path();
    let cut = terminal.await_screen("frames without an end", |screen| open(screen) > 300);
    assert_eq!(between(&cut, "our sender", "path or in doubt"), 0, "{cut}");
    terminal.press("x");
    let stopped = terminal
        .await_screen("the end of motion", |screen| screen.contains("frames are lost") && open(screen) == 0);
    let live = rig.get("/api/v1/live");
    assert_eq!(Some(lost_on_path(&stopped)), live["run"]["losses"]["path_or_in_doubt"].as_u64(), "{stopped}");
    assert_eq!(live["run"]["totals"]["started"], 0);

    rig.restart();
    terminal.await_screen("the new server", |screen| {
        screen.contains("connected") && screen.contains("has no configuration yet")
    });
    terminal.press("q");
    assert_eq!(terminal.finish(), "");
}

#[test]
fn signal_ends_watch_and_restores_terminal() {
    let Some(rig) = ServedLab::start(18_922) else { return };
    let Some(mut terminal) = WatchedTerminal::start(&["watch", &rig.origin()]) else { return };
    terminal.await_screen("a connection", |screen| screen.contains("connected"));
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.finish(), "");
}

#[test]
fn the_screen_ends_with_its_terminal() {
    let Some(mut rig) = ServedLab::start(18_925) else { return };
    let Some(mut terminal) = WatchedTerminal::start(&["watch", &rig.origin()]) else { return };
    terminal.await_screen("a connection", |screen| screen.contains("connected"));
    terminal.hang_up();

    // So does one that follows nobody any more.
    let Some(mut terminal) = WatchedTerminal::start(&["watch", &rig.origin()]) else { return };
    terminal.await_screen("a connection", |screen| screen.contains("connected"));
    rig.restart();
    terminal.hang_up();
}

#[test]
fn without_a_terminal_there_are_lines_and_json() {
    let Some(mut rig) = ServedLab::start(18_923) else { return };
    rig.post("/config", &rig.configuration());
    rig.post("/api/v1/streams", &serde_json::json!({ "change": "start" }));
    let mut lines = Running::start(&["watch", &rig.origin()], "");
    let mut events = Running::start(&["watch", &rig.origin(), "--json"], "");
    lines.await_printed("2 of 2 streams send");
    lines.await_printed("path or in doubt 0");
    events.await_printed("\"event\":\"live\"");
    rig.restart();
    lines.await_remark("trying again");
    lines.await_printed("no configuration");
    events.await_printed("\"event\":\"connection_lost\"");
    for mut program in [lines, events] {
        program.signal(Signal::TERM);
        let ended = program.finish();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
        let of_json = ended.stdout.lines().filter(|line| is_json(line)).count();
        assert!(of_json == 0 || of_json == ended.stdout.lines().count(), "{}", ended.stdout);
    }
}

#[test]
fn watch_names_missing_token_and_certificate_flags() {
    if skip::lab(|| packetrig_testkit::Lab::with_bridge(2)).is_none() {
        return;
    }
    let arguments = [
        "serve",
        "--http",
        "127.0.0.1:18924",
        "--no-grpc",
        "--store",
        "{out}",
        "--token-file",
        "token",
        "--view-token-file",
        "view",
        "--token-always",
    ];
    let mut server = Running::start(&arguments, "");
    server.await_printed("Live page");
    let token = server.directory().join("view").display().to_string();
    let watch = |more: &[&str]| {
        let arguments = [&["watch", "127.0.0.1:18924", "--lines"], more].concat();
        Running::start(&arguments, "")
    };
    watch(&[]).finish().assert_refused(5, &["--token-file"]);
    watch(&["--token-file", &token]).finish().assert_refused(2, &["--ca FILE", "--insecure"]);
    let mut watched = watch(&["--token-file", &token, "--insecure"]);
    watched.await_printed("no configuration");
}
