//! gRPC, with messages written by hand: what a client's generated code would send and more.

use crate::http;
use crate::mock::{LONG, Served, plain, strict};
use bytes::{Buf, BufMut, Bytes};
use packetrig_server::{RequestedState, ServerOptions};
use tokio_stream::StreamExt;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A field of bytes, number and length below 128 × 128.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let (low, high) = (bytes.len() % 128, bytes.len() / 128);
    let mut message = vec![number << 3 | 2, u8::try_from(low).unwrap() | 0x80, u8::try_from(high).unwrap()];
    message.extend_from_slice(bytes);
    message
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn connect(served: &Served) -> tonic::client::Grpc<Channel> {
    let address = format!("http://{}", served.bound.grpc.unwrap());
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    client
}

/// Sends these messages and returns what came back.
async fn exchange(
    served: &Served,
    rpc: &str,
    messages: Vec<Vec<u8>>,
    token: &str,
) -> Result<Vec<Bytes>, Status> {
    let mut client = connect(served).await;
    let path = format!("/otg.Openapi/{rpc}").parse().unwrap();
    let mut request = Request::new(tokio_stream::iter(messages));
    if !token.is_empty() {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    let response = client.streaming(request, path, Raw).await?;
    response.into_inner().collect::<Result<Vec<Bytes>, Status>>().await
}

fn call(served: &Served, rpc: &str, messages: Vec<Vec<u8>>) -> Result<Vec<Bytes>, Status> {
    runtime().block_on(exchange(served, rpc, messages, ""))
}

/// A `Config` of one port: `ports` (1) { location (1), name (2) }.
fn config() -> Vec<u8> {
    field(1, &[field(1, b"veth-a"), field(2, b"p1")].concat())
}

#[test]
fn config_round_trips_over_http_and_grpc() {
    let served = Served::start(plain());
    let set = call(&served, "SetConfig", vec![field(1, &config())]).unwrap();
    // SetConfigResponse { warning { } }: the inner message is there although it is empty.
    assert_eq!(set, [Bytes::from_static(&[0x0a, 0])]);
    let text = r#"{"ports":[{"location":"veth-a","name":"p1"}]}"#;
    assert_eq!(http::call(served.bound.http, "GET", "/config", "").text(), text);
    let got = call(&served, "GetConfig", vec![vec![]]).unwrap();
    let ports = [&[0x0a, 12][..], b"\x0a\x06veth-a\x12\x02p1"].concat();
    assert_eq!(got, [Bytes::from([&[0x0a, 14][..], &ports].concat())]);
    // The twin carries the inner message, not the wrapper.
    let sliced = call(&served, "streamGetConfig", vec![vec![]]).unwrap();
    assert_eq!(sliced, [Bytes::from([&[0x08, 14, 0x12, 14][..], &ports].concat())]);
}

#[test]
fn slices_of_a_request_are_put_together() {
    let served = Served::start(plain());
    let config = config();
    let slices = config.chunks(3).map(|slice| field(2, slice)).collect();
    assert_eq!(call(&served, "streamSetConfig", slices).unwrap(), [Bytes::from_static(&[0x0a, 0])]);
    assert!(http::call(served.bound.http, "GET", "/config", "").text().contains("veth-a"));
}

#[test]
fn states_and_actions_may_come_in_slices() {
    let served = Served::start(plain());
    // ControlState { protocol (3) { all (2) { state (1) = start (1) } } }
    let start = field(3, &field(2, &[0x08, 1]));
    let slices = start.chunks(2).map(|slice| field(2, slice)).collect();
    assert_eq!(call(&served, "streamSetControlState", slices).unwrap(), [Bytes::from_static(&[0x0a, 0])]);
    assert_eq!(served.mock.states(), [RequestedState::Protocols { on: true }]);
    // ControlAction { protocol (2) { ipv4 (2) { ping (2) { requests (1) { src_name (1), dst_ip (2) } } } } }
    let request = [field(1, b"i1"), field(2, b"198.18.0.9")].concat();
    let ping = field(2, &field(2, &field(2, &field(1, &request))));
    let slices = ping.chunks(5).map(|slice| field(2, slice)).collect();
    let answer = call(&served, "streamSetControlAction", slices).unwrap();
    // The row ends with its result (3) = failed (2).
    assert!(answer[0].ends_with(b"198.18.0.9\x18\x02"), "{answer:?}");
}

#[test]
fn empty_streamed_answer_is_one_empty_slice() {
    let served = Served::start(plain());
    assert_eq!(
        call(&served, "streamGetConfig", vec![vec![]]).unwrap(),
        [Bytes::from_static(&[0x08, 0, 0x12, 0])]
    );
}

#[test]
fn grpc_refusals_carry_same_json_and_status_code() {
    let served = Served::start(plain());
    // devices (5) [ { bgp (5) { } } ], and a port without a location.
    let config = [field(5, &field(5, b"")), field(1, &field(2, b"p1"))].concat();
    let refused = call(&served, "SetConfig", vec![field(1, &config)]).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let errors = r#"{"code":3,"errors":["devices[0].bgp: not supported: packetrig does not do this yet","ports[0]: `location` is missing"],"kind":"validation"}"#;
    assert_eq!(refused.message(), errors);
    // StatesRequest { ipv4_neighbors (2) { ethernet_names (1) } }
    let states = field(1, &field(2, &field(1, b"nowhere")));
    let internal = call(&served, "GetStates", vec![states]).unwrap_err();
    assert_eq!(internal.code(), Code::Internal);
    assert_eq!(internal.message(), r#"{"code":13,"errors":["the rig is gone"],"kind":"internal"}"#);
    // ControlState { protocol (3) { all (2) { state (1) = stop (2) } } }
    let stop = field(1, &field(3, &field(2, &[0x08, 2])));
    let later = call(&served, "SetControlState", vec![stop]).unwrap_err();
    assert_eq!(later.code(), Code::Unimplemented);
    assert_eq!(
        later.message(),
        r#"{"code":12,"errors":["protocols cannot be stopped"],"kind":"validation"}"#
    );
    assert_eq!(call(&served, "Nonsense", vec![vec![]]).unwrap_err().code(), Code::Unimplemented);
}

#[test]
fn thousands_of_errors_fit_a_status() {
    let served = Served::start(plain());
    let ports: Vec<u8> = (0..500).flat_map(|_| field(1, &field(2, b"same"))).collect();
    let refused = call(&served, "SetConfig", vec![field(1, &ports)]).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let read: serde_json::Value = serde_json::from_str(refused.message()).unwrap();
    let last = read["errors"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
    assert!(last.ends_with("more problem(s) are not listed here; the HTTP API lists all of them"), "{last}");
}

#[test]
fn unknown_wrapper_members_are_refused() {
    let served = Served::start(plain());
    for (rpc, message) in
        [("SetConfig", vec![0x50, 1]), ("streamSetConfig", vec![0x50, 1]), ("GetVersion", vec![0x50, 1])]
    {
        let refused = call(&served, rpc, vec![message]).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{rpc}");
        assert!(refused.message().contains("field 10 of"), "{refused}");
    }
    let nonsense = call(&served, "SetConfig", vec![vec![0xff; 9]]).unwrap_err();
    assert!(
        nonsense.message().contains("the request is not a protobuf message `SetConfigRequest`"),
        "{nonsense}"
    );
}

#[test]
fn grpc_includes_newer_members() {
    let served = Served::start(plain());
    call(&served, "SetConfig", vec![field(1, &config())]).unwrap();
    let metrics = call(&served, "GetMetrics", vec![vec![]]).unwrap();
    // PortMetric.speed (16) = 125000.
    let speed = [0x80, 0x01, 0xc8, 0xd0, 0x07];
    assert!(metrics[0].windows(5).any(|bytes| bytes == speed), "{metrics:?}");
}

#[test]
fn capture_slices_fit_client_message_limit() {
    let served = Served::start(plain());
    let asked = field(1, &field(1, b"long"));
    let slices = call(&served, "streamGetCapture", vec![asked.clone()]).unwrap();
    assert!(slices.iter().all(|slice| slice.len() < 4 << 20));
    let carried: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
    assert!(carried > LONG && carried < LONG + 1_000, "{carried}");
    // In one message it is longer than a client accepts by default.
    assert_eq!(call(&served, "GetCapture", vec![asked]).unwrap_err().code(), Code::OutOfRange);
    let empty = call(&served, "GetCapture", vec![field(1, &field(1, b"empty"))]).unwrap();
    assert_eq!(empty[0].len(), 2 + 24);
    let broken = call(&served, "streamGetCapture", vec![field(1, &field(1, b"broken"))]).unwrap_err();
    assert!(broken.message().contains("the disk is gone"), "{broken}");
}

#[test]
fn grpc_requests_are_accepted_up_to_configured_limit() {
    let served = Served::start(ServerOptions { most_request_bytes: 8 << 20, ..plain() });
    let ports = |count: usize| -> Vec<u8> {
        let name = "n".repeat(10_000);
        (0..count)
            .flat_map(|_| field(1, &[field(1, b"veth-a"), field(2, name.as_bytes())].concat()))
            .collect()
    };
    let slices = |config: Vec<u8>| config.chunks(10_000).map(|slice| field(2, slice)).collect::<Vec<_>>();
    // More than 4 MiB: read, and refused for what is in it.
    let large = call(&served, "streamSetConfig", slices(ports(600))).unwrap_err();
    assert_eq!(large.code(), Code::InvalidArgument, "{large}");
    let larger = call(&served, "streamSetConfig", slices(ports(900))).unwrap_err();
    assert_eq!(larger.code(), Code::ResourceExhausted, "{larger}");
}

#[test]
fn grpc_client_without_token_is_refused() {
    let served = Served::start(ServerOptions { token: Some("secret".into()), ..strict() });
    let get = |token: &str| runtime().block_on(exchange(&served, "GetVersion", vec![vec![]], token));
    assert_eq!(get("").unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(get("wrong").unwrap_err().code(), Code::Unauthenticated);
    assert!(get("secret").is_ok());
}
