//! A meter: its table, and the records it keeps while another one exports.

use super::traffic::SECOND;
use packetrig_flow::table::{FlowTable, TableOptions};
use packetrig_flow::{FlowRecord, PacketInfo, RecordOriginMark};
use packetrig_units::Nanos;
use std::collections::VecDeque;

pub(crate) const IDLE: u64 = 2 * SECOND;
pub(crate) const ACTIVE: u64 = 4 * SECOND;
/// A meter that was started or lost packets is not ready before that, and as long as it does not recognise all flows.
const SETTLING: u64 = IDLE + SECOND;
/// Records of others with the landmarks that it knows have been stored then.
const SLACK: u64 = 2 * SECOND;

#[derive(Debug)]
pub(crate) struct Meter {
    table: FlowTable<()>,
    /// Offset of its clock.
    ahead_ns: i64,
    began_ns: u64,
    recognises_since_ns: Option<u64>,
    last_ns: u64,
    /// Records and when they left the table.
    pub(crate) kept: VecDeque<(u64, FlowRecord)>,
}

impl Meter {
    pub(crate) fn new(number: u32, ahead_ns: i64, now_ns: u64) -> Self {
        let options = TableOptions {
            capacity: 64,
            active: Nanos::new(ACTIVE),
            idle: Nanos::new(IDLE),
            group: Some(RecordOriginMark { group: 9, meter: number, lane: 0 }),
            ..TableOptions::default()
        };
        let mut meter = Self {
            table: FlowTable::new(&options),
            ahead_ns,
            began_ns: now_ns,
            recognises_since_ns: None,
            last_ns: 0,
            kept: VecDeque::new(),
        };
        meter.look(now_ns);
        meter
    }

    fn here(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add_signed(self.ahead_ns)
    }

    pub(crate) fn meter(&mut self, packet: &PacketInfo, late_ns: u64) {
        let at_ns = self.here(packet.at_ns + late_ns).max(self.last_ns);
        self.last_ns = at_ns;
        let mut records = Vec::new();
        self.table.meter_packets(&[PacketInfo { at_ns, ..*packet }], at_ns, &mut records);
        self.kept.extend(records.into_iter().map(|record| (packet.at_ns, record)));
    }

    pub(crate) fn look(&mut self, now_ns: u64) {
        let mut records = Vec::new();
        self.table.advance_to(self.here(now_ns), &mut records);
        self.kept.extend(records.into_iter().map(|record| (now_ns, record)));
        let recognises = self.table.strange_flows() == 0 && now_ns >= self.began_ns + SETTLING;
        self.recognises_since_ns = recognises.then(|| self.recognises_since_ns.unwrap_or(now_ns));
    }

    pub(crate) fn is_ready(&self, now_ns: u64) -> bool {
        self.recognises_since_ns.is_some_and(|since_ns| now_ns >= since_ns + SLACK)
    }

    /// Sets its clock.
    pub(crate) fn set_clock(&mut self, by_ns: i64) {
        self.ahead_ns += by_ns;
        self.last_ns = 0;
    }

    /// Packets were lost before the table.
    pub(crate) fn lose(&mut self, now_ns: u64) {
        self.table.mark_packet_loss();
        self.began_ns = now_ns;
        self.recognises_since_ns = None;
    }

    pub(crate) fn finish(&mut self, now_ns: u64) {
        let mut records = Vec::new();
        self.table.finish_flows(&mut records);
        self.kept.extend(records.into_iter().map(|record| (now_ns, record)));
    }
}
