//! `packetrig fleet label`: the labels that the operator gives a node.

use crate::args::LabelNode;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::output::{CommandOutput, print_remark};
use packetrig_fleet::labels::{LabelChange, OperatorLabels};
use packetrig_report::NodeName;

pub(crate) fn label_node(arguments: &LabelNode, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::from_arguments(&arguments.place)?.require_existing()?;
    let authority = place.open_authority()?;
    let node = NodeName(arguments.node.clone());
    // Removes the node from a map that was just read; the node stays enrolled.
    let Some(enrolled) = authority.read_enrolled_nodes()?.remove(&node) else {
        return Err(Error::Usage(format!(
            "the fleet has no node called {node}; `packetrig fleet status` lists the nodes"
        )));
    };
    let labels = match arguments.changes.as_slice() {
        // Without a change nothing is written: the file of the authority stays as it is.
        [] => enrolled.labels,
        changes => authority.change_labels(&node, changes)?,
    };
    warn_of_overruled_labels(&place, &node, &labels);
    if labels.is_empty() {
        output.write_line(format_args!("{node} has no label from the operator"));
    } else {
        output.write_line(format_args!("{node}: {labels}"));
    }
    // If labels were only removed, there is no new label that a plan could use.
    if !arguments.changes.iter().all(|change| matches!(change, LabelChange::Remove(_))) {
        output.write_line("New runs choose ports by these labels (`any-LABEL`).");
    }
    Ok(CommandExit::Ok)
}

/// The owner's labels take precedence over the operator's labels. Only the owner's labels of the last hello
/// are known here; `fleet status` shows the conflict later, too.
fn warn_of_overruled_labels(place: &FleetPlace, node: &NodeName, labels: &OperatorLabels) {
    let rows = place.read_presence().map(|presence| presence.nodes).unwrap_or_default();
    let Some(row) = rows.iter().find(|row| row.node == *node) else { return };
    for label in labels.overruled_labels(&row.hello) {
        print_remark(format_args!(
            "label `{label}` has no effect on {node}: the owner of the machine has set the same key"
        ));
    }
}
