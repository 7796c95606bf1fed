//! Batches that a worker gives to its outputs: the export and the sinks.

use packetrig_flow::sim::SimEvent;
use packetrig_flow::{CarriedRecords, FlowRecord};

/// Part of a worker's output, in order.
#[derive(Clone, Debug)]
pub enum WorkerBatch {
    /// Records that the table made: of flows that ended, and of flows that continue.
    Records(Vec<FlowRecord>),
    /// Events of SIM: packets and new flows.
    Sim(Vec<SimEvent>),
}

impl WorkerBatch {
    /// Counts the records in this batch, with the packets and bytes that they account for.
    pub fn carried_records(&self) -> CarriedRecords {
        let mut carried = CarriedRecords::default();
        match self {
            Self::Records(records) => {
                for record in records {
                    carried.add_records(CarriedRecords {
                        records: 1,
                        packets: record.packets(),
                        bytes: record.bytes(),
                    });
                }
            }
            Self::Sim(events) => {
                for event in events {
                    carried.add_records(carried_by_event(event));
                }
            }
        }
        carried
    }
}

// A new flow counts as a record without packets, because SIM reports each packet as a separate event.
fn carried_by_event(event: &SimEvent) -> CarriedRecords {
    match event {
        SimEvent::Flow { .. } => CarriedRecords { records: 1, packets: 0, bytes: 0 },
        SimEvent::Packet { bytes, .. } => CarriedRecords { records: 1, packets: 1, bytes: u64::from(*bytes) },
    }
}
