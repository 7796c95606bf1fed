//! `packetrig watch`: shows on a terminal a run that a server or another command executes. Like the live page, it is
//! only a client of the server's documented API: watching does not disturb the run.
//!
//! `state`, `keys` and `draw` do no I/O: events and keys change the state, and the state is drawn. `follow` has the
//! connection and its threads; `terminal` has the terminal and the thread that reads keys.

mod draw;
mod facts;
mod follow;
mod keys;
mod lines;
mod orders;
mod own_screen;
mod rates;
mod state;
mod terminal;
#[cfg(test)]
mod tests;

pub(crate) use own_screen::ScreenThread;

use super::is_interrupted;
use super::serve::access;
use crate::args::{ServerAccessArgs, WatchArgs};
use crate::commands::run_viewer::{AnnouncedRun, announced_runs};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, print_remark};
use follow::{EventRequest, ServerLifetime, ServerLink};
use packetrig_program::escape_unsafe_text;
use packetrig_server::client::{ApiAddress, ApiClient, CertificateTrust};
use packetrig_sys::signal;
use serde_json::Value;
use state::{StreamControl, StreamWindow, WatchState};
use std::io::{IsTerminal, stdin, stdout};

pub(crate) fn watch_server(arguments: &WatchArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let WatchedServer { address, lasts } = find_watched_server(arguments)?;
    let client = make_api_client(address, &arguments.access)?;
    signal::record_end_signals()?;
    // The server is asked before the screen changes: if it does not answer, the command fails. If the connection is
    // lost later, the screen says so.
    let server = client.get("/api/v1/state")?;
    if !server["has"]["live"].as_bool().unwrap_or_default() {
        return Err(Error::Usage(format!(
            "{} shows no run in progress: it is a `packetrig page`, which has past results only; name a `packetrig serve` instead",
            client.address()
        )));
    }
    if arguments.json {
        lines::print_json(&ServerLink::start_threads(client, EventRequest::all_rows(), lasts), output)?;
    } else if arguments.lines || !has_screen() {
        lines::print_lines(&ServerLink::start_threads(client, EventRequest::totals_only(), lasts), output)?;
    } else {
        show_screen(client, &server, lasts, output.style().is_coloured(), &is_interrupted)?;
    }
    Ok(CommandExit::Ok)
}

/// Shows the screen until the user quits, the terminal hangs up or `is_over` returns true. If the server belongs to
/// one run, the screen also closes at the end of the run.
fn show_screen(
    client: ApiClient,
    server: &Value,
    lasts: ServerLifetime,
    is_coloured: bool,
    is_over: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let may_control = server["may"]["control"].as_bool().unwrap_or_default();
    let control = match lasts {
        ServerLifetime::OfRun => StreamControl::PlainRun,
        ServerLifetime::BeyondRun if may_control => StreamControl::Allowed,
        ServerLifetime::BeyondRun => StreamControl::ViewerToken,
    };
    let mut state = WatchState::new(client.address().to_string(), control);
    let link = ServerLink::start_threads(client, EventRequest::for_screen(StreamWindow::default()), lasts);
    terminal::show_in_terminal(&link, &mut state, is_coloured, is_over)
}

/// Address of the watched server, and whether the server outlives the run.
struct WatchedServer {
    address: ApiAddress,
    lasts: ServerLifetime,
}

/// Returns the server that the user named. Without a name, returns the server of the user's run in progress; without
/// a run, the default address of `packetrig serve`. Several runs in progress are an error.
fn find_watched_server(arguments: &WatchArgs) -> Result<WatchedServer, Error> {
    if let Some(address) = arguments.server.clone() {
        return Ok(WatchedServer { address, lasts: ServerLifetime::BeyondRun });
    }
    let runs = announced_runs();
    match runs.as_slice() {
        [] => {
            // Runs in other network namespaces are not found: their addresses cannot be reached from here.
            let address = ApiAddress::default_server();
            print_remark(format_args!(
                "watch: you have no run and no probes in progress in this network namespace; trying {address}"
            ));
            Ok(WatchedServer { address, lasts: ServerLifetime::BeyondRun })
        }
        [run] => Ok(WatchedServer { address: run.address.into(), lasts: ServerLifetime::OfRun }),
        _ => Err(Error::Usage(format!("several runs are in progress; name one:{}", format_run_list(&runs)))),
    }
}

fn format_run_list(runs: &[AnnouncedRun]) -> String {
    runs.iter().map(format_announced_run).collect()
}

fn format_announced_run(run: &AnnouncedRun) -> String {
    let name = escape_unsafe_text(&run.name);
    format!("\n  packetrig watch http://{}   {name} (process {})", run.address, run.process)
}

/// Makes an API client with the token file and the certificate options that the user gave.
pub(super) fn make_api_client(address: ApiAddress, arguments: &ServerAccessArgs) -> Result<ApiClient, Error> {
    let token = arguments.token_file.as_deref().map(access::read_token).transpose()?;
    let trust = match &arguments.ca {
        Some(file) => CertificateTrust::Authorities(file.clone()),
        // The client sends the token with every request, so with `--insecure` a wrong server learns it.
        None if arguments.insecure => CertificateTrust::Anything,
        None => CertificateTrust::ThisMachine,
    };
    Ok(ApiClient::new(address, token, &trust)?)
}

/// Returns true if a screen can be shown and keys can be read.
fn has_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    // Keys come from standard input, so without it the user could not even leave the screen.
    stdout().is_terminal() && stdin().is_terminal() && !is_dumb
}
