//! The eleven calls over gRPC. Seven of them also exist as `stream…`, with the request or the answer in slices.
//!
//! tonic handles each message as bytes. This module decodes messages with the descriptor of the model, because that
//! keeps unknown fields, so that they can be refused.

use super::body::MinimumRateBody;
use super::dispatcher::{CallDispatcher, stream_file_pieces};
use super::refusal::grpc_status;
use crate::api::{ApiCall, ApiReply, NormalisedRequest, RequestSource};
use crate::shape::{self, DocumentProblems};
use crate::tester::{CaptureFile, TesterRefusal};
use bytes::{Buf, BufMut, Bytes};
use serde_json::json;
use std::convert::Infallible;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Status, Streaming};

/// Maximum number of bytes in a slice that the server sends. By default, clients accept messages of up to 4 MiB.
const GRPC_SLICE_BYTES: usize = 1 << 20;
/// Maximum length of a capture in one message. Such a capture must be in memory as a whole.
const MAX_SINGLE_MESSAGE_CAPTURE_BYTES: u64 = 256 << 20;
/// Maximum number of bytes that the message around a document or around the bytes of a slice adds.
const MAX_WRAPPER_BYTES: usize = 64;

#[derive(Clone)]
pub(crate) struct GrpcService {
    pub(crate) dispatcher: CallDispatcher,
    pub(crate) most_request_bytes: usize,
}

/// An rpc: its API call, and whether its request or its response is sent in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GrpcMethod {
    call: ApiCall,
    sliced_request: bool,
    sliced_response: bool,
}

/// Finds the rpc with this path; `None` if the OTG service has no such rpc.
fn find_rpc(path: &str) -> Option<GrpcMethod> {
    // The path of a gRPC call is `/SERVICE/CALL`, with the full name of the service.
    let name = path.strip_prefix("/otg.Openapi/")?;
    let sliced = name.strip_prefix("stream");
    let is_sliced = sliced.is_some();
    let name = sliced.unwrap_or(name);
    let call = ApiCall::ALL.into_iter().find(|call| call.name() == name)?;
    // The model has `stream…` variants of these calls only. Each is sliced in one direction.
    let request = matches!(call, ApiCall::SetConfig | ApiCall::SetControlState | ApiCall::SetControlAction);
    let response =
        matches!(call, ApiCall::GetConfig | ApiCall::GetMetrics | ApiCall::GetStates | ApiCall::GetCapture);
    if is_sliced && !request && !response {
        return None;
    }
    Some(GrpcMethod { call, sliced_request: is_sliced && request, sliced_response: is_sliced && response })
}

impl hyper::service::Service<http::Request<MinimumRateBody>> for GrpcService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: http::Request<MinimumRateBody>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let Some(rpc) = find_rpc(request.uri().path()) else {
                let path = request.uri().path();
                return Ok(grpc_status(&TesterRefusal::not_implemented(format!(
                    "there is no gRPC call `{path}`"
                )))
                .into_http());
            };
            let most = service.most_request_bytes;
            // The limit is for the document; the message around it adds a few bytes.
            let mut grpc =
                tonic::server::Grpc::new(RawMessage).max_decoding_message_size(most + MAX_WRAPPER_BYTES);
            Ok(grpc.streaming(RpcHandler { service, rpc }, request).await)
        })
    }
}

/// Serves every rpc as a stream of messages in both directions: on the wire, a unary call looks the same.
struct RpcHandler {
    service: GrpcService,
    rpc: GrpcMethod,
}

type MessageStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl tonic::server::StreamingService<Bytes> for RpcHandler {
    type Response = Bytes;
    type ResponseStream = MessageStream;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<MessageStream>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let service = self.service.clone();
        let rpc = self.rpc;
        Box::pin(async move {
            let bytes = collect_request(request.into_inner(), rpc, service.most_request_bytes).await?;
            let written = service
                .dispatcher
                .dispatch_call(rpc.call, MessageRequest { rpc, bytes }, move |reply| write_reply(rpc, reply))
                .await;
            let messages: MessageStream = match written.map_err(|refusal| grpc_status(&refusal))? {
                GrpcAnswer::Messages(messages) => Box::pin(tokio_stream::iter(messages.into_iter().map(Ok))),
                GrpcAnswer::File(file) => {
                    let slices = ReceiverStream::new(stream_file_pieces(file, GRPC_SLICE_BYTES));
                    Box::pin(slices.map(|piece| match piece {
                        Ok(piece) => Ok(encode_data_message(&piece)),
                        Err(error) => Err(grpc_status(&TesterRefusal::internal(format!(
                            "the capture cannot be read to its end: {error}"
                        )))),
                    }))
                }
            };
            Ok(tonic::Response::new(messages))
        })
    }
}

