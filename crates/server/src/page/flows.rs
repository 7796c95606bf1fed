//! The calls that read stored flow records.

use super::calls::PageCall;
use super::query::QueryParameters;
use super::routes::{PageContext, PageFailure, json_text_response, require_part};
use super::turns::CallLimit;
use crate::viewing::{FlowSelection, FlowTopQuery, FlowTotalsQuery, ViewRefusal, ViewerGoneCheck};
use axum::response::Response;
use packetrig_units::Nanos;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of groups of one answer.
const MAX_GROUPS: usize = 1000;
const DEFAULT_GROUPS: usize = 20;

/// One query at a time: each may read gigabytes.
static FLOW_QUERIES: CallLimit = CallLimit::new(1);

pub(super) async fn perform_flow_call(
    context: &PageContext,
    call: PageCall,
    mut query: QueryParameters,
) -> Result<Response, PageFailure> {
    let flows = require_part(context.flows(), "flow records; start it with --flows DIR")?;
    let selection = FlowSelection {
        filter: query.take_text_parameter("filter"),
        since_ns: query.take_time_parameter("since_ms")?,
        before_ns: query.take_time_parameter("before_ms")?,
    };
    if call == PageCall::FlowTop {
        let wanted = FlowTopQuery {
            selection,
            by: take_parameter_or_default(&mut query, "by", "src-ip"),
            order: take_parameter_or_default(&mut query, "order", "bytes"),
            most: query.take_number_parameter("most", DEFAULT_GROUPS, MAX_GROUPS)?,
        };
        query.refuse_unknown_parameters()?;
        run_query_when_permitted(move |is_given_up| flows.top_flows(&wanted, is_given_up)).await
    } else {
        let wanted = FlowTotalsQuery { selection, bucket: read_bucket(&mut query)? };
        query.refuse_unknown_parameters()?;
        run_query_when_permitted(move |is_given_up| flows.flow_totals(&wanted, is_given_up)).await
    }
}

/// Runs a query as soon as the limit of parallel queries permits it, and ends it early if its viewer disconnects.
async fn run_query_when_permitted(
    make: impl FnOnce(&ViewerGoneCheck<'_>) -> Result<Value, ViewRefusal> + Send + 'static,
) -> Result<Response, PageFailure> {
    let viewer = WaitingViewer::default();
    // The future of a call is dropped when its client disconnects; the flag ends the query on its own thread.
    let has_gone = Arc::clone(&viewer.0);
    FLOW_QUERIES
        .run_when_permitted(move || make(&|| has_gone.load(Ordering::Relaxed)).map(|value| value.to_string()))
        .await
        .map(json_text_response)
}

/// When dropped, sets the flag that ends the query: after the answer, or when the viewer disconnects.
#[derive(Default)]
struct WaitingViewer(Arc<AtomicBool>);

impl Drop for WaitingViewer {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn read_bucket(query: &mut QueryParameters) -> Result<Option<Nanos>, ViewRefusal> {
    let ms: Option<u64> = query.take_parsed_parameter("bucket_ms", "a whole number of milliseconds")?;
    // A timeline with steps of 0 would never end.
    if ms == Some(0) {
        return Err(ViewRefusal::Invalid("bucket_ms: must be at least 1".to_owned()));
    }
    Ok(ms.map(|ms| Nanos::new(ms.saturating_mul(1_000_000))))
}

fn take_parameter_or_default(query: &mut QueryParameters, name: &str, default: &str) -> String {
    let text = query.take_text_parameter(name);
    if text.is_empty() { default.to_owned() } else { text }
}
