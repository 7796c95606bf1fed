//! The live page and its API over real sockets, with mocks of what is shown.

use crate::http::{Response, bare_request, call, config, request, send};
use crate::measured::{FixedFacts, measured_parts};
use crate::methods::MockMethods;
use crate::mock::{Mock, Served, plain, strict};
use packetrig_server::{
    FlowChange, LivePort, LiveRun, LiveSource, LiveState, LiveStream, PortRow, ReceivedStream,
    RequestedState, ResultArchive, ResultPage, ResultQuery, ResultSummary, ServedRig, ServerOptions,
    ViewRefusal,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A run that advances with each question, and counts the questions.
#[derive(Default)]
pub(crate) struct MovingRun {
    asked: AtomicU64,
    configuration: AtomicU64,
}

impl LiveSource for MovingRun {
    fn revision(&self) -> u64 {
        self.asked.load(Ordering::Relaxed) + 1
    }

    fn live_state(&self) -> LiveState {
        let frames = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let received = ReceivedStream { frames, ..ReceivedStream::default() };
        let stream = |name: &str| LiveStream {
            name: name.to_owned(),
            frames_tx: frames,
            received: Some(received),
            ..LiveStream::default()
        };
        let port = PortRow { name: "<b>left</b>".to_owned(), frames_tx: frames, ..PortRow::default() };
        let run = LiveRun {
            id: Some("20261126-r".to_owned()),
            state: Some("running".to_owned()),
            ports: vec![LivePort { row: port, ..LivePort::default() }],
            streams: vec![stream("f1"), stream("f2"), stream("g")],
            ..LiveRun::default()
        };
        let configuration = self.configuration.load(Ordering::Relaxed);
        LiveState { revision: frames, configuration, run: Some(run) }
    }
}

#[derive(Default)]
struct MockArchive {
    queries: Mutex<Vec<ResultQuery>>,
}

impl ResultArchive for MockArchive {
    fn list_results(&self, query: &ResultQuery) -> Result<ResultPage, ViewRefusal> {
        self.queries.lock().unwrap().push(query.clone());
        let summary = ResultSummary { id: "r1".into(), started_ms: 7, ..ResultSummary::default() };
        Ok(ResultPage { matching: 1, total: 9, results: vec![summary] })
    }

    fn result_json(&self, id: &str) -> Result<String, ViewRefusal> {
        match id {
            "r1" => Ok("{\"run\":\"r1\"}".to_owned()),
            _ => Err(ViewRefusal::Unknown(format!("no run begins with {id}"))),
        }
    }

    fn result_page(&self, id: &str) -> Result<String, ViewRefusal> {
        self.result_json(id).map(|_| "<!DOCTYPE html>".to_owned())
    }

    fn result_series(&self, id: &str) -> Result<Value, ViewRefusal> {
        Ok(json!({ "id": id, "streams": [], "ports": [] }))
    }

    fn compare_results(&self, before: &str, after: &str, anyway: bool) -> Result<Value, ViewRefusal> {
        Ok(json!({ "before": before, "after": after, "anyway": anyway }))
    }

    fn unlisted_runs(&self) -> Result<Value, ViewRefusal> {
        Ok(json!({ "runs": [] }))
    }
}

/// The tokens of a page that was started with [`ServedPage::start_with_tokens`].
pub(crate) const OWNER: &str = "the-token-of-the-owner";
pub(crate) const VIEWER: &str = "the-token-of-a-viewer";

pub(crate) struct ServedPage {
    pub(crate) served: Served,
    run: Arc<MovingRun>,
    archive: Arc<MockArchive>,
}

impl ServedPage {
    pub(crate) fn start(options: ServerOptions) -> Self {
        let (mock, run, archive) =
            (Arc::<Mock>::default(), Arc::<MovingRun>::default(), Arc::<MockArchive>::default());
        let nodes = json!({ "nodes": [], "never_heard": [], "heard_ms_ago": null, "server": null });
        let rig = ServedRig {
            tester: Some(Arc::clone(&mock) as _),
            live: Some(Arc::clone(&run) as _),
            results: Some(Arc::clone(&archive) as _),
            nodes: Some(Arc::new(FixedFacts(nodes))),
            methods: Some(Arc::new(MockMethods)),
            ..measured_parts(Arc::default())
        };
        Self { served: Served::start_rig(options, rig, mock), run, archive }
    }

    /// A server that requires one of the two tokens.
    pub(crate) fn start_with_tokens() -> Self {
        Self::start(ServerOptions { token: Some(OWNER.into()), view_token: Some(VIEWER.into()), ..strict() })
    }

    /// A call with a token.
    pub(crate) fn call_with(&self, token: &str, method: &str, path: &str, body: &str) -> Response {
        let header = format!("Authorization: Bearer {token}\r\n");
        send(self.served.bound.http, &request(method, path, &header, body))
    }

    fn get(&self, path: &str) -> Response {
        call(self.served.bound.http, "GET", path, "")
    }
}

/// Reads the events of a viewer.
struct Viewer(BufReader<TcpStream>);

impl Viewer {
    fn connect(address: Option<SocketAddr>, query: &str) -> Self {
        let mut stream = TcpStream::connect(address.unwrap()).unwrap();
        stream
            .write_all(
                request("GET", &format!("/api/v1/events{query}"), "Last-Event-ID: 77\r\n", "").as_bytes(),
            )
            .unwrap();
        Self(BufReader::new(stream))
    }

    /// The next event and its data; `None` at the end of the stream.
    fn next(&mut self) -> Option<(String, Value)> {
        let mut event = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(name) = line.strip_prefix("event: ") {
                name.trim().clone_into(&mut event);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((event, serde_json::from_str(data).unwrap()));
            }
        }
    }
}

