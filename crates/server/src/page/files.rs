//! The files of the page, the book, and the security headers that isolate them from other sites.

use super::query::QueryParameters;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH,
    LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Uri};
use packetrig_page::book;
use packetrig_page::live::{LIVE_FILES, LiveFile};

/// Path of the page.
const PAGE_PATH: &str = "/ui/";

/// Path of the table of contents of the book. The pages of the book are below it.
const BOOK_PATH: &str = "/book/";

/// Content security policy of the book: only styles of this server, and a search form that calls only this server.
const BOOK_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// Content security policy of the live page: only this server's own files, no inline script or style, no other site
/// in a frame around it or inside it.
const PAGE_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Returns whether a request is for a file of the page. The files are the same on every rig, so every
/// client may have them.
pub(crate) fn is_page_file(head: &Parts) -> bool {
    matches!(head.method, Method::GET | Method::HEAD)
        && (matches!(head.uri.path(), "/" | "/ui" | "/book")
            || head.uri.path().starts_with(BOOK_PATH)
            || find_file(head.uri.path()).is_some())
}

fn find_file(path: &str) -> Option<&'static LiveFile> {
    let name = path.strip_prefix(PAGE_PATH)?;
    let name = if name.is_empty() { "index.html" } else { name };
    LIVE_FILES.iter().find(|file| file.name == name)
}

fn build_redirect(path: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(path));
    response
}

/// Answers a request for the table of contents of the book, for one of its pages, or for a search (`/book/?q=WORDS`);
/// `None` if the book has no such page.
pub(super) fn book_response(uri: &Uri) -> Option<Response> {
    let Some(name) = uri.path().strip_prefix(BOOK_PATH) else { return Some(build_redirect(BOOK_PATH)) };
    let pages = book::read_pages();
    let text = if name.is_empty() {
        // If the query is not valid, nothing is searched for, so the table of contents is shown.
        let mut query = QueryParameters::parse_query(uri.query()).unwrap_or_default();
        book::render_book_contents(&pages, &query.take_text_parameter("q"))
    } else {
        book::render_book_page(&pages, name)?
    };
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(BOOK_SECURITY_POLICY));
    add_security_headers(headers);
    Some(response)
}

/// Answers a request for a file of the live page; `None` if there is no such file.
pub(super) fn page_file_response(path: &str, headers: &HeaderMap) -> Option<Response> {
    if matches!(path, "/" | "/ui") {
        return Some(build_redirect(PAGE_PATH));
    }
    let file = find_file(path)?;
    // An entity tag is a text in quotes (RFC 9110, 8.8.3).
    let tag = format!("\"{}\"", file.entity_tag());
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    // An answer with 304 has no content (RFC 9110, 15.4.5).
    let body = if is_known { Body::empty() } else { Body::from(Bytes::from_static(file.body.as_bytes())) };
    let mut response = Response::new(body);
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.media));
    // Browsers must revalidate the files each time: after an update, all files must be of one version.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(ETAG, tag);
    }
    add_security_headers(headers);
    Some(response)
}

/// Policy of the report page of one result, which is a separate file. The page itself contains a policy with the
/// hashes of its script and style. The sandbox gives the page no origin, so that it cannot call this server.
const REPORT_POLICY: &str = "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; \
                             style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; \
                             frame-ancestors 'none'";

pub(super) fn report_page_response(text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(REPORT_POLICY));
    response
}

/// Adds the headers that isolate an answer in a browser from other sites.
pub(super) fn add_security_headers(headers: &mut HeaderMap) {
    // The page of a result already has its own policy, which must stay.
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(PAGE_SECURITY_POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(PERMISSIONS_POLICY, HeaderValue::from_static("camera=(), microphone=(), geolocation=()"));
}
