//! Encodes events as datagrams.
//!
//! Items are added to a datagram until the next one does not fit. The datagram is passed to the sink then, after
//! [`SimOptions::flush_after`], or when the caller asks for it.

use super::{HEADER, MAX_PAYLOAD_V4, SIM_DATAGRAM_MAGIC, SimEvent, VERSION, item};
use crate::account::{LEDGER_ACCOUNTS, UNKNOWN_VALUE};
use crate::export::{ExportMessage, MessageSink};
use crate::key::FlowKey;
use crate::ledger::{CarriedRecords, MeterLedger};
use crate::narrow::fitting_u16;
use packetrig_units::Nanos;

/// Options of the datagrams.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    pub exporter: u32,
    /// Maximum length of a datagram, in bytes. It is raised to the length that a ledger needs, and limited to 65 535.
    pub datagram_bytes: usize,
    /// Maximum time for which an event waits for further events to fill its datagram.
    pub flush_after: Nanos,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { exporter: 1, datagram_bytes: MAX_PAYLOAD_V4, flush_after: Nanos::from_millis(200) }
    }
}

#[derive(Debug)]
pub struct SimEncoder {
    options: SimOptions,
    buffer: Vec<u8>,
    items: u16,
    events: u32,
    carried: CarriedRecords,
    own: u64,
    base_ns: u64,
    opened_ns: u64,
    datagrams_before: u32,
    events_before: u64,
}

impl SimEncoder {
    /// Creates an encoder. The sequence numbers of its first datagram are 0.
    pub fn new(options: SimOptions) -> Self {
        // A ledger is the longest item, and no item is split.
        let least = HEADER + item::LEDGER_ITEM_LAYOUT.length + 8 * LEDGER_ACCOUNTS.len();
        let options = SimOptions {
            datagram_bytes: options.datagram_bytes.clamp(least, usize::from(u16::MAX)),
            ..options
        };
        Self {
            options,
            buffer: Vec::with_capacity(options.datagram_bytes),
            items: 0,
            events: 0,
            carried: CarriedRecords::default(),
            own: 0,
            base_ns: 0,
            opened_ns: 0,
            datagrams_before: 0,
            events_before: 0,
        }
    }

    pub fn add_event(&mut self, event: &SimEvent, now_ns: u64, sink: &mut impl MessageSink) {
        match *event {
            SimEvent::Packet { flow_id, bytes, at_ns } => {
                self.add_packet(flow_id, bytes, at_ns, now_ns, sink);
            }
            SimEvent::Flow { flow_id, key, at_ns } => self.add_flow(flow_id, &key, at_ns, now_ns, sink),
        }
    }

    pub fn add_ledger(&mut self, ledger: &MeterLedger, now_ns: u64, sink: &mut impl MessageSink) {
        self.make_datagram_room(
            item::LEDGER_ITEM_LAYOUT.length + 8 * LEDGER_ACCOUNTS.len(),
            now_ns,
            now_ns,
            sink,
        );
        self.buffer.extend([item::LEDGER_ITEM_LAYOUT.kind, 0]);
        self.buffer.extend(fitting_u16(LEDGER_ACCOUNTS.len()).to_be_bytes());
        self.buffer.extend([0; 4]);
        self.buffer.extend(now_ns.to_be_bytes());
        for account in LEDGER_ACCOUNTS {
            self.buffer.extend((account.get)(ledger).unwrap_or(UNKNOWN_VALUE).to_be_bytes());
        }
        self.items += 1;
        self.own += 1;
    }

    /// Passes the datagram to `sink` if it has waited for `flush_after`.
    pub fn flush_if_due(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if now_ns.saturating_sub(self.opened_ns) >= self.options.flush_after.as_u64() {
            self.flush_datagram(sink);
        }
    }

    /// Passes the datagram to `sink` unless it is empty, and begins a new one.
    pub fn flush_datagram(&mut self, sink: &mut impl MessageSink) {
        if self.items == 0 {
            return;
        }
        self.write_header();
        sink.on_message(ExportMessage {
            bytes: &self.buffer,
            carried: self.carried,
            own_records: self.own,
            step: self.events,
        });
        self.datagrams_before = self.datagrams_before.wrapping_add(1);
        self.events_before += u64::from(self.events);
        self.buffer.clear();
        self.items = 0;
        self.events = 0;
        self.own = 0;
        self.carried = CarriedRecords::default();
    }

