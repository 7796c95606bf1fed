//! Assigns answers to users: each answer belongs to the one user whose programs sent the packet that it answers.
//!
//! A segment or datagram is identified by its flow, which belongs to one user while its packets may be
//! answered. Clients choose identifiers of ICMP freely, so two users may have the same one. A request is
//! therefore identified by its [`RequestMark`] as well, which its reply and an error about it contain.
//!
//! Invariant: no two users send packets whose answers cannot be distinguished, and the memory for packets is
//! limited for each user separately. After a program has disconnected, errors about its packets still close
//! targets for its user.

use packetrig_probe::service::{ClientId, PacketEndpoints, PacketFlow, RequestMark};
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Answers that arrive later than this after the packet are delivered to no client.
pub(super) const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(60);
/// Maximum number of flows, and of requests, that are remembered for one user: the latest ones.
const MAX_FLOWS_PER_USER: usize = 65_536;
/// Maximum number of old entries that are removed per new packet.
const MAX_REMOVED_ENTRIES_PER_PACKET: usize = 2;

/// A flow of sent packets: their addresses, and their ports or ICMP identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentFlow {
    pub(super) source: IpAddr,
    pub(super) target: IpAddr,
    pub(super) flow: PacketFlow,
}

impl From<&PacketEndpoints> for SentFlow {
    fn from(ends: &PacketEndpoints) -> Self {
        Self { source: ends.source, target: ends.target, flow: ends.flow }
    }
}

/// A sent ICMP request: its flow, and a mark that its reply contains as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentRequest {
    pub(super) flow: SentFlow,
    pub(super) mark: RequestMark,
}

/// A program that sends packets, and its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketSender {
    pub(super) client: ClientId,
    pub(super) user: u32,
}

/// The sender of a flow or request, and the departure of its last packet.
#[derive(Clone, Copy, Debug)]
struct LastSendRecord {
    sender: PacketSender,
    sent_at: MonoTime,
}

impl LastSendRecord {
    fn is_within(&self, within: Nanos, now: MonoTime) -> bool {
        now.since(self.sent_at) < within
    }
}

/// Flows and requests of a user, sorted by the departure of their last packet.
#[derive(Debug, Default)]
struct PacketsOfUser {
    flows: BTreeSet<(MonoTime, SentFlow)>,
    requests: BTreeSet<(MonoTime, SentRequest)>,
}

#[derive(Debug, Default)]
struct SentFlowTable {
    flows: BTreeMap<SentFlow, Vec<LastSendRecord>>,
    requests: BTreeMap<SentRequest, LastSendRecord>,
    of_users: BTreeMap<u32, PacketsOfUser>,
    /// Departure of the last packet of all users.
    sent_at: MonoTime,
}

#[derive(Debug, Default)]
pub(super) struct SentFlows {
    known: Mutex<SentFlowTable>,
}

impl SentFlows {
    fn lock_flows(&self) -> MutexGuard<'_, SentFlowTable> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a user may send a packet now: no answer to it could be mistaken for an answer to a
    /// packet of another user.
    pub(super) fn can_attribute_answers(&self, user: u32, ends: &PacketEndpoints, now: MonoTime) -> bool {
        let known = self.lock_flows();
        let flow = SentFlow::from(ends);
        let is_open =
            |last: &LastSendRecord| last.sender.user == user || !last.is_within(ANSWER_TIMEOUT, now);
        // An ICMP request has a mark, so two users may use the same identifier.
        match ends.mark {
            Some(mark) => known.requests.get(&SentRequest { flow, mark }).is_none_or(is_open),
            None => known.flows.get(&flow).is_none_or(|senders| senders.iter().all(is_open)),
        }
    }

    /// Records the flow of a packet that leaves at `now`, and its mark if it is an ICMP request.
    pub(super) fn record_packet(&self, sender: PacketSender, ends: &PacketEndpoints, now: MonoTime) {
        let mut known = self.lock_flows();
        known.sent_at = known.sent_at.max(now);
        let flow = SentFlow::from(ends);
        known.record_flow(sender, flow, now);
        if let Some(mark) = ends.mark {
            known.record_request(sender, SentRequest { flow, mark }, now);
        }
    }

