//! The far end of STAMP sessions: writes the reflection of each request.
//!
//! The caller passes the arrival time of a request and the departure time of its reflection, so the reflector
//! reads no clock. The sender's address and port and the session number identify a session.
//!
//! Invariants: a reflection is exactly as long as its request. In authenticated mode, a number that was
//! reflected before, or is 64 or more below the highest, is not reflected. In any time `t`, no address gets
//! more than `burst + t / interval` reflections. The reflector can guarantee the last two only for the 4096 sessions
//! and the 4096 addresses that it remembers.

use super::packet::{self, StampReflection, StampRequest};
use super::time::ErrorEstimate;
use super::tlv::{self, FollowUp, MeasuredCounts, ServiceClass, TlvKind, flags};
use super::{DIGEST_BYTES, SessionKey};
use packetrig_units::{MonoTime, Nanos};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of sessions in memory, and of addresses. Before the reflector adds another session, it removes the
/// sessions that were silent longest.
const MAX_SESSIONS: usize = 4_096;
/// Number of sessions that are removed at once. Finding one oldest session costs as much as finding many, and
/// every sender can use new addresses.
const SESSIONS_FORGOTTEN_AT_ONCE: usize = MAX_SESSIONS / 8;
/// Sequence numbers below the highest one that are remembered.
const SEQUENCE_WINDOW: u32 = 64;

#[derive(Clone, Debug)]
pub struct ReflectorSettings {
    /// Key of the authenticated mode; `None` for the unauthenticated mode.
    pub key: Option<SessionKey>,
    /// True if the reflector counts the reflections of each session, so that senders can compute the
    /// loss of each direction.
    pub is_stateful: bool,
    /// Minimum mean interval between reflections to one address.
    pub interval: Nanos,
    /// Maximum number of reflections to one address at once.
    pub burst: u32,
    /// Largest error of this machine's clock against UTC, as its owner states; `None` if it does not follow UTC.
    pub synchronised_ns: Option<u64>,
}

/// A received request: its bytes, addresses, arrival times and IP header fields.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedRequest<'a> {
    pub bytes: &'a [u8],
    pub from: SocketAddr,
    pub to_port: u16,
    /// Arrival by the monotonic clock.
    pub at: MonoTime,
    /// Arrival by the real-time clock.
    pub realtime_ns: u64,
    /// Error bound of `realtime_ns`.
    pub bound_ns: u64,
    /// Hop limit (TTL) of the request, if the kernel reports it.
    pub hops: Option<u8>,
    /// Traffic class byte (DSCP and ECN) of the request, if the kernel reports it.
    pub class: Option<u8>,
}

/// Reason why a request is not reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReflectionRefusal {
    /// Too short, or the digest is wrong.
    Unreadable,
    /// The sequence number was reflected before, or is too old to check.
    Repeated,
    /// More requests from its address than interval and burst allow.
    TooSoon,
    /// TLVs without a right digest, in authenticated mode.
    Unsealed,
}

/// A reflection without its departure time, which is written right before sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedReflection {
    /// Session of the reflection, for [`StampReflector::record_departure_stamp`].
    pub session: (SocketAddr, u16),
    pub sequence: u32,
    reflection: StampReflection,
}

