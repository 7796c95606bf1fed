//! Locations of ports: on this machine, on a named node, or at any port of a fleet that has a label.
//!
//! This module does not check whether the node exists: a plan is read without access to the fleet.

use crate::reader::DocumentItem;
use crate::{PlanParseOptions, PlanProblem, PortHost, PortLocation};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Prefix of a location that means any port with a label.
const ANY_LABEL_PREFIX: &str = "any-";
/// Longest label, and longest name of a node that a plan may contain.
const MAX_NAME_CHARACTERS: usize = 63;

/// The machine and the interface of a port.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct PortPlace {
    pub(super) site: PortHost,
    pub(super) location: PortLocation,
}

/// Locations that ports of the plan already use, with the names of the ports.
pub(super) type UsedPortLocations = HashMap<PortPlace, String>;

/// Reads the location of the port `name`, or notes why it is invalid.
pub(super) fn read_location(
    item: &DocumentItem<'_>,
    options: PlanParseOptions,
    name: &str,
    taken: &mut UsedPortLocations,
) -> Option<PortPlace> {
    let text = item.as_text()?;
    let read = if options.fleet { parse_fleet_place(text) } else { parse_local_place(text) };
    let found = match read {
        Ok(found) => found,
        Err(InvalidLocationReason { message, hint }) => {
            item.add_problem(PlanProblem::error(&*item.path, message).with_hint(hint));
            return None;
        }
    };
    // Ports with the same label are different ports.
    if !matches!(found.site, PortHost::Any(_)) {
        match taken.entry(found.clone()) {
            Entry::Occupied(other) => {
                item.add_item_error(format!("location `{text}` is used by port `{}` already", other.get()));
            }
            Entry::Vacant(place) => _ = place.insert(name.to_owned()),
        }
    }
    // A location that is used twice is an error. The port stays, so that references to it cause no further errors.
    Some(found)
}

/// The reason why a location is invalid.
struct InvalidLocationReason {
    message: String,
    hint: String,
}

impl InvalidLocationReason {
    /// An error for a location that has none of the forms of a fleet.
    fn in_fleet(message: String) -> Self {
        Self { message, hint: FLEET_LOCATION_FORMATS.to_owned() }
    }
}

const FLEET_LOCATION_FORMATS: &str =
    "in a fleet a location is `NODE/eth1`, `NODE/namespace/eth1` or `any-LABEL`";

fn parse_local_place(text: &str) -> Result<PortPlace, InvalidLocationReason> {
    let location: PortLocation = text.parse().map_err(|message| {
        let hint = "locations of other testers (`host:port`, `chassis;card;port`) need an alias: `packetrig \
            serve --port IF=LOCATION`";
        InvalidLocationReason { message, hint: hint.to_owned() }
    })?;
    Ok(PortPlace { site: PortHost::Here, location })
}

fn parse_fleet_place(text: &str) -> Result<PortPlace, InvalidLocationReason> {
    // Only the first slash divides: after it, a namespace may follow.
    let Some((node, interface)) = text.split_once('/') else {
        let Some(label) = text.strip_prefix(ANY_LABEL_PREFIX) else {
            let is_interface = text.parse::<PortLocation>().is_ok();
            let forms = FLEET_LOCATION_FORMATS;
            let hint = if is_interface { format!("write `NODE/{text}`; {forms}") } else { forms.to_owned() };
            return Err(InvalidLocationReason {
                message: format!("location `{text}` does not say on which node the port is"),
                hint,
            });
        };
        if !is_port_label(label) {
            return Err(InvalidLocationReason::in_fleet(format!(
                "`{label}` is not a valid label; write {LABEL_FORMAT}"
            )));
        }
        return Ok(PortPlace {
            site: PortHost::Any(label.to_owned()),
            location: PortLocation::unknown_location(),
        });
    };
    if !is_valid_name(node) {
        let message = format!("`{node}` is not a valid node name: use 1 to 32 characters of a-z, 0-9 and -");
        return Err(InvalidLocationReason::in_fleet(message));
    }
    let location = interface.parse().map_err(InvalidLocationReason::in_fleet)?;
    Ok(PortPlace { site: PortHost::Node(node.to_owned()), location })
}

