//! The exporter: records in, messages out, with templates and options where they are due.
//!
//! One exporter speaks for one transport session: its sequence numbers are of that session.

use super::announce;
use super::netflow5::FiveMessage;
use super::open::{OpenMessage, OpenRecordKind};
use super::options::{ExportFormat, ExportOptions, TemplateRefresh};
use super::template::{ExportTemplate, RecordShape};
use super::{MessageSink, announce::announce};
use crate::ledger::{CarriedRecords, MeterLedger};
use crate::record::FlowRecord;

/// Makes messages of records.
#[derive(Debug)]
pub struct MessageExporter {
    options: ExportOptions,
    inner: ExporterFormat,
    statistics_ns: Option<u64>,
}

#[derive(Debug)]
enum ExporterFormat {
    Sets(Box<SetFormats>),
    Five(Box<FiveMessage>),
}

/// The formats that are made of sets.
#[derive(Debug)]
struct SetFormats {
    open: OpenMessage,
    templates: Vec<ExportTemplate>,
    /// When the templates were sent last, and the number of messages then.
    announced: Option<(u64, u32)>,
}

impl MessageExporter {
    /// An exporter at the beginning of its session.
    pub fn new(options: ExportOptions) -> Self {
        let inner = match options.format {
            ExportFormat::NetFlow5 => ExporterFormat::Five(Box::new(FiveMessage::new(&options))),
            format => ExporterFormat::Sets(Box::new(SetFormats {
                open: OpenMessage::new(&options),
                templates: ExportTemplate::all(format, options.biflow),
                announced: None,
            })),
        };
        Self { options, inner, statistics_ns: None }
    }

    /// Adds a record: one of both directions, or one of each that had packets.
    pub fn record(&mut self, record: &FlowRecord, now_ns: u64, sink: &mut impl MessageSink) {
        if self.options.biflow && self.options.format.has_biflow() {
            let carried = CarriedRecords { records: 1, packets: record.packets(), bytes: record.bytes() };
            self.one(record, carried, now_ns, sink);
            return;
        }
        let (forward, back) = record.split();
        let of = |record: &FlowRecord, records| CarriedRecords {
            records,
            packets: record.forward.packets,
            bytes: record.forward.bytes,
        };
        let first = forward.forward.packets > 0 || back.is_none();
        if first {
            self.one(&forward, of(&forward, 1), now_ns, sink);
        }
        if let Some(back) = back {
            self.one(&back, of(&back, u64::from(!first)), now_ns, sink);
        }
    }

    fn one(
        &mut self,
        record: &FlowRecord,
        carried: CarriedRecords,
        now_ns: u64,
        sink: &mut impl MessageSink,
    ) {
        match &mut self.inner {
            ExporterFormat::Five(five) => five.record(record, carried, now_ns, sink),
            ExporterFormat::Sets(sets) => {
                sets.refresh(&self.options, now_ns, sink);
                let template = &sets.templates[RecordShape::of(record).index()];
                let place = (template.id, template.length, OpenRecordKind::Flow(carried));
                sets.open.add(place, now_ns, sink, |out| template.encode(record, out));
            }
        }
    }

    /// What time brings: templates that are due, a message that has waited long enough.
    pub fn tick(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        let age = |opened_ns: u64| now_ns.saturating_sub(opened_ns) >= self.options.flush_after.as_u64();
        match &mut self.inner {
            ExporterFormat::Five(five) if age(five.opened_ns()) => five.seal(now_ns, sink),
            ExporterFormat::Five(_) => {}
            ExporterFormat::Sets(sets) => {
                sets.refresh(&self.options, now_ns, sink);
                if age(sets.open.opened_ns()) {
                    sets.open.seal(now_ns, sink);
                }
            }
        }
    }

    /// Whether the ledger is to be sent again. NetFlow 5 has no place for it.
    pub fn is_statistics_due(&self, now_ns: u64) -> bool {
        let every = self.options.statistics_every.as_u64();
        matches!(self.inner, ExporterFormat::Sets(_))
            && self.statistics_ns.is_none_or(|sent_ns| now_ns.saturating_sub(sent_ns) >= every)
    }

    pub fn statistics(&mut self, ledger: &MeterLedger, now_ns: u64, sink: &mut impl MessageSink) {
        self.statistics_ns = Some(now_ns);
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            sets.refresh(&self.options, now_ns, sink);
            announce::statistics(&mut sets.open, self.options.format, ledger, now_ns, sink);
        }
    }

    /// Hands out the message that is not full yet.
    pub fn flush(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        match &mut self.inner {
            ExporterFormat::Five(five) => five.seal(now_ns, sink),
            ExporterFormat::Sets(sets) => sets.open.seal(now_ns, sink),
        }
    }

    /// A new connection: sequence numbers begin anew, templates go in front of everything, also of what waits.
    pub fn reconnected(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            sets.open.restart_sequence();
        }
        self.announce_first(now_ns, sink);
    }

    /// Templates got lost where they are sent only once: they go in front of everything, also of what waits.
    pub fn announce_first(&mut self, now_ns: u64, sink: &mut impl MessageSink) {
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            let mut first = sets.open.beside(&self.options);
            std::mem::swap(&mut first, &mut sets.open);
            sets.announce(&self.options, now_ns, sink);
            sets.open.seal(now_ns, sink);
            std::mem::swap(&mut first, &mut sets.open);
            sets.open.follow(&first);
        }
    }

    /// Gives a message that the last connection did not take its number on this one.
    pub fn renumber(&mut self, message: &mut [u8], step: u32) {
        if let ExporterFormat::Sets(sets) = &mut self.inner {
            sets.open.renumber(message, step);
        }
    }

    /// What is in the message that is not handed out yet.
    pub fn waiting(&self) -> CarriedRecords {
        match &self.inner {
            ExporterFormat::Five(five) => five.carried(),
            ExporterFormat::Sets(sets) => sets.open.carried(),
        }
    }

    /// What the format cannot carry: in NetFlow 5 everything but IPv4.
    pub fn unfit(&self) -> CarriedRecords {
        match &self.inner {
            ExporterFormat::Five(five) => five.unfit(),
            ExporterFormat::Sets(_) => CarriedRecords::default(),
        }
    }
}

impl SetFormats {
    fn refresh(&mut self, options: &ExportOptions, now_ns: u64, sink: &mut impl MessageSink) {
        let due = match (self.announced, options.refresh) {
            (None, _) => true,
            (Some(_), TemplateRefresh::OnConnection) => false,
            (Some((at_ns, message)), TemplateRefresh::Every { time, messages }) => {
                now_ns.saturating_sub(at_ns) >= time.as_u64()
                    || self.open.messages().wrapping_sub(message) >= messages.max(1)
            }
        };
        if due {
            self.announce(options, now_ns, sink);
        }
    }

    fn announce(&mut self, options: &ExportOptions, now_ns: u64, sink: &mut impl MessageSink) {
        announce(&mut self.open, &self.templates, options, now_ns, sink);
        self.announced = Some((now_ns, self.open.messages()));
    }
}