#[test]
fn viewer_receives_history_then_live_states() {
    let page = ServedPage::start(plain());
    let mut viewer = Viewer::connect(page.served.bound.http, "?filter=f&rows=1&sort=-name");
    let (event, history) = viewer.next().unwrap();
    assert_eq!((event.as_str(), history["configuration"].as_u64()), ("history", Some(0)));
    let mut last = 0;
    for _ in 0..3 {
        let (event, live) = viewer.next().unwrap();
        assert_eq!(event, "live");
        let streams = &live["run"]["streams"];
        assert_eq!((&streams["total"], &streams["matching"]), (&json!(3), &json!(2)));
        assert_eq!(streams["columns"]["name"], json!(["f2"]));
        let frames = streams["columns"]["frames_tx"][0].as_u64().unwrap();
        assert!(frames > last);
        last = frames;
    }
    // Another configuration begins with its own history.
    page.run.configuration.store(1, Ordering::Relaxed);
    let events: Vec<_> = std::iter::from_fn(|| viewer.next()).map(|(event, _)| event).take(20).collect();
    assert!(events.contains(&"history".to_owned()), "{events:?}");
}

#[test]
fn viewers_are_limited_and_notified_of_stop() {
    let page = ServedPage::start(plain());
    let most = page.get("/api/v1/state").json()["most_viewers"].as_u64().unwrap();
    let mut viewers: Vec<Viewer> = (0..most).map(|_| Viewer::connect(page.served.bound.http, "")).collect();
    for viewer in &mut viewers {
        viewer.next().unwrap();
    }
    let refused = page.get("/api/v1/events");
    assert_eq!(refused.status, 503, "{}", refused.text());
    page.served.finish();
    let mut last = String::new();
    while let Some((event, _)) = viewers[0].next() {
        last = event;
    }
    assert_eq!(last, "stopping");
}

