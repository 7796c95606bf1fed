//! The calls of the page's API: methods and paths, in one table.

use axum::routing::MethodFilter;
use http::Method;
use http::request::Parts;

/// A call of the page's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageCall {
    OpenApi,
    State,
    Live,
    Events,
    Streams,
    Rates,
    Results,
    Unfinished,
    Result,
    ResultPage,
    Series,
    Compare,
    Nodes,
    Methods,
    StartMethod,
    Method,
    StopMethod,
    FlowTop,
    FlowTotals,
    Logs,
    Taps,
    Calibration,
    Metrics,
}

impl PageCall {
    pub(super) const ALL: [Self; 23] = [
        Self::OpenApi,
        Self::State,
        Self::Live,
        Self::Events,
        Self::Streams,
        Self::Rates,
        Self::Results,
        Self::Unfinished,
        Self::Result,
        Self::ResultPage,
        Self::Series,
        Self::Compare,
        Self::Nodes,
        Self::Methods,
        Self::StartMethod,
        Self::Method,
        Self::StopMethod,
        Self::FlowTop,
        Self::FlowTotals,
        Self::Logs,
        Self::Taps,
        Self::Calibration,
        Self::Metrics,
    ];

    /// Path of the call; `{id}` stands for one segment.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::OpenApi => "/api/v1/openapi.json",
            Self::State => "/api/v1/state",
            Self::Live => "/api/v1/live",
            Self::Events => "/api/v1/events",
            Self::Streams => "/api/v1/streams",
            Self::Rates => "/api/v1/rates",
            Self::Results => "/api/v1/runs",
            Self::Unfinished => "/api/v1/unfinished",
            Self::Result => "/api/v1/runs/{id}",
            Self::ResultPage => "/api/v1/runs/{id}/report.html",
            Self::Series => "/api/v1/runs/{id}/series",
            Self::Compare => "/api/v1/compare",
            Self::Nodes => "/api/v1/nodes",
            Self::Methods | Self::StartMethod => "/api/v1/methods",
            Self::Method | Self::StopMethod => "/api/v1/methods/{id}",
            Self::FlowTop => "/api/v1/flows/top",
            Self::FlowTotals => "/api/v1/flows/totals",
            Self::Logs => "/api/v1/logs",
            Self::Taps => "/api/v1/taps",
            Self::Calibration => "/api/v1/calibration",
            Self::Metrics => "/metrics",
        }
    }

    /// Method of the call. Calls that only read are GET.
    pub(super) const fn method(self) -> MethodFilter {
        match self {
            Self::Streams | Self::Rates | Self::StartMethod => MethodFilter::POST,
            Self::StopMethod => MethodFilter::DELETE,
            _ => MethodFilter::GET,
        }
    }
}

/// Returns whether a request only reads data, so a token for viewers suffices.
pub(crate) fn is_viewing_request(head: &Parts) -> bool {
    let path = head.uri.path();
    // HEAD is GET without the content of the answer (RFC 9110, 9.3.2).
    matches!(head.method, Method::GET | Method::HEAD) && (path.starts_with("/api/v1/") || path == "/metrics")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Names of methods as the description writes them.
    const METHODS: [(MethodFilter, &str); 3] =
        [(MethodFilter::GET, "get"), (MethodFilter::POST, "post"), (MethodFilter::DELETE, "delete")];

    #[test]
    fn openapi_describes_exactly_the_served_calls() {
        let served: BTreeSet<String> = PageCall::ALL
            .into_iter()
            .map(|call| {
                let named = METHODS.iter().find(|(filter, _)| *filter == call.method());
                let (_, method) = named.expect("a method that has a name here");
                format!("{method} {}", call.path())
            })
            .collect();
        assert_eq!(served.len(), PageCall::ALL.len(), "two calls have the same method and path");
        let openapi: Value = serde_json::from_str(include_str!("openapi.json")).expect("JSON");
        let mut described = BTreeSet::new();
        for (path, methods) in openapi["paths"].as_object().expect("paths") {
            for method in methods.as_object().expect("methods").keys() {
                described.insert(format!("{method} {path}"));
            }
        }
        assert_eq!(described, served);
    }
}
