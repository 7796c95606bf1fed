//! What a worker gives to the export thread.

use packetrig_flow::sim::SimEvent;
use packetrig_flow::{CarriedRecords, FlowRecord};

/// Some of a worker's output, in order.
#[derive(Clone, Debug)]
pub enum WorkerBatch {
    /// Flows that left the table.
    Records(Vec<FlowRecord>),
    /// Packets and new flows.
    Sim(Vec<SimEvent>),
}

impl WorkerBatch {
    /// What it stands for.
    pub fn carried(&self) -> CarriedRecords {
        let mut carried = CarriedRecords::default();
        match self {
            Self::Records(records) => {
                for record in records {
                    carried.add(CarriedRecords {
                        records: 1,
                        packets: record.packets(),
                        bytes: record.bytes(),
                    });
                }
            }
            Self::Sim(events) => {
                for event in events {
                    let (packets, bytes) = match event {
                        SimEvent::Flow { .. } => (0, 0),
                        SimEvent::Packet { bytes, .. } => (1, u64::from(*bytes)),
                    };
                    carried.add(CarriedRecords { records: 1, packets, bytes });
                }
            }
        }
        carried
    }
}