#[test]
fn streams_are_controlled_by_name_or_refused() {
    let page = ServedPage::start(plain());
    let http = page.served.bound.http;
    assert_eq!(call(http, "POST", "/config", &config().to_string()).status, 200);
    let steer = |body: Value| call(http, "POST", "/api/v1/streams", &body.to_string());
    let done = steer(json!({ "change": "start", "streams": ["f1"] }));
    assert_eq!((done.status, done.json()), (200, json!({ "warnings": [] })));
    assert_eq!(steer(json!({ "change": "pause" })).status, 200);
    let traffic = |change, flows: &[&str]| RequestedState::Traffic {
        change,
        flows: flows.iter().map(|name| (*name).to_owned()).collect(),
    };
    assert_eq!(
        page.served.mock.states(),
        [traffic(FlowChange::Start, &["f1"]), traffic(FlowChange::Pause, &[])]
    );
    for (body, named) in [
        (json!({ "change": "jump" }), "`jump`"),
        (json!({ "change": "start", "stream": [] }), "`stream`"),
        (json!({ "change": "start", "streams": ["nobody"] }), "`nobody`"),
        (json!([]), "the request body is not valid: "),
    ] {
        let refused = steer(body);
        assert_eq!(refused.status, 400);
        assert!(refused.json()["errors"][0].as_str().unwrap().contains(named), "{}", refused.text());
    }
    // A misplaced parameter must not look as if no stream had been named.
    for query in ["x=1", "streams=f1"] {
        let misplaced = call(http, "POST", &format!("/api/v1/streams?{query}"), "{\"change\":\"stop\"}");
        assert_eq!(misplaced.status, 400, "{query}: {}", misplaced.text());
        assert_eq!(page.served.mock.states().len(), 2, "{query}: nothing changed");
    }
    // A page of another origin: no simple request has this content type, and the origin is checked.
    let foreign =
        request("POST", "/api/v1/streams", "Origin: https://evil.example\r\n", "{\"change\":\"stop\"}");
    assert_eq!(send(http, &foreign).status, 403);
    let form =
        bare_request("POST", "/api/v1/streams", "Host: localhost\r\nContent-Type: text/plain\r\n", "{}");
    assert_eq!(send(http, &form).status, 415);
    assert_eq!(page.served.mock.states().len(), 2);
}

#[test]
fn stream_rate_change_becomes_flow_update() {
    let page = ServedPage::start(plain());
    let http = page.served.bound.http;
    let change = |body: &str| call(http, "POST", "/api/v1/rates", body);
    let refused = change("{\"percent\":110}");
    assert!(refused.status == 400 && refused.text().contains("no configuration"), "{}", refused.text());
    assert_eq!(call(http, "POST", "/config", &config().to_string()).status, 200);
    let done = change("{\"rate\":\"2kpps\",\"streams\":[\"f1\"]}");
    assert_eq!((done.status, done.json()), (200, json!({ "warnings": ["updated"] })));
    let updates = page.served.mock.updates();
    assert_eq!(updates[0]["flows"]["property_names"], json!(["rate"]));
    assert_eq!(updates[0]["flows"]["flows"][0]["rate"], json!({ "choice": "pps", "pps": "2000" }));
    for (body, named) in
        [("{\"rate\":\"fast\"}", "rate: `fast`"), ("{\"percent\":5,\"streams\":[\"x\"]}", "`x`")]
    {
        let refused = change(body);
        assert!(refused.status == 400 && refused.text().contains(named), "{}", refused.text());
    }
    assert_eq!(page.served.mock.updates().len(), 1);
}

