//! pcapng: each frame with its departure time in nanoseconds since 1970, and with its record as a comment. The header is the comment
//! of the section. Probes that did not leave have their planned time, and their record says so.

use crate::ProbeRecord;
use crate::header::ProbeHeader;
use crate::small_count;
use packetrig_wire::pcap::ETHERNET;
use packetrig_wire::pcap::block::{block, low, option, padded, words};

/// The content of a capture file. `frame` gives the bytes of a record's frame.
pub fn pcapng(
    header: &ProbeHeader,
    records: &[ProbeRecord],
    frame: &mut dyn FnMut(&ProbeRecord, &mut Vec<u8>),
) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::new();
    let comment = serde_json::to_string(header)?;
    // Section header block: byte order, version 1.0, and an unknown length of the section (-1).
    block(&mut out, 0x0a0d_0d0a, |body| {
        words(body, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
        option(body, 4, concat!("packetrig ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(body, 1, comment.as_bytes());
        option(body, 0, &[]);
    });
    // Interface description block.
    block(&mut out, 1, |body| {
        words(body, &[ETHERNET.into(), 0]);
        option(body, 2, header.interface.as_bytes());
        option(body, 9, &[9]); // resolution: 10^-9 s
        option(body, 0, &[]);
    });
    let mut bytes = Vec::new();
    for record in records {
        frame(record, &mut bytes);
        let comment = serde_json::to_string(record)?;
        let at = epoch(header, record);
        let length = small_count(bytes.len());
        // Enhanced packet block: interface, both halves of the time, captured length, length on the wire.
        block(&mut out, 6, |body| {
            words(body, &[0, low(at >> 32), low(at), length, length]);
            padded(body, &bytes);
            option(body, 1, comment.as_bytes());
            option(body, 0, &[]);
        });
    }
    Ok(out)
}

/// Departure time of the probe by the best stamp, in nanoseconds since 1970.
fn epoch(header: &ProbeHeader, record: &ProbeRecord) -> u64 {
    let at = record.left_here().map_or(record.planned.as_nanos(), crate::ProbeStamp::middle);
    at.saturating_add_signed(header.clock_before.offset_ns)
}
