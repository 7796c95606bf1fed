//! The calls that start, follow and stop test methods.

use super::PAGE_API_VERSION;
use super::calls::PageCall;
use super::routes::{
    PageContext, PageFailure, answer_on_blocking_thread, json_value_response, panic_refusal, require_part,
};
use crate::methods::{MethodRefusal, MethodService};
use crate::transport::http::{error_response, read_body};
use crate::viewing::ViewRefusal;
use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn perform_method_call(
    context: &PageContext,
    call: PageCall,
    id: String,
    request: Request<Body>,
) -> Result<Response, PageFailure> {
    let methods = require_part(context.methods(), "test methods; only `packetrig serve` has them")?;
    match call {
        PageCall::StartMethod => start_test(methods, context.most_request_bytes(), request).await,
        PageCall::StopMethod => {
            answer_on_blocking_thread(move || require_known_test(methods.stop_method(&id), &id)).await
        }
        PageCall::Method => {
            answer_on_blocking_thread(move || require_known_test(methods.method_state(&id), &id)).await
        }
        _ => {
            answer_on_blocking_thread(move || {
                Ok(json!({ "schema_version": PAGE_API_VERSION, "methods": methods.list_methods() }))
            })
            .await
        }
    }
}

fn require_known_test(state: Option<Value>, id: &str) -> Result<Value, ViewRefusal> {
    state.ok_or_else(|| ViewRefusal::Unknown(format!("this server has not started a test with id `{id}`")))
}

async fn start_test(
    methods: Arc<dyn MethodService>,
    most_bytes: usize,
    request: Request<Body>,
) -> Result<Response, PageFailure> {
    let body = read_body(request.into_body(), most_bytes).await.map_err(PageFailure::Ready)?;
    let request: Value = serde_json::from_slice(&body)
        .map_err(|error| ViewRefusal::Invalid(format!("the request body is not valid: {error}")))?;
    // Starting a test reads its plan, which may take long: not on a thread of the runtime.
    let made = tokio::task::spawn_blocking(move || methods.start_method(request)).await;
    match made.map_err(|_| panic_refusal())? {
        Ok(state) => Ok(json_value_response(&state)),
        // 409 (RFC 9110, 15.5.10): the request is correct, and may be repeated when the other test has ended.
        Err(MethodRefusal::Busy(text)) => {
            Err(PageFailure::Ready(Box::new(error_response(StatusCode::CONFLICT, &text))))
        }
        Err(MethodRefusal::Invalid(text)) => Err(ViewRefusal::Invalid(text).into()),
        Err(MethodRefusal::Failed(text)) => Err(ViewRefusal::Failed(text).into()),
    }
}
