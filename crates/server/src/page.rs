//! The live page and the documented API behind it. The API sends the data of [`viewing`](crate::viewing) as JSON
//! and as server-sent events.
//!
//! The page uses only calls that a script can use as well. Its files are public, because they are the same
//! everywhere. All data needs the same authentication as the OTG API. `docs/book/page-api.md` and
//! `openapi.json` describe the calls.
//!
//! Invariant: no viewer can make a run wait. Viewers get the latest state; states that a
//! slow viewer misses are not stored for it.

mod calls;
mod exposition;
mod feed;
mod files;
mod flows;
mod live_json;
mod methods;
mod query;
mod rates;
mod results;
mod routes;
mod turns;

pub(crate) use calls::is_viewing_request;
pub(crate) use files::is_page_file;
pub use live_json::write_large_counts_as_text;
pub(crate) use routes::{PageContext, build_page_routes};

/// Version of the answers of the page's API. Members may be added without a new version.
pub(crate) const PAGE_API_VERSION: u32 = 1;
