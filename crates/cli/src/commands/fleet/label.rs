//! `packetrig fleet label`: what the operator calls a node.

use crate::args::LabelNode;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::output::{CommandOutput, remark};
use packetrig_fleet::NodeName;
use packetrig_fleet::labels::{LabelChange, OperatorLabels};

pub(crate) fn perform(arguments: &LabelNode, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let (authority, node) = (place.authority()?, NodeName(arguments.node.clone()));
    let Some(enrolled) = authority.enrolled()?.remove(&node) else {
        return Err(Error::Usage(format!("the fleet has no node called {node}")));
    };
    let labels = match arguments.changes.as_slice() {
        [] => enrolled.labels,
        changes => authority.label(&node, changes)?,
    };
    warn_of_overruled(&place, &node, &labels);
    if labels.is_empty() {
        output.line(format_args!("{node} has no label from the operator"));
    } else {
        output.line(format_args!("{node}: {labels}"));
    }
    let removed = |change: &LabelChange| matches!(change, LabelChange::Remove(_));
    if !arguments.changes.iter().all(removed) {
        output.line("New runs choose ports by these labels (`any-LABEL`).");
    }
    Ok(CommandExit::Ok)
}

/// What the owner says may not be known yet; `fleet status` shows it too.
fn warn_of_overruled(place: &FleetPlace, node: &NodeName, labels: &OperatorLabels) {
    let rows = place.presence().map(|presence| presence.nodes).unwrap_or_default();
    let Some(row) = rows.iter().find(|row| row.node == *node) else { return };
    for label in labels.overruled(&row.hello) {
        remark(format_args!("`{label}` has no effect on {node}: the owner of the machine set that key"));
    }
}