/// True for a valid label without `=`, and for a valid key or value of a label. Node names have stricter rules, so all
/// node names are accepted, too. Names are also parts of message subjects and certificates, so they have no dots.
fn is_valid_name(text: &str) -> bool {
    let is_word = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    is_word && !text.is_empty() && text.len() <= MAX_NAME_CHARACTERS
}

/// The form of a label, in words.
pub const LABEL_FORMAT: &str = "a word or `key=value`, of letters, digits, `-` and `_`";

/// True for a possible label of a port or node: a word, or a key with a value.
pub fn is_port_label(text: &str) -> bool {
    let parts_are_names = match text.split_once('=') {
        Some((key, value)) => is_valid_name(key) && is_valid_name(value),
        None => is_valid_name(text),
    };
    parts_are_names && text.len() <= MAX_NAME_CHARACTERS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    fn read(fleet: bool, locations: &[&str]) -> Result<Vec<(PortHost, String)>, String> {
        let ports: Vec<String> =
            locations.iter().enumerate().map(|(n, at)| format!("{{name: p{n}, location: '{at}'}}")).collect();
        let text = format!("ports: [{}]", ports.join(", "));
        let plan = Plan::from_text_with(&text, PlanParseOptions { fleet, ..PlanParseOptions::default() });
        let said = |problem: &PlanProblem| {
            format!("{} ({})", problem.message, problem.hint.clone().unwrap_or_default())
        };
        let plan = plan.map_err(|problems| problems.0.iter().map(said).collect::<Vec<_>>().join("; "))?;
        Ok(plan.ports.into_iter().map(|port| (port.site.clone(), port.full_location())).collect())
    }

    #[test]
    fn without_a_fleet_every_port_is_here() {
        let ports = read(false, &["eth1", "ns/eth1", "any-tx"]).unwrap();
        let names: Vec<&str> = ports.iter().map(|(_, at)| at.as_str()).collect();
        assert_eq!(names, ["eth1", "ns/eth1", "any-tx"]);
        assert!(ports.iter().all(|(site, _)| *site == PortHost::Here));
        assert!(read(false, &["node/ns/eth1"]).is_err());
        assert!(read(false, &["eth1", "eth1"]).is_err());
    }

    #[test]
    fn fleet_location_names_node_or_label() {
        let ports = read(true, &["node7/eth1", "node7/ns/eth1", "node8/eth1", "any-tx", "any-tx"]).unwrap();
        let sites: Vec<PortHost> = ports.iter().map(|(site, _)| site.clone()).collect();
        let node = |name: &str| PortHost::Node(name.to_owned());
        let any = || PortHost::Any("tx".to_owned());
        assert_eq!(sites, [node("node7"), node("node7"), node("node8"), any(), any()]);
        assert_eq!((ports[1].1.as_str(), ports[3].1.as_str()), ("node7/ns/eth1", "any-tx"));
    }

    #[test]
    fn invalid_fleet_location_is_refused_with_hint() {
        let lone = read(true, &["eth1"]).unwrap_err();
        assert!(lone.contains("does not say on which node") && lone.contains("NODE/eth1"), "{lone}");
        for wrong in ["no.de/eth1", "/eth1", "node/", "node/a/b/c", "any-", "any-a.b", "node/eth:1"] {
            let problem = read(true, &[wrong]).unwrap_err();
            assert!(problem.contains("any-LABEL"), "{wrong}: {problem}");
        }
        let twice = read(true, &["node7/eth1", "node7/eth1"]).unwrap_err();
        assert!(twice.contains("is used by port `p0` already"), "{twice}");
    }
}
