//! `packetrig tap status` and `packetrig tap stop`. They find taps by the state files and pinned programs that these leave, so they
//! need no process of the tap.

use super::{deaf, judge, show, value};
use crate::args::NamedTap;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use packetrig_link_io::tap::{FoundTap, found};

/// Shows all taps, or one.
pub(super) fn status(named: &NamedTap, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let taps = found(named.name.as_deref())?;
    if named.json {
        let values = taps.iter().map(status_json).collect::<Result<Vec<_>, _>>()?;
        output.json(&values)?;
        return Ok(CommandExit::Ok);
    }
    if taps.is_empty() {
        output.line("no tap is running; `packetrig tap A B` starts one");
    }
    for tap in &taps {
        output.line(format_args!("{}: {}", tap.state.name, condition(tap)));
        tap.gone().iter().for_each(|name| output.line(deaf::loss(name)));
        match tap.accounts()? {
            Some(accounts) => output.text(show::result(&tap.state, &accounts, None)),
            None => output.line("it left no counters"),
        }
    }
    Ok(CommandExit::Ok)
}

/// Describes whether the tap forwards and whether its process lives.
fn condition(tap: &FoundTap) -> String {
    match (tap.is_forwarding(), tap.has_process()) {
        (true, true) => format!("forwarding, process {}", tap.state.process),
        (true, false) => "forwarding in the kernel, without a process".to_owned(),
        (false, _) => format!("not forwarding: process {} has died", tap.state.process),
    }
}

fn status_json(tap: &FoundTap) -> Result<serde_json::Value, Error> {
    let accounts = tap.accounts()?;
    Ok(serde_json::json!({
        "state": tap.state,
        "forwarding": tap.is_forwarding(),
        "has_process": tap.has_process(),
        "gone": tap.gone(),
        "accounts": accounts,
    }))
}

pub(super) fn stop(named: &NamedTap, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let mut taps = found(named.name.as_deref())?;
    let tap = match (taps.pop(), taps.is_empty()) {
        (Some(tap), true) => tap,
        (None, _) => {
            return Err(Error::Usage("no tap is running; `packetrig tap status` lists all taps".into()));
        }
        (Some(last), false) => {
            let names = taps.iter().chain([&last]).map(|tap| tap.state.name.as_str());
            let names: Vec<&str> = names.collect();
            return Err(Error::Usage(format!(
                "several taps are running: {}; name the one to stop",
                names.join(", ")
            )));
        }
    };
    let state = tap.state.clone();
    // A living process is asked to end its tap, and prints the result itself. Otherwise the tap is ended from here.
    let Some(ended) = tap.end()? else {
        if named.json {
            output.json(&serde_json::json!({ "state": state, "ended_by": state.process }))?;
        } else {
            output.line(format_args!("{}: process {} ended it", state.name, state.process));
        }
        return Ok(CommandExit::Ok);
    };
    if named.json {
        output.json(&value(&state, &ended.accounts, Some(&ended)))?;
    } else {
        output.text(show::result(&state, &ended.accounts, None));
    }
    Ok(judge(&ended))
}
