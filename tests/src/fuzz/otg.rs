//! The OTG API as a client meets it, without sockets: any bytes are a request, or are refused.

use packetrig_fleet::served::{EventSink, OpenFailure, RunSource, SteeredRun};
use packetrig_plan::{PlanDocument, PlanParseOptions};
use packetrig_report::outcome::NodeFault;
use packetrig_server::{InMemoryServer, LocalUsers, ServerOptions, TestConsole};
use packetrig_units::{Blame, MonoTime};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Every port is missing: documents are read to the plan, and nothing is opened.
struct NoRigs;

impl RunSource for NoRigs {
    fn open_steered_run(&self, _: PlanDocument, _: EventSink) -> Result<Box<dyn SteeredRun>, OpenFailure> {
        Err(OpenFailure::Fault(NodeFault { blame: Blame::World, text: "there is no rig here".to_owned() }))
    }

    fn plan_parse_options(&self) -> PlanParseOptions {
        PlanParseOptions { seed: 1, ..PlanParseOptions::default() }
    }

    fn to_wall_clock_ns(&self, at: MonoTime) -> u64 {
        at.as_nanos()
    }
}

fn server() -> &'static InMemoryServer {
    static SERVER: OnceLock<InMemoryServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let users = LocalUsers { allowed: vec![0], find: Arc::new(|_, _| Some(0)) };
        let options = ServerOptions { local_users: Some(users), ..ServerOptions::default() };
        let console = Arc::new(TestConsole::new(NoRigs, BTreeMap::new()));
        InMemoryServer::new(&options, console).expect("a runtime can be had")
    })
}

const CALLS: [&str; 9] = [
    "POST /config",
    "GET /config",
    "PATCH /config",
    "PATCH /config/append",
    "PATCH /config/delete",
    "POST /control/state",
    "POST /control/action",
    "POST /monitor/metrics",
    "POST /monitor/capture",
];

/// Any bytes on a connection of HTTP are answered as HTTP, or the connection ends. Every other input is put into the body of a
/// call, which a fuzzer would take long to write.
pub fn otg_http(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    if kind % 2 == 0 {
        return check_http(data, &server().answer_http(rest));
    }
    let call = CALLS[usize::from(kind / 2) % CALLS.len()];
    check_http(data, &server().answer_http(&request(call, rest)));
}

/// Any document, as JSON over HTTP or as a message over gRPC, is a configuration or is refused with a reason.
pub fn otg_document(data: &[u8]) {
    let Some((kind, document)) = data.split_first() else { return };
    if kind % 2 == 1 {
        // What came of it is in compressed headers; a panic is one all the same.
        server().answer_grpc(&grpc_request(document));
        return;
    }
    let said = server().answer_http(&request("POST /config", document));
    check_http(data, &said);
    assert!(!said.is_empty(), "a whole request has an answer");
}

/// What an honest client would send.
pub fn request(call: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{call} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// What the server says to a request in one call.
pub fn answer_to(request: &[u8]) -> Vec<u8> {
    server().answer_http(request)
}

/// `SetConfig` of a configuration.
fn grpc_request(config: &[u8]) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/otg.Openapi/SetConfig"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
    ];
    let literal = |(name, value): (&str, &str)| {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap_or(0)], text.as_bytes()].concat();
        [&[0][..], &text(name), &text(value)].concat()
    };
    let head = fields.map(literal).concat();
    // The field `config` of the wrapper, then the length of the whole message, as gRPC has it.
    let mut wrapped = vec![0x0a];
    let mut length = config.len();
    while length >= 0x80 {
        wrapped.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    wrapped.push(u8::try_from(length).unwrap_or(0));
    wrapped.extend_from_slice(config);
    let message = [&[0][..], &u32::try_from(wrapped.len()).unwrap_or(0).to_be_bytes(), &wrapped].concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, 4, 1, &head));
    let mut parts = message.chunks(16_384).peekable();
    while let Some(part) = parts.next() {
        bytes.extend(frame(0, u8::from(parts.peek().is_none()), 1, part));
    }
    bytes
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The answer to `data` is one, and none that says that the program is wrong, unless it only quotes the question.
fn check_http(data: &[u8], said: &[u8]) {
    assert!(said.is_empty() || said.starts_with(b"HTTP/1."), "no HTTP: {}", String::from_utf8_lossy(said));
    let bug = b"this is a bug in packetrig";
    let holds = |text: &[u8]| text.windows(bug.len()).any(|part| part == bug);
    assert!(holds(data) || !holds(said), "{}", String::from_utf8_lossy(said));
}
