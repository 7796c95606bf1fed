//! What is known of one exporter: its templates, its numbers, its counts.
//!
//! The protocols' own modules walk through messages; here is what they have in common.
//!
//! Invariant: memory is bounded by [`SessionOptions`], and a message ends.

use super::counts::{SKIPPED, SessionCounts};
use super::draft::{Draft, Moment};
use super::meaning::spelled;
use super::options::{About, OptionsDraft, Reported};
use super::reader::Reader;
use super::received::{Received, SessionOptions};
use super::sequence::{Claim, Place, Sequence};
use super::template::{Field, Template, Templates};
use super::waiting::{Held, Waiting};
use super::{Malformed, Protocol, ipfix, netflow5, netflow9, sim};
use crate::export::section::VARIABLE;
use crate::record::FlowRecord;
use crate::sim::SimEvent;

/// Templates younger than this belong to an exporter that has just begun anew; older ones to its former life.
const NEW_LIFE_NS: u64 = 10_000_000_000;

/// A message that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) place: Place,
    pub(super) number: u32,
    pub(super) moment: Moment,
    pub(super) now_ns: u64,
    /// Units decoded so far.
    pub(super) units: u32,
    /// Units that sets without a template may hold, at most.
    unread: u32,
}

impl Message {
    /// For protocols that number something else than the records of sets.
    pub(super) const fn of_units(self, units: u32) -> Self {
        Self { units, unread: 0, ..self }
    }
}

/// One exporter, one observation domain, one protocol.
#[derive(Clone, Debug)]
pub struct Session {
    options: SessionOptions,
    protocol: Protocol,
    templates: Templates,
    sequence: Sequence,
    about: About,
    waiting: Waiting,
    reported: Option<Reported>,
    counts: SessionCounts,
    /// Uptime and time of the last message, where messages have both.
    uptime: Option<(u32, u64)>,
    looked_ns: u64,
}

impl Session {
    /// A session that has heard nothing.
    pub fn new(protocol: Protocol, options: SessionOptions) -> Self {
        Self {
            options,
            protocol,
            templates: Templates::default(),
            sequence: Sequence::default(),
            about: About::default(),
            waiting: Waiting::default(),
            reported: None,
            counts: SessionCounts::default(),
            uptime: None,
            looked_ns: 0,
        }
    }

    /// Its counts.
    pub const fn counts(&self) -> &SessionCounts {
        &self.counts
    }

    /// What the exporter said last of its own losses.
    pub const fn reported(&self) -> Option<&Reported> {
        self.reported.as_ref()
    }

    /// Templates known now.
    pub fn templates(&self) -> usize {
        self.templates.len()
    }

    /// Reads one whole message. What was decoded before something malformed is given out and counted.
    pub fn decode(
        &mut self,
        message: &[u8],
        now_ns: u64,
        out: &mut impl FnMut(Received),
    ) -> Result<(), Malformed> {
        self.counts.messages += 1;
        self.counts.message_bytes += message.len() as u64;
        self.age(now_ns);
        let result = match self.protocol {
            Protocol::Ipfix => ipfix::decode(self, message, now_ns, out),
            Protocol::NetFlow9 => netflow9::decode(self, message, now_ns, out),
            Protocol::NetFlow5 => netflow5::decode(self, message, now_ns, out),
            Protocol::Sim => sim::decode(self, message, now_ns, out),
        };
        self.counts.malformed += u64::from(result.is_err());
        self.counts.lost = self.sequence.lost();
        self.counts.untold = self.sequence.untold();
        self.counts.pending_bytes = self.waiting.bytes() as u64;
        result
    }

