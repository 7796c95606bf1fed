//! `packetrig probe allowed`: shows which probes may be sent to a target.

use super::bounds;
use crate::args::AllowedArgs;
use crate::error::Error;
use packetrig_program::exit::CommandExit;
use packetrig_program::numbers::{format_count, format_scaled};
use packetrig_program::output::CommandOutput;
use serde_json::json;

pub(super) fn show_limits(arguments: &AllowedArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let permit = bounds::read_permit(&arguments.bounds)?;
    bounds::print_resolved_addresses([&arguments.target]);
    let limits = bounds::permit_target(&permit, arguments.target.address)?.limits();
    if arguments.json {
        output.write_json(&json!({
            "target": arguments.target.address,
            "probes_per_s": limits.probes_per_s,
            "bits_per_s": limits.bits_per_s,
            "burst": limits.burst,
            "most": limits.most,
            "loss_percent": limits.loss_percent,
            "about": permit.about,
        }))?;
    } else {
        output.write_text(format!(
            "{}: at most {} probes/s in bursts of {}, {}, {} probes in all\n",
            arguments.target,
            format_count(limits.probes_per_s),
            format_count(limits.burst.into()),
            format_scaled(limits.bits_per_s as f64, "bit/s"),
            format_count(limits.most),
        ));
    }
    Ok(CommandExit::Ok)
}
