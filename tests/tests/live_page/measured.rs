//! Flows, logs, taps and calibration on the page, as other commands left them.

use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_tests::browser::Browser;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::page_client::PageClient;
use packetrig_tests::program::{self, Running};
use packetrig_tests::{recording, skip};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

/// `packetrig page` at a port of its own.
struct PageServer {
    _server: Running,
    client: PageClient,
}

impl PageServer {
    fn start(port: u16, more: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let mut server =
            Running::start(&[&["page", "--listen", &listen, "--store", "{out}"], more].concat(), "");
        server.await_printed(&format!("Page: http://{listen}/ui/"));
        Self { _server: server, client: PageClient { port } }
    }

    fn get(&self, path: &str) -> Value {
        self.client.get(&format!("/api/v1/{path}"))
    }

    fn await_get(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        self.client.await_get(&format!("/api/v1/{path}"), condition)
    }

    fn open(&self, browser: &mut Browser, page: &str) {
        browser.open_address(&format!("{}/ui/#/{page}", self.client.origin()));
        browser.reload();
    }
}

/// What `packetrig flows` prints.
fn flows(arguments: &[&str]) -> String {
    let finished = Running::start(&[&["flows"], arguments].concat(), "").finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}

/// Flow records of 600 known frames.
fn meter(into: &Path) {
    let (_directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let (file, into) = (file.display().to_string(), into.display().to_string());
    let finished = Running::start(&["meter", &file, "--json", "-q", "--directory", &into], "").finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

#[test]
fn page_flows_match_the_command_line() {
    let stored = tempfile::tempdir().expect("there is room");
    meter(&stored.path().join("flows"));
    let place = stored.path().join("flows").display().to_string();
    // A table may be on another disk.
    let elsewhere = tempfile::tempdir().expect("there is room");
    let table = stored.path().join("flows/flows");
    std::fs::rename(&table, elsewhere.path().join("moved")).expect("the same disk");
    std::os::unix::fs::symlink(elsewhere.path().join("moved"), &table).expect("a link");
    let page = PageServer::start(18_931, &["--flows", &place]);
    let totals = page.get("flows/totals");
    let printed: Value = serde_json::from_str(&flows(&["stats", &place, "--json"])).expect("JSON");
    for name in ["records", "flows", "packets", "bytes", "frame_bytes", "files", "records_with_loss"] {
        assert_eq!(totals[name], printed[name], "{name}: {totals}");
    }
    assert_eq!(totals["packets"], 500);
    let over_time = totals["timeline"]["packets"].as_array().expect("a timeline");
    assert_eq!(over_time.iter().filter_map(Value::as_u64).sum::<u64>(), 500);
    assert_eq!(totals["meters"][0]["ledger"]["packets"]["recorded"], 500, "{totals}");

    let top = page.get("flows/top?by=protocol&order=packets&filter=proto%20udp");
    let printed =
        flows(&["top", &place, "--by", "protocol", "--order", "packets", "--filter", "proto udp", "--json"]);
    let printed: Value = serde_json::from_str(&printed).expect("one group");
    for name in ["protocol", "packets", "bytes", "flows", "packets_per_second", "duration_ns"] {
        assert_eq!(top["groups"][0][name], printed[name], "{name}: {top}");
    }
    assert_eq!(page.get("flows/top?order=PACKETS")["order"], "packets");
    let (status, refused) = page.client.answer("GET", "/api/v1/flows/top?filter=nonsense%20here", "");
    assert!(status == 400 && refused.contains("\"filter: "), "{refused}");
}

#[test]
fn empty_flow_directory_is_shown_and_missing_refused() {
    let empty = tempfile::tempdir().expect("there is room");
    let place = empty.path().display().to_string();
    let page = PageServer::start(18_932, &["--flows", &place]);
    assert_eq!(page.get("flows/totals")["packets"], 0);
    assert_eq!(page.get("flows/top")["groups"], serde_json::json!([]));
    let missing = format!("{place}/missing");
    let refused = Running::start(&["page", "--flows", &missing], "").finish();
    refused.assert_refused(2, &["missing"]);
}

/// A tap with a log behind its mirror, through which a run has sent.
struct TappedLink {
    _lab: skip::OwnLab,
    tap: Running,
    log: Running,
}

const FRAMES: u64 = 1000;
/// Looks at a log that is to have all frames, and the time between two.
const MAX_LOOKS: u32 = 1000;
const LOOK_NS: u64 = 20_000_000;

impl TappedLink {
    fn start(name: &str, into: &Path) -> Option<Self> {
        let lab = skip::lab(|| Lab::with_unconnected_ports(3))?;
        let (a, b, mirror) = (lab.device_location(0), lab.device_location(1), lab.device_location(2));
        let mut tap = Running::start(
            &["tap", &a, &b, "--back-end", "packet", "--no-link-state", "--name", name, "--mirror", &mirror],
            "",
        );
        tap.await_remark("forwarding with back end");
        let (location, into) = (lab.location(2), into.display().to_string());
        let mut log = Running::start(&["log", &location, "--into", &into], "");
        log.await_remark("listening");
        let document = Document::new(&[lab.location(0), lab.location(1)])
            .flow(Flow::new("there", 1).pps(5000).packets(FRAMES));
        program::run(&document).report();
        Some(Self { _lab: lab, tap, log })
    }

    /// Has the log begin another file until the page shows all frames: a hangup before the frames are in has no effect on them. The logs.
    fn await_logged(&mut self, page: &PageServer) -> Value {
        let mut logs = Value::Null;
        for _ in 0..MAX_LOOKS {
            self.log.signal(Signal::HUP);
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
            logs = page.get("logs");
            if logs["logs"][0]["frames"].as_u64() >= Some(FRAMES) {
                return logs;
            }
        }
        panic!("the log never has {FRAMES} frames: {logs}");
    }
}

/// The tap of this name.
fn named<'a>(taps: &'a Value, name: &str) -> &'a Value {
    let taps = taps["taps"].as_array().expect("taps");
    taps.iter().find(|tap| tap["name"] == name).unwrap_or(&Value::Null)
}

