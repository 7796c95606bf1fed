//! Test methods behind the API, with a mock of what makes them.

use crate::page::{OWNER, ServedPage, VIEWER};
use packetrig_server::{MethodRefusal, MethodService};
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
    fn start_method(&self, request: Value) -> Result<Value, MethodRefusal> {
        match request["name"].as_str() {
            Some("second") => Err(MethodRefusal::Busy("test r1 is in progress".to_owned())),
            Some("wrong") => Err(MethodRefusal::Invalid("options: missing".to_owned())),
            _ => Ok(Self::state()),
        }
    }

    fn list_methods(&self) -> Vec<Value> {
        vec![Self::state()]
    }

    fn method_state(&self, id: &str) -> Option<Value> {
        (id == "r1").then(Self::state)
    }

    fn stop_method(&self, id: &str) -> Option<Value> {
        self.method_state(id)
    }
}

#[test]
fn test_methods_are_controlled_by_owner_only() {
    let page = ServedPage::start_with_tokens();
    let status =
        |token: &str, method: &str, path: &str, body: &str| page.call_with(token, method, path, body).status;
    assert_eq!(status(OWNER, "POST", "/api/v1/methods", "{}"), 200);
    assert_eq!(status(OWNER, "POST", "/api/v1/methods", "{\"name\":\"second\"}"), 409);
    assert_eq!(status(OWNER, "POST", "/api/v1/methods", "{\"name\":\"wrong\"}"), 400);
    assert_eq!(status(OWNER, "POST", "/api/v1/methods", "no JSON"), 400);
    assert_eq!(status(OWNER, "DELETE", "/api/v1/methods/r1", ""), 200);
    assert_eq!(status(OWNER, "DELETE", "/api/v1/methods/r2", ""), 404);
    assert_eq!(status(VIEWER, "GET", "/api/v1/methods/r1", ""), 200);
    assert_eq!(status(VIEWER, "GET", "/api/v1/methods?colour=red", ""), 400);
    assert_eq!(status(VIEWER, "POST", "/api/v1/methods", "{}"), 403);
    assert_eq!(status(VIEWER, "DELETE", "/api/v1/methods/r1", ""), 403);
}
