//! pcapng: each frame with its departure time in nanoseconds since 1970, and with its record as a comment. The probe
//! header is the comment of the section. Probes that did not leave have their planned time, and a flag in their record.

use crate::ProbeRecord;
use crate::header::ProbeHeader;
use crate::small_count;
use packetrig_wire::pcap::ETHERNET_LINK_TYPE;
use packetrig_wire::pcap::block::{
    low_32_bits, write_block, write_block_option, write_padded_bytes, write_words,
};

/// Returns the content of a pcapng file. `frame` must write the frame of a record into the vector.
pub fn encode_pcapng(
    header: &ProbeHeader,
    records: &[ProbeRecord],
    frame: &mut dyn FnMut(&ProbeRecord, &mut Vec<u8>),
) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::new();
    let comment = serde_json::to_string(header)?;
    // Section header block: byte order, version 1.0, and an unknown length of the section (-1).
    write_block(&mut out, 0x0a0d_0d0a, |body| {
        write_words(body, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
        write_block_option(body, 4, concat!("packetrig ", env!("CARGO_PKG_VERSION")).as_bytes());
        write_block_option(body, 1, comment.as_bytes());
        write_block_option(body, 0, &[]);
    });
    // Interface description block.
    write_block(&mut out, 1, |body| {
        write_words(body, &[ETHERNET_LINK_TYPE.into(), 0]);
        write_block_option(body, 2, header.interface.as_bytes());
        write_block_option(body, 9, &[9]); // resolution: 10^-9 s
        write_block_option(body, 0, &[]);
    });
    let mut bytes = Vec::new();
    for record in records {
        frame(record, &mut bytes);
        let comment = serde_json::to_string(record)?;
        let at = departure_epoch_ns(header, record);
        let length = small_count(bytes.len());
        // Enhanced packet block: interface, both halves of the time, captured length, length on the wire.
        write_block(&mut out, 6, |body| {
            write_words(body, &[0, low_32_bits(at >> 32), low_32_bits(at), length, length]);
            write_padded_bytes(body, &bytes);
            write_block_option(body, 1, comment.as_bytes());
            write_block_option(body, 0, &[]);
        });
    }
    Ok(out)
}

/// Departure time of the probe by its best stamp, in nanoseconds since 1970; its planned time if it has no stamp.
fn departure_epoch_ns(header: &ProbeHeader, record: &ProbeRecord) -> u64 {
    let at = record.local_departure().map_or(record.planned.as_nanos(), crate::ProbeStamp::middle);
    at.saturating_add_signed(header.clock_before.offset_ns)
}
