//! The calls on past results.

use super::calls::PageCall;
use super::query::QueryParameters;
use super::routes::{PageFailure, blocking, json_text};
use super::turns::HeavyCalls;
use super::{PAGE_API_VERSION, files};
use crate::viewing::{ResultArchive, ResultQuery, ViewRefusal};
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// The most results of one page of the list.
const MOST_RESULTS: usize = 1000;
const DEFAULT_RESULTS: usize = 100;

/// Calls that read a whole result, which may have thousands of streams.
static WHOLE_RESULTS: HeavyCalls = HeavyCalls::new(2);

pub(super) async fn perform(
    archive: Arc<dyn ResultArchive>,
    call: PageCall,
    id: String,
    mut query: QueryParameters,
) -> Result<Response, PageFailure> {
    match call {
        PageCall::Result => {
            query.finish()?;
            Ok(json_text(WHOLE_RESULTS.make(move || archive.result(&id)).await?))
        }
        PageCall::ResultPage => {
            query.finish()?;
            Ok(files::report_page(WHOLE_RESULTS.make(move || archive.page(&id)).await?))
        }
        PageCall::Series => {
            query.finish()?;
            Ok(json_text(
                WHOLE_RESULTS.make(move || archive.series(&id).map(|value| value.to_string())).await?,
            ))
        }
        PageCall::Compare => {
            let before = query.required("a")?;
            let after = query.required("b")?;
            let anyway = query.flag("anyway")?;
            query.finish()?;
            let compare = move || archive.compare(&before, &after, anyway).map(|value| value.to_string());
            Ok(json_text(WHOLE_RESULTS.make(compare).await?))
        }
        PageCall::Unfinished => {
            query.finish()?;
            blocking(move || archive.unfinished()).await
        }
        _ => {
            // The list reads summaries only, so it needs no turn.
            let wanted = result_query(&mut query)?;
            query.finish()?;
            blocking(move || list(archive.as_ref(), &wanted)).await
        }
    }
}

fn list(archive: &dyn ResultArchive, wanted: &ResultQuery) -> Result<Value, ViewRefusal> {
    let page = archive.results(wanted)?;
    Ok(json!({
        "schema_version": PAGE_API_VERSION,
        "total": page.total,
        "matching": page.matching,
        "from": wanted.from,
        "results": page.results,
    }))
}

fn result_query(query: &mut QueryParameters) -> Result<ResultQuery, ViewRefusal> {
    Ok(ResultQuery {
        text: query.text("text"),
        verdict: query.text("verdict").to_uppercase(),
        kind: query.text("kind"),
        plan: query.text("plan"),
        since_ns: query.moment_ns("since_ms")?,
        before_ns: query.moment_ns("before_ms")?,
        from: query.number("from", 0, usize::MAX)?,
        most: query.number("most", DEFAULT_RESULTS, MOST_RESULTS)?,
    })
}