    /// Returns the counts of the datagram that has not been passed to a sink yet.
    pub const fn waiting_records(&self) -> CarriedRecords {
        self.carried
    }

    fn add_packet(&mut self, flow_id: u64, bytes: u32, at_ns: u64, now_ns: u64, sink: &mut impl MessageSink) {
        self.make_datagram_room(item::PACKET_ITEM_LAYOUT.length, at_ns, now_ns, sink);
        // The short form has 24 bits for the length and 32 for the time since the base, about two seconds either way.
        // Values that do not fit take the long form, in this datagram if it has room for it.
        if let (Some(delta), 0) = (self.time_delta(at_ns), bytes >> 24) {
            self.buffer.extend((u32::from(item::PACKET_ITEM_LAYOUT.kind) << 24 | bytes).to_be_bytes());
            self.buffer.extend(delta.to_be_bytes());
        } else {
            self.make_datagram_room(item::LONG_PACKET_ITEM_LAYOUT.length, at_ns, now_ns, sink);
            self.buffer.extend([item::LONG_PACKET_ITEM_LAYOUT.kind, 0, 0, 0]);
            self.buffer.extend(bytes.to_be_bytes());
            self.buffer.extend(at_ns.to_be_bytes());
        }
        // Both forms end in the flow's number.
        self.buffer.extend(flow_id.to_be_bytes());
        self.count_event(1, u64::from(bytes));
    }

    fn add_flow(
        &mut self,
        flow_id: u64,
        key: &FlowKey,
        at_ns: u64,
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        // An IPv6 packet may have a mapped address at one end. The short form needs two of them.
        let layout = if key.is_ipv4() { item::FLOW_V4_ITEM_LAYOUT } else { item::FLOW_V6_ITEM_LAYOUT };
        self.make_datagram_room(layout.length, at_ns, now_ns, sink);
        self.buffer.extend([layout.kind, key.protocol, key.tunnel as u8, 0]);
        self.buffer.extend(key.vlan.to_be_bytes());
        self.buffer.extend(key.inner_vlan.to_be_bytes());
        self.buffer.extend(key.tunnel_id.to_be_bytes());
        self.buffer.extend(key.source_port.to_be_bytes());
        self.buffer.extend(key.destination_port.to_be_bytes());
        self.buffer.extend(flow_id.to_be_bytes());
        self.buffer.extend(at_ns.to_be_bytes());
        let start = if key.is_ipv4() { 12 } else { 0 };
        self.buffer.extend(&key.source[start..]);
        self.buffer.extend(&key.destination[start..]);
        self.count_event(0, 0);
    }

    /// Makes room for an item, in a new datagram if this one has no room. A datagram's base time is the time
    /// of its first item.
    fn make_datagram_room(&mut self, length: usize, at_ns: u64, now_ns: u64, sink: &mut impl MessageSink) {
        if self.buffer.len() + length > self.options.datagram_bytes {
            self.flush_datagram(sink);
        }
        if self.items == 0 {
            self.buffer.clear();
            self.buffer.resize(HEADER, 0);
            self.base_ns = at_ns;
            self.opened_ns = now_ns;
        }
    }

    fn time_delta(&self, at_ns: u64) -> Option<i32> {
        let delta = i128::from(at_ns) - i128::from(self.base_ns);
        i32::try_from(delta).ok()
    }

    fn count_event(&mut self, packets: u64, bytes: u64) {
        self.items += 1;
        self.events += 1;
        // The ledger counts every event as a record, but the event of a new flow has no packet: its packets
        // come as separate events.
        self.carried.add_records(CarriedRecords { records: 1, packets, bytes });
    }

    fn write_header(&mut self) {
        // `datagram_bytes` is at most 65 535, and even the shortest datagram has room for the longest item.
        let length = fitting_u16(self.buffer.len());
        let header = &mut self.buffer[..HEADER];
        header[..3].copy_from_slice(&SIM_DATAGRAM_MAGIC);
        header[3] = VERSION;
        header[4..6].copy_from_slice(&length.to_be_bytes());
        header[6..8].copy_from_slice(&self.items.to_be_bytes());
        header[8..12].copy_from_slice(&self.options.exporter.to_be_bytes());
        header[12..16].copy_from_slice(&self.datagrams_before.to_be_bytes());
        header[16..24].copy_from_slice(&self.events_before.to_be_bytes());
        header[24..32].copy_from_slice(&self.base_ns.to_be_bytes());
    }
}
