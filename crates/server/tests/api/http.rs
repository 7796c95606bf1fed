//! HTTP, byte for byte.

use crate::mock::{LONG, PCAP_HEADER, Served, plain, strict};
use packetrig_server::{FlowChange, RequestedState, ServerOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Answer of the server.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn read(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        // A server that breaks off is some tests' business.
        drop(stream.read_to_end(&mut bytes));
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    fn errors(&self) -> Vec<String> {
        let body = self.json();
        assert_eq!(body["code"], self.status);
        assert!(["validation", "internal"].contains(&body["kind"].as_str().unwrap()), "{body}");
        body["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    bare_request(
        method,
        path,
        &format!("Host: localhost\r\nContent-Type: application/json\r\n{headers}"),
        body,
    )
}

/// A request with these headers and no others that matter.
pub(crate) fn bare_request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

pub(crate) fn call(address: Option<SocketAddr>, method: &str, path: &str, body: &str) -> Response {
    send(address, &request(method, path, "", body))
}

pub(crate) fn send(address: Option<SocketAddr>, request: &str) -> Response {
    let mut stream = TcpStream::connect(address.unwrap()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    Response::read(&mut stream)
}

pub(crate) fn config() -> Value {
    json!({
        "ports": [{"name": "p1", "location": "veth-a"}, {"name": "p2", "location": "veth-z"}],
        "flows": [{
            "name": "f1",
            "tx_rx": {"port": {"tx_name": "p1", "rx_names": ["p2"]}},
            "rate": {"pps": "50"},
            "packet": [{"ethernet": {}}],
            "metrics": {"enable": true},
        }],
    })
}

fn configured() -> Served {
    let served = Served::start(plain());
    let set = call(served.bound.http, "POST", "/config", &config().to_string());
    assert_eq!((set.status, set.text()), (200, r#"{"warnings":[]}"#));
    served
}

#[test]
fn successful_config_returns_200_and_warnings_list() {
    let served = Served::start(plain());
    let set = call(served.bound.http, "POST", "/config", &config().to_string());
    assert_eq!((set.status, set.text()), (200, r#"{"warnings":[]}"#));
    assert!(set.head.contains("content-type: application/json"), "{}", set.head);
    assert!(set.head.starts_with("http/1.1 200"), "{}", set.head);
    let updated = call(served.bound.http, "PATCH", "/config", r#"{"flows": {"property_names": ["rate"]}}"#);
    assert_eq!(updated.text(), r#"{"warnings":["updated"]}"#);
    assert_eq!(served.mock.updates(), [json!({"choice": "flows", "flows": {"property_names": ["rate"]}})]);
}

#[test]
fn configuration_is_returned_with_choices() {
    let served = configured();
    let got = call(served.bound.http, "GET", "/config", "").json();
    assert_eq!(got["flows"][0]["rate"], json!({"choice": "pps", "pps": "50"}));
    assert_eq!(got["flows"][0]["packet"], json!([{"choice": "ethernet", "ethernet": {}}]));
}

#[test]
fn flows_are_appended_and_deleted() {
    let served = configured();
    let http = served.bound.http;
    let flow = json!({"name": "f2", "tx_rx": {"port": {"tx_name": "p1"}}});
    let append = json!({"config_append_list": [{"flows": [flow]}]});
    assert_eq!(call(http, "PATCH", "/config/append", &append.to_string()).text(), r#"{"warnings":[]}"#);
    let names = || -> Vec<Value> {
        let got = call(http, "GET", "/config", "").json();
        got["flows"].as_array().unwrap().iter().map(|flow| flow["name"].clone()).collect()
    };
    assert_eq!(names(), ["f1", "f2"]);
    let delete = json!({"config_delete_list": [{"choice": "flows", "flows": ["f1"]}]});
    assert_eq!(call(http, "PATCH", "/config/delete", &delete.to_string()).text(), r#"{"warnings":[]}"#);
    assert_eq!(names(), ["f2"]);
    assert_eq!(call(http, "PATCH", "/config/delete", &delete.to_string()).status, 400);
}

#[test]
fn http_errors_list_all_invalid_paths_at_once() {
    let served = Served::start(plain());
    // One that only the shape sees, one that only the plan sees, one that both see.
    let mut config = config();
    config["ports"][0]["speed"] = json!(1);
    config["flows"][0]["tx_rx"]["port"]["tx_name"] = json!("p9");
    config["devices"] = json!([{"name": "d", "bgp": {}}]);
    let refused = call(served.bound.http, "POST", "/config", &config.to_string());
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.errors(),
        [
            "devices[0].bgp: not supported: packetrig does not do this yet",
            "ports[0].speed: unknown field `speed`",
            "flows[0].tx_rx.port.tx_name: there is no port `p9`",
        ]
    );
    assert_eq!(call(served.bound.http, "GET", "/config", "").text(), "{}");
    let internal = r#"{"choice": "ipv4_neighbors", "ipv4_neighbors": {"ethernet_names": ["nowhere"]}}"#;
    let internal = call(served.bound.http, "POST", "/monitor/states", internal);
    assert_eq!((internal.status, internal.errors()), (500, vec!["the rig is gone".to_owned()]));
    let later =
        call(served.bound.http, "POST", "/control/state", r#"{"protocol": {"all": {"state": "stop"}}}"#);
    assert_eq!((later.status, later.errors()), (501, vec!["protocols cannot be stopped".to_owned()]));
}

#[test]
fn unknown_call_returns_standard_error_form() {
    let served = Served::start(plain());
    let http = served.bound.http;
    assert_eq!(call(http, "GET", "/nothing", "").errors(), ["nothing is served at /nothing; see /docs"]);
    assert_eq!(call(http, "DELETE", "/config", "").status, 405);
    let broken = call(http, "POST", "/config", "{");
    assert_eq!(broken.status, 400);
    assert!(broken.errors()[0].starts_with("the request is not a JSON document"), "{:?}", broken.errors());
}

#[test]
fn cross_site_web_page_cannot_call_api() {
    let served = Served::start(plain());
    let set = |headers: &str| {
        send(served.bound.http, &bare_request("POST", "/config", headers, &config().to_string())).status
    };
    // Requests that a page can send without a preflight, names that it can make point here, and headers that browsers add.
    let ours = "Host: 127.0.0.1\r\n";
    let json = "Content-Type: application/json\r\n";
    for (headers, status) in [
        (format!("{ours}Content-Type: text/plain\r\n"), 415),
        (format!("{ours}Content-Type: application/x-www-form-urlencoded\r\n"), 415),
        (format!("{ours}Content-Type: multipart/form-data; boundary=x\r\n"), 415),
        (ours.to_owned(), 415),
        (format!("Host: evil.example\r\n{json}"), 421),
        (format!("Host: [::1]evil\r\n{json}"), 421),
        (json.to_owned(), 421),
        (format!("{ours}{json}Origin: https://evil.example\r\n"), 403),
        (format!("{ours}{json}Origin: null\r\n"), 403),
        (format!("{ours}{json}Sec-Fetch-Site: cross-site\r\n"), 403),
        (format!("{ours}{json}Sec-Fetch-Site: same-site\r\n"), 403),
    ] {
        assert_eq!(set(&headers), status, "{headers}");
        assert_eq!(call(served.bound.http, "GET", "/config", "").text(), "{}", "{headers}");
    }
    // Asking first gets no leave.
    let asked = bare_request("OPTIONS", "/config", &format!("{ours}Origin: https://evil.example\r\n"), "");
    assert!(!send(served.bound.http, &asked).head.contains("access-control"));
    assert_eq!(set(&format!("{ours}{json}")), 200);
}

#[test]
fn reads_before_configuration_are_no_errors() {
    let served = Served::start(plain());
    let http = served.bound.http;
    assert_eq!(call(http, "GET", "/config", "").text(), "{}");
    assert_eq!(
        call(http, "POST", "/monitor/metrics", "").text(),
        r#"{"choice":"port_metrics","port_metrics":[]}"#
    );
    assert_eq!(
        call(http, "POST", "/monitor/metrics", r#"{"choice":"flow"}"#).text(),
        r#"{"choice":"flow_metrics","flow_metrics":[]}"#
    );
}

#[test]
fn empty_filter_returns_all_first_version_scalars() {
    let served = configured();
    let http = served.bound.http;
    assert_eq!(
        call(http, "POST", "/monitor/metrics", r#"{"choice":"port","port":{"port_names":["p1"]}}"#).text(),
        r#"{"choice":"port_metrics","port_metrics":[{"bytes_rx":"0","bytes_rx_rate":0.0,"bytes_tx":"18446744073709551615","bytes_tx_rate":125000000000000000.0,"capture":"stopped","frames_rx":"0","frames_rx_rate":0.0,"frames_tx":"100","frames_tx_rate":0.0,"link":"up","location":"veth-a","name":"p1","transmit":"stopped"}]}"#
    );
    assert_eq!(
        call(http, "POST", "/monitor/metrics", r#"{"flow":{}}"#).text(),
        r#"{"choice":"flow_metrics","flow_metrics":[{"bytes_rx":"0","bytes_tx":"0","frames_rx":"0","frames_rx_rate":0.0000001,"frames_tx":"0","frames_tx_rate":10.0,"name":"f1","port_rx":"p2","port_tx":"p1","transmit":"stopped"}]}"#
    );
}

#[test]
fn filter_returns_exactly_named_columns() {
    let served = configured();
    let http = served.bound.http;
    let ports = r#"{"port":{"port_names":["p2"],"column_names":["speed","last_change","link"]}}"#;
    assert_eq!(
        call(http, "POST", "/monitor/metrics", ports).text(),
        r#"{"choice":"port_metrics","port_metrics":[{"last_change":"1760000000000000000","link":"up","name":"p2","speed":"125000"}]}"#
    );
    let flows = r#"{"flow":{"metric_names":["frames_tx","tx_l1_rate_bps","rx_rate_mbps"]}}"#;
    assert_eq!(
        call(http, "POST", "/monitor/metrics", flows).text(),
        r#"{"choice":"flow_metrics","flow_metrics":[{"frames_tx":"0","name":"f1","port_rx":"p2","port_tx":"p1","rx_rate_mbps":0.0,"tx_l1_rate_bps":9600.0}]}"#
    );
    assert_eq!(call(http, "POST", "/monitor/metrics", r#"{"port":{"column_names":["colour"]}}"#).status, 400);
    assert_eq!(call(http, "POST", "/monitor/metrics", r#"{"port":{"port_names":["p7"]}}"#).status, 400);
    let later = call(http, "POST", "/monitor/metrics", r#"{"choice":"bgpv4"}"#);
    assert_eq!(later.errors(), ["choice: `bgpv4` is not supported: packetrig does not do this yet"]);
}

#[test]
fn metric_numbers_are_printed_without_exponent() {
    let served = configured();
    let http = served.bound.http;
    call(http, "POST", "/control/state", r#"{"traffic":{"flow_transmit":{"state":"start"}}}"#);
    let text = call(http, "POST", "/monitor/metrics", r#"{"choice":"flow"}"#).text().to_owned();
    assert!(text.contains(r#""loss":0.0"#), "{text}");
    assert!(text.contains(r#""first_timestamp_ns":1760000000000000000.0"#), "{text}");
    assert!(text.contains(r#""maximum_ns":20000000000000000000000.0"#), "{text}");
}

#[test]
fn nan_metric_is_an_internal_error() {
    let served = Served::start(plain());
    let body = r#"{"port":{"port_names":["not-a-number"]}}"#;
    let refused = call(served.bound.http, "POST", "/monitor/metrics", body);
    assert_eq!(refused.errors(), ["metric `frames_tx_rate` is NaN: this is a bug in packetrig"]);
    assert_eq!(refused.status, 500);
}

#[test]
fn control_states_reach_tester_unchanged() {
    let served = configured();
    let set = |body: &str| {
        let set = call(served.bound.http, "POST", "/control/state", body);
        assert_eq!((set.status, set.text()), (200, r#"{"warnings":[]}"#), "{body}");
    };
    set(r#"{"choice":"traffic","traffic":{"choice":"flow_transmit","flow_transmit":{"state":"start"}}}"#);
    set(r#"{"traffic":{"flow_transmit":{"state":"pause","flow_names":["f1"]}}}"#);
    set(r#"{"traffic":{"flow_transmit":{"state":"resume"}}}"#);
    set(r#"{"traffic":{"flow_transmit":{"state":"stop"}}}"#);
    set(r#"{"port":{"capture":{"state":"start","port_names":["p2"]}}}"#);
    set(r#"{"port":{"link":{"state":"down"}}}"#);
    set(r#"{"protocol":{"all":{"state":"start"}}}"#);
    let traffic = |change, flows: &[&str]| RequestedState::Traffic {
        change,
        flows: flows.iter().map(|flow| (*flow).to_owned()).collect(),
    };
    assert_eq!(
        served.mock.states(),
        [
            traffic(FlowChange::Start, &[]),
            traffic(FlowChange::Pause, &["f1"]),
            traffic(FlowChange::Resume, &[]),
            traffic(FlowChange::Stop, &[]),
            RequestedState::Capture { on: true, ports: vec!["p2".into()] },
            RequestedState::Link { up: false, ports: vec![] },
            RequestedState::Protocols { on: true },
        ]
    );
    let missing = call(served.bound.http, "POST", "/control/state", r#"{"traffic":{"flow_transmit":{}}}"#);
    assert_eq!(missing.errors(), ["traffic.flow_transmit.state: required"]);
    assert_eq!(call(served.bound.http, "POST", "/control/state", "{}").errors(), ["choice: required"]);
}

#[test]
fn pings_are_answered_one_by_one() {
    let served = Served::start(plain());
    let ping = r#"{"protocol":{"ipv4":{"ping":{"requests":[{"src_name":"a","dst_ip":"198.18.0.1"},{"src_name":"a","dst_ip":"198.18.0.9"}]}}}}"#;
    assert_eq!(
        call(served.bound.http, "POST", "/control/action", ping).json(),
        json!({"warnings": [], "response": {"choice": "protocol", "protocol": {"choice": "ipv4", "ipv4": {
            "choice": "ping", "ping": {"responses": [
                {"src_name": "a", "dst_ip": "198.18.0.1", "result": "succeeded"},
                {"src_name": "a", "dst_ip": "198.18.0.9", "result": "failed"},
            ]},
        }}}})
    );
    let wrong = r#"{"protocol":{"ipv6":{"ping":{"requests":[{"dst_ip":"198.18.0.1"}]}}}}"#;
    assert_eq!(
        call(served.bound.http, "POST", "/control/action", wrong).errors(),
        [
            "protocol.ipv6.ping.requests[0].src_name: required",
            "protocol.ipv6.ping.requests[0].dst_ip: `198.18.0.1` is not an IPv6 address",
        ]
    );
}

#[test]
fn unresolved_neighbour_has_no_address() {
    let served = Served::start(plain());
    let body = r#"{"choice":"ipv6_neighbors"}"#;
    assert_eq!(
        call(served.bound.http, "POST", "/monitor/states", body).text(),
        r#"{"choice":"ipv6_neighbors","ipv6_neighbors":[{"ethernet_name":"e1","ipv6_address":"2001:2::1","link_layer_address":"02:00:00:00:00:01"},{"ethernet_name":"e1","ipv6_address":"2001:2::2"}]}"#
    );
}

#[test]
fn captures_are_streamed_whole() {
    let served = Served::start(plain());
    let http = served.bound.http;
    let capture = |body: &str| call(http, "POST", "/monitor/capture", body);
    let long = capture(r#"{"port_name":"long"}"#);
    assert!(long.head.contains("content-type: application/octet-stream"), "{}", long.head);
    assert!(long.head.contains(&format!("content-length: {}", LONG + 24)), "{}", long.head);
    assert_eq!(long.body.len() as u64, LONG + 24);
    assert_eq!(long.body[..24], PCAP_HEADER);
    let empty = capture(r#"{"port_name":"empty"}"#);
    assert!(empty.body.windows(24).any(|bytes| bytes == PCAP_HEADER), "{empty:?}");
    let slice = capture(r#"{"port_name":"sliced","packets":{"slice":{"initial":{"count":7}}}}"#);
    assert!(slice.body.windows(28).any(|bytes| bytes == b"Slice { start: 1, count: 7 }"), "{slice:?}");
    assert_eq!(capture("{}").errors(), ["port_name: required"]);
    assert_eq!(capture(r#"{"port_name":"p"}"#).errors(), ["port_name: there is no port `p`"]);
    let broken = capture(r#"{"port_name":"broken"}"#);
    assert_eq!(
        (broken.status, broken.errors()),
        (500, vec!["the capture cannot be read: the disk is gone".into()])
    );
    // Chunked, and the last chunk is missing: a client notices.
    let broken = capture(r#"{"port_name":"breaks off"}"#);
    assert!(broken.head.contains("transfer-encoding: chunked"), "{}", broken.head);
    assert!(!broken.body.ends_with(b"0\r\n\r\n"));
}

#[test]
fn api_version_satisfies_client_condition() {
    let served = Served::start(plain());
    let version = call(served.bound.http, "GET", "/capabilities/version", "").json();
    assert_eq!(version["api_spec_version"], "^1.0.0");
    assert_eq!(version["app_version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn docs_name_every_route() {
    let served = Served::start(plain());
    let docs = call(served.bound.http, "GET", "/docs", "");
    for route in
        ["POST /config", "PATCH /config/append", "POST /monitor/capture", "GET /capabilities/version"]
    {
        assert!(docs.text().contains(route), "{route}");
    }
    assert!(docs.head.contains("content-type: text/html"), "{}", docs.head);
}

#[test]
fn request_over_size_limit_is_refused() {
    let served = Served::start(ServerOptions { most_request_bytes: 5 << 20, ..plain() });
    let spaces = " ".repeat(4 << 20);
    assert_eq!(call(served.bound.http, "POST", "/config", &format!("{spaces}{{}}")).status, 200);
    let spaces = " ".repeat(6 << 20);
    let mut stream = TcpStream::connect(served.bound.http.unwrap()).unwrap();
    // The server answers before it has read all of it.
    drop(stream.write_all(request("POST", "/config", "", &spaces).as_bytes()));
    let mut start = [0; 64];
    let read = stream.read(&mut start).unwrap_or(0);
    assert!(read == 0 || start.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&start));
    assert_eq!(call(served.bound.http, "GET", "/config", "").status, 200);
}

#[test]
fn http_client_without_token_is_refused() {
    let served = Served::start(ServerOptions { token: Some("secret".into()), ..strict() });
    let get = |header: &str| send(served.bound.http, &request("GET", "/config", header, ""));
    let without = get("");
    assert_eq!(without.status, 401);
    assert!(without.head.contains("www-authenticate: bearer"), "{}", without.head);
    let errors = without.errors();
    assert!(errors[0].starts_with("user 4242 of this machine may not use this server"), "{errors:?}");
    assert_eq!(get("Authorization: Bearer wrong\r\n").status, 401);
    assert_eq!(get("Authorization: Bearer secret\r\n").status, 200);
    // `any:secret`, as clients send it whose location has it.
    assert_eq!(get("Authorization: Basic YW55OnNlY3JldA==\r\n").status, 200);
    for path in ["/docs", "/nothing", "/config"] {
        assert_eq!(send(served.bound.http, &request("GET", path, "", "")).status, 401, "{path}");
    }
    let known = Served::start(ServerOptions { token: Some("secret".into()), ..plain() });
    assert_eq!(call(known.bound.http, "GET", "/config", "").status, 200);
    let nobody = Served::start(strict());
    assert_eq!(
        send(nobody.bound.http, &request("GET", "/config", "Authorization: Bearer \r\n", "")).status,
        401
    );
}
