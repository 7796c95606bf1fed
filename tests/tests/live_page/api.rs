//! The API of the live page, as a script uses it.

use packetrig_tests::page_client::PageClient;
use packetrig_tests::program::Running;
use packetrig_tests::served_lab::ServedLab;
use serde_json::{Value, json};

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

#[test]
fn live_api_client_follows_run_and_its_losses() {
    let Some(rig) = ServedLab::start(18_911) else { return };
    let mut events = rig.follow("?rate=10&sort=-frames_tx");
    assert_eq!(rig.get("/api/v1/state")["may"]["control"], true);
    rig.post("/config", &rig.configuration());
    events.await_live("the configuration", |live| live["run"]["ports"][1]["name"] == "right");
    rig.post("/api/v1/streams", &json!({ "change": "start", "streams": ["voice"] }));
    let moving = events
        .await_live("frames of one stream", |live| live["run"]["totals"]["frames_rx"].as_u64() > Some(100));
    let columns = &moving["run"]["streams"]["columns"];
    assert_eq!((&columns["name"][0], &columns["state"][0]), (&json!("voice"), &json!("started")));
    assert_eq!((&columns["state"][1], &columns["frames_tx"][1]), (&json!("stopped"), &json!(0)));
    assert!(number(&moving, "/run/ledger/counted") > 100 && moving["run"]["ledger"]["planned"].is_null());
    assert_eq!(number(&moving, "/run/losses/sender"), 0);

    let before = number(&moving, "/run/losses/lost");
    assert_eq!(before, number(&moving, "/run/totals/gaps"), "a loss is what a receiver has seen: {moving}");
    rig.cut_the_path();
    let cut = events.await_live("frames without an end", |live| {
        live["run"]["losses"]["in_flight_or_lost"].as_u64() > Some(300)
    });
    // No later frame has arrived: nobody has seen that they are lost.
    let places = ["sender", "receiver"].map(|place| number(&cut, &format!("/run/losses/{place}")));
    assert_eq!((number(&cut, "/run/losses/lost"), places), (before, [0, 0]), "{cut}");
    rig.post("/api/v1/streams", &json!({ "change": "stop" }));
    let stopped = events.await_live("the end of motion", |live| live["run"]["losses"]["in_motion"] == false);
    let ledger = &stopped["run"]["ledger"];
    assert_eq!(
        number(ledger, "/on_wire") - number(ledger, "/counted"),
        number(&stopped, "/run/losses/path_or_in_doubt"),
        "when nothing moves, what has not arrived is lost: {stopped}"
    );

    let id = stopped["run"]["id"].as_str().expect("a run has an id").to_owned();
    assert_eq!(rig.get("/api/v1/unfinished")["runs"][0]["id"], id.as_str());
    rig.post("/config", &json!({}));
    events.await_live("the end of the run", |live| live["run"].is_null());
    let list = rig.await_get("/api/v1/runs?text=serve&most=5", |list| list["matching"] == 1);
    assert_eq!(list["results"][0]["id"], id.as_str(), "{list}");
    let report = rig.get(&format!("/api/v1/runs/{id}"));
    assert_eq!(report["run"], id.as_str());
    // The report says of the same frames the same, and tells those apart that a standstill of this machine puts in doubt.
    let lost = number(&report, "/lost/path") + number(&report, "/lost/in_doubt");
    assert_eq!(lost, number(&stopped, "/run/losses/path_or_in_doubt"), "{report}");
    assert_eq!(report["lost"]["total"], list["results"][0]["lost"]);
    let series = rig.get("/api/v1/runs/last/series");
    assert!(series["ports"][0]["sent"]["seconds"][0][0].as_u64() > Some(0), "{series}");
    let same = rig.get(&format!("/api/v1/compare?a={id}&b=last"));
    assert!(same["figures"].as_array().is_some_and(|figures| !figures.is_empty()), "{same}");
    assert_eq!(same["difference"], Value::Null);
}

#[test]
fn catalogue_only_page_cannot_start_runs() {
    let arguments = ["page", "--listen", "127.0.0.1:18912", "--store", "{out}"];
    let mut server = Running::start(&arguments, "");
    server.await_printed("Page: http://127.0.0.1:18912/ui/");
    let page = PageClient { port: 18_912 };
    let state = page.get("/api/v1/state");
    assert_eq!((&state["may"]["control"], &state["has"]["live"]), (&json!(false), &json!(false)));
    let list = page.get("/api/v1/runs");
    assert_eq!(list["total"], 0, "{list}");
    assert!(page.request("GET", "/ui/", "").contains("<title>packetrig</title>"));
    assert!(page.answer("GET", "/config", "").1.contains("nothing is served at /config"));
}