#[derive(Debug)]
pub struct StampReflector {
    settings: ReflectorSettings,
    sessions: HashMap<(SocketAddr, u16), ReflectorSession>,
    /// Time at which each address may use its whole burst again.
    full_at: HashMap<IpAddr, MonoTime>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReflectorSession {
    heard: MonoTime,
    received: u32,
    reflected: u32,
    /// The highest number, and which lower numbers arrived: bit n is `highest - n`.
    highest: u32,
    seen: u64,
    departed: Option<FollowUp>,
}

impl ReflectorSession {
    /// Records a sequence number. Returns `false` if the number arrived before, or may have. This is the
    /// sliding window of IPsec against replays (RFC 4303, 3.4.3).
    fn accept_number(&mut self, number: u32) -> bool {
        if self.received == 0 {
            self.highest = number;
            self.seen = 1;
            return true;
        }
        let ahead = number.wrapping_sub(self.highest);
        // Numbers may wrap: less than half of their range ahead means newer.
        if ahead != 0 && ahead < 1 << 31 {
            // A jump of 64 or more leaves no number of the old window.
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest.wrapping_sub(number);
        if behind >= SEQUENCE_WINDOW || self.seen >> behind & 1 == 1 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

/// Removes the [`SESSIONS_FORGOTTEN_AT_ONCE`] oldest entries.
fn remove_oldest_entries<K, V>(all: &mut HashMap<K, V>, time: impl Fn(&V) -> MonoTime) {
    // The entries are selected in linear time, without sorting. Many entries may have the same time, so
    // `rest` limits how many are removed.
    let mut times: Vec<MonoTime> = all.values().map(&time).collect();
    let Some(nth) = SESSIONS_FORGOTTEN_AT_ONCE.checked_sub(1).filter(|nth| *nth < times.len()) else {
        return;
    };
    let limit = *times.select_nth_unstable(nth).1;
    let mut rest = SESSIONS_FORGOTTEN_AT_ONCE;
    all.retain(|_, one| {
        let is_kept = rest == 0 || time(one) > limit;
        rest -= usize::from(!is_kept);
        is_kept
    });
}

impl StampReflector {
    pub fn new(settings: ReflectorSettings) -> Self {
        Self { settings, sessions: HashMap::new(), full_at: HashMap::new() }
    }

    #[cfg(test)]
    pub(super) fn remembered_session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Writes the reflection of a request, except its departure time.
    pub fn reflect_request(
        &mut self,
        arrived: &ArrivedRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Result<PreparedReflection, ReflectionRefusal> {
        let key = self.settings.key.as_ref();
        let request = StampRequest::read_packet(arrived.bytes, key).ok_or(ReflectionRefusal::Unreadable)?;
        let from = packet::base_length(key);
        if key.is_some_and(|key| !tlv::has_valid_digest(arrived.bytes, from, key)) {
            return Err(ReflectionRefusal::Unsealed);
        }
        // Digests are checked first: a sender without the key cannot use up the allowance of an address, or
        // fill the memory for sessions.
        let full_at = self.find_refill_time(arrived).ok_or(ReflectionRefusal::TooSoon)?;
        let name = (arrived.from, request.session);
        // Old sessions are removed first: a new session has no time yet, and would be removed as the oldest.
        self.evict_oldest_sessions(name);
        let is_stateful = self.settings.is_stateful;
        let must_be_new = self.settings.key.is_some();
        let session = self.sessions.entry(name).or_default();
        // Without a key, refusing a repeated number protects nothing, because anybody can send any number.
        if !session.accept_number(request.sequence) && must_be_new {
            return Err(ReflectionRefusal::Repeated);
        }
        session.heard = arrived.at;
        session.received = session.received.wrapping_add(1);
        // RFC 8762, 4.3: a stateful reflector numbers its reflections itself; a stateless one copies the number of the request.
        let sequence = if is_stateful { session.reflected } else { request.sequence };
        session.reflected = session.reflected.wrapping_add(1);
        let session = *session;
        self.full_at.insert(arrived.from.ip(), full_at);
        let reflection = self.make_reflection(arrived, request, sequence);
        // The reflection starts as a copy of the request, so it has the same length and the same TLVs, and
        // nothing is amplified.
        out.clear();
        out.extend(arrived.bytes);
        self.fill_reflection_tlvs(arrived, &session, from, out);
        Ok(PreparedReflection { session: name, sequence, reflection })
    }

    /// Time at which the sender's address may use its whole burst again if this request is reflected; `None`
    /// if the burst is used up.
    fn find_refill_time(&self, arrived: &ArrivedRequest<'_>) -> Option<MonoTime> {
        let interval = self.settings.interval;
        let full_at = self.full_at.get(&arrived.from.ip()).map_or(arrived.at, |at| (*at).max(arrived.at));
        let room = interval.as_u64().saturating_mul(u64::from(self.settings.burst.saturating_sub(1)));
        // The burst counts this request, so the room is one interval less.
        (full_at.since(arrived.at).as_u64() <= room).then(|| full_at + interval)
    }

    fn make_reflection(
        &self,
        arrived: &ArrivedRequest<'_>,
        request: StampRequest,
        sequence: u32,
    ) -> StampReflection {
        let format = request.estimate.format;
        let error = arrived.bound_ns.saturating_add(self.settings.synchronised_ns.unwrap_or(0));
        StampReflection {
            sequence,
            // `finish_reflection` writes the departure time right before sending.
            sent: 0,
            estimate: ErrorEstimate::from_error(error, format, self.settings.synchronised_ns.is_some()),
            session: request.session,
            received: format.encode_time(arrived.realtime_ns),
            request,
            hops: arrived.hops.unwrap_or(0),
        }
    }

    /// Writes the departure time, and the digests that cover it. Call it right before sending.
    pub fn finish_reflection(&self, ready: &PreparedReflection, realtime_ns: u64, out: &mut [u8]) {
        let key = self.settings.key.as_ref();
        let format = ready.reflection.request.estimate.format;
        let reflection = StampReflection { sent: format.encode_time(realtime_ns), ..ready.reflection };
        let mut head = Vec::with_capacity(packet::AUTHENTICATED_PACKET_BYTES);
        reflection.write_packet(key, &mut head);
        out[..head.len()].copy_from_slice(&head);
        if let Some(key) = key {
            renew_digest(out, head.len(), key);
        }
    }

    /// Records when a reflection really left. The next reflection of the session contains that time, if its
    /// request asks for it.
    pub fn record_departure_stamp(&mut self, ready: &PreparedReflection, realtime_ns: u64, method: u8) {
        if let Some(session) = self.sessions.get_mut(&ready.session) {
            let sent = ready.reflection.request.estimate.format.encode_time(realtime_ns);
            session.departed = Some(FollowUp { sequence: ready.sequence, sent, method });
        }
    }

    /// Removes the oldest sessions and addresses if there is no room for a new session.
    fn evict_oldest_sessions(&mut self, name: (SocketAddr, u16)) {
        if self.sessions.len() >= MAX_SESSIONS && !self.sessions.contains_key(&name) {
            remove_oldest_entries(&mut self.sessions, |session| session.heard);
        }
        if self.full_at.len() >= MAX_SESSIONS && !self.full_at.contains_key(&name.0.ip()) {
            remove_oldest_entries(&mut self.full_at, |at| *at);
        }
    }

    /// Fills in the TLVs of the request, in place: lengths stay as they are.
    fn fill_reflection_tlvs(
        &self,
        arrived: &ArrivedRequest<'_>,
        session: &ReflectorSession,
        from: usize,
        out: &mut [u8],
    ) {
        for tlv in tlv::read_tlvs(&arrived.bytes[from..]) {
            let at = from + tlv.at;
            let value = at + tlv::HEADER..at + tlv::HEADER + tlv.value.len();
            // RFC 8972, 4: the sender sets "unrecognized", and a reflector clears it in the TLVs that it understands.
            out[at] = match (tlv.kind, tlv.is_malformed) {
                (_, true) => flags::MALFORMED_FLAG,
                (TlvKind::Other(_), _) => flags::UNRECOGNIZED_FLAG,
                _ => 0,
            };
            if !tlv.is_malformed
                && let Some(value) = out.get_mut(value)
            {
                self.fill_reflection_tlv(arrived, session, tlv.kind, value);
            }
        }
    }

    fn fill_reflection_tlv(
        &self,
        arrived: &ArrivedRequest<'_>,
        session: &ReflectorSession,
        kind: TlvKind,
        value: &mut [u8],
    ) {
        match kind {
            // Destination port, then source port of the request (RFC 8972, 4.2).
            TlvKind::Location => {
                value[..2].copy_from_slice(&arrived.to_port.to_be_bytes());
                value[2..4].copy_from_slice(&arrived.from.port().to_be_bytes());
            }
            TlvKind::TimestampInformation => {
                // Source 1 is NTP, 5 a local free-running clock; method 2 is "SW local" (RFC 8972, 4.3).
                let source = if self.settings.synchronised_ns.is_some() { 1 } else { 5 };
                value.copy_from_slice(&[source, 2, source, 2]);
            }
            TlvKind::ClassOfService => {
                let wanted = ServiceClass::from_value(value).map_or(0, |class| class.wanted);
                let class = arrived.class.unwrap_or(0);
                // Reflections leave without a class of service, whatever the sender requests: RFC 8972, 4.4,
                // leaves the decision to the reflector's owner.
                let is_refused = wanted != 0;
                value.copy_from_slice(
                    &ServiceClass { wanted, arrived: class >> 2, ecn: class & 3, is_refused }.to_value(),
                );
            }
            TlvKind::DirectMeasurement => {
                let sent = MeasuredCounts::from_value(value).map_or(0, |tally| tally.sent);
                let tally = MeasuredCounts { sent, received: session.received, reflected: session.reflected };
                value.copy_from_slice(&tally.to_value());
            }
            TlvKind::FollowUpTelemetry => {
                let said = session.departed.map_or([0; 16], |follow_up| follow_up.to_value());
                value.copy_from_slice(&said);
            }
            // The sender gets these TLVs back unchanged; `finish_reflection` computes the digest again.
            TlvKind::ExtraPadding | TlvKind::AccessReport | TlvKind::Hmac | TlvKind::Other(_) => {}
        }
    }
}

/// Renews the digest over the TLVs, if there is one. It covers the sequence number and the TLVs before it (RFC 8972, 4.8).
fn renew_digest(out: &mut [u8], from: usize, key: &SessionKey) {
    let found = tlv::read_tlvs(&out[from..]).find(|tlv| tlv.kind == TlvKind::Hmac && !tlv.is_malformed);
    if let Some(at) = found.map(|tlv| from + tlv.at) {
        let digest = key.compute_digest(&[&out[..4], &out[from..at]]);
        out[at + tlv::HEADER..at + tlv::HEADER + DIGEST_BYTES].copy_from_slice(&digest);
    }
}
