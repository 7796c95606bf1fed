//! JSON lines: `{"header": …}`, then one record per line.

use crate::ProbeRecord;
use crate::header::ProbeHeader;

/// Returns the content of a JSON lines file: the header, then one line per record.
pub fn encode_json_lines(header: &ProbeHeader, records: &[ProbeRecord]) -> serde_json::Result<Vec<u8>> {
    let mut out = serde_json::to_vec(&serde_json::json!({ "header": header }))?;
    out.push(b'\n');
    for record in records {
        serde_json::to_writer(&mut out, record)?;
        out.push(b'\n');
    }
    Ok(out)
}