/// Reads a request: one message, or all slices joined. Fails if the request is longer than the limit.
async fn collect_request(
    mut messages: Streaming<Bytes>,
    rpc: GrpcMethod,
    most: usize,
) -> Result<Vec<u8>, Status> {
    let mut whole = Vec::new();
    let mut is_first = true;
    while let Some(message) = messages.message().await? {
        if rpc.sliced_request {
            whole.extend_from_slice(&decode_slice(&message)?);
        } else if is_first {
            whole = message.to_vec();
        } else {
            return Err(grpc_status(&TesterRefusal::validation(
                "this call needs exactly one request message",
            )));
        }
        is_first = false;
        // tonic limits each message; this limits all slices together.
        if whole.len() > most + MAX_WRAPPER_BYTES {
            let message = format!("the request is longer than the limit of {most} bytes");
            return Err(Status::new(tonic::Code::ResourceExhausted, message));
        }
    }
    Ok(whole)
}

/// Decodes a slice, a message `Data`, and returns its bytes.
fn decode_slice(message: &[u8]) -> Result<Bytes, Status> {
    let of = shape::message_descriptor("Data");
    let data = prost_reflect::DynamicMessage::decode(of, message)
        .map_err(|error| invalid_status(format!("a slice is not a protobuf message `Data`: {error}")))?;
    if let Some(unknown) = data.unknown_fields().next() {
        return Err(invalid_status(format!("field {} of Data is unknown", unknown.number())));
    }
    let datum = data.get_field_by_name("datum");
    Ok(datum.and_then(|datum| datum.as_bytes().cloned()).unwrap_or_default())
}

fn invalid_status(error: String) -> Status {
    grpc_status(&TesterRefusal::validation(error))
}

fn internal_error(error: String) -> TesterRefusal {
    TesterRefusal::internal(format!("{error}: this is a bug in packetrig"))
}

/// A request that is a protobuf message.
struct MessageRequest {
    rpc: GrpcMethod,
    bytes: Vec<u8>,
}

impl MessageRequest {
    fn decode_document(&self, complaints: &mut DocumentProblems) -> Option<serde_json::Value> {
        let Self { rpc, bytes } = self;
        match rpc.call.request_message() {
            // Joined slices are the document itself, without the wrapper that a request in one message has.
            Some(of) if rpc.sliced_request => shape::decode_message(bytes, &of, complaints),
            Some(_) => {
                let wrapper = shape::message_descriptor(&format!("{}Request", rpc.call.name()));
                shape::decode_member(bytes, &wrapper, complaints)
            }
            None => shape::decode_message(bytes, &shape::empty_descriptor(), complaints),
        }
    }
}

impl RequestSource for MessageRequest {
    fn normalise_request(&self) -> NormalisedRequest {
        let mut complaints = DocumentProblems::default();
        let document = self.decode_document(&mut complaints).zip(self.rpc.call.request_message());
        let settled = document.map(|(document, of)| shape::normalise_value(document, &of, &mut complaints));
        // Protobuf clients skip fields that they do not know, so new members do no harm.
        NormalisedRequest {
            document: settled.unwrap_or_else(|| "{}".to_owned()),
            complaints,
            knows_new_members: true,
        }
    }

    fn original_document(&self) -> Option<String> {
        self.decode_document(&mut DocumentProblems::default()).map(|document| document.to_string())
    }
}

enum GrpcAnswer {
    Messages(Vec<Bytes>),
    File(CaptureFile),
}

