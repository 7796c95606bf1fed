//! Screens of given facts at several sizes, as stored text; and what keys do to them.

use super::draw::{Theme, draw_screen};
use super::facts::{format_latency_or_dash, format_rate_or_dash};
use super::follow::WatchEvent;
use super::keys::{INTERRUPT_KEY, KEY_HANDLERS, on_key};
use super::lines::format_run_line;
use super::orders::{OrderedChange, StreamCommand};
use super::state::{ServerConnection, StreamControl, WatchState};
use packetrig_server::client::ServerEvent;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

fn server_event(name: &str, data: Value) -> WatchEvent {
    WatchEvent::Server(ServerEvent { name: name.to_owned(), data })
}

/// A run of two streams, of which one has lost frames on the path.
fn live() -> Value {
    json!({
        "schema_version": 1,
        "configuration": 1,
        "run": {
            "id": "20261126-051100-serve", "state": "running", "ended": null, "elapsed_ms": 12_345,
            "totals": {
                "frames_tx": 1_234_567, "frames_rx": "1234500", "frames_tx_rate": 100_000.0, "frames_rx_rate": 99_950.5,
                "bytes_tx_rate": 20_000_000.0, "bytes_rx_rate": 19_990_000.0, "started": 1, "paused": 1,
                "latency_ns": {"min": 8_100.0, "mean": 12_345.6, "max": 1_500_000.0},
            },
            "ledger": {
                "built": 1_234_567, "refused": 0, "on_wire": 1_234_567, "arrived": 1_234_510, "ring_dropped": 0,
                "foreign": 10, "duplicate": 0, "counted": 1_234_500,
            },
            "losses": {"lost": 60, "in_flight_or_lost": 7, "in_motion": true, "sender": 0, "path_or_in_doubt": 60, "receiver": 0},
            "ports": [
                {"name": "left", "location": "lab/eth1", "back_end": "packet", "speed_bits_per_second": 10_000_000_000_u64,
                 "link_up": true, "frames_tx": 1_234_567, "frames_rx": 0, "frames_tx_rate": 100_000.0, "frames_rx_rate": 0.0,
                 "frames_dropped": 0},
                {"name": "right", "location": "lab/eth2", "back_end": "packet", "speed_bits_per_second": null,
                 "link_up": false, "frames_tx": 0, "frames_rx": 1_234_500, "frames_tx_rate": 0.0,
                 "frames_rx_rate": 99_950.5, "frames_dropped": 3},
            ],
            "streams": {"total": 2, "matching": 2, "from": 0, "columns": {
                "name": ["video", "voice \u{1b}[31mred\u{202e}"], "port_tx": ["left", "left"], "port_rx": ["right", "right"],
                "state": ["started", "paused"], "frames_tx": [1_234_000, 567], "frames_rx": [1_233_933, null],
                "lost": [60, null], "in_flight_or_lost": [7, null], "loss_percent": [0.005, null], "frames_tx_rate": [100_000.0, 0.0],
                "frames_rx_rate": [99_950.5, null], "bytes_tx_rate": [20_000_000.0, 0.0],
                "latency_mean_ns": [12_345.6, null], "latency_max_ns": [1_500_000.0, null],
            }},
            "findings": ["the link of right went down"],
        },
    })
}

fn history() -> Value {
    let seconds: Vec<u64> = (0..=12).collect();
    let sum = |count: &u64| count * count * 1000;
    let counts: Vec<u64> = seconds.iter().map(sum).collect();
    let times: Vec<u64> = seconds.iter().map(|second| second * 1000).collect();
    json!({"configuration": 1, "columns": {"elapsed_ms": times, "frames_tx": counts, "frames_rx": counts}})
}

fn watched() -> WatchState {
    let mut state = WatchState::new("https://127.0.0.1:8443".to_owned(), StreamControl::Allowed);
    state.on_event(WatchEvent::Connected);
    state.on_event(server_event("history", history()));
    state.on_event(server_event("live", live()));
    state
}

