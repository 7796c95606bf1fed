//! The sending end of a STAMP session, as a probe method.
//!
//! The request contains the planned departure time. The reflector returns it without using it; the true
//! departure time is in the sender's own record.
//!
//! Invariant: a reply is returned only for a number that was sent in this session, and only if the reflection
//! contains the time of that request.

use super::packet::{self, StampReflection, StampRequest};
use super::time::{ErrorEstimate, TimeFormat};
use super::tlv::{self, FollowUp, TlvKind};
use super::{DIGEST_BYTES, SessionKey};
use crate::answer::{AnswerContent, ProbeAnswer};
use crate::frame::{self, PROTOCOL_UDP, ProbeFrameEndpoints};
use crate::method::{self, ProbeMethod, ProbeReply, ReplyMeaning};
use crate::record::{ProbeStamp, StampClock, StampSource};
use packetrig_units::MonoTime;
use std::collections::{BTreeMap, BTreeSet};

/// Parameters of a session.
#[derive(Clone, Debug)]
pub struct StampSenderSettings {
    /// The sender's port, which is reserved, and the reflector's port.
    pub ports: (u16, u16),
    /// Key of the authenticated mode; `None` for the unauthenticated mode.
    pub key: Option<SessionKey>,
    pub format: TimeFormat,
    /// Session identifier that each request carries (SSID; RFC 8972, 3).
    pub number: u16,
    /// Offset of `CLOCK_REALTIME` against the monotonic clock, used to write times.
    pub realtime_offset_ns: i64,
    /// Largest error of this machine's clock against UTC, as its owner states; `None` if it does not follow UTC.
    pub synchronised_ns: Option<u64>,
    /// True if each request asks for the true departure time of the previous reflection.
    pub follow_up: bool,
}

/// What the reflections of a session show besides their timestamps, such as the loss of each direction and the quality
/// of the reflector's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StampSessionFacts {
    /// True if the reflections show that the reflector numbers them itself. As long as all requests reach it once and
    /// in order, they do not show it.
    pub is_stateful: bool,
    /// Requests that never reached the reflector; `None` unless `is_stateful`.
    pub lost_there: Option<u64>,
    /// Reflections lost on the way back; `None` unless `is_stateful`.
    pub lost_back: Option<u64>,
    /// Reflections that were not used, by the reason.
    pub invalid: InvalidReflections,
    /// True if the reflector reports in every reflection that its clock follows UTC.
    pub is_far_synchronised: bool,
    /// Largest error of the reflector's clock and stamps, as it reports.
    pub far_error_ns: Option<u64>,
    /// Reflections whose true departure time the next reflection reported.
    pub follow_ups: u64,
}

/// Reflections that were not used, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InvalidReflections {
    /// Answers that are shorter than a reflection: the far end uses base TWAMP without padding, or another protocol.
    pub too_short: u64,
    /// Length of the shortest of these reflections, and of the shortest readable reflection.
    pub shortest_bytes: Option<u64>,
    pub needed_bytes: Option<u64>,
    pub wrong_digest: u64,
    /// Reflections that repeat a number or a time that no request had.
    pub never_sent: u64,
    pub other_session: u64,
}

impl InvalidReflections {
    const NONE: Self = Self {
        too_short: 0,
        shortest_bytes: None,
        needed_bytes: None,
        wrong_digest: 0,
        never_sent: 0,
        other_session: 0,
    };

    fn record_short_reflection(&mut self, bytes: u64, needed: u64) {
        self.too_short += 1;
        self.shortest_bytes = Some(self.shortest_bytes.unwrap_or(bytes).min(bytes));
        self.needed_bytes = Some(needed);
    }

    pub const fn total(&self) -> u64 {
        self.too_short + self.wrong_digest + self.never_sent + self.other_session
    }

    /// The reasons with their counts, as text for users; empty if all reflections were used.
    pub fn to_text(&self) -> String {
        let short = self.shortest_bytes.zip(self.needed_bytes).map(|(bytes, needed)| {
            format!(
                "{} too short ({bytes} of the {needed} bytes of a STAMP reflection; does the reflector use base TWAMP?)",
                self.too_short
            )
        });
        let others = [
            (self.wrong_digest, "with a wrong digest"),
            (self.never_sent, "with a number or time that was never sent"),
            (self.other_session, "of another session"),
        ];
        let others =
            others.iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!("{number} {what}"));
        short.into_iter().chain(others).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Debug)]
