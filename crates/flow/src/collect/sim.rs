//! Datagrams of SIM: packets and new flows, numbered one by one.

use super::MalformedMessage;
use super::draft::MessageTime;
use super::options::ReportedLosses;
use super::reader::low_u32;
use super::received::ReceivedMessage;
use super::sequence::{MessageSequenceFacts, message_fingerprint};
use super::session::ExportSession;
use crate::sim::{HEADER, SimDecoder, SimItem, item};

pub(super) fn decode_message(
    session: &mut ExportSession,
    bytes: &[u8],
    now_ns: u64,
    out: &mut impl FnMut(ReceivedMessage),
) -> Result<(), MalformedMessage> {
    let header = SimDecoder::read_header(bytes).map_err(MalformedMessage::Sim)?;
    if usize::from(header.length) != bytes.len() {
        return Err(MalformedMessage::Length { said: header.length.into(), found: bytes.len() });
    }
    let moment = MessageTime { sent_ns: header.base_ns, ..MessageTime::default() };
    let claim = MessageSequenceFacts {
        // The lower 32 bits are enough: gaps are far shorter than that range.
        number: low_u32(header.event_sequence),
        fingerprint: message_fingerprint(bytes),
        sent_s: low_u32(header.base_ns / 1_000_000_000),
        // A ledger is not a numbered event. It comes in a datagram of its own, or between events.
        empty: header.items <= 1
            && bytes.get(HEADER).is_none_or(|kind| *kind == item::LEDGER_ITEM_LAYOUT.kind),
        rebooted: false,
    };
    let Some(message) = session.open_message(claim, moment, now_ns, out) else { return Ok(()) };
    let mut units = 0;
    let result = SimDecoder::decode_datagram(bytes, &mut |item| match item {
        SimItem::Event(event) => {
            units += 1;
            session.deliver_event(event, out);
        }
        SimItem::Ledger { at_ns, ledger } => {
            let said = ReportedLosses { at_ns, ledger: Some(ledger), ..ReportedLosses::default() };
            session.deliver_statistics(Box::new(said), out);
        }
    });
    session.close_message(message.with_units(units));
    result.map(|_| ()).map_err(MalformedMessage::Sim)
}