fn screen(state: &WatchState, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen in memory");
    terminal.draw(|frame| draw_screen(frame, state, Theme::new(false))).expect("draws");
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(width)).map(|cells| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

fn press(state: &mut WatchState, keys: &str) -> Option<StreamCommand> {
    keys.chars()
        .map(|key| match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            key => KeyCode::Char(key),
        })
        .fold(None, |_, code| on_key(state, code))
}

/// Compares a screen with the stored one. `UPDATE_GOLDEN=1 cargo test -p packetrig` writes them anew.
#[track_caller]
fn compare(name: &str, screen: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("watch-{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, screen).expect("there is room for a screen");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(screen == wanted, "{name} differs from {}:\n{screen}\ninstead of:\n{wanted}", path.display());
}

#[test]
fn screens_of_every_size_are_as_stored() {
    let mut state = watched();
    for (width, height) in [(60, 15), (80, 24), (120, 30), (200, 60)] {
        compare(&format!("{width}x{height}"), &screen(&state, width, height));
    }
    press(&mut state, "\t");
    compare("ports", &screen(&state, 80, 24));
    press(&mut state, "?");
    compare("help", &screen(&state, 80, 24));
}

/// The live page's script passes the same cases (`tests/tests/page`).
#[test]
fn numbers_have_the_forms_of_the_live_page() {
    let cases: Value =
        serde_json::from_str(include_str!("../../../../page/assets/number_cases.json")).expect("JSON");
    for case in cases["short"].as_array().expect("cases") {
        let (value, wanted) = (case[1].as_f64(), case[2].as_str().expect("a text").replace('µ', "u"));
        let text = if case[0] == "time" {
            format_latency_or_dash(value)
        } else {
            format_rate_or_dash(value, "bit/s")
        };
        assert_eq!(text, wanted, "{case}");
    }
}

#[test]
fn the_book_shows_the_screen_as_it_is() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/watch.md");
    let text = std::fs::read_to_string(page).expect("the page is there");
    assert!(text.contains(&screen(&watched(), 80, 24)), "copy tests/golden/watch-80x24.txt");
}

#[test]
fn watch_screen_renders_at_any_size() {
    let mut state = watched();
    for keys in ["", "\t", "?", "?/vi"] {
        press(&mut state, keys);
        for (width, height) in [(1, 1), (2, 3), (20, 5), (59, 14), (300, 100)] {
            assert_eq!(screen(&state, width, height).lines().count(), usize::from(height));
        }
    }
}

#[test]
fn long_names_keep_their_ends() {
    let mut state = watched();
    let mut long = live();
    long["run"]["streams"]["columns"]["name"] = json!(["best-effort-customer-a", "best-effort-customer-b"]);
    state.on_event(server_event("live", long.clone()));
    let shown = screen(&state, 80, 24);
    assert!(shown.contains("best-ef…stomer-a ") && shown.contains("best-ef…stomer-b "), "{shown}");
    // Routes of one flow have its name. Without their column, the ports tell them apart.
    long["run"]["streams"]["columns"]["name"] = json!(["video", "video"]);
    long["run"]["streams"]["columns"]["port_rx"] = json!(["right", "below"]);
    state.on_event(server_event("live", long));
    let shown = screen(&state, 80, 24);
    assert!(shown.contains("video l… > right ") && shown.contains("video l… > below "), "{shown}");
}

#[test]
fn run_without_accounts_has_losses_in_one_line() {
    let mut state = watched();
    let mut probes = live();
    probes["run"]["ledger"] = json!({});
    probes["run"]["losses"]["path_or_in_doubt"] = Value::Null;
    state.on_event(server_event("live", probes.clone()));
    let shown = screen(&state, 80, 24);
    assert!(shown.contains("Lost: sender 0 | path or in doubt ? | receiver 0"), "{shown}");
    // With accounts, a place without a count has a question mark where the words have no room.
    probes["run"]["ledger"] = json!({"built": 1});
    state.on_event(server_event("live", probes));
    let shown = screen(&state, 80, 24);
    assert!(shown.contains("path or in doubt        ?  our receiver"), "{shown}");
    assert!(shown.contains("refused      not measured"), "{shown}");
}

