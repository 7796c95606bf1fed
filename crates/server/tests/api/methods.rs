//! Test methods behind the API, with a mock of what makes them.

use crate::http::{request, send};
use crate::mock::strict;
use crate::page::ServedPage;
use packetrig_server::{MethodRefusal, MethodService, ServerOptions};
use serde_json::{Value, json};

/// One test, which takes any request.
pub(crate) struct MockMethods;

impl MockMethods {
    fn state() -> Value {
        json!({
            "id": "r1", "name": "", "method": "bisect", "state": "running", "started_wall_ns": 7, "trials": 1, "trial": {},
            "known": "nothing", "to_go": null, "result": null, "verdict": null, "error": null,
        })
    }
}

impl MethodService for MockMethods {
    fn start(&self, request: Value) -> Result<Value, MethodRefusal> {
        match request["name"].as_str() {
            Some("second") => Err(MethodRefusal::Busy("test r1 is in progress".to_owned())),
            Some("wrong") => Err(MethodRefusal::Invalid("options: missing".to_owned())),
            _ => Ok(Self::state()),
        }
    }

    fn list(&self) -> Vec<Value> {
        vec![Self::state()]
    }

    fn progress(&self, id: &str) -> Option<Value> {
        (id == "r1").then(Self::state)
    }

    fn stop(&self, id: &str) -> Option<Value> {
        self.progress(id)
    }
}

#[test]
fn test_methods_are_started_followed_and_stopped_by_those_who_may() {
    let options = ServerOptions {
        token: Some("the-token-of-the-owner".into()),
        view_token: Some("the-token-of-a-viewer".into()),
        ..strict()
    };
    let page = ServedPage::start(options);
    let with = |token: &str, method: &str, path: &str, body: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        send(page.served.bound.http, &request(method, path, &header, body)).status
    };
    let [owner, viewer] = ["the-token-of-the-owner", "the-token-of-a-viewer"];
    assert_eq!(with(owner, "POST", "/api/v1/methods", "{}"), 200);
    assert_eq!(with(owner, "POST", "/api/v1/methods", "{\"name\":\"second\"}"), 409);
    assert_eq!(with(owner, "POST", "/api/v1/methods", "{\"name\":\"wrong\"}"), 400);
    assert_eq!(with(owner, "POST", "/api/v1/methods", "no JSON"), 400);
    assert_eq!(with(owner, "DELETE", "/api/v1/methods/r1", ""), 200);
    assert_eq!(with(owner, "DELETE", "/api/v1/methods/r2", ""), 404);
    assert_eq!(with(viewer, "GET", "/api/v1/methods/r1", ""), 200);
    assert_eq!(with(viewer, "GET", "/api/v1/methods?colour=red", ""), 400);
    assert_eq!(with(viewer, "POST", "/api/v1/methods", "{}"), 403);
    assert_eq!(with(viewer, "DELETE", "/api/v1/methods/r1", ""), 403);
}
