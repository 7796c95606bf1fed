//! `packetrig tap status` and `packetrig tap stop`. They find taps by the state files and pinned programs that taps
//! leave, so they do not need the process of a tap.

use super::{refusing, report_imbalances_and_choose_exit, result_json, show};
use crate::args::NamedTap;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use packetrig_link_io::tap::{FoundTap, find_taps};

/// Shows the tap with the given name; without a name, all taps.
pub(super) fn show_status(named: &NamedTap, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let taps = find_taps(named.name.as_deref())?;
    if named.json {
        let values = taps.iter().map(build_status_json).collect::<Result<Vec<_>, _>>()?;
        output.write_json(&values)?;
        return Ok(CommandExit::Ok);
    }
    if taps.is_empty() {
        output.write_line("no tap is running; `packetrig tap A B` starts one");
    }
    for tap in &taps {
        output.write_line(format_args!("{}: {}", tap.state.name, describe_condition(tap)));
        tap.gone_interfaces()
            .iter()
            .for_each(|name| output.write_line(refusing::format_gone_interface_remark(name)));
        match tap.read_accounts()? {
            Some(accounts) => output.write_text(show::format_accounts(&tap.state, &accounts, None)),
            // The process that forwarded the frames has ended, and its counters are lost.
            None => {
                output.write_line("the tap left no counters: its process forwarded the frames and has ended");
            }
        }
    }
    Ok(CommandExit::Ok)
}

/// Describes whether the tap forwards and whether its process lives.
fn describe_condition(tap: &FoundTap) -> String {
    match (tap.is_forwarding(), tap.has_process()) {
        (true, true) => format!("forwarding, process {}", tap.state.process),
        (true, false) => "forwarding in the kernel, without a process".to_owned(),
        (false, _) => format!("not forwarding: process {} has ended", tap.state.process),
    }
}

fn build_status_json(tap: &FoundTap) -> Result<serde_json::Value, Error> {
    let accounts = tap.read_accounts()?;
    Ok(serde_json::json!({
        "state": tap.state,
        "forwarding": tap.is_forwarding(),
        "has_process": tap.has_process(),
        "gone": tap.gone_interfaces(),
        "accounts": accounts,
    }))
}

pub(super) fn stop_tap(named: &NamedTap, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let mut taps = find_taps(named.name.as_deref())?;
    let tap = match (taps.pop(), taps.is_empty()) {
        (Some(tap), true) => tap,
        (None, _) => {
            return Err(Error::Usage("no tap is running; `packetrig tap status` lists all taps".into()));
        }
        // A tap may carry a whole link, so packetrig does not choose one of several.
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
    // If the process of the tap is alive, it ends the tap and prints the result itself: then `end_tap` returns `None`.
    let Some(ended) = tap.end_tap()? else {
        if named.json {
            output.write_json(&serde_json::json!({ "state": state, "ended_by": state.process }))?;
        } else {
            output.write_line(format_args!("{}: process {} ended the tap", state.name, state.process));
        }
        return Ok(CommandExit::Ok);
    };
    if named.json {
        output.write_json(&result_json(&state, &ended.accounts, Some(&ended)))?;
    } else {
        output.write_text(show::format_accounts(&state, &ended.accounts, None));
    }
    Ok(report_imbalances_and_choose_exit(&ended))
}