fn write_reply(rpc: GrpcMethod, reply: ApiReply) -> Result<GrpcAnswer, TesterRefusal> {
    let of = rpc.call.response_message();
    let document = match reply {
        ApiReply::File(file) if rpc.sliced_response => return Ok(GrpcAnswer::File(file)),
        ApiReply::File(file) => return build_capture_answer(file),
        ApiReply::Flows(rows) if rpc.sliced_response => return Ok(split_into_slices(&rows.to_message())),
        ApiReply::Flows(rows) => {
            return Ok(GrpcAnswer::Messages(vec![encode_bytes_field(1, &rows.to_message())]));
        }
        ApiReply::Document(document) => document,
    };
    if rpc.sliced_response {
        return Ok(split_into_slices(&shape::encode_message(&document, &of).map_err(internal_error)?));
    }
    let wrapper = shape::message_descriptor(&format!("{}Response", rpc.call.name()));
    // A response message has exactly one field. The name of the field depends on the rpc, so it is
    // read from the descriptor.
    let name = wrapper.fields().next().map(|field| field.name().to_owned()).unwrap_or_default();
    let bytes = shape::encode_message(&json!({ name: document }), &wrapper).map_err(internal_error)?;
    Ok(GrpcAnswer::Messages(vec![bytes.into()]))
}

fn split_into_slices(bytes: &[u8]) -> GrpcAnswer {
    let slices: Vec<Bytes> = bytes.chunks(GRPC_SLICE_BYTES).map(encode_data_message).collect();
    // An empty answer gets one empty slice, because no slice would look like a stream that ended early.
    GrpcAnswer::Messages(if slices.is_empty() { vec![encode_data_message(&[])] } else { slices })
}

/// Builds a `GetCaptureResponse` with the whole capture. Fails if the capture is too long for one message.
fn build_capture_answer(file: CaptureFile) -> Result<GrpcAnswer, TesterRefusal> {
    let mut bytes = Vec::new();
    // Reading stops one byte beyond the limit: that shows that the capture is too long, and takes no more memory.
    let read = file.bytes.take(MAX_SINGLE_MESSAGE_CAPTURE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| TesterRefusal::internal(format!("the capture cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_SINGLE_MESSAGE_CAPTURE_BYTES {
        return Err(TesterRefusal::validation(
            "the capture is too long for one message; use streamGetCapture or HTTP",
        ));
    }
    Ok(GrpcAnswer::Messages(vec![encode_bytes_field(1, &bytes)]))
}

/// Encodes a message `Data` with these bytes.
fn encode_data_message(datum: &[u8]) -> Bytes {
    // Field 1, a varint, is the length; field 2 has the bytes.
    let mut message = vec![0x08];
    push_varint(&mut message, datum.len() as u64);
    message.extend_from_slice(&encode_bytes_field(2, datum));
    message.into()
}

/// Encodes a message with one field of bytes.
fn encode_bytes_field(number: u8, bytes: &[u8]) -> Bytes {
    let mut message = Vec::with_capacity(bytes.len() + MAX_WRAPPER_BYTES);
    // Wire type 2: a length and that many bytes.
    message.push(number << 3 | 2);
    push_varint(&mut message, bytes.len() as u64);
    message.extend_from_slice(bytes);
    message.into()
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "below 0x80")]
    out.push(value as u8);
}

/// A codec that leaves messages as bytes.
#[derive(Clone, Copy)]
struct RawMessage;

impl Codec for RawMessage {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawMessage {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for RawMessage {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighteen_rpcs_match_the_model() {
        let service = shape::message_descriptor("Data")
            .parent_pool()
            .get_service_by_name("otg.Openapi")
            .expect("a service");
        assert_eq!(service.methods().len(), 18);
        for method in service.methods() {
            let found = find_rpc(&format!("/otg.Openapi/{}", method.name())).expect("every method is served");
            assert_eq!(found.sliced_request, method.is_client_streaming(), "{}", method.name());
            assert_eq!(found.sliced_response, method.is_server_streaming(), "{}", method.name());
            if !found.sliced_request && found.call.request_message().is_some() {
                assert_eq!(method.input().name(), format!("{}Request", found.call.name()));
            }
            if !found.sliced_response {
                assert_eq!(method.output().name(), format!("{}Response", found.call.name()));
            }
        }
        assert_eq!(find_rpc("/otg.Openapi/streamGetVersion"), None);
        assert_eq!(find_rpc("/otg.Other/GetVersion"), None);
    }

    #[test]
    fn slices_are_valid_model_messages() {
        for length in [0, 1, 127, 128, 70_000] {
            let bytes = vec![7; length];
            assert_eq!(decode_slice(&encode_data_message(&bytes)).expect("a slice"), bytes);
        }
    }
}
