//! Route of a sampled packet, as its agent knows it from BGP.

use super::super::reader::ByteReader;
use super::{address_or_zero, read_address};
use crate::account::ENTERPRISE_NUMBER;
use crate::export::section::own;
use crate::foreign::ForeignFields;

/// Maximum number of autonomous systems of a path that are kept; longer paths end with `…`.
const MAX_AS_PATH_SYSTEMS: usize = 32;
const IANA_ENTERPRISE: u32 = 0;
/// IANA elements for the next and the previous autonomous system on the path.
const NEXT_ADJACENT_AS: u16 = 128;
const PREVIOUS_ADJACENT_AS: u16 = 129;
/// Kind of a segment whose autonomous systems have no order (AS_SET).
const SET: u32 = 1;

/// Reads the gateway part of a sample. `None` if it is truncated; the values read until then stay.
pub(super) fn read_gateway(part: &[u8], routes: &mut ForeignFields) -> Option<()> {
    let mut reader = ByteReader::new(part);
    routes.bgp_next_hop = address_or_zero(read_address(&mut reader)?);
    let own_system = reader.read_u32()?;
    let source = reader.read_u32()?;
    let source_peer = reader.read_u32()?;
    // Zero means the agent's own autonomous system.
    routes.source_as = if source == 0 { own_system } else { source };
    let path = read_path(&mut reader)?;
    routes.destination_as = path.last.unwrap_or(own_system);
    let neighbours = [(NEXT_ADJACENT_AS, path.first), (PREVIOUS_ADJACENT_AS, Some(source_peer))];
    for (element, system) in neighbours {
        if let Some(system) = system.filter(|system| *system != 0) {
            routes.others.add_field(IANA_ENTERPRISE, element, &system.to_be_bytes());
        }
    }
    if !path.text.is_empty() {
        routes.others.add_field(ENTERPRISE_NUMBER, own::AS_PATH, path.text.as_bytes());
    }
    let communities = usize::try_from(reader.read_u32()?).ok()?;
    let _communities = reader.read_bytes(communities.checked_mul(4)?)?;
    let preference = reader.read_u32()?;
    routes.others.add_field(ENTERPRISE_NUMBER, own::LOCAL_PREFERENCE, &preference.to_be_bytes());
    Some(())
}

#[derive(Default)]
struct AsPath {
    first: Option<u32>,
    last: Option<u32>,
    text: String,
}

/// Reads an AS path and writes it as text: sequences as numbers, sets in braces.
fn read_path(reader: &mut ByteReader<'_>) -> Option<AsPath> {
    let mut path = AsPath::default();
    let mut kept = 0;
    for _ in 0..reader.read_u32()? {
        let is_set = reader.read_u32()? == SET;
        let mut separator = if is_set { "{" } else { "" };
        for _ in 0..reader.read_u32()? {
            let system = reader.read_u32()?;
            path.first.get_or_insert(system);
            path.last = Some(system);
            kept += 1;
            if kept <= MAX_AS_PATH_SYSTEMS {
                let space = if path.text.is_empty() || separator == "," { "" } else { " " };
                path.text.extend([space, separator, &system.to_string()]);
                separator = if is_set { "," } else { "" };
            }
        }
        if is_set && kept <= MAX_AS_PATH_SYSTEMS && separator == "," {
            path.text.push('}');
        }
    }
    if kept > MAX_AS_PATH_SYSTEMS {
        path.text.push('…');
    }
    Some(path)
}