pub struct StampSender {
    ends: ProbeFrameEndpoints,
    session: StampSenderSettings,
    packet: Vec<u8>,
    /// The departure time that was written into each request.
    written: BTreeMap<u32, u64>,
    /// The reflector's number of each request's first reflection.
    numbers: BTreeMap<u32, u32>,
    own: BTreeSet<u32>,
    follow_ups: BTreeMap<u32, u64>,
    /// Number of reflections that do not state, with a valid error, that the reflector's clock follows UTC.
    unsynchronised: u64,
    told: StampSessionFacts,
}

impl StampSender {
    pub const fn new(ends: ProbeFrameEndpoints, session: StampSenderSettings) -> Self {
        let told = StampSessionFacts {
            is_stateful: false,
            lost_there: None,
            lost_back: None,
            invalid: InvalidReflections::NONE,
            is_far_synchronised: false,
            far_error_ns: None,
            follow_ups: 0,
        };
        Self {
            ends,
            session,
            packet: Vec::new(),
            written: BTreeMap::new(),
            numbers: BTreeMap::new(),
            own: BTreeSet::new(),
            follow_ups: BTreeMap::new(),
            unsynchronised: 0,
            told,
        }
    }

    /// True departure times of reflections, as later reflections report them: by probe number, in nanoseconds
    /// since 1970 of the far clock.
    pub const fn follow_ups(&self) -> &BTreeMap<u32, u64> {
        &self.follow_ups
    }

    /// Returns the facts that the session shows about both directions; call this at its end. A stateful reflector
    /// numbers its reflections, and these numbers show how many requests reached it.
    pub fn build_session_facts(&self) -> StampSessionFacts {
        // A stateless reflector always returns the request's number. A stateful one does the same until
        // a request is lost, doubled or reordered on the way there.
        let is_stateful = self.numbers.iter().any(|(request, own)| request != own);
        let Some(highest) = self.own.last().filter(|_| is_stateful) else {
            return StampSessionFacts { is_stateful, ..self.told };
        };
        let reached = u64::from(*highest) + 1;
        let back = self.own.len() as u64;
        // A request that was duplicated on the way is reflected twice, with two numbers: it must not hide a lost one.
        let doubled = back.saturating_sub(self.numbers.len() as u64);
        StampSessionFacts {
            is_stateful,
            lost_there: Some((self.written.len() as u64 + doubled).saturating_sub(reached)),
            lost_back: Some(reached.saturating_sub(back)),
            ..self.told
        }
    }

    fn to_realtime_ns(&self, at: MonoTime) -> u64 {
        at.as_nanos().saturating_add_signed(self.session.realtime_offset_ns)
    }

    fn append_request_tlvs(&mut self, room: usize) {
        let key = self.session.key.as_ref();
        let from = packet::base_length(key);
        if self.session.follow_up {
            tlv::push_tlv(&mut self.packet, TlvKind::FollowUpTelemetry, &[0; 16]);
        }
        // Extra Padding fills up to the wanted length, before the HMAC TLV, so that the digest covers it.
        let seal = if key.is_some() { tlv::HEADER + DIGEST_BYTES } else { 0 };
        let rest = room.saturating_sub(self.packet.len() + seal);
        if rest >= tlv::HEADER {
            let padding = vec![0; rest - tlv::HEADER];
            tlv::push_tlv(&mut self.packet, TlvKind::ExtraPadding, &padding);
        }
        if let Some(key) = key
            && self.packet.len() > from
        {
            tlv::push_digest(&mut self.packet, from, key);
        }
    }

    /// Handles a reflection. An invalid one is counted by its reason and not used.
    fn on_reflection(&mut self, payload: &[u8], is_sound: bool) -> Option<ProbeReply> {
        let key = self.session.key.clone();
        let key = key.as_ref();
        let least = packet::base_length(key);
        if payload.len() < least {
            self.told.invalid.record_short_reflection(payload.len() as u64, least as u64);
            return None;
        }
        let read = StampReflection::read_packet(payload, key).filter(|_| {
            key.is_none_or(|key| tlv::has_valid_digest(payload, packet::base_length(Some(key)), key))
        });
        let Some(reflection) = read else {
            self.told.invalid.wrong_digest += 1;
            return None;
        };
        let number = reflection.request.sequence;
        // The time is compared as well as the number: a forger who has not seen the request must guess both.
        let is_ours = self.written.get(&number) == Some(&reflection.request.sent);
        if !is_ours {
            self.told.invalid.never_sent += 1;
            return None;
        }
        // A reflector of RFC 8762 alone, or of TWAMP, sends zeros in place of the session number.
        if ![0, self.session.number].contains(&reflection.session) {
            self.told.invalid.other_session += 1;
            return None;
        }
        // Only the first reflection counts, because a duplicate must not change which number belongs to the
        // request.
        self.numbers.entry(number).or_insert(reflection.sequence);
        self.own.insert(reflection.sequence);
        self.record_peer_times(&reflection, payload.get(packet::base_length(key)..).unwrap_or(&[]));
        Some(ProbeReply {
            number,
            says: ReplyMeaning::Echo,
            is_sound,
            far_arrival: reflector_stamp(reflection.estimate, reflection.received),
            far_departure: reflector_stamp(reflection.estimate, reflection.sent),
        })
    }