#[test]
fn page_follows_tap_and_log_until_they_end() {
    let stored = tempfile::tempdir().expect("there is room");
    let into = stored.path().join("log");
    let name = format!("shown-{}", std::process::id());
    let Some(mut link) = TappedLink::start(&name, &into) else { return };
    let page = PageServer::start(18_933, &["--log", &into.display().to_string()]);
    let taps = page.await_get("taps", |taps| {
        named(taps, &name)["accounts"]["directions"][0]["received"].as_u64() >= Some(FRAMES)
    });
    let tap = named(&taps, &name);
    assert_eq!((&tap["process_runs"], &tap["method"]), (&true.into(), &"packet".into()), "{tap}");
    let direction = &tap["accounts"]["directions"][0];
    assert_eq!(direction["forwarded"], direction["received"], "{tap}");
    assert!(tap["counted_ms"].as_u64() > tap["since_ms"].as_u64(), "{tap}");
    let logs = link.await_logged(&page);
    let log = &logs["logs"][0];
    assert_eq!((&log["is_growing"], &log["ended_ms"]), (&true.into(), &Value::Null));
    // A hangup while frames come divides them among files.
    let files = log["newest"].as_array().expect("files");
    assert_eq!(Some(files.len() as u64), log["files"].as_u64(), "{log}");
    let in_files = files.iter().filter_map(|file| file["frames"].as_u64()).sum::<u64>();
    assert_eq!(Some(in_files), log["frames"].as_u64(), "{log}");

    link.log.signal(Signal::TERM);
    assert_eq!(link.log.finish().code, Some(0));
    link.tap.signal(Signal::TERM);
    assert_eq!(link.tap.finish().code, Some(0));
    let logs = page.get("logs");
    assert!(logs["logs"][0]["ended_ms"].is_u64() && logs["logs"][0]["is_growing"] == false, "{logs}");
    assert_eq!(named(&page.get("taps"), &name), &Value::Null, "a tap that has ended leaves nothing");
}

#[test]
fn flow_log_tap_and_calibration_pages_pass_axe() {
    let Some(axe) = skip::client("axe") else { return };
    let axe = std::fs::read_to_string(axe).expect("a client that was installed");
    let stored = tempfile::tempdir().expect("there is room");
    let (flows, log) = (stored.path().join("flows"), stored.path().join("log"));
    meter(&flows);
    let name = format!("drawn-{}", std::process::id());
    let Some(mut link) = TappedLink::start(&name, &log) else { return };
    let places = [flows, log].map(|place| place.display().to_string());
    let page = PageServer::start(18_934, &["--flows", &places[0], "--log", &places[1]]);
    link.await_logged(&page);
    let Some(mut browser) = Browser::start() else { return };
    for (address, heading, word) in [
        ("flows", "Flows", "198.18."),
        ("logs", "Logs", "log-00001.pcapng"),
        ("taps", "Taps", name.as_str()),
        ("calibration", "Calibration", "packetrig test calibrate"),
    ] {
        page.open(&mut browser, address);
        browser.await_true(&format!("document.querySelector('h1')?.textContent === '{heading}'"));
        browser.await_true(&format!("document.querySelector('main').textContent.includes('{word}')"));
        for (width, scheme) in [(1280, "light"), (360, "dark")] {
            browser.resize(width);
            browser.prefer(scheme);
            let found = browser.axe_violations(&axe);
            assert_eq!(found, Vec::<String>::new(), "{address}, {width} px, {scheme}");
            let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
            assert!(overflow.as_i64().is_some_and(|pixels| pixels <= 0), "{address}, {width}: {overflow}");
        }
    }
    page.open(&mut browser, "flows?filter=nonsense");
    browser.await_true(
        "document.querySelector('#problem-filter')?.textContent.includes('no condition begins with')",
    );
    // In good order, because a tap that is killed leaves its files.
    link.tap.signal(Signal::TERM);
    assert_eq!(link.tap.finish().code, Some(0));
}
