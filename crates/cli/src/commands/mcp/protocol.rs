//! The messages of the Model Context Protocol: JSON-RPC 2.0, one message per line (specification of 2025-06-18).

use super::tools::{self, ToolCall};
use serde_json::{Value, json};

/// Supported versions of the protocol, the newest first. This server uses only parts that are the same
/// in all of them.
const SUPPORTED_MCP_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Instructions that the assistant gets before its first call.
const ASSISTANT_INSTRUCTIONS: &str = "packetrig tests networks: it sends frames from interfaces of a test rig and accounts for every one of them. \
    Check a plan with check_plan before open_run. Only start_streams sends frames. A verdict INCONCLUSIVE means that the rig \
    could not decide between PASS and FAIL; read the report's reasons. `packetrig docs` prints the manual.";

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMETERS: i32 = -32602;

/// Error of a JSON-RPC request: code and message.
type JsonRpcRefusal = (i32, String);

/// Does the work of a tool: calls the API, or checks a plan. Returns the answer, or the reason for the failure.
pub(super) type CallMaker<'a> = dyn Fn(&ToolCall) -> Result<Value, String> + 'a;

/// Returns the answer to a line; `None` for notifications, answers and empty lines.
pub(super) fn answer_protocol_message(line: &[u8], make_call: &CallMaker<'_>) -> Option<Value> {
    if line.trim_ascii().is_empty() {
        return None;
    }
    let message: Value = match serde_json::from_slice(line) {
        Ok(message) => message,
        Err(error) => return Some(build_answer(Value::Null, Err((PARSE_ERROR, error.to_string())))),
    };
    let Some(method) = message["method"].as_str() else {
        // A message without a method is an answer. This server sends no requests, so it ignores answers.
        let is_answer = message.get("result").or_else(|| message.get("error")).is_some();
        let refusal = (INVALID_REQUEST, "the request has no `method`".to_owned());
        return (!is_answer).then(|| build_answer(Value::Null, Err(refusal)));
    };
    let id = message.get("id")?.clone();
    Some(build_answer(id, answer_request(method, &message["params"], make_call)))
}

fn build_answer(id: Value, outcome: Result<Value, JsonRpcRefusal>) -> Value {
    match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err((code, message)) => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
        }
    }
}

fn answer_request(
    method: &str,
    parameters: &Value,
    make_call: &CallMaker<'_>,
) -> Result<Value, JsonRpcRefusal> {
    match method {
        "initialize" => Ok(build_introduction(&parameters["protocolVersion"])),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(
            json!({ "tools": tools::MCP_TOOLS.iter().map(tools::McpTool::to_protocol_json).collect::<Vec<_>>() }),
        ),
        "tools/call" => call_tool(parameters, make_call),
        _ => Err((METHOD_NOT_FOUND, format!("there is no method `{method}`"))),
    }
}

/// Builds the result of `initialize`. It names the version that the client requests, if that is supported. Otherwise it
/// names the newest version, and the client decides whether to continue.
fn build_introduction(asked: &Value) -> Value {
    let version = SUPPORTED_MCP_VERSIONS
        .iter()
        .find(|version| asked == **version)
        .unwrap_or(&SUPPORTED_MCP_VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "packetrig", "version": env!("CARGO_PKG_VERSION") },
        "instructions": ASSISTANT_INSTRUCTIONS,
    })
}

/// Calls a tool. If the tool fails, the result has `isError` and the reason, for the assistant. Only an invalid call is
/// a JSON-RPC error.
fn call_tool(parameters: &Value, make_call: &CallMaker<'_>) -> Result<Value, JsonRpcRefusal> {
    let name = parameters["name"].as_str().unwrap_or_default();
    let tool = tools::MCP_TOOLS.iter().find(|tool| tool.name == name);
    let tool = tool.ok_or_else(|| (INVALID_PARAMETERS, format!("there is no tool `{name}`")))?;
    let call = tool.build_tool_call(&parameters["arguments"]).map_err(|why| (INVALID_PARAMETERS, why))?;
    let (text, is_error) = match make_call(&call) {
        Ok(answer) => (answer.to_string(), false),
        Err(why) => (why, true),
    };
    Ok(json!({ "content": [{ "type": "text", "text": text }], "isError": is_error }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(message: &Value) -> Option<Value> {
        answer_protocol_message(message.to_string().as_bytes(), &|call| match call {
            ToolCall::Get(path) if path.contains("missing") => Err("404: no such result".to_owned()),
            call => Ok(json!(format!("{call:?}"))),
        })
    }

    fn request(method: &str, parameters: &Value) -> Value {
        answer(&json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": parameters })).unwrap()
    }

    #[test]
    fn introduction_keeps_known_version_and_offers_newest() {
        let version = |asked| {
            request("initialize", &json!({ "protocolVersion": asked }))["result"]["protocolVersion"].clone()
        };
        assert_eq!(version("2024-11-05"), "2024-11-05");
        assert_eq!(version("1999-01-01"), SUPPORTED_MCP_VERSIONS[0]);
    }

    #[test]
    fn notifications_answers_and_empty_lines_have_no_answer() {
        assert_eq!(answer(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })), None);
        assert_eq!(answer(&json!({ "jsonrpc": "2.0", "id": 1, "result": {} })), None);
        assert_eq!(answer_protocol_message(b" \n", &|_| Ok(Value::Null)), None);
    }

    #[test]
    fn invalid_messages_are_refused_with_code() {
        let code = |line: &[u8]| {
            answer_protocol_message(line, &|_| Ok(Value::Null)).unwrap()["error"]["code"].clone()
        };
        assert_eq!(code(b"{"), PARSE_ERROR);
        assert_eq!(code(b"[]"), INVALID_REQUEST);
        assert_eq!(request("resources/list", &json!({}))["error"]["code"], METHOD_NOT_FOUND);
        assert_eq!(
            request("tools/call", &json!({ "name": "format_disk" }))["error"]["code"],
            INVALID_PARAMETERS
        );
        let without = json!({ "name": "show_result", "arguments": {} });
        assert_eq!(request("tools/call", &without)["error"]["message"], "`id` is missing");
    }

    #[test]
    fn tool_answers_as_text_and_its_failure_is_marked() {
        let called = |id: &str| {
            request("tools/call", &json!({ "name": "show_result", "arguments": { "id": id } }))["result"]
                .clone()
        };
        assert_eq!(
            (&called("last")["isError"], called("last")["content"][0]["type"].as_str()),
            (&json!(false), Some("text"))
        );
        assert_eq!(called("missing")["isError"], true);
        assert_eq!(called("missing")["content"][0]["text"], "404: no such result");
    }
}
