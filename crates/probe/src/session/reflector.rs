//! The far end of a STAMP session: what is sent back for a request.
//!
//! It is told when a request came and when a reflection left; it reads no clock. Sessions are told apart by the sender's address, port
//! and session number.
//!
//! Invariants: a reflection is exactly as long as its request; a request that was reflected before (its number is within the window of
//! the last 64, or older) is not reflected again in authenticated mode; in any time `t` no address gets more than `burst + t / interval` reflections.

use super::packet::{self, StampReflection, StampRequest};
use super::time::ErrorEstimate;
use super::tlv::{self, FollowUp, MeasuredCounts, ServiceClass, TlvKind, flags};
use super::{DIGEST, SessionKey};
use packetrig_units::{MonoTime, Nanos};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Senders that are remembered at most; before a new one beyond that some are forgotten that were silent longest.
const MOST_SESSIONS: usize = 4_096;
/// So many are forgotten at once: looking for one costs as much as looking for all, and anybody can send from new addresses.
const FORGOTTEN: usize = MOST_SESSIONS / 8;
/// Numbers that are remembered.
const WINDOW: u32 = 64;

#[derive(Clone, Debug)]
pub struct ReflectorSettings {
    /// Authenticated mode, with this key.
    pub key: Option<SessionKey>,
    /// Reflections are counted for each session, so that loss is known for each direction.
    pub is_stateful: bool,
    /// What comes from one address is reflected no more often than this, on average.
    pub interval: Nanos,
    /// So many of an address are reflected at once.
    pub burst: u32,
    /// How far this machine's clock is off, as its owner says, if it is set by a source of UTC.
    pub synchronised_ns: Option<u64>,
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedRequest<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    pub from: SocketAddr,
    /// The port it came to.
    pub to_port: u16,
    /// When, by the monotonic clock.
    pub at: MonoTime,
    /// When, by the real-time clock.
    pub realtime_ns: u64,
    /// How far that may be off.
    pub bound_ns: u64,
    /// Hops it had left, if the kernel says.
    pub hops: Option<u8>,
    /// Its class of service, if the kernel says.
    pub class: Option<u8>,
}

/// Why a request is not reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReflectionRefusal {
    /// Too short, or the digest is wrong.
    Unreadable,
    /// It was reflected before.
    Repeated,
    /// More of its address than the interval and the burst allow.
    TooSoon,
    /// TLVs without a right digest, in authenticated mode.
    Unsealed,
}

/// A reflection that is nearly ready: the time of its departure is written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedReflection {
    /// Which session it is of, for [`StampReflector::departed`].
    pub session: (SocketAddr, u16),
    pub sequence: u32,
    reflection: StampReflection,
}

