//! Makes flow records of packets that an exporter reports one by one (SIM), so that they are stored like other flows.
//!
//! SIM does not report the direction of a packet, so all packets count as forward. If the SIM item that describes a new
//! flow was lost, the record of its packets has the flow's number, but no addresses and no ports.
//!
//! Invariant: every packet added is in exactly one open flow, or in exactly one record passed to `out`. The number of
//! open flows never exceeds [`GatherOptions::flows`].

use crate::key::FlowKey;
use crate::record::{EndReason, FlowHalf, FlowRecord};
use crate::sim::SimEvent;
use packetrig_units::Nanos;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Timeouts after which flows are reported, and the maximum number of open flows.
#[derive(Clone, Copy, Debug)]
pub struct GatherOptions {
    /// Maximum number of flows that are open at one time.
    pub flows: usize,
    /// A flow that was silent for this long counts as ended.
    pub idle: Nanos,
    /// A flow that continues is reported this often.
    pub active: Nanos,
}

impl Default for GatherOptions {
    fn default() -> Self {
        Self { flows: 1 << 18, idle: Nanos::from_secs(30), active: Nanos::from_secs(60) }
    }
}

#[derive(Clone, Debug)]
struct OpenFlow {
    record: FlowRecord,
    opened_ns: u64,
    heard_ns: u64,
}

/// The open flows of all exporters; `E` identifies the exporter.
#[derive(Clone, Debug)]
pub struct FlowGatherer<E> {
    options: GatherOptions,
    open: HashMap<(E, u64), OpenFlow>,
    /// Keys of the flows in `open`, in the order in which the flows were opened.
    order: VecDeque<(E, u64)>,
}

