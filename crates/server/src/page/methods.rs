//! The calls that start, follow and stop test methods.

use super::PAGE_API_VERSION;
use super::calls::PageCall;
use super::routes::{PageContext, PageFailure, blocking, json_value, panicked, present};
use crate::methods::{MethodRefusal, MethodService};
use crate::transport::http::{failed, read_body};
use crate::viewing::ViewRefusal;
use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn perform(
    context: &PageContext,
    call: PageCall,
    id: String,
    request: Request<Body>,
) -> Result<Response, PageFailure> {
    let methods = present(context.methods(), "test methods: `packetrig serve` has them")?;
    match call {
        PageCall::StartMethod => start(methods, context.most_request_bytes(), request).await,
        PageCall::StopMethod => blocking(move || known(methods.stop(&id), &id)).await,
        PageCall::Method => blocking(move || known(methods.progress(&id), &id)).await,
        _ => {
            blocking(move || Ok(json!({ "schema_version": PAGE_API_VERSION, "methods": methods.list() })))
                .await
        }
    }
}

fn known(state: Option<Value>, id: &str) -> Result<Value, ViewRefusal> {
    state.ok_or_else(|| ViewRefusal::Unknown(format!("this server has started no test {id}")))
}

async fn start(
    methods: Arc<dyn MethodService>,
    most_bytes: usize,
    request: Request<Body>,
) -> Result<Response, PageFailure> {
    let body = read_body(request.into_body(), most_bytes).await.map_err(PageFailure::Ready)?;
    let request: Value =
        serde_json::from_slice(&body).map_err(|error| ViewRefusal::Invalid(format!("the body: {error}")))?;
    // Starting a test reads its plan, which may take long: not on a thread of the runtime.
    let made = tokio::task::spawn_blocking(move || methods.start(request)).await;
    match made.map_err(|_| panicked())? {
        Ok(state) => Ok(json_value(&state)),
        Err(MethodRefusal::Busy(text)) => {
            Err(PageFailure::Ready(Box::new(failed(StatusCode::CONFLICT, &text))))
        }
        Err(MethodRefusal::Invalid(text)) => Err(ViewRefusal::Invalid(text).into()),
        Err(MethodRefusal::Failed(text)) => Err(ViewRefusal::Failed(text).into()),
    }
}