#[test]
fn control_codes_in_names_are_removed() {
    let mut state = watched();
    let mut hostile = live();
    let text = "\u{1b}]0;owned\u{7}\u{9b}31m\r\n\u{202e}";
    for pointer in ["/run/id", "/run/state", "/run/ended", "/run/findings/0", "/run/ports/0/name"] {
        *hostile.pointer_mut(pointer).expect("it is there") = text.into();
    }
    hostile["run"]["streams"]["columns"]["name"][0] = text.into();
    state.on_event(server_event("live", hostile));
    state.on_event(WatchEvent::Lost(text.to_owned()));
    press(&mut state, "p");
    for shown in [screen(&state, 200, 60), format_run_line(state.shown_run().expect("a run"))] {
        let is_control = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
        assert_eq!(shown.chars().find(is_control), None, "{shown}");
    }
}

#[test]
fn keys_change_selected_or_all_streams() {
    let mut state = watched();
    let order = |change, streams: &[&str]| {
        let streams = streams.iter().map(|name| (*name).to_owned()).collect();
        Some(StreamCommand { change, streams })
    };
    assert_eq!(press(&mut state, "t"), order(OrderedChange::Start, &["video"]));
    assert_eq!(press(&mut state, "p"), order(OrderedChange::Pause, &["video"]));
    assert_eq!(press(&mut state, "ar"), order(OrderedChange::Resume, &[]));
    assert_eq!(press(&mut state, "x"), order(OrderedChange::Stop, &[]));
    let faster = press(&mut state, "a+").expect("an order");
    assert_eq!(
        (faster.path(), faster.body()),
        ("/api/v1/rates", json!({"percent": 110, "streams": ["video"]}))
    );
    let typed = press(&mut state, "je2kpps\n").expect("an order");
    // The name goes back as it came.
    assert_eq!(typed.body(), json!({"rate": "2kpps", "streams": ["voice \u{1b}[31mred\u{202e}"]}));
    assert_eq!(press(&mut state, "efast\n"), None);
    assert!(state.message.contains("`fast` is not a rate"), "{}", state.message);
    state.on_event(WatchEvent::Ordered { order: typed, refusal: Some("port left is busy".to_owned()) });
    assert!(state.message.ends_with("port left is busy"));
}

#[test]
fn viewer_cannot_change_streams() {
    for (control, reason) in
        [(StreamControl::ViewerToken, "--token-file"), (StreamControl::PlainRun, "packetrig serve")]
    {
        let mut state = watched();
        state.control = control;
        for key in ["t", "x", "p", "r", "+", "-", "e"] {
            assert_eq!(press(&mut state, key), None);
            assert!(state.entry.is_none() && state.message.contains(reason));
        }
        assert!(!screen(&state, 120, 30).contains("p pause"));
    }
}

#[test]
fn frozen_view_stays_while_state_updates() {
    let mut state = watched();
    press(&mut state, " ");
    let mut later = live();
    later["run"]["totals"]["frames_tx"] = json!(2_000_000);
    state.on_event(server_event("live", later));
    let frozen = screen(&state, 80, 24);
    assert!(frozen.contains("FROZEN") && frozen.contains("1 234 567") && !frozen.contains("2 000 000"));
    press(&mut state, " ");
    assert!(screen(&state, 80, 24).contains("2 000 000"));
}

#[test]
fn selection_follows_its_stream_when_rows_move() {
    let mut state = watched();
    press(&mut state, "j");
    assert_eq!(state.selected_place(), 1);
    let mut moved = live();
    change_columns(&mut moved, |column| column.reverse());
    state.on_event(server_event("live", moved));
    assert_eq!(state.selected_place(), 0);
    press(&mut state, "G");
    assert_eq!(state.selected_row().expect("a row").name(), "video");
}

/// Changes the rows of streams, column by column.
fn change_columns(live: &mut Value, change: fn(&mut Vec<Value>)) {
    let streams = &mut live["run"]["streams"];
    for column in streams["columns"].as_object_mut().expect("columns").values_mut() {
        change(column.as_array_mut().expect("a column"));
    }
    let rows = streams["columns"]["name"].as_array().expect("names").len();
    streams["matching"] = json!(rows);
}