impl<E: Copy + Eq + Hash> FlowGatherer<E> {
    pub fn new(options: GatherOptions) -> Self {
        Self { options, open: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns the number of flows that fit into this much memory, but at least 14 and at most 229 376.
    pub const fn max_flows_in_memory(memory: usize) -> usize {
        let mut buckets: usize = 1 << 18;
        // The number of buckets of a hash map is a power of two, and at most seven eighths of them are used.
        while buckets > 16
            && buckets * (size_of::<((E, u64), OpenFlow)>() + 1 + size_of::<(E, u64)>()) > memory
        {
            buckets /= 2;
        }
        buckets / 8 * 7
    }

    /// Returns the number of packets that no record has reported yet.
    pub fn open_packets(&self) -> u64 {
        self.open.values().map(|open| open.record.forward.packets).sum()
    }

    /// Adds an event of the exporter `of` that arrived at `now_ns`. Reports a flow that this event ends, or
    /// that must make room.
    pub fn add_event(&mut self, of: E, event: SimEvent, now_ns: u64, out: &mut impl FnMut(E, FlowRecord)) {
        match event {
            SimEvent::Flow { flow_id, key, .. } => {
                let open = self.get_or_open_flow((of, flow_id), now_ns, out);
                // The meter opens a flow with the same number only after the old flow has ended. If the key is still
                // the default one, packets of the new flow have come before this item.
                if open.record.key != FlowKey::default() {
                    report_flow(of, open, EndReason::EndOfFlow, now_ns, out);
                    open.record.part = 0;
                }
                open.record.key = key;
            }
            SimEvent::Packet { flow_id, bytes, at_ns } => {
                let half = &mut self.get_or_open_flow((of, flow_id), now_ns, out).record.forward;
                // An empty half has times of zero, and `min` below would keep the zero.
                if half.packets == 0 {
                    half.first_ns = at_ns;
                    half.last_ns = at_ns;
                }
                // Datagrams overtake each other, so packets may come out of order.
                half.first_ns = half.first_ns.min(at_ns);
                half.last_ns = half.last_ns.max(at_ns);
                half.packets += 1;
                half.bytes += u64::from(bytes);
            }
        }
    }

    fn get_or_open_flow(
        &mut self,
        place: (E, u64),
        now_ns: u64,
        out: &mut impl FnMut(E, FlowRecord),
    ) -> &mut OpenFlow {
        // The flow that was opened first is reported to make room. It is at the front of `order`, so
        // no search is needed.
        if !self.open.contains_key(&place) {
            while self.open.len() >= self.options.flows.max(1)
                && let Some(oldest) = self.order.pop_front()
                && let Some(mut open) = self.open.remove(&oldest)
            {
                report_flow(oldest.0, &mut open, EndReason::LackOfResources, now_ns, out);
            }
            if self.open.capacity() == 0 {
                // All memory is reserved at once: while a map grows, it needs its old and its new memory together.
                // Pages that are never touched take no memory.
                self.open.reserve(self.options.flows);
                self.order.reserve_exact(self.options.flows);
            }
            self.order.push_back(place);
        }
        let open = self.open.entry(place).or_insert_with(|| OpenFlow {
            record: FlowRecord { flow_id: place.1, sampling: 1, ..FlowRecord::default() },
            opened_ns: now_ns,
            heard_ns: now_ns,
        });
        open.heard_ns = now_ns;
        open
    }

    /// Reports and removes the flows that have been idle for too long. Reports the packets so far of flows that have
    /// reached the active timeout, and keeps these flows open.
    pub fn advance_to(&mut self, now_ns: u64, out: &mut impl FnMut(E, FlowRecord)) {
        let idle = self.options.idle.as_u64();
        let active = self.options.active.as_u64();
        self.open.retain(|(of, _), open| {
            if now_ns.saturating_sub(open.heard_ns) >= idle {
                report_flow(*of, open, EndReason::Idle, now_ns, out);
                return false;
            }
            if now_ns.saturating_sub(open.opened_ns) >= active {
                report_flow(*of, open, EndReason::Active, now_ns, out);
            }
            true
        });
        // Flows that ended must leave `order`, too, or it would grow without bound.
        let open = &self.open;
        self.order.retain(|place| open.contains_key(place));
    }

    pub fn finish_flows(&mut self, out: &mut impl FnMut(E, FlowRecord)) {
        self.order.clear();
        for ((of, _), mut open) in self.open.drain() {
            // The time 0 is not used: it would only start the next part of the flow, and no part follows.
            report_flow(of, &mut open, EndReason::Forced, 0, out);
        }
    }
}

fn report_flow<E>(
    of: E,
    open: &mut OpenFlow,
    end: EndReason,
    now_ns: u64,
    out: &mut impl FnMut(E, FlowRecord),
) {
    // The time is set before the check below: a part without packets gives no record, but its
    // active timeout starts again.
    open.opened_ns = now_ns;
    if open.record.forward.packets == 0 {
        return;
    }
    out(of, FlowRecord { end, ..open.record.clone() });
    open.record.part = open.record.part.saturating_add(1);
    open.record.forward = FlowHalf::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(flow_id: u64, at_ns: u64) -> SimEvent {
        SimEvent::Packet { flow_id, bytes: 100, at_ns }
    }

    #[test]
    fn packets_become_records() {
        let mut gather = FlowGatherer::new(GatherOptions::default());
        let mut records = Vec::new();
        let key = FlowKey { source_port: 5, ..FlowKey::default() };
        gather.add_event(
            (),
            SimEvent::Flow { flow_id: 1, key, at_ns: 10 },
            0,
            &mut |(), record: FlowRecord| {
                records.push(record);
            },
        );
        for at_ns in [10, 30, 20] {
            gather.add_event((), packet(1, at_ns), 0, &mut |(), record: FlowRecord| {
                records.push(record);
            });
        }
        gather.add_event((), packet(2, 40), 20_000_000_000, &mut |(), record: FlowRecord| {
            records.push(record);
        });
        gather.advance_to(30_000_000_000, &mut |(), record: FlowRecord| {
            records.push(record);
        });
        let [first] = &records[..] else { panic!("one is over") };
        assert_eq!((first.key, first.forward.packets, first.forward.bytes), (key, 3, 300));
        assert_eq!((first.forward.first_ns, first.forward.last_ns, first.end), (10, 30, EndReason::Idle));
        gather.finish_flows(&mut |(), record: FlowRecord| {
            records.push(record);
        });
        assert_eq!((records[1].flow_id, records[1].end, gather.open_packets()), (2, EndReason::Forced, 0));
    }

    /// The first part begins also if all of the former flow was reported before.
    #[test]
    fn reused_flow_id_starts_again_at_part_zero() {
        let options = GatherOptions { active: Nanos::from_secs(10), ..GatherOptions::default() };
        let mut gather = FlowGatherer::new(options);
        let mut parts = Vec::new();
        let told =
            SimEvent::Flow { flow_id: 1, key: FlowKey { source_port: 5, ..FlowKey::default() }, at_ns: 0 };
        for (event, second) in [(told, 0), (packet(1, 1), 1), (told, 12), (packet(1, 2), 13)] {
            gather
                .advance_to(second * 1_000_000_000, &mut |(), record| parts.push((record.part, record.end)));
            gather.add_event((), event, second * 1_000_000_000, &mut |(), _| {});
        }
        gather.finish_flows(&mut |(), record| parts.push((record.part, record.end)));
        assert_eq!(parts, [(0, EndReason::Active), (0, EndReason::Forced)]);
    }

    #[test]
    fn gatherer_bounds_flows_without_losing_packets() {
        let mut gather = FlowGatherer::new(GatherOptions { flows: 10, ..GatherOptions::default() });
        let mut packets = 0;
        for n in 0..1_000 {
            gather.add_event((), packet(n % 37, n), n, &mut |(), record| packets += record.forward.packets);
            assert!(gather.open.len() <= 10 && gather.order.len() <= 10);
        }
        assert_eq!(packets + gather.open_packets(), 1_000);
    }

    #[test]
    fn a_long_flow_is_reported_in_parts() {
        let mut gather = FlowGatherer::new(GatherOptions::default());
        let mut parts = Vec::new();
        for second in 0..150_u64 {
            gather.add_event((), packet(1, second), second * 1_000_000_000, &mut |(), _| {});
            gather.advance_to(second * 1_000_000_000, &mut |(), record| {
                parts.push((record.part, record.forward.packets));
            });
        }
        assert_eq!(parts, [(0, 61), (1, 60)]);
    }
}