    fn record_peer_times(&mut self, reflection: &StampReflection, tlvs: &[u8]) {
        // A multiplier of zero makes the estimate invalid (RFC 4656, 4.1.2). Then the statement that the
        // clock follows UTC has no bound and cannot be used.
        let follows_utc = reflection.estimate.is_synchronised && reflection.estimate.error_ns().is_some();
        self.unsynchronised += u64::from(!follows_utc);
        // A single reflection without this statement invalidates it for all, because its stamp would look as
        // exact as the others.
        self.told.is_far_synchronised = self.unsynchronised == 0;
        self.told.far_error_ns = self.told.far_error_ns.max(reflection.estimate.error_ns());
        let follow_up =
            tlv::read_tlvs(tlvs).find(|tlv| tlv.kind == TlvKind::FollowUpTelemetry && !tlv.is_malformed);
        let Some(follow_up) = follow_up.and_then(|tlv| FollowUp::from_value(tlv.value)) else { return };
        let Some(sent) = reflection.estimate.format.decode_time(follow_up.sent) else { return };
        // The telemetry names the reflection by the reflector's number, not by ours.
        let probe = self.numbers.iter().rev().find(|(_, own)| **own == follow_up.sequence);
        if let Some((probe, _)) = probe {
            self.follow_ups.insert(*probe, sent);
            self.told.follow_ups = self.follow_ups.len() as u64;
        }
    }
}

/// Makes a stamp from a time of the reflector, with the error that the reflector states as its bound. `None` if the
/// bits are no valid time.
fn reflector_stamp(estimate: ErrorEstimate, bits: u64) -> Option<ProbeStamp> {
    let at = estimate.format.decode_time(bits)?;
    // Without an estimate the stamp looks exact, but then `record_peer_times` does not accept UTC as the relation.
    let error = estimate.error_ns().unwrap_or(0);
    Some(ProbeStamp {
        clock: StampClock::Far,
        source: StampSource::Far,
        lo: at.saturating_sub(error),
        hi: at.saturating_add(error),
    })
}

impl ProbeMethod for StampSender {
    fn write_probe(&mut self, number: u32, at: MonoTime, length: u32, frame: &mut Vec<u8>) {
        let error = self.session.synchronised_ns.unwrap_or(0);
        let sent = self.session.format.encode_time(self.to_realtime_ns(at));
        let request = StampRequest {
            sequence: number,
            sent,
            estimate: ErrorEstimate::from_error(
                error,
                self.session.format,
                self.session.synchronised_ns.is_some(),
            ),
            session: self.session.number,
        };
        request.write_packet(self.session.key.as_ref(), &mut self.packet);
        self.append_request_tlvs((length as usize).saturating_sub(self.ends.header_bytes() + frame::UDP));
        let (own, port) = self.session.ports;
        self.ends.write_udp_frame(own, port, &self.packet, frame);
        // A reflection must contain exactly this time; otherwise it does not belong to this session.
        self.written.insert(number, sent);
    }

    fn read_reply(&mut self, answer: &ProbeAnswer<'_>) -> Option<ProbeReply> {
        match answer.content {
            AnswerContent::Udp { from, to, payload }
                if (to, from) == self.session.ports
                    && (answer.from, answer.to) == (self.ends.target, self.ends.source) =>
            {
                self.on_reflection(payload, answer.is_sound)
            }
            AnswerContent::Error { what, about }
                if method::is_own_packet(&self.ends, &about)
                    && about.protocol == PROTOCOL_UDP
                    && about.ports() == self.session.ports =>
            {
                let last = self.written.last_key_value().map(|(number, _)| *number);
                let number = about.rest.first_chunk().copied().map(u32::from_be_bytes);
                let number = method::quoted_number_or_last(
                    number.filter(|number| self.written.contains_key(number)),
                    what,
                    last,
                )?;
                // "Port unreachable" is trouble here, not the answer of a closed port as for a ping: no reflector listens at the port.
                Some(method::reply_without_peer_times(number, ReplyMeaning::Trouble(what), answer.is_sound))
            }
            _ => None,
        }
    }
}