#[test]
fn vanished_stream_passes_selection_to_next_row() {
    let mut state = watched();
    assert_eq!(state.describe_key_target(), "video");
    let mut changed = live();
    change_columns(&mut changed, |column| drop(column.remove(0)));
    state.on_event(server_event("live", changed.clone()));
    assert_eq!(state.selected_place(), 0);
    let stopped = press(&mut state, "x").expect("an order");
    assert_eq!(stopped.streams, ["voice \u{1b}[31mred\u{202e}"]);
    change_columns(&mut changed, Vec::clear);
    state.on_event(server_event("live", changed));
    assert_eq!(press(&mut state, "x"), None);
    assert!(state.message.contains("no stream is selected"), "{}", state.message);
}

#[test]
fn selection_moves_between_routes_of_one_flow() {
    let mut state = watched();
    let mut routes = live();
    routes["run"]["streams"]["columns"]["name"][1] = json!("video");
    state.on_event(server_event("live", routes.clone()));
    press(&mut state, "j");
    state.on_event(server_event("live", routes));
    assert_eq!(state.selected_place(), 1);
}

#[test]
fn new_configuration_clears_curves() {
    let mut state = watched();
    let points = |state: &WatchState| state.shown_snapshot().rates.latest_rate_points(usize::MAX).count();
    assert_eq!(points(&state), 12);
    let mut next = live();
    next["configuration"] = json!(2);
    next["run"]["elapsed_ms"] = json!(200);
    state.on_event(server_event("live", next));
    assert_eq!(points(&state), 1);
    state.on_event(server_event("live", json!({"configuration": 3, "run": null})));
    assert_eq!(points(&state), 0);
}

#[test]
fn stream_window_follows_sort_filter_and_scroll() {
    let mut state = watched();
    press(&mut state, "sss");
    assert_eq!(state.stream_window().sort, "-frames_tx");
    press(&mut state, "S");
    assert_eq!(state.stream_window().sort, "frames_tx");
    press(&mut state, "/vi\n");
    assert_eq!(state.stream_window().filter, "vi");
    let mut many = live();
    many["run"]["streams"]["matching"] = json!(4096);
    state.on_event(server_event("live", many));
    press(&mut state, "G");
    let window = state.stream_window();
    assert_eq!((state.selected_place(), window.from, window.rows), (4095, 3900, 300));
    // Rows that have not come yet have no name, and no key acts on them.
    assert!(screen(&state, 80, 24).contains('…'));
    assert_eq!(press(&mut state, "x"), None);
}

#[test]
fn lost_connection_is_shown_with_last_state() {
    let mut state = watched();
    state.on_event(WatchEvent::Lost("the connection is lost".to_owned()));
    let shown = screen(&state, 100, 24);
    assert!(shown.contains("LOST, trying again: the connection is lost") && shown.contains("1 234 567"));
    state.on_event(WatchEvent::Connected);
    assert_eq!(state.link, ServerConnection::Connected);
    state.on_event(server_event("live", json!({"configuration": 0, "run": null})));
    assert!(screen(&state, 100, 24).contains("has no configuration yet"));
    assert_eq!(press(&mut state, "t"), None);
}

#[test]
fn keys_are_unique_and_on_help_page() {
    let mut state = watched();
    let mut keys = BTreeSet::new();
    press(&mut state, "?");
    let help = screen(&state, 120, 40);
    for handler in KEY_HANDLERS {
        assert!(keys.insert(handler.key), "{} is there twice", handler.key);
        assert!(help.contains(handler.explanation), "{}", handler.explanation);
    }
    press(&mut state, "q");
    assert!(!state.has_ended, "any key closes the help page");
    press(&mut state, "/q");
    assert!(!state.has_ended, "while text is entered, keys are letters");
    on_key(&mut state, INTERRUPT_KEY);
    assert!(state.has_ended);
}

#[test]
fn watch_line_has_facts_of_screen() {
    let state = watched();
    assert_eq!(
        format_run_line(state.shown_run().expect("a run")),
        "12.3 s  1 of 2 streams send  sent 1 234 567 (100 kpps, 160 Mbit/s)  received 1 234 500 (100 kpps)  \
         60 frames are lost; 7 other frames are in flight or lost: our sender 0, path or in doubt 60, our receiver 0  \
         latency mean 12.3 us"
    );
}
