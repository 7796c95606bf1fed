//! `packetrig probe allowed`: what may be sent to a target.

use super::bounds;
use crate::args::AllowedArgs;
use crate::error::Error;
use packetrig_program::exit::CommandExit;
use packetrig_program::numbers::{count, scaled};
use packetrig_program::output::CommandOutput;
use serde_json::json;

pub(super) fn perform(arguments: &AllowedArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let permit = bounds::permit(&arguments.bounds)?;
    bounds::tell_addresses([&arguments.target]);
    let limits = bounds::permitted(&permit, arguments.target.address)?.limits();
    if arguments.json {
        output.json(&json!({
            "target": arguments.target.address,
            "probes_per_s": limits.probes_per_s,
            "bits_per_s": limits.bits_per_s,
            "burst": limits.burst,
            "most": limits.most,
            "loss_percent": limits.loss_percent,
            "about": permit.about,
        }))?;
    } else {
        output.text(format!(
            "{}: {} probes/s in bursts of {}, {}, {} probes in all\n",
            arguments.target,
            count(limits.probes_per_s),
            count(limits.burst.into()),
            scaled(limits.bits_per_s as f64, "bit/s"),
            count(limits.most),
        ));
    }
    Ok(CommandExit::Ok)
}