#[test]
fn past_results_are_filtered_paged_shown_and_compared() {
    let page = ServedPage::start(plain());
    let list = page.get("/api/v1/runs?text=night%20ly&verdict=fail&since_ms=5&from=2&most=3").json();
    assert_eq!(
        (&list["matching"], &list["total"], &list["results"][0]["started_ms"]),
        (&json!(1), &json!(9), &json!(7))
    );
    let asked = ResultQuery {
        text: "night ly".into(),
        verdict: "FAIL".into(),
        since_ns: Some(5_000_000),
        from: 2,
        most: 3,
        ..ResultQuery::default()
    };
    assert_eq!(*page.archive.queries.lock().unwrap(), [asked]);
    assert_eq!(page.get("/api/v1/runs/r1").json(), json!({ "run": "r1" }));
    assert_eq!(page.get("/api/v1/runs/x").status, 404);
    // The report is a page of its own: it has no origin here, whatever its script does.
    let report = page.get("/api/v1/runs/r1/report.html");
    assert_eq!((report.status, report.text()), (200, "<!DOCTYPE html>"));
    assert!(report.head.contains("content-security-policy: sandbox allow-scripts"), "{}", report.head);
    assert_eq!(page.get("/api/v1/runs/r1/series").json()["id"], "r1");
    assert_eq!(
        page.get("/api/v1/compare?a=x&b=y&anyway=true").json(),
        json!({ "before": "x", "after": "y", "anyway": true })
    );
    assert_eq!(page.get("/api/v1/compare?a=x").status, 400);
    assert_eq!(page.get("/api/v1/runs?mots=3").status, 400);
}

#[test]
fn page_files_are_public_and_api_is_not() {
    let page = ServedPage::start(strict());
    let http = page.served.bound.http;
    let index = page.get("/ui/");
    assert_eq!(index.status, 200);
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
        "frame-ancestors 'none'",
    ] {
        assert!(index.head.contains(header), "{}", index.head);
    }
    assert!(!index.head.contains("set-cookie") && !index.head.contains("access-control-allow-origin"));
    assert_eq!(page.get("/").status, 307);
    assert_eq!(page.get("/book").status, 307);
    let book = page.get("/book/?q=form-action+policy");
    assert!(book.status == 200 && book.head.contains("form-action 'self'"), "{}", book.head);
    let verdicts = page.get("/book/verdicts").body;
    assert!(String::from_utf8_lossy(&verdicts).contains("<h1 id=\"what-a-verdict-means\">"));
    assert_eq!(page.get("/book/nothing").status, 404);
    assert_eq!(page.get("/ui/nothing.js").status, 401);
    for path in [
        "/api/v1/state",
        "/api/v1/live",
        "/api/v1/events",
        "/api/v1/runs",
        "/metrics",
        "/api/v1/openapi.json",
    ] {
        assert_eq!(page.get(path).status, 401, "{path}");
    }
    let get = |headers: &str| send(http, &bare_request("GET", "/ui/main.js", headers, "")).status;
    assert_eq!(get("Host: localhost\r\nSec-Fetch-Site: same-origin\r\n"), 200);
    assert_eq!(get("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n"), 403);
    // A link on another page leads here; a page under another name does not.
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    assert_eq!(get(&format!("Host: localhost\r\n{link}")), 200);
    assert_eq!(get(&format!("Host: evil.example\r\n{link}")), 421);
    let frame = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n";
    assert_eq!(get(&format!("Host: localhost\r\n{frame}")), 403);
}

#[test]
fn viewer_token_is_read_only() {
    let page = ServedPage::start_with_tokens();
    for path in ["/api/v1/live", "/api/v1/runs", "/metrics"] {
        assert_eq!(page.call_with(VIEWER, "GET", path, "").status, 200, "{path}");
    }
    let may = |token| page.call_with(token, "GET", "/api/v1/state", "").json()["may"].clone();
    assert_eq!(may(VIEWER), json!({ "control": false }));
    assert_eq!(may(OWNER), json!({ "control": true }));
    for (method, path, body) in [
        ("POST", "/api/v1/streams", "{\"change\":\"start\"}"),
        ("POST", "/api/v1/rates", "{\"percent\":110}"),
        ("POST", "/config", "{}"),
        ("GET", "/config", ""),
        ("POST", "/monitor/metrics", "{}"),
    ] {
        assert_eq!(page.call_with(VIEWER, method, path, body).status, 403, "{method} {path}");
    }
    assert_eq!(page.call_with(OWNER, "POST", "/api/v1/streams", "{\"change\":\"start\"}").status, 200);
}