#[derive(Debug)]
pub struct StampReflector {
    settings: ReflectorSettings,
    sessions: HashMap<(SocketAddr, u16), ReflectorSession>,
    /// When each address has all of its burst again.
    full_at: HashMap<IpAddr, MonoTime>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReflectorSession {
    heard: MonoTime,
    received: u32,
    reflected: u32,
    /// The highest number, and which of those below it came: bit n is `highest - n`.
    highest: u32,
    seen: u64,
    departed: Option<FollowUp>,
}

impl ReflectorSession {
    /// Notes a number; `false` if it came before, or may have.
    fn note(&mut self, number: u32) -> bool {
        if self.received == 0 {
            (self.highest, self.seen) = (number, 1);
            return true;
        }
        let ahead = number.wrapping_sub(self.highest);
        if ahead != 0 && ahead < 1 << 31 {
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest.wrapping_sub(number);
        if behind >= WINDOW || self.seen >> behind & 1 == 1 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

/// Forgets [`FORGOTTEN`] of these, the oldest.
fn forget_oldest<K, V>(all: &mut HashMap<K, V>, time: impl Fn(&V) -> MonoTime) {
    let mut times: Vec<MonoTime> = all.values().map(&time).collect();
    let Some(nth) = FORGOTTEN.checked_sub(1).filter(|nth| *nth < times.len()) else { return };
    let limit = *times.select_nth_unstable(nth).1;
    let mut rest = FORGOTTEN;
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

    /// Sessions that are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.sessions.len()
    }

    /// Writes what is to be sent back for a request, but for the time of departure.
    pub fn reflect(
        &mut self,
        arrived: &ArrivedRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Result<PreparedReflection, ReflectionRefusal> {
        let key = self.settings.key.as_ref();
        let request = StampRequest::read(arrived.bytes, key).ok_or(ReflectionRefusal::Unreadable)?;
        let from = packet::length(key);
        if key.is_some_and(|key| !tlv::is_sealed(arrived.bytes, from, key)) {
            return Err(ReflectionRefusal::Unsealed);
        }
        let full_at = self.allowance(arrived).ok_or(ReflectionRefusal::TooSoon)?;
        let name = (arrived.from, request.session);
        self.make_room(name);
        let (is_stateful, must_be_new) = (self.settings.is_stateful, self.settings.key.is_some());
        let session = self.sessions.entry(name).or_default();
        if !session.note(request.sequence) && must_be_new {
            return Err(ReflectionRefusal::Repeated);
        }
        session.heard = arrived.at;
        session.received = session.received.wrapping_add(1);
        let sequence = if is_stateful { session.reflected } else { request.sequence };
        session.reflected = session.reflected.wrapping_add(1);
        let session = *session;
        self.full_at.insert(arrived.from.ip(), full_at);
        let reflection = self.reflection(arrived, request, sequence);
        out.clear();
        out.extend(arrived.bytes);
        self.answer_tlvs(arrived, &session, from, out);
        Ok(PreparedReflection { session: name, sequence, reflection })
    }

    /// When the sender's address will have all of its burst again if this request is reflected; `None`: it has used it up.
    fn allowance(&self, arrived: &ArrivedRequest<'_>) -> Option<MonoTime> {
        let interval = self.settings.interval;
        let full_at = self.full_at.get(&arrived.from.ip()).map_or(arrived.at, |at| (*at).max(arrived.at));
        let room = interval.as_u64().saturating_mul(u64::from(self.settings.burst.saturating_sub(1)));
        (full_at.since(arrived.at).as_u64() <= room).then(|| full_at + interval)
    }

    fn reflection(
        &self,
        arrived: &ArrivedRequest<'_>,
        request: StampRequest,
        sequence: u32,
    ) -> StampReflection {
        let format = request.estimate.format;
        let error = arrived.bound_ns.saturating_add(self.settings.synchronised_ns.unwrap_or(0));
        StampReflection {
            sequence,
            sent: 0,
            estimate: ErrorEstimate::of(error, format, self.settings.synchronised_ns.is_some()),
            session: request.session,
            received: format.write(arrived.realtime_ns),
            request,
            hops: arrived.hops.unwrap_or(0),
        }
    }

    /// Writes the time of departure, and with it the digests; to be called right before sending.
    pub fn finish(&self, ready: &PreparedReflection, realtime_ns: u64, out: &mut [u8]) {
        let key = self.settings.key.as_ref();
        let format = ready.reflection.request.estimate.format;
        let reflection = StampReflection { sent: format.write(realtime_ns), ..ready.reflection };
        let mut head = Vec::with_capacity(packet::SEALED);
        reflection.write(key, &mut head);
        out[..head.len()].copy_from_slice(&head);
        if let Some(key) = key {
            reseal(out, head.len(), key);
        }
    }

    /// Takes in when a reflection left in truth; tells the next of the session to that asks.
    pub fn departed(&mut self, ready: &PreparedReflection, realtime_ns: u64, method: u8) {
        if let Some(session) = self.sessions.get_mut(&ready.session) {
            let sent = ready.reflection.request.estimate.format.write(realtime_ns);
            session.departed = Some(FollowUp { sequence: ready.sequence, sent, method });
        }
    }

    /// Before a session that is new: forgets those that were silent longest if there are too many.
    fn make_room(&mut self, name: (SocketAddr, u16)) {
        if self.sessions.len() >= MOST_SESSIONS && !self.sessions.contains_key(&name) {
            forget_oldest(&mut self.sessions, |session| session.heard);
        }
        if self.full_at.len() >= MOST_SESSIONS && !self.full_at.contains_key(&name.0.ip()) {
            forget_oldest(&mut self.full_at, |at| *at);
        }
    }

    /// Fills in what the request asks for, in place: lengths stay as they are.
    fn answer_tlvs(
        &self,
        arrived: &ArrivedRequest<'_>,
        session: &ReflectorSession,
        from: usize,
        out: &mut [u8],
    ) {
        let found: Vec<_> = tlv::read(&arrived.bytes[from..])
            .map(|tlv| (from + tlv.at, tlv.kind, tlv.is_malformed, tlv.value.len()))
            .collect();
        for (at, kind, is_malformed, length) in found {
            let value = at + tlv::HEADER..at + tlv::HEADER + length;
            out[at] = match (kind, is_malformed) {
                (_, true) => flags::MALFORMED,
                (TlvKind::Other(_), _) => flags::UNRECOGNIZED,
                _ => 0,
            };
            if !is_malformed && let Some(value) = out.get_mut(value) {
                self.answer(arrived, session, kind, value);
            }
        }
    }

    fn answer(
        &self,
        arrived: &ArrivedRequest<'_>,
        session: &ReflectorSession,
        kind: TlvKind,
        value: &mut [u8],
    ) {
        match kind {
            TlvKind::Location => {
                value[..2].copy_from_slice(&arrived.to_port.to_be_bytes());
                value[2..4].copy_from_slice(&arrived.from.port().to_be_bytes());
            }
            TlvKind::TimestampInformation => {
                // Set by NTP, or by nobody; the kernel stamps arrivals, a program writes departures.
                let source = if self.settings.synchronised_ns.is_some() { 1 } else { 5 };
                value.copy_from_slice(&[source, 2, source, 2]);
            }
            TlvKind::ClassOfService => {
                let wanted = ServiceClass::read(value).map_or(0, |class| class.wanted);
                let class = arrived.class.unwrap_or(0);
                // Reflections leave without a class, whatever the sender chooses: RFC 8972 leaves that to the owner.
                let is_refused = wanted != 0;
                value.copy_from_slice(
                    &ServiceClass { wanted, arrived: class >> 2, ecn: class & 3, is_refused }.write(),
                );
            }
            TlvKind::DirectMeasurement => {
                let sent = MeasuredCounts::read(value).map_or(0, |tally| tally.sent);
                let tally = MeasuredCounts { sent, received: session.received, reflected: session.reflected };
                value.copy_from_slice(&tally.write());
            }
            TlvKind::FollowUpTelemetry => {
                let said = session.departed.map_or([0; 16], |follow_up| follow_up.write());
                value.copy_from_slice(&said);
            }
            TlvKind::ExtraPadding | TlvKind::AccessReport | TlvKind::Hmac | TlvKind::Other(_) => {}
        }
    }
}

/// Writes the digest over the TLVs anew, if there is one.
fn reseal(out: &mut [u8], from: usize, key: &SessionKey) {
    let found = tlv::read(&out[from..]).find(|tlv| tlv.kind == TlvKind::Hmac && !tlv.is_malformed);
    if let Some(at) = found.map(|tlv| from + tlv.at) {
        let digest = key.digest(&[&out[..4], &out[from..at]]);
        out[at + tlv::HEADER..at + tlv::HEADER + DIGEST].copy_from_slice(&digest);
    }
}
