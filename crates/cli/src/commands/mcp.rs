//! `packetrig mcp`: a server of the Model Context Protocol on standard input and output. Like `watch`, it is a client
//! of the documented API of `packetrig serve`, so an assistant can do only what its user or token may do there.
//!
//! `protocol` builds the messages and `tools` the calls, without input or output. This module reads and writes the
//! messages and makes the calls.

mod protocol;
mod tools;

use super::watch::make_api_client;
use crate::args::McpArgs as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use packetrig_plan::Plan;
use packetrig_server::client::{ApiAddress, ApiClient};
use packetrig_units::message_with_causes;
use protocol::answer_protocol_message;
use serde_json::{Value, json};
use std::io::{self, BufRead, Read as _, Write as _};
use tools::ToolCall;

/// Longest message in bytes, line end included. A plan with thousands of streams fits.
const MAX_LINE_BYTES: u64 = 64 << 20;

pub(crate) fn serve_assistant(arguments: &Arguments) -> Result<CommandExit, Error> {
    let address = arguments.server.clone().unwrap_or_else(ApiAddress::default_server);
    let client = make_api_client(address, &arguments.access)?;
    let mut input = io::stdin().lock();
    // A client of this protocol ends its server by closing the input.
    while let Some(line) = read_message(&mut input)? {
        if let Some(answer) = answer_protocol_message(&line, &|call| run_tool_call(&client, call)) {
            write_message(&answer)?;
        }
    }
    Ok(CommandExit::Ok)
}

/// Reads the next line; `None` at the end of the input. Fails if the line is longer than [`MAX_LINE_BYTES`].
fn read_message(input: &mut impl BufRead) -> Result<Option<Vec<u8>>, Error> {
    let mut line = Vec::new();
    let read = input.take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line);
    let length = read.map_err(|source| Error::ReadFile { name: "standard input".to_owned(), source })?;
    if length as u64 > MAX_LINE_BYTES {
        return Err(Error::Usage(format!(
            "a message on standard input is longer than {MAX_LINE_BYTES} bytes"
        )));
    }
    Ok((length > 0).then_some(line))
}

/// Writes a message without [`crate::output::CommandOutput`], which makes text safe for a terminal: a program
/// needs the exact message.
fn write_message(message: &Value) -> Result<(), Error> {
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{message}").and_then(|()| output.flush());
    written.map_err(|source| Error::Write { what: "an answer".to_owned(), source })
}

/// Makes a call, and returns its answer or the reason for the failure.
fn run_tool_call(client: &ApiClient, call: &ToolCall) -> Result<Value, String> {
    match call {
        ToolCall::Get(path) => client.get(path),
        ToolCall::Post(path, body) => client.post(path, body),
        ToolCall::CheckPlan(document) => return Ok(check_plan(document)),
    }
    .map_err(|error| message_with_causes(&error))
}

/// Checks a plan as `packetrig plan check` does. It needs no server.
fn check_plan(document: &str) -> Value {
    match Plan::from_text(document) {
        Ok(plan) => json!({ "can_run": true, "problems": plan.warnings }),
        Err(problems) => json!({ "can_run": false, "problems": problems.0 }),
    }
}
