//! The parts of the page beside runs: flows, logs, taps and calibration.

use crate::http::{call, request};
use crate::mock::{Served, plain};
use crate::page::ServedPage;
use packetrig_server::{
    FlowArchive, FlowSelection, FlowTopQuery, FlowTotalsQuery, RigPartSource, ServedRig, ServerOptions,
    ViewRefusal, ViewerGoneCheck,
};
use packetrig_units::Nanos;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One JSON object.
pub(crate) struct FixedFacts(pub(crate) Value);

impl RigPartSource for FixedFacts {
    fn read_facts(&self) -> Result<Value, ViewRefusal> {
        Ok(self.0.clone())
    }
}

/// Remembers what was requested, and how many requests there were at once.
#[derive(Default)]
pub(crate) struct MockFlows {
    tops: Mutex<Vec<FlowTopQuery>>,
    totals: Mutex<Vec<FlowTotalsQuery>>,
    running: AtomicUsize,
    most_at_once: AtomicUsize,
    was_given_up: AtomicBool,
}

impl FlowArchive for MockFlows {
    fn top_flows(
        &self,
        query: &FlowTopQuery,
        is_given_up: &ViewerGoneCheck<'_>,
    ) -> Result<Value, ViewRefusal> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(running, Ordering::SeqCst);
        // Long enough that other requests come during the query.
        std::thread::sleep(Duration::from_millis(5));
        if query.selection.filter == "endless" {
            let ended = (0..20_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                is_given_up()
            });
            self.was_given_up.store(ended, Ordering::SeqCst);
        }
        self.tops.lock().unwrap().push(query.clone());
        self.running.fetch_sub(1, Ordering::SeqCst);
        if query.selection.filter == "wrong" {
            return Err(ViewRefusal::Invalid("filter: `wrong` is not a filter".to_owned()));
        }
        Ok(json!({
            "schema_version": 1, "directories": ["/var/flows"], "by": [query.by], "order": query.order,
            "groups": [], "total": { "flows": 0, "packets": 0, "bytes": 0 }, "sampled_records": 0, "groups_seen": 0,
            "groups_are_estimated": false, "files_have_changed": false,
        }))
    }

    fn flow_totals(&self, query: &FlowTotalsQuery, _: &ViewerGoneCheck<'_>) -> Result<Value, ViewRefusal> {
        self.totals.lock().unwrap().push(query.clone());
        Ok(json!({
            "schema_version": 1, "directories": ["/var/flows"], "files": 0, "records": 0, "flows": 0,
            "packets": 0, "bytes": 0, "frame_bytes": 0, "records_with_loss": 0, "records_with_merges": 0,
            "sampled_records": 0, "first_ms": null,
            "last_ms": null, "protocols": [], "bucket_ms": 1000,
            "timeline": { "at_ms": [], "flows": [], "packets": [], "bytes": [] },
            "beside_timeline": 0, "meters": [],
        }))
    }
}

/// The parts of a rig that are not about runs.
pub(crate) fn measured_parts(flows: Arc<MockFlows>) -> ServedRig {
    ServedRig {
        flows: Some(flows),
        logs: Some(Arc::new(FixedFacts(json!({ "schema_version": 1, "logs": [] })))),
        taps: Some(Arc::new(FixedFacts(json!({ "schema_version": 1, "user": 0, "now_ms": 1, "taps": [] })))),
        calibration: Some(Arc::new(FixedFacts(json!({ "schema_version": 1, "rig": [], "release": null })))),
        ..ServedRig::default()
    }
}

fn start(flows: &Arc<MockFlows>) -> Served {
    let options = ServerOptions { grpc: None, ..plain() };
    Served::start_rig(options, measured_parts(Arc::clone(flows)), Arc::default())
}

#[test]
fn flow_queries_reach_archive_and_invalid_are_refused() {
    let flows = Arc::<MockFlows>::default();
    let served = start(&flows);
    let get = |path: &str| call(served.bound.http, "GET", path, "");
    assert_eq!(get("/api/v1/flows/top").status, 200);
    let query = "by=port&order=pps&most=7&filter=src%20port%2053&since_ms=1000&before_ms=2000";
    assert_eq!(get(&format!("/api/v1/flows/top?{query}")).status, 200);
    let selection = FlowSelection {
        filter: "src port 53".into(),
        since_ns: Some(1_000_000_000),
        before_ns: Some(2_000_000_000),
    };
    let wanted = [
        FlowTopQuery { by: "src-ip".into(), order: "bytes".into(), most: 20, ..FlowTopQuery::default() },
        FlowTopQuery { selection: selection.clone(), by: "port".into(), order: "pps".into(), most: 7 },
    ];
    assert_eq!(*flows.tops.lock().unwrap(), wanted);
    let query = "filter=src+port+53&since_ms=1000&before_ms=2000&bucket_ms=60000";
    assert_eq!(get(&format!("/api/v1/flows/totals?{query}")).status, 200);
    let wanted = [FlowTotalsQuery { selection, bucket: Some(Nanos::from_secs(60)) }];
    assert_eq!(*flows.totals.lock().unwrap(), wanted);
    for (path, name) in [
        ("top?filter=wrong", "filter"),
        ("top?most=1001", "most"),
        ("top?bucket_ms=1", "bucket_ms"),
        ("totals?bucket_ms=0", "bucket_ms"),
        ("totals?since_ms=yesterday", "since_ms"),
    ] {
        let answer = get(&format!("/api/v1/flows/{path}"));
        let errors = answer.json()["errors"].to_string();
        assert!(answer.status == 400 && errors.contains(name), "{path}: {errors}");
    }
}

#[test]
fn concurrent_flow_queries_run_one_at_a_time() {
    let flows = Arc::<MockFlows>::default();
    let served = start(&flows);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(call(served.bound.http, "GET", "/api/v1/flows/top", "").status, 200));
        }
    });
    assert_eq!(flows.tops.lock().unwrap().len(), 8);
    assert_eq!(flows.most_at_once.load(Ordering::SeqCst), 1);
}

#[test]
fn flow_query_ends_when_viewer_disconnects() {
    let flows = Arc::<MockFlows>::default();
    let served = start(&flows);
    let request = request("GET", "/api/v1/flows/top?filter=endless", "", "");
    let mut viewer = TcpStream::connect(served.bound.http.unwrap()).unwrap();
    viewer.write_all(request.as_bytes()).unwrap();
    let begins = (0..20_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        flows.running.load(Ordering::SeqCst) > 0
    });
    assert!(begins, "the query never begins");
    drop(viewer);
    assert_eq!(call(served.bound.http, "GET", "/api/v1/flows/top", "").status, 200);
    assert!(flows.was_given_up.load(Ordering::SeqCst), "it went on without its viewer");
}

#[test]
fn state_lists_the_parts_that_server_has() {
    let served = start(&Arc::default());
    let has = call(served.bound.http, "GET", "/api/v1/state", "").json()["has"].clone();
    for part in ["flows", "logs", "taps", "calibration"] {
        assert_eq!(has[part], true, "{part}");
    }
    let page = ServedPage::start(plain());
    let state = call(page.served.bound.http, "GET", "/api/v1/state", "").json();
    assert_eq!((&state["has"]["nodes"], &state["has"]["tester"]), (&true.into(), &true.into()));
    let options = ServerOptions { grpc: None, ..plain() };
    let bare = Served::start_rig(options, ServedRig::default(), Arc::default());
    for path in ["flows/top", "flows/totals", "logs", "taps", "calibration"] {
        assert_eq!(call(bare.bound.http, "GET", &format!("/api/v1/{path}"), "").status, 404, "{path}");
    }
}
