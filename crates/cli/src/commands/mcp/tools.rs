//! The tools: each is one call of the server's documented API (docs/book/page-api.md), or the check of a plan.

use packetrig_units::text::encode_url_part;
use serde_json::{Map, Value, json};

/// What a call of a tool does: send a request to the server, or check a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolCall {
    Get(String),
    Post(&'static str, Value),
    CheckPlan(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParameterKind {
    Text,
    Number,
    Texts,
    Document,
}

#[derive(Debug)]
struct ToolParameter {
    name: &'static str,
    kind: ParameterKind,
    is_required: bool,
    meaning: &'static str,
}

#[derive(Debug)]
enum ApiCallForm {
    /// The parameters become the query of the URL.
    Get(&'static str),
    /// The only parameter is the last part of the path.
    GetOf(&'static str),
    /// The only parameter is the body.
    PostDocument(&'static str),
    /// The parameters become members of the body. The listed names and values are added to them.
    PostMembers(&'static str, &'static [(&'static str, &'static str)]),
    /// The body is empty.
    PostNothing(&'static str),
    CheckPlan,
}

#[derive(Debug)]
pub(super) struct McpTool {
    pub(super) name: &'static str,
    description: &'static str,
    parameters: &'static [ToolParameter],
    form: ApiCallForm,
}

const fn required_parameter(name: &'static str, kind: ParameterKind, meaning: &'static str) -> ToolParameter {
    ToolParameter { name, kind, is_required: true, meaning }
}

const fn optional_parameter(name: &'static str, kind: ParameterKind, meaning: &'static str) -> ToolParameter {
    ToolParameter { name, kind, is_required: false, meaning }
}

const STREAMS_PARAMETER: ToolParameter =
    optional_parameter("streams", ParameterKind::Texts, "names of streams; without it, all streams");
const RESULT_ID_PARAMETER: ToolParameter =
    required_parameter("id", ParameterKind::Text, "id of a result, its first characters, or `last`");

pub(super) const MCP_TOOLS: &[McpTool] = &[
    McpTool {
        name: "server_state",
        description: "Describes the server and its ports, and whether you may start streams.",
        parameters: &[],
        form: ApiCallForm::Get("/api/v1/state"),
    },
    McpTool {
        name: "list_nodes",
        description: "Lists the nodes of the server's fleet, with their ports and problems.",
        parameters: &[],
        form: ApiCallForm::Get("/api/v1/nodes"),
    },
    McpTool {
        name: "check_plan",
        description: "Checks an Open Traffic Generator document (YAML or JSON) without running it. Returns every \
            problem with its position and a hint.",
        parameters: &[required_parameter("document", ParameterKind::Text, "the document")],
        form: ApiCallForm::CheckPlan,
    },
    McpTool {
        name: "open_run",
        description: "Opens a run on the ports of an Open Traffic Generator configuration, and ends an \
            earlier run. No frame is sent before start_streams.",
        parameters: &[required_parameter(
            "configuration",
            ParameterKind::Document,
            "the configuration, as a JSON object",
        )],
        form: ApiCallForm::PostDocument("/config"),
    },
    McpTool {
        name: "start_streams",
        description: "Starts streams of the open run: frames leave the ports.",
        parameters: &[STREAMS_PARAMETER],
        form: ApiCallForm::PostMembers("/api/v1/streams", &[("change", "start")]),
    },
    McpTool {
        name: "stop_streams",
        description: "Stops streams of the open run.",
        parameters: &[STREAMS_PARAMETER],
        form: ApiCallForm::PostMembers("/api/v1/streams", &[("change", "stop")]),
    },
    McpTool {
        name: "live_run",
        description: "Returns the run in progress: counts of its frames, where frames were lost, ports and streams.",
        parameters: &[
            optional_parameter("filter", ParameterKind::Text, "part of a stream's or port's name"),
            optional_parameter(
                "sort",
                ParameterKind::Text,
                "column to sort the streams by; -COLUMN sorts the largest first",
            ),
            optional_parameter("rows", ParameterKind::Number, "largest number of streams to return"),
        ],
        form: ApiCallForm::Get("/api/v1/live"),
    },
    McpTool {
        name: "end_run",
        description: "Ends the open run, judges it and stores its result.",
        parameters: &[],
        form: ApiCallForm::PostNothing("/config"),
    },
    McpTool {
        name: "list_results",
        description: "Lists past runs and test methods, the newest first, with their verdicts.",
        parameters: &[
            optional_parameter("text", ParameterKind::Text, "part of the name or id"),
            optional_parameter("verdict", ParameterKind::Text, "PASS, FAIL or INCONCLUSIVE"),
            optional_parameter("most", ParameterKind::Number, "largest number of results to return"),
        ],
        form: ApiCallForm::Get("/api/v1/runs"),
    },
    McpTool {
        name: "show_result",
        description: "Returns the whole report of a run, or the result of a test method.",
        parameters: &[RESULT_ID_PARAMETER],
        form: ApiCallForm::GetOf("/api/v1/runs/"),
    },
    McpTool {
        name: "compare_results",
        description: "Compares the figures of result `b` with those of the earlier result `a`, and marks those that are worse in `b` by more than their uncertainty.",
        parameters: &[
            required_parameter("a", ParameterKind::Text, "id of the earlier result"),
            required_parameter("b", ParameterKind::Text, "id of the later result"),
        ],
        form: ApiCallForm::Get("/api/v1/compare"),
    },
    McpTool {
        name: "start_method",
        description: "Starts a test method (RFC 2544, MLRsearch, bisect, ...). `method` is the body of POST /api/v1/methods; see page test-methods of the manual.",
        parameters: &[required_parameter(
            "method",
            ParameterKind::Document,
            "`options` and `plans`, as a JSON object",
        )],
        form: ApiCallForm::PostDocument("/api/v1/methods"),
    },
    McpTool {
        name: "method_progress",
        description: "Returns the progress of a test method and its results so far.",
        parameters: &[RESULT_ID_PARAMETER],
        form: ApiCallForm::GetOf("/api/v1/methods/"),
    },
];

impl McpTool {
    /// Describes the tool for the answer to `tools/list`.
    pub(super) fn to_protocol_json(&self) -> Value {
        let properties: Map<String, Value> = self
            .parameters
            .iter()
            .map(|parameter| (parameter.name.to_owned(), parameter.to_json_schema()))
            .collect();
        let required: Vec<_> = self
            .parameters
            .iter()
            .filter(|parameter| parameter.is_required)
            .map(|parameter| parameter.name)
            .collect();
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": self.is_read_only() },
        })
    }

    const fn is_read_only(&self) -> bool {
        matches!(self.form, ApiCallForm::Get(_) | ApiCallForm::GetOf(_) | ApiCallForm::CheckPlan)
    }

    /// Builds the API call for these arguments, or describes which argument is wrong.
    pub(super) fn build_tool_call(&self, arguments: &Value) -> Result<ToolCall, String> {
        let empty = Map::new();
        let given = match arguments {
            Value::Null => &empty,
            Value::Object(given) => given,
            _ => return Err("`arguments` must be an object".to_owned()),
        };
        if let Some(unknown) =
            given.keys().find(|name| !self.parameters.iter().any(|known| known.name == name.as_str()))
        {
            return Err(format!("`{unknown}` is not an argument of {}", self.name));
        }
        for parameter in self.parameters {
            parameter.check_parameter_value(given.get(parameter.name))?;
        }
        let only = || {
            self.parameters
                .first()
                .and_then(|parameter| given.get(parameter.name))
                .cloned()
                .unwrap_or_default()
        };
        Ok(match self.form {
            ApiCallForm::Get(path) => ToolCall::Get(format!("{path}{}", format_query(given))),
            ApiCallForm::GetOf(path) => {
                ToolCall::Get(format!("{path}{}", encode_url_part(&format_value(&only()))))
            }
            ApiCallForm::PostDocument(path) => ToolCall::Post(path, only()),
            ApiCallForm::PostMembers(path, members) => {
                let added = members.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
                ToolCall::Post(path, Value::Object(added.chain(given.clone()).collect()))
            }
            ApiCallForm::PostNothing(path) => ToolCall::Post(path, json!({})),
            ApiCallForm::CheckPlan => ToolCall::CheckPlan(format_value(&only())),
        })
    }
}

impl ToolParameter {
    fn to_json_schema(&self) -> Value {
        let mut schema = match self.kind {
            ParameterKind::Text => json!({ "type": "string" }),
            ParameterKind::Number => json!({ "type": "integer", "minimum": 0 }),
            ParameterKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            ParameterKind::Document => json!({ "type": "object" }),
        };
        schema["description"] = self.meaning.into();
        schema
    }

    fn check_parameter_value(&self, value: Option<&Value>) -> Result<(), String> {
        let Some(value) = value else {
            return if self.is_required { Err(format!("`{}` is missing", self.name)) } else { Ok(()) };
        };
        let (fits, wanted) = match self.kind {
            ParameterKind::Text => (value.is_string(), "a text"),
            ParameterKind::Number => (value.is_u64(), "a whole number"),
            ParameterKind::Texts => {
                (value.as_array().is_some_and(|all| all.iter().all(Value::is_string)), "a list of texts")
            }
            ParameterKind::Document => (value.is_object(), "an object"),
        };
        if fits { Ok(()) } else { Err(format!("`{}` must be {wanted}", self.name)) }
    }
}

/// Formats the query of a URL, such as `?a=1&b=2`; empty if there are no parameters.
fn format_query(given: &Map<String, Value>) -> String {
    let pairs: Vec<_> = given
        .iter()
        .map(|(name, value)| format!("{name}={}", encode_url_part(&format_value(value))))
        .collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// Formats a value for a URL. Strings get no quotes.
fn format_value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &Value) -> Result<ToolCall, String> {
        MCP_TOOLS.iter().find(|tool| tool.name == name).expect("a tool").build_tool_call(arguments)
    }

    #[test]
    fn arguments_become_query_path_and_body() {
        let results = call("list_results", &json!({ "text": "a b&c", "most": 5 })).unwrap();
        assert_eq!(results, ToolCall::Get("/api/v1/runs?most=5&text=a%20b%26c".to_owned()));
        assert_eq!(
            call("show_result", &json!({ "id": "../state" })),
            Ok(ToolCall::Get("/api/v1/runs/%2E%2E%2Fstate".to_owned()))
        );
        assert_eq!(
            call("start_streams", &json!({ "streams": ["a"] })),
            Ok(ToolCall::Post("/api/v1/streams", json!({ "change": "start", "streams": ["a"] })))
        );
        assert_eq!(call("end_run", &Value::Null), Ok(ToolCall::Post("/config", json!({}))));
        assert_eq!(
            call("open_run", &json!({ "configuration": { "ports": [] } })),
            Ok(ToolCall::Post("/config", json!({ "ports": [] })))
        );
    }

    #[test]
    fn arguments_of_a_wrong_kind_or_name_are_refused() {
        assert_eq!(
            call("open_run", &json!({ "configuration": "ports: []" })),
            Err("`configuration` must be an object".to_owned())
        );
        assert_eq!(
            call("list_results", &json!({ "most": -1 })),
            Err("`most` must be a whole number".to_owned())
        );
        assert_eq!(
            call("list_nodes", &json!({ "force": true })),
            Err("`force` is not an argument of list_nodes".to_owned())
        );
        assert_eq!(call("list_nodes", &json!([])), Err("`arguments` must be an object".to_owned()));
    }

    #[test]
    fn tool_names_are_unique_and_reading_tools_change_nothing() {
        let names: std::collections::BTreeSet<_> = MCP_TOOLS.iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), MCP_TOOLS.len());
        let changing: Vec<_> =
            MCP_TOOLS.iter().filter(|tool| !tool.is_read_only()).map(|tool| tool.name).collect();
        assert_eq!(changing, ["open_run", "start_streams", "stop_streams", "end_run", "start_method"]);
    }
}
