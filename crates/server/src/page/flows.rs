//! The calls that read stored flow records.

use super::calls::PageCall;
use super::query::QueryParameters;
use super::routes::{PageContext, PageFailure, blocking, present};
use crate::viewing::{FlowSelection, FlowTopQuery, FlowTotalsQuery, ViewRefusal};
use axum::response::Response;
use packetrig_units::Nanos;
use tokio::sync::Semaphore;

/// The most groups of one answer.
const MOST_GROUPS: usize = 1000;
const DEFAULT_GROUPS: usize = 20;

/// A query may read gigabytes. Viewers wait here for each other, without a thread, and the rig keeps its processors.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

pub(super) async fn perform(
    context: &PageContext,
    call: PageCall,
    mut query: QueryParameters,
) -> Result<Response, PageFailure> {
    let flows = present(context.flows(), "flow records: --flows names a directory of them")?;
    let selection = FlowSelection {
        filter: query.text("filter"),
        since_ns: query.moment_ns("since_ms")?,
        before_ns: query.moment_ns("before_ms")?,
    };
    if call == PageCall::FlowTop {
        let wanted = FlowTopQuery {
            selection,
            by: text_or(&mut query, "by", "src-ip"),
            order: text_or(&mut query, "order", "bytes"),
            most: query.number("most", DEFAULT_GROUPS, MOST_GROUPS)?,
        };
        query.finish()?;
        let turn = ONE_AT_A_TIME.acquire().await;
        blocking(move || {
            // Until the query ends, also if the viewer has gone.
            let _turn = turn;
            flows.top(&wanted)
        })
        .await
    } else {
        let bucket: Option<u64> = query.value("bucket_ms", "a whole number of milliseconds")?;
        query.finish()?;
        if bucket == Some(0) {
            return Err(ViewRefusal::Invalid("bucket_ms: at least 1".to_owned()).into());
        }
        let bucket = bucket.map(|ms| Nanos::new(ms.saturating_mul(1_000_000)));
        let turn = ONE_AT_A_TIME.acquire().await;
        blocking(move || {
            let _turn = turn;
            flows.totals(&FlowTotalsQuery { selection, bucket })
        })
        .await
    }
}

fn text_or(query: &mut QueryParameters, name: &str, default: &str) -> String {
    let text = query.text(name);
    if text.is_empty() { default.to_owned() } else { text }
}