#[test]
fn server_without_tester_is_read_only() {
    let rig = ServedRig { results: Some(Arc::<MockArchive>::default()), ..ServedRig::default() };
    let options = ServerOptions { grpc: None, ..plain() };
    let served = Served::start_rig(options, rig, Arc::default());
    let get = |path| call(served.bound.http, "GET", path, "");
    assert_eq!(get("/api/v1/runs").status, 200);
    assert_eq!(get("/api/v1/state").json()["may"], json!({ "control": false }));
    for path in ["/api/v1/live", "/api/v1/events", "/api/v1/nodes"] {
        assert_eq!(get(path).status, 404, "{path}");
    }
    assert_eq!(call(served.bound.http, "POST", "/api/v1/streams", "{\"change\":\"start\"}").status, 404);
    assert_eq!(call(served.bound.http, "POST", "/config", "{}").status, 404);
}

#[test]
fn metrics_have_the_run_and_no_stream() {
    let page = ServedPage::start(plain());
    let metrics = page.get("/metrics");
    assert!(metrics.head.contains("text/plain; version=0.0.4"), "{}", metrics.head);
    assert!(metrics.text().contains("packetrig_run_info{run=\"20261126-r\",state=\"running\"} 1"));
    assert!(!metrics.text().contains("f1"));
}

/// Every call of the description answers, with the members that it requires. That it has every call is tested in `page::calls`.
#[test]
fn api_responses_match_the_openapi_description() {
    let page = ServedPage::start(plain());
    // Without a configuration, no stream has a rate.
    assert_eq!(call(page.served.bound.http, "POST", "/config", &config().to_string()).status, 200);
    let described = page.get("/api/v1/openapi.json").json();
    assert_eq!(described["openapi"], "3.1.0");
    for (path, methods) in described["paths"].as_object().unwrap() {
        for (method, call_of) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let query = if path == "/api/v1/compare" { "?a=r1&b=r1" } else { "" };
            let body = match (method.as_str(), path.as_str()) {
                ("POST", "/api/v1/rates") => "{\"percent\":110}",
                ("POST", _) => "{\"change\":\"start\"}",
                _ => "",
            };
            let target = format!("{}{query}", path.replace("{id}", "r1"));
            let schema = &call_of["responses"]["200"]["content"]["application/json"]["schema"];
            if path == "/api/v1/events" {
                let mut viewer = Viewer::connect(page.served.bound.http, "");
                check_events(&described, &mut viewer);
                continue;
            }
            let answer = call(page.served.bound.http, &method, &target, body);
            assert_eq!(answer.status, 200, "{method} {target}: {}", answer.text());
            if !schema.is_null() {
                check_schema(&described, schema, &answer.json(), path);
            }
        }
    }
}

fn check_events(described: &Value, viewer: &mut Viewer) {
    for (event, schema) in [("history", "History"), ("live", "Live")] {
        let (found, data) = viewer.next().unwrap();
        assert_eq!(found, event);
        check_schema(described, &json!({ "$ref": format!("#/components/schemas/{schema}") }), &data, event);
    }
}

/// Checks required members and types, as deep as the schema goes.
fn check_schema(described: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointed =
            described.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference}"));
        return check_schema(described, pointed, value, place);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits =
        types.is_empty() || types.contains(&found) || (found == "integer" && types.contains(&"number"));
    assert!(fits, "{place}: {found} is none of {types:?}");
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(value.get(name).is_some() || value.is_null(), "{place}: {name} is missing in {value}");
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(member) = value.get(name) {
            check_schema(described, schema, member, &format!("{place}.{name}"));
        }
    }
    // Nothing is answered that the description does not have.
    if let (Some(members), Some(known)) = (value.as_object(), schema["properties"].as_object())
        && schema["additionalProperties"] == json!(false)
    {
        for name in members.keys() {
            assert!(known.contains_key(name), "{place}: {name} is not described");
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check_schema(described, &schema["items"], item, &format!("{place}[]"));
    }
}
