//! The calls of the page's API over HTTP.

use super::calls::PageCall;
use super::feed::{LiveFeed, MAX_VIEWERS};
use super::live_json::{StreamWindow, live_json};
use super::query::QueryParameters;
use super::rates::RateChange;
use super::{PAGE_API_VERSION, exposition, files, flows, methods, results};
use crate::live_columns;
use crate::methods::MethodService;
use crate::tester::{FlowChange, RequestedState, TesterRefusal};
use crate::transport::CallDispatcher;
use crate::transport::access::ClientCredential;
use crate::transport::http::{error_response, json_response, read_body, refusal_response};
use crate::transport::rejections::RejectionCounters;
use crate::viewing::{FlowArchive, RigPartSource, ServedRig, ViewRefusal};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawPathParams, State};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Request, StatusCode};
use packetrig_units::exposition::MEDIA_TYPE;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;

/// Maximum number of events per second that a viewer can request.
const MAX_RATE: usize = 10;
/// Header that turns off buffering in proxies such as nginx, which would otherwise delay events.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// State that the calls share.
#[derive(Clone)]
pub(crate) struct PageContext {
    rig: ServedRig,
    dispatcher: Option<CallDispatcher>,
    feed: Option<Arc<LiveFeed>>,
    counters: Arc<RejectionCounters>,
    most_request_bytes: usize,
}

impl PageContext {
    pub(crate) fn new(
        rig: &ServedRig,
        dispatcher: Option<CallDispatcher>,
        counters: Arc<RejectionCounters>,
        most_request_bytes: usize,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let feed = rig.live.clone().map(|source| LiveFeed::new(source, stopping));
        Self { rig: rig.clone(), dispatcher, feed, counters, most_request_bytes }
    }

    pub(super) fn methods(&self) -> Option<Arc<dyn MethodService>> {
        self.rig.methods.clone()
    }

    pub(super) fn flows(&self) -> Option<Arc<dyn FlowArchive>> {
        self.rig.flows.clone()
    }

    pub(super) const fn most_request_bytes(&self) -> usize {
        self.most_request_bytes
    }
}

/// The routes of the page and its API.
pub(crate) fn build_page_routes<S: Clone + Send + Sync + 'static>(context: PageContext) -> Router<S> {
    let mut router = Router::new();
    for call in PageCall::ALL {
        let handler =
            move |State(context): State<PageContext>, parameters: RawPathParams, request: Request<Body>| {
                let id = parameters.iter().find(|(name, _)| *name == "id").map(|(_, id)| id.to_owned());
                answer_page_call(context, call, id.unwrap_or_default(), request)
            };
        router = router.route(call.path(), on(call.method(), handler));
    }
    // `{file}` matches one path segment, because the page has no directories.
    for path in ["/", "/ui", "/ui/", "/ui/{file}"] {
        router = router.route(path, on(MethodFilter::GET, answer_page_file));
    }
    for path in ["/book", "/book/", "/book/{page}"] {
        router = router.route(path, on(MethodFilter::GET, answer_book_page));
    }
    router.with_state(context)
}

async fn answer_page_file(request: Request<Body>) -> Response {
    let found = files::page_file_response(request.uri().path(), request.headers());
    found.unwrap_or_else(|| error_response(StatusCode::NOT_FOUND, "the live page has no file at this path"))
}

async fn answer_book_page(request: Request<Body>) -> Response {
    // A search reads the whole book, and must not hold up other calls.
    let found = tokio::task::spawn_blocking(move || files::book_response(request.uri())).await.ok().flatten();
    found.unwrap_or_else(|| {
        error_response(StatusCode::NOT_FOUND, "the book has no page at this path; see /book/")
    })
}

async fn answer_page_call(
    context: PageContext,
    call: PageCall,
    id: String,
    request: Request<Body>,
) -> Response {
    let mut response = match perform_page_call(context, call, id, request).await {
        Ok(response) => response,
        Err(PageFailure::View(refusal)) => error_response(refusal_status(&refusal), &refusal.to_string()),
        Err(PageFailure::Tester(refusal)) => refusal_response(&refusal),
        Err(PageFailure::Ready(response)) => *response,
    };
    let headers = response.headers_mut();
    // State changes all the time, and no cache may hand out an answer that needs a token.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Refusals get these headers, too, because a browser may show any answer.
    files::add_security_headers(headers);
    response
}

/// Why a call of the page failed.
pub(super) enum PageFailure {
    View(ViewRefusal),
    Tester(TesterRefusal),
    /// The complete error response.
    Ready(Box<Response>),
}

impl From<ViewRefusal> for PageFailure {
    fn from(refusal: ViewRefusal) -> Self {
        Self::View(refusal)
    }
}

