//! `packetrig watch`: the run in progress of a server on a terminal. Like the live page, it is only a client of the server's documented
//! API: watching does not disturb the run.
//!
//! `state`, `keys` and `draw` are pure: events and keys become a state, and the state becomes a screen. `follow` and `terminal` have
//! the threads, the connection and the terminal.

mod draw;
mod facts;
mod follow;
mod keys;
mod lines;
mod orders;
mod rates;
mod state;
mod terminal;
#[cfg(test)]
mod tests;

use super::is_interrupted;
use super::serve::access;
use crate::args::WatchArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use follow::{EventRequest, ServerLink};
use packetrig_server::client::{ApiClient, CertificateTrust};
use packetrig_sys::signal;
use serde_json::Value;
use state::{StreamWindow, WatchState};
use std::io::{IsTerminal, stdin, stdout};

pub(crate) fn watch_server(arguments: &WatchArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let client = make_client(arguments)?;
    signal::latch_end_signals()?;
    // Before the screen changes: a failure to connect at all is an error, and later losses are shown on the screen.
    let server = client.get("/api/v1/state")?;
    if !server["has"]["live"].as_bool().unwrap_or_default() {
        return Err(Error::Usage(format!(
            "{} has no run in progress: it is `packetrig page`, which shows past results only; watch a `packetrig serve`",
            client.address()
        )));
    }
    if arguments.json {
        lines::print_json(&ServerLink::start_threads(client, EventRequest::all_rows()), output)?;
    } else if arguments.lines || !has_screen() {
        lines::print_lines(&ServerLink::start_threads(client, EventRequest::totals_only()), output)?;
    } else {
        return show_screen(client, &server, output);
    }
    Ok(CommandExit::Ok)
}

/// Shows the screen until the user or a signal ends it.
fn show_screen(client: ApiClient, server: &Value, output: &CommandOutput) -> Result<CommandExit, Error> {
    let may_control = server["may"]["control"].as_bool().unwrap_or_default();
    let mut state = WatchState::new(client.address().to_string(), may_control);
    let link = ServerLink::start_threads(client, EventRequest::for_screen(StreamWindow::default()));
    terminal::show_in_terminal(&link, &mut state, output.style().is_coloured())?;
    Ok(CommandExit::Ok)
}

fn make_client(arguments: &WatchArgs) -> Result<ApiClient, Error> {
    let token = arguments.token_file.as_deref().map(access::read_token).transpose()?;
    let trust = match &arguments.ca {
        Some(file) => CertificateTrust::Authorities(file.clone()),
        // Only on demand: with a token, a wrong server would learn it.
        None if arguments.insecure => CertificateTrust::Anything,
        None => CertificateTrust::ThisMachine,
    };
    Ok(ApiClient::new(arguments.server.clone(), token, &trust)?)
}

/// Returns true if a screen can be shown and keys can be read.
fn has_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    // Keys come from standard input, so a screen without it could not even be left.
    stdout().is_terminal() && stdin().is_terminal() && !is_dumb
}