    /// Returns the programs, all of one user, that sent the answered packet at most `within` ago: the one that
    /// sent exactly this request, else those that sent packets of its flow. The result is empty if these
    /// programs belong to several users.
    pub(super) fn find_senders(
        &self,
        flow: &SentFlow,
        mark: Option<RequestMark>,
        within: Nanos,
        now: MonoTime,
    ) -> Vec<PacketSender> {
        let known = self.lock_flows();
        let is_recent = |last: &&LastSendRecord| last.is_within(within.min(ANSWER_TIMEOUT), now);
        let exact = mark.and_then(|mark| known.requests.get(&SentRequest { flow: *flow, mark }));
        if let Some(last) = exact.filter(is_recent) {
            // Exactly this request is known, so other programs with the same identifier get nothing.
            return vec![last.sender];
        }
        let of_flow = known.flows.get(flow).into_iter().flatten();
        let senders: Vec<_> = of_flow.filter(is_recent).map(|last| last.sender).collect();
        let is_of_one = senders.windows(2).all(|pair| pair[0].user == pair[1].user);
        // If several users sent packets of this flow, any of them may be meant, so none gets the answer.
        if is_of_one { senders } else { Vec::new() }
    }

    /// Returns whether any packet left less than `within` ago.
    pub(super) fn has_any_packet_left_within(&self, within: Nanos, now: MonoTime) -> bool {
        let known = self.lock_flows();
        !known.of_users.is_empty() && now.since(known.sent_at) < within
    }
}

impl SentFlowTable {
    fn record_flow(&mut self, sender: PacketSender, flow: SentFlow, now: MonoTime) {
        let senders = self.flows.entry(flow).or_default();
        // A user has one entry for each flow, whichever of its programs sent last.
        let of_user = senders.iter().filter(|last| last.sender.user == sender.user);
        let before = of_user.map(|last| last.sent_at).max();
        // Entries that are too old are removed here as well, so the list of a flow stays short.
        senders.retain(|last| last.sender != sender && last.is_within(ANSWER_TIMEOUT, now));
        senders.push(LastSendRecord { sender, sent_at: now });
        let of_user = &mut self.of_users.entry(sender.user).or_default().flows;
        if let Some(before) = before {
            of_user.remove(&(before, flow));
        }
        of_user.insert((before.map_or(now, |before| before.max(now)), flow));
        for (_, flow) in remove_expired_entries(of_user, now) {
            let Some(senders) = self.flows.get_mut(&flow) else { continue };
            senders.retain(|last| last.sender.user != sender.user);
            if senders.is_empty() {
                self.flows.remove(&flow);
            }
        }
    }

    fn record_request(&mut self, sender: PacketSender, request: SentRequest, now: MonoTime) {
        // `can_attribute_answers` has allowed the packet, so an entry of another user is too old to be answered.
        let before = self.requests.insert(request, LastSendRecord { sender, sent_at: now });
        let of_user = &mut self.of_users.entry(sender.user).or_default().requests;
        if let Some(before) = before.filter(|before| before.sender.user == sender.user) {
            of_user.remove(&(before.sent_at, request));
        }
        of_user.insert((now, request));
        for (_, request) in remove_expired_entries(of_user, now) {
            // Another user may have sent the same request since, after this one could no longer be answered.
            if self.requests.get(&request).is_some_and(|last| last.sender.user == sender.user) {
                self.requests.remove(&request);
            }
        }
    }
}

