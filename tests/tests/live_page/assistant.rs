//! `packetrig mcp`: an assistant's program speaks to a server through it.

use packetrig_tests::program::Running;
use serde_json::{Value, json};

const PORT: u16 = 18_935;

/// Sends these requests, numbered from 0, and ends; the answers in their order.
fn ask(requests: &[(&str, Value)]) -> Vec<Value> {
    let line = |(id, (method, parameters)): (usize, &(&str, Value))| {
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters }).to_string() + "\n"
    };
    let input: String = requests.iter().enumerate().map(line).collect();
    let server = format!("http://127.0.0.1:{PORT}");
    let finished = Running::start(&["mcp", &server], &input).finish();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let answers: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a message in a line"))
        .collect();
    assert!(answers.iter().enumerate().all(|(id, answer)| answer["id"] == id), "{answers:?}");
    answers.into_iter().map(|answer| answer["result"].clone()).collect()
}

#[test]
fn assistant_uses_the_api_of_a_server_and_nothing_else() {
    let listen = format!("127.0.0.1:{PORT}");
    let mut page = Running::start(&["page", "--listen", &listen, "--store", "{out}"], "");
    page.await_printed(&format!("Page: http://{listen}/ui/"));
    let call = |tool: &str, arguments: Value| ("tools/call", json!({ "name": tool, "arguments": arguments }));
    let answers = ask(&[
        ("initialize", json!({ "protocolVersion": "2025-06-18" })),
        call("list_results", json!({ "most": 1 })),
        call("check_plan", json!({ "document": "flows: 3" })),
        // A page has no streams to start.
        call("start_streams", json!({})),
    ]);
    assert_eq!(answers[0]["serverInfo"]["name"], "packetrig");
    let text = |answer: &Value| -> Value {
        serde_json::from_str(answer["content"][0]["text"].as_str().expect("a text")).unwrap_or_default()
    };
    assert_eq!((&answers[1]["isError"], &text(&answers[1])["results"]), (&json!(false), &json!([])));
    assert_eq!(text(&answers[2])["can_run"], false);
    assert_eq!(answers[3]["isError"], true, "{}", answers[3]);
}
