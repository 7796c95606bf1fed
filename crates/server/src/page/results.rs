//! The calls on past results.

use super::calls::PageCall;
use super::query::QueryParameters;
use super::routes::{PageFailure, answer_on_blocking_thread, json_text_response};
use super::turns::CallLimit;
use super::{PAGE_API_VERSION, files};
use crate::viewing::{ResultArchive, ResultQuery, ViewRefusal};
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of results on one page of the list.
const MAX_RESULTS: usize = 1000;
const DEFAULT_RESULTS: usize = 100;

/// Limits calls that read a whole result, which may have thousands of streams.
static WHOLE_RESULTS: CallLimit = CallLimit::new(2);

pub(super) async fn perform_result_call(
    archive: Arc<dyn ResultArchive>,
    call: PageCall,
    id: String,
    mut query: QueryParameters,
) -> Result<Response, PageFailure> {
    match call {
        PageCall::Result => {
            query.refuse_unknown_parameters()?;
            Ok(json_text_response(WHOLE_RESULTS.run_when_permitted(move || archive.result_json(&id)).await?))
        }
        PageCall::ResultPage => {
            query.refuse_unknown_parameters()?;
            Ok(files::report_page_response(
                WHOLE_RESULTS.run_when_permitted(move || archive.result_page(&id)).await?,
            ))
        }
        PageCall::Series => {
            query.refuse_unknown_parameters()?;
            Ok(json_text_response(
                WHOLE_RESULTS
                    .run_when_permitted(move || archive.result_series(&id).map(|value| value.to_string()))
                    .await?,
            ))
        }
        PageCall::Compare => {
            let before = query.take_required_parameter("a")?;
            let after = query.take_required_parameter("b")?;
            let anyway = query.take_flag_parameter("anyway")?;
            query.refuse_unknown_parameters()?;
            let compare =
                move || archive.compare_results(&before, &after, anyway).map(|value| value.to_string());
            Ok(json_text_response(WHOLE_RESULTS.run_when_permitted(compare).await?))
        }
        PageCall::Unfinished => {
            query.refuse_unknown_parameters()?;
            answer_on_blocking_thread(move || archive.unlisted_runs()).await
        }
        _ => {
            // The list reads only summaries, so these calls are not limited.
            let wanted = read_result_query(&mut query)?;
            query.refuse_unknown_parameters()?;
            answer_on_blocking_thread(move || list_results(archive.as_ref(), &wanted)).await
        }
    }
}

fn list_results(archive: &dyn ResultArchive, wanted: &ResultQuery) -> Result<Value, ViewRefusal> {
    let page = archive.list_results(wanted)?;
    Ok(json!({
        "schema_version": PAGE_API_VERSION,
        "total": page.total,
        "matching": page.matching,
        "from": wanted.from,
        "results": page.results,
    }))
}

fn read_result_query(query: &mut QueryParameters) -> Result<ResultQuery, ViewRefusal> {
    Ok(ResultQuery {
        text: query.take_text_parameter("text"),
        verdict: query.take_text_parameter("verdict").to_uppercase(),
        kind: query.take_text_parameter("kind"),
        plan: query.take_text_parameter("plan"),
        since_ns: query.take_time_parameter("since_ms")?,
        before_ns: query.take_time_parameter("before_ms")?,
        from: query.take_number_parameter("from", 0, usize::MAX)?,
        most: query.take_number_parameter("most", DEFAULT_RESULTS, MAX_RESULTS)?,
    })
}