/// Removes and returns a few of the oldest entries of a user, if they can no longer be answered or the user has
/// too many entries. Removing more at once would delay the packet.
fn remove_expired_entries<T: Ord>(
    of_user: &mut BTreeSet<(MonoTime, T)>,
    now: MonoTime,
) -> Vec<(MonoTime, T)> {
    let mut forgotten = Vec::new();
    while forgotten.len() < MAX_REMOVED_ENTRIES_PER_PACKET {
        if of_user.len() <= MAX_FLOWS_PER_USER
            && of_user.first().is_none_or(|(sent_at, _)| now.since(*sent_at) < ANSWER_TIMEOUT)
        {
            break;
        }
        forgotten.extend(of_user.pop_first());
    }
    forgotten
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Nanos = Nanos::from_secs(600);

    fn at(seconds: u64) -> MonoTime {
        MonoTime::from_nanos(seconds * 1_000_000_000)
    }

    /// Programs have the number of their user and a digit.
    fn sender(client: u32) -> PacketSender {
        PacketSender { client: ClientId(client), user: client / 10 }
    }

    fn echo(sequence: u16, checksum: u16) -> PacketEndpoints {
        let ([high, low], [first, second]) = (checksum.to_be_bytes(), sequence.to_be_bytes());
        let mark = RequestMark::from_request([8, 0, high, low, 0, 7, first, second]);
        let ip = "127.0.0.1".parse().unwrap();
        PacketEndpoints {
            source: ip,
            target: ip,
            flow: PacketFlow::Icmp { identifier: 7 },
            mark: Some(mark),
            length: 28,
        }
    }

    fn datagram(own_port: u16) -> PacketEndpoints {
        PacketEndpoints { flow: PacketFlow::Udp { own_port, target_port: 9 }, mark: None, ..echo(0, 0) }
    }

    fn clients(flows: &SentFlows, ends: &PacketEndpoints, now: u64) -> Vec<u32> {
        let senders = flows.find_senders(&SentFlow::from(ends), ends.mark, LONG, at(now));
        senders.iter().map(|sender| sender.client.0).collect()
    }

    #[test]
    fn answer_belongs_to_user_of_exact_request() {
        let flows = SentFlows::default();
        flows.record_packet(sender(10), &echo(1, 100), at(10));
        flows.record_packet(sender(20), &echo(1, 200), at(11));
        flows.record_packet(sender(20), &echo(2, 300), at(12));
        assert_eq!(clients(&flows, &echo(1, 100), 13), [10]);
        assert_eq!(clients(&flows, &echo(1, 200), 13), [20]);
        assert_eq!(clients(&flows, &echo(2, 300), 13), [20]);
        assert_eq!(clients(&flows, &echo(3, 400), 13), [0; 0], "either could have sent it");
        assert_eq!(clients(&flows, &echo(3, 400), 71), [20], "the other's can no longer be answered");
        assert_eq!(clients(&flows, &echo(2, 300), 80), [0; 0], "too late");
    }

    #[test]
    fn indistinguishable_packets_belong_to_one_user() {
        let flows = SentFlows::default();
        for ends in [echo(1, 100), datagram(7)] {
            flows.record_packet(sender(10), &ends, at(10));
            assert!(flows.can_attribute_answers(1, &ends, at(11)));
            assert!(
                !flows.can_attribute_answers(2, &ends, at(69))
                    && flows.can_attribute_answers(2, &ends, at(70))
            );
        }
        assert!(
            flows.can_attribute_answers(2, &echo(1, 101), at(11))
                && flows.can_attribute_answers(2, &datagram(8), at(11))
        );
    }

    #[test]
    fn programs_of_one_user_share_flow_answers() {
        let flows = SentFlows::default();
        flows.record_packet(sender(10), &datagram(7), at(10));
        flows.record_packet(sender(11), &datagram(7), at(20));
        assert_eq!(clients(&flows, &datagram(7), 30), [10, 11]);
        assert_eq!(clients(&flows, &datagram(7), 75), [11]);
    }

    #[test]
    fn user_cannot_evict_packets_of_another() {
        let flows = SentFlows::default();
        flows.record_packet(sender(10), &echo(1, 100), at(10));
        flows.record_packet(sender(10), &datagram(7), at(10));
        for n in 0..=u16::MAX {
            let now = at(11) + Nanos::new(n.into());
            flows.record_packet(sender(20), &echo(n, 200), now);
            flows.record_packet(sender(20), &datagram(n), now);
            flows.record_packet(sender(20), &echo(n, 201), now);
        }
        assert_eq!(clients(&flows, &echo(1, 100), 12), [10]);
        assert_eq!(clients(&flows, &echo(u16::MAX, 201), 12), [20]);
        assert_eq!(clients(&flows, &echo(0, 200), 12), [0; 0], "of too many the oldest are forgotten");
        let known = flows.lock_flows();
        assert!(
            known.requests.len() <= MAX_FLOWS_PER_USER + 1
                && known.of_users[&2].requests.len() <= MAX_FLOWS_PER_USER
        );
    }

    #[test]
    fn unanswerable_packets_are_forgotten() {
        let flows = SentFlows::default();
        for n in 0..1_000 {
            flows.record_packet(sender(10), &echo(n, 100), at(10));
            flows.record_packet(sender(10), &datagram(n), at(10));
        }
        for n in 0..1_000 {
            flows.record_packet(sender(10), &echo(n, 200), at(100));
            flows.record_packet(sender(10), &datagram(2_000 + n), at(100));
        }
        let known = flows.lock_flows();
        assert_eq!((known.requests.len(), known.flows.len()), (1_000, 1_001), "one flow has the requests");
    }
}
