//! Who leads each node, for `fleet status` and for `fleet up`, which writes it down.

use crate::error::Error;
use crate::fleet_place::FleetPlace;
use packetrig_fleet::NodeName;
use packetrig_fleet::fabric::Fabric as _;
use packetrig_fleet::lead::{NodeLead, shown_leads};
use packetrig_nats::NatsRecords;
use std::collections::BTreeMap;

/// Reads the leads over a connection of its own.
#[derive(Debug)]
pub(super) struct LeadReader(NatsRecords);

impl LeadReader {
    pub(super) fn open(place: &FleetPlace) -> Result<Self, Error> {
        Ok(Self(place.fabric()?.records().map_err(packetrig_node::Error::from)?))
    }

    /// Of those nodes that are led.
    pub(super) fn read<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a NodeName>,
    ) -> Result<BTreeMap<NodeName, NodeLead>, Error> {
        let nodes: Vec<NodeName> = nodes.into_iter().cloned().collect();
        Ok(shown_leads(&mut self.0, &nodes).map_err(packetrig_node::Error::from)?)
    }
}
