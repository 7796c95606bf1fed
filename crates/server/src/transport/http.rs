//! The calls of the OTG API over HTTP. Each call has one route, reads JSON, and answers with JSON or a file.

use super::body::{BodyError, BodyFault};
use super::dispatcher::{CallDispatcher, stream_file_pieces};
use super::refusal;
use crate::api::{ApiCall, ApiReply, NormalisedRequest, RequestSource};
use crate::page::{PageContext, build_page_routes};
use crate::shape::{self, DocumentProblems};
use crate::tester::{CaptureFile, RefusalKind, TesterRefusal};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::collections::BTreeMap;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes of a capture that are read at once.
const CAPTURE_PIECE_BYTES: usize = 256 << 10;

/// State that the routes of the OTG API share.
#[derive(Clone)]
struct RouteContext {
    dispatcher: CallDispatcher,
    most_request_bytes: usize,
}

/// Builds the router of all routes. Without a dispatcher there is no tester, so the routes of the OTG API are left out.
pub(crate) fn build_router(
    dispatcher: Option<CallDispatcher>,
    most_request_bytes: usize,
    page: PageContext,
) -> Router {
    let otg = dispatcher.map(|dispatcher| build_otg_routes(dispatcher, most_request_bytes));
    build_page_routes(page)
        .merge(otg.unwrap_or_default())
        // axum's own answers have no body; clients expect OTG's `Error`.
        .fallback(answer_unknown_path)
        .method_not_allowed_fallback(answer_wrong_method)
}

fn build_otg_routes(dispatcher: CallDispatcher, most_request_bytes: usize) -> Router {
    let mut router = Router::new();
    for call in ApiCall::ALL {
        let method = match call.method() {
            "GET" => MethodFilter::GET,
            "PATCH" => MethodFilter::PATCH,
            _ => MethodFilter::POST,
        };
        router = router.route(
            call.path(),
            on(method, move |State(context): State<RouteContext>, request: http::Request<Body>| {
                handle_call(context, call, request)
            }),
        );
    }
    router.route("/docs", get(answer_docs_page)).with_state(RouteContext { dispatcher, most_request_bytes })
}

async fn handle_call(context: RouteContext, call: ApiCall, request: http::Request<Body>) -> Response {
    let body = match read_body(request.into_body(), context.most_request_bytes).await {
        Ok(body) => body,
        Err(response) => return *response,
    };
    let performed = context.dispatcher.dispatch_call(call, JsonRequest { call, body }, write_reply).await;
    match performed {
        Ok(HttpAnswer::Json(text)) => json_response(StatusCode::OK, text),
        Ok(HttpAnswer::File(file)) => file_response(file).await,
        Err(refusal) => refusal_response(&refusal),
    }
}

/// Reads the body of a request. `Err` is the answer to a body that is too long or cannot be read to its end.
pub(crate) async fn read_body(body: Body, most_bytes: usize) -> Result<Bytes, Box<Response>> {
    match Limited::new(body, most_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the request is longer than the limit of {most_bytes} bytes");
            Err(Box::new(error_response(StatusCode::PAYLOAD_TOO_LARGE, &message)))
        }
        Err(error) => Err(Box::new(incomplete_body_response(&*error))),
    }
}

/// A request whose body is a JSON document.
struct JsonRequest {
    call: ApiCall,
    body: Bytes,
}

impl RequestSource for JsonRequest {
    fn normalise_request(&self) -> NormalisedRequest {
        let mut complaints = DocumentProblems::default();
        let of = self.call.request_message();
        let document = of.and_then(|of| shape::normalise_json(&self.body, &of, &mut complaints));
        // gosnappi fails on members that its version does not know, so HTTP sends new members only on request.
        NormalisedRequest {
            document: document.unwrap_or_else(|| "{}".to_owned()),
            complaints,
            knows_new_members: false,
        }
    }

    fn original_document(&self) -> Option<String> {
        shape::copy_config(&self.body, &BTreeMap::new()).ok()
    }
}

enum HttpAnswer {
    Json(String),
    File(CaptureFile),
}

#[expect(clippy::unnecessary_wraps, reason = "the dispatcher requires a function that returns a `Result`")]
fn write_reply(reply: ApiReply) -> Result<HttpAnswer, TesterRefusal> {
    Ok(match reply {
        ApiReply::Document(document) => HttpAnswer::Json(shape::format_json(&document)),
        ApiReply::Flows(rows) => HttpAnswer::Json(rows.to_json()),
        ApiReply::File(file) => HttpAnswer::File(file),
    })
}

pub(crate) fn json_response(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

pub(crate) fn refusal_response(refusal: &TesterRefusal) -> Response {
    let code = refusal.kind.http_status();
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_response(
        status,
        shape::format_json(&refusal::build_refusal_json(code, refusal.kind, &refusal.errors)),
    )
}

/// Builds an error answer in the same format as that for a [`TesterRefusal`].
pub(crate) fn error_response(status: StatusCode, message: &str) -> Response {
    let kind = if status.is_server_error() { RefusalKind::Internal } else { RefusalKind::Validation };
    let body = refusal::build_refusal_json(status.as_u16(), kind, &[message.to_owned()]);
    json_response(status, shape::format_json(&body))
}

/// Builds the answer to a request whose body was not read to its end.
fn incomplete_body_response(error: &(dyn std::error::Error + 'static)) -> Response {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    match causes.find_map(|cause| cause.downcast_ref::<BodyError>()).map(|error| error.fault) {
        Some(fault @ BodyFault::TooSlow) => error_response(StatusCode::REQUEST_TIMEOUT, fault.text()),
        Some(fault @ BodyFault::NoMemory) => error_response(StatusCode::SERVICE_UNAVAILABLE, fault.text()),
        None => error_response(StatusCode::BAD_REQUEST, &format!("the request ended early: {error}")),
    }
}

/// Sends a file. If its beginning cannot be read, the answer is an error. If reading fails later, the connection is
/// closed, so that the client notices: the status was already sent.
async fn file_response(file: CaptureFile) -> Response {
    let length = file.length;
    let mut pieces = stream_file_pieces(file, CAPTURE_PIECE_BYTES);
    let first = match pieces.recv().await {
        Some(Err(error)) => {
            return refusal_response(&TesterRefusal::internal(format!(
                "the capture cannot be read: {error}"
            )));
        }
        first => tokio_stream::iter(first),
    };
    let mut response = Response::new(Body::from_stream(first.chain(ReceiverStream::new(pieces))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(length) = length {
        // A client that knows the length notices if the file is incomplete.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

async fn answer_unknown_path(request: http::Request<Body>) -> Response {
    let message = format!("nothing is served at {}; see /docs", request.uri().path());
    error_response(StatusCode::NOT_FOUND, &message)
}

async fn answer_wrong_method(request: http::Request<Body>) -> Response {
    let message = format!("{} does not accept {}; see /docs", request.uri().path(), request.method());
    error_response(StatusCode::METHOD_NOT_ALLOWED, &message)
}

async fn answer_docs_page() -> Html<Bytes> {
    Html(Bytes::from_static(include_bytes!("docs.html")))
}