    /// Forgets what is too old.
    pub fn age(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns) < 1_000_000_000 {
            return;
        }
        self.looked_ns = now_ns;
        if let Some(life) = self.options.template_life {
            self.counts.templates_dropped += self.templates.expire(now_ns.saturating_sub(life.as_u64()));
        }
        let oldest = now_ns.saturating_sub(self.options.hold.as_u64());
        self.counts.undecoded_bytes += self.waiting.expire(oldest) as u64;
        self.counts.pending_bytes = self.waiting.bytes() as u64;
    }

    /// The exporter is gone: what waits for a template waits in vain.
    pub fn end(&mut self) {
        self.counts.undecoded_bytes += self.waiting.clear() as u64;
        self.counts.pending_bytes = 0;
    }

    /// Finds the place of a message; `None` if it is to be left.
    pub(super) fn open(
        &mut self,
        claim: Claim,
        moment: Moment,
        now_ns: u64,
        out: &mut impl FnMut(Received),
    ) -> Option<Message> {
        let claim = Claim { rebooted: self.is_rebooted(&moment), ..claim };
        let place = self.sequence.judge(claim);
        match place {
            Place::InOrder | Place::Late => {}
            Place::Ahead(units) => {
                self.counts.gaps += 1;
                out(Received::Gap { units });
            }
            Place::Duplicate => self.counts.duplicates += 1,
            Place::Old => self.counts.too_old += 1,
            Place::Restart => {
                self.counts.restarts += 1;
                let old = now_ns.saturating_sub(NEW_LIFE_NS);
                self.counts.templates_dropped += self.templates.expire(old);
                // Templates of the new life say nothing of them, nor do its numbers.
                self.counts.undecoded_bytes += self.waiting.clear() as u64;
                self.about = About::default();
                out(Received::Restart);
            }
        }
        if place.is_wanted() && place != Place::Late {
            self.uptime = moment.uptime_ms.map(|uptime| (uptime, moment.sent_ns));
        }
        let message = Message { place, number: claim.number, moment, now_ns, units: 0, unread: 0 };
        place.is_wanted().then_some(message)
    }

    /// Whether the exporter's uptime went back while its clock went on.
    fn is_rebooted(&self, moment: &Moment) -> bool {
        let (Some(now), Some((before, sent_ns))) = (moment.uptime_ms, self.uptime) else { return false };
        let went_on_ms = (moment.sent_ns / 1_000_000).wrapping_sub(sent_ns / 1_000_000);
        let back_ms = before.wrapping_sub(now).cast_signed();
        moment.sent_ns >= sent_ns
            && back_ms > 0
            && went_on_ms.saturating_add_signed(i64::from(back_ms)) > 5_000
    }

    /// A message is read, whole or up to where it is malformed.
    pub(super) fn close(&mut self, message: Message) {
        let Message { place, number, units, unread, .. } = message;
        self.waiting.settle(self.counts.messages, number.wrapping_add(units));
        self.counts.late_units += u64::from(self.sequence.settle(place, number, units, unread));
    }

    /// Keeps a template and reads the data that waited for it.
    pub(super) fn learn(
        &mut self,
        id: u16,
        template: Template,
        message: &mut Message,
        out: &mut impl FnMut(Received),
    ) -> Result<(), Malformed> {
        self.counts.templates += 1;
        for name in &template.skipped {
            if self.counts.skipped.len() < SKIPPED {
                self.counts.skipped.insert(spelled(*name));
            }
        }
        self.counts.templates_dropped += self.templates.keep(id, template, &self.options);
        self.release(id, message, out)
    }

    pub(super) fn withdraw(&mut self, id: u16) {
        self.templates.remove(id);
    }

    pub(super) fn withdraw_all(&mut self, options: bool) {
        self.templates.withdraw_all(options);
    }

    /// Whether templates may be withdrawn: over UDP nobody may, as messages overtake each other.
    pub(super) const fn may_withdraw(&self) -> bool {
        self.options.template_life.is_none()
    }

    fn release(
        &mut self,
        id: u16,
        message: &mut Message,
        out: &mut impl FnMut(Received),
    ) -> Result<(), Malformed> {
        let mut ready = self.waiting.take(id);
        let mut result = Ok(());
        while let Some(held) = ready.pop_front() {
            let (units, done) = self.read_set(id, &held.bytes, held.moment, out);
            result = result.and(done);
            if held.message == self.counts.messages {
                message.units += units;
                message.unread = message.unread.saturating_sub(size(&held.bytes));
            } else if self.protocol == Protocol::Ipfix {
                let ready = ready.iter_mut().filter(|other| other.message == held.message);
                let mut is_last = true;
                for other in self.waiting.of_message(held.message).chain(ready) {
                    other.end = other.end.wrapping_add(units);
                    is_last = false;
                }
                self.sequence.recover(held.end, units, is_last);
            }
        }
        result
    }

    /// Reads a set of data, or keeps it until its template comes.
    pub(super) fn data(
        &mut self,
        id: u16,
        bytes: &[u8],
        message: &mut Message,
        out: &mut impl FnMut(Received),
    ) -> Result<(), Malformed> {
        if self.templates.find(id).is_some() {
            let (units, result) = self.read_set(id, bytes, message.moment, out);
            message.units += units;
            return result;
        }
        self.counts.template_misses += 1;
        message.unread = message.unread.saturating_add(size(bytes));
        let held = Held {
            set: id,
            bytes: bytes.into(),
            moment: message.moment,
            message: self.counts.messages,
            end: message.number,
            at_ns: message.now_ns,
        };
        self.counts.undecoded_bytes += self.waiting.keep(held, self.options.hold_bytes) as u64;
        Ok(())
    }

    /// Gives out the records of a set, and how many there were.
    fn read_set(
        &mut self,
        id: u16,
        bytes: &[u8],
        moment: Moment,
        out: &mut impl FnMut(Received),
    ) -> (u32, Result<(), Malformed>) {
        let Self { templates, about, counts, reported, .. } = self;
        let Some(template) = templates.find(id) else { return (0, Ok(())) };
        let mut reader = Reader::new(bytes);
        let mut units = 0;
        // What is shorter than any record is padding.
        while reader.left() >= template.least {
            if template.options {
                let mut draft = OptionsDraft::default();
                if !walk(&template.fields, &mut reader, |field, value| draft.take(field, value)) {
                    return (units, Err(Malformed::Record { id }));
                }
                counts.options_records += 1;
                if let Some(said) = draft.finish(moment.sent_ns, about) {
                    reported.get_or_insert_default().update(&said);
                    out(Received::Statistics(Box::new(said)));
                }
            } else {
                let mut draft = Draft::default();
                if !walk(&template.fields, &mut reader, |field, value| draft.take(field, value)) {
                    return (units, Err(Malformed::Record { id }));
                }
                let moment = Moment { boot_ms: about.boot_ms, ..moment };
                let (record, is_timed) = draft.finish(&moment, about);
                counts.flow(&record, is_timed);
                out(Received::Record(record));
            }
            units += 1;
        }
        (units, Ok(()))
    }

    /// A packet or a new flow.
    pub(super) fn event(&mut self, event: SimEvent, out: &mut impl FnMut(Received)) {
        self.counts.events += 1;
        if let SimEvent::Packet { bytes, .. } = event {
            self.counts.packets += 1;
            self.counts.bytes += u64::from(bytes);
        }
        out(Received::Sim(event));
    }

    /// What the exporter says of itself.
    pub(super) fn statistics(&mut self, said: Box<Reported>, out: &mut impl FnMut(Received)) {
        self.counts.options_records += 1;
        self.reported.get_or_insert_default().update(&said);
        out(Received::Statistics(said));
    }

    /// A record that needed no template.
    pub(super) fn flow(&mut self, draft: Draft, moment: &Moment, out: &mut impl FnMut(Received)) {
        let (record, is_timed) = draft.finish(moment, &self.about);
        self.counts.flow(&record, is_timed);
        out(Received::Record(record));
    }
}

fn size(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Takes a record's values one by one. Says whether they were all there.
fn walk(fields: &[Field], reader: &mut Reader<'_>, mut take: impl FnMut(Field, &[u8])) -> bool {
    for field in fields {
        let value =
            if field.length == VARIABLE { reader.variable() } else { reader.take(usize::from(field.length)) };
        let Some(value) = value else { return false };
        take(*field, value);
    }
    true
}

impl SessionCounts {
    fn flow(&mut self, record: &FlowRecord, is_timed: bool) {
        self.records += 1;
        self.packets =
            self.packets.saturating_add(record.forward.packets).saturating_add(record.reverse.packets);
        self.bytes = self.bytes.saturating_add(record.forward.bytes).saturating_add(record.reverse.bytes);
        self.timeless += u64::from(!is_timed);
    }
}