impl From<TesterRefusal> for PageFailure {
    fn from(refusal: TesterRefusal) -> Self {
        Self::Tester(refusal)
    }
}

const fn refusal_status(refusal: &ViewRefusal) -> StatusCode {
    match refusal {
        ViewRefusal::Unknown(_) => StatusCode::NOT_FOUND,
        ViewRefusal::Invalid(_) => StatusCode::BAD_REQUEST,
        ViewRefusal::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn perform_page_call(
    context: PageContext,
    call: PageCall,
    id: String,
    request: Request<Body>,
) -> Result<Response, PageFailure> {
    let mut query = QueryParameters::parse_query(request.uri().query())?;
    match call {
        PageCall::OpenApi => {
            query.refuse_unknown_parameters()?;
            Ok(json_value_response(&describe_api()))
        }
        PageCall::State => {
            query.refuse_unknown_parameters()?;
            Ok(json_value_response(&describe_server(&context, &request)))
        }
        PageCall::Live => {
            let window = StreamWindow::from_query(&mut query)?;
            query.refuse_unknown_parameters()?;
            let source = require_part(context.rig.live.clone(), "live data of a run")?;
            answer_on_blocking_thread(move || Ok(live_json(&source.live_state(), &window))).await
        }
        PageCall::Events => stream_events(&context, query),
        PageCall::Streams => {
            // Otherwise a call with `?streams=f1` in the URL, in place of the member in the body,
            // would change all streams.
            query.refuse_unknown_parameters()?;
            change_streams(context, request).await
        }
        PageCall::Rates => {
            query.refuse_unknown_parameters()?;
            change_rates(context, request).await
        }
        PageCall::Methods | PageCall::StartMethod | PageCall::Method | PageCall::StopMethod => {
            query.refuse_unknown_parameters()?;
            methods::perform_method_call(&context, call, id, request).await
        }
        // Parameters are accepted: scrapers may be configured to send some to all their targets.
        PageCall::Metrics => answer_prometheus(context).await,
        PageCall::FlowTop | PageCall::FlowTotals => flows::perform_flow_call(&context, call, query).await,
        PageCall::Nodes => answer_part_query(context.rig.nodes, "the nodes of a fleet", query).await,
        PageCall::Logs => answer_part_query(context.rig.logs, "logs; start it with --log", query).await,
        PageCall::Taps => answer_part_query(context.rig.taps, "taps", query).await,
        PageCall::Calibration => answer_part_query(context.rig.calibration, "a calibration", query).await,
        PageCall::Results
        | PageCall::Unfinished
        | PageCall::Result
        | PageCall::ResultPage
        | PageCall::Series
        | PageCall::Compare => {
            let archive = require_part(context.rig.results, "past results")?;
            results::perform_result_call(archive, call, id, query).await
        }
    }
}

/// Answers with the JSON object of one part of the rig, such as its taps. `what` names the part if the server lacks it.
async fn answer_part_query(
    source: Option<Arc<dyn RigPartSource>>,
    what: &str,
    query: QueryParameters,
) -> Result<Response, PageFailure> {
    query.refuse_unknown_parameters()?;
    let source = require_part(source, what)?;
    answer_on_blocking_thread(move || source.read_facts()).await
}

/// Answers with the version of this server, the parts it has, and the rights of this caller.
fn describe_server(context: &PageContext, request: &Request<Body>) -> Value {
    let credential = request.extensions().get::<ClientCredential>();
    // `may_control` is only a hint for the page. The module `policy` refuses the calls of a viewer in any case.
    let may_control = credential != Some(&ClientCredential::ViewToken) && context.dispatcher.is_some();
    json!({
        "schema_version": PAGE_API_VERSION,
        "program": "packetrig",
        "version": env!("CARGO_PKG_VERSION"),
        "has": {
            "tester": context.rig.tester.is_some(),
            "live": context.rig.live.is_some(),
            "results": context.rig.results.is_some(),
            "nodes": context.rig.nodes.is_some(),
            "methods": context.rig.methods.is_some(),
            "flows": context.rig.flows.is_some(),
            "logs": context.rig.logs.is_some(),
            "taps": context.rig.taps.is_some(),
            "calibration": context.rig.calibration.is_some(),
        },
        "may": { "control": may_control },
        "viewers": context.feed.as_ref().map_or(0, |feed| feed.viewer_count()),
        "most_viewers": MAX_VIEWERS,
        "columns": live_columns::page_columns(),
    })
}

/// Builds the OpenAPI description of the API: the file `openapi.json`, with the columns of the run in progress added.
fn describe_api() -> Value {
    let mut described: Value =
        serde_json::from_str(include_str!("openapi.json")).expect("a test reads the file");
    live_columns::add_column_schemas(&mut described);
    described
}

fn stream_events(context: &PageContext, mut query: QueryParameters) -> Result<Response, PageFailure> {
    let window = StreamWindow::from_query(&mut query)?;
    // The value is at least 1, because the period is computed from it.
    let rate = query.take_number_parameter("rate", MAX_RATE, MAX_RATE)?.max(1);
    let has_history = query.take_parsed_parameter("history", "`true` or `false`")?.unwrap_or(true);
    query.refuse_unknown_parameters()?;
    let feed = require_part(context.feed.clone(), "live data of a run")?;
    let period = Duration::from_millis(1000 / rate as u64);
    let Some(events) = feed.add_viewer(window, period, has_history) else {
        let message =
            format!("there are {MAX_VIEWERS} viewers already; try again later, or read /api/v1/live");
        return Err(PageFailure::Ready(Box::new(error_response(StatusCode::SERVICE_UNAVAILABLE, &message))));
    };
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(events)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

/// Starts, stops, pauses or resumes streams: the same change as OTG's flow transmit.
async fn change_streams(context: PageContext, request: Request<Body>) -> Result<Response, PageFailure> {
    let (dispatcher, body) = read_change_request(context, request).await?;
    let change = read_stream_change(&body)?;
    let warnings = dispatcher.dispatch_change("streams", move |tester| tester.set_state(change)).await?;
    Ok(json_value_response(&json!({ "warnings": warnings })))
}

/// Changes rates of streams: the same change as OTG's update of flows.
async fn change_rates(context: PageContext, request: Request<Body>) -> Result<Response, PageFailure> {
    let (dispatcher, body) = read_change_request(context, request).await?;
    let change = RateChange::parse_rate_change(&body)?;
    let warnings = dispatcher.dispatch_change("rates", move |tester| change.apply_rates(tester)).await?;
    Ok(json_value_response(&json!({ "warnings": warnings })))
}

/// Reads the body of a call that changes something, and returns the dispatcher that performs the change.
async fn read_change_request(
    context: PageContext,
    request: Request<Body>,
) -> Result<(CallDispatcher, Bytes), PageFailure> {
    let dispatcher = require_part(context.dispatcher, "a tester; only `packetrig serve` has one")?;
    let body = read_body(request.into_body(), context.most_request_bytes).await;
    Ok((dispatcher, body.map_err(PageFailure::Ready)?))
}

/// Reads `{"change": "start", "streams": ["f1"]}`. Without names, the change is for all streams.
fn read_stream_change(body: &[u8]) -> Result<RequestedState, ViewRefusal> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct StreamChange {
        change: String,
        #[serde(default)]
        streams: Vec<String>,
    }
    let read: StreamChange = serde_json::from_slice(body)
        .map_err(|error| ViewRefusal::Invalid(format!("the request body is not valid: {error}")))?;
    let change = match read.change.as_str() {
        "start" => FlowChange::Start,
        "stop" => FlowChange::Stop,
        "pause" => FlowChange::Pause,
        "resume" => FlowChange::Resume,
        other => {
            let message = format!("change: `{other}` is not one of start, stop, pause, resume");
            return Err(ViewRefusal::Invalid(message));
        }
    };
    Ok(RequestedState::Traffic { change, flows: read.streams })
}

async fn answer_prometheus(context: PageContext) -> Result<Response, PageFailure> {
    let viewers = context.feed.as_ref().map_or(0, |feed| feed.viewer_count());
    let (live, counters) = (context.rig.live, context.counters);
    // The state is made from all rows, which may take too long for a thread of the runtime.
    let text = tokio::task::spawn_blocking(move || {
        let state = live.map(|live| live.live_state());
        exposition::render_metrics(state.as_ref(), viewers, &counters.read_counts())
    });
    let text = text.await.map_err(|_| panic_refusal())?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    Ok(response)
}

pub(super) fn require_part<T>(part: Option<T>, what: &str) -> Result<T, ViewRefusal> {
    part.ok_or_else(|| ViewRefusal::Unknown(format!("this server does not have {what}")))
}

/// Runs `make` on a thread that may block, and answers with its JSON.
pub(super) async fn answer_on_blocking_thread(
    make: impl FnOnce() -> Result<Value, ViewRefusal> + Send + 'static,
) -> Result<Response, PageFailure> {
    let made = tokio::task::spawn_blocking(move || make().map(|value| value.to_string())).await;
    Ok(json_text_response(made.unwrap_or_else(|_| Err(panic_refusal()))?))
}

pub(super) fn panic_refusal() -> ViewRefusal {
    ViewRefusal::Failed("the call ended in a panic: this is a bug in packetrig".to_owned())
}

pub(super) fn json_value_response(value: &Value) -> Response {
    json_text_response(value.to_string())
}

pub(super) fn json_text_response(text: String) -> Response {
    json_response(StatusCode::OK, text)
}
