//! A model of the collector: its stored records are all that it knows after a restart.

use packetrig_flow::collect::{GroupOptions, GroupRecordJoiner};
use packetrig_flow::{FlowHistory, FlowRecord};
use std::collections::HashMap;

/// A flow's number and the end that sends.
pub(crate) type Side = (u64, [u8; 16]);

pub(crate) struct Collector {
    groups: GroupRecordJoiner,
    began_ns: u64,
    /// Stored records, each with its time.
    stored: Vec<(u64, FlowRecord)>,
    pub(crate) unplaced: u64,
}

impl Collector {
    pub(crate) fn new(began_ns: u64) -> Self {
        Self {
            groups: GroupRecordJoiner::new(GroupOptions::default(), began_ns),
            began_ns,
            stored: Vec::new(),
            unplaced: 0,
        }
    }

    pub(crate) fn take(&mut self, record: &FlowRecord, now_ns: u64) {
        // The record is as it is after its way through a message.
        self.stored
            .extend(self.groups.reduce_to_unstored_packets(record.clone(), now_ns).map(|new| (now_ns, new)));
    }

    fn note_unplaced(&mut self) {
        self.unplaced += self.groups.groups().map(|(_, counts)| counts.unplaced_packets).sum::<u64>();
    }

    /// Stops and starts again: records of the last time are not in its files.
    pub(crate) fn restart(&mut self, unsaved_ns: u64, now_ns: u64) {
        self.note_unplaced();
        self.stored.retain(|(at_ns, _)| at_ns + unsaved_ns < now_ns);
        self.groups = GroupRecordJoiner::new(GroupOptions::default(), self.began_ns);
        // As the files have them: sorted by their start, and with the history among the fields without a column.
        self.stored.sort_by_key(|(_, record)| record.first_ns());
        for (_, record) in &self.stored {
            let history = stored_history(record).map(Box::new);
            self.groups
                .restore_stored_record(FlowRecord { history, foreign: None, ..record.clone() }, now_ns);
        }
    }

    /// Packets and bytes by direction.
    pub(crate) fn sums(&mut self) -> HashMap<Side, (u64, u64)> {
        self.note_unplaced();
        let mut sums = HashMap::new();
        for (_, record) in &self.stored {
            let halves = [(record.key.source, &record.forward), (record.key.destination, &record.reverse)];
            for (end, half) in halves {
                let sum: &mut (u64, u64) = sums.entry((record.flow_id, end)).or_default();
                (sum.0, sum.1) = (sum.0 + half.packets, sum.1 + half.bytes);
            }
        }
        sums
    }
}

fn stored_history(record: &FlowRecord) -> Option<FlowHistory> {
    let mut text = String::new();
    record.foreign.as_ref()?.others.append_json(&mut text);
    FlowHistory::from_fields(
        |name| field_value(&text, name)?.parse().ok(),
        |name| Some(field_value(&text, name)?.trim_matches('"')),
    )
}

/// Returns the value of a field in a JSON object without nested ones.
fn field_value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{name}\":");
    text[text.find(&key)? + key.len()..].split([',', '}']).next()
}
