//! JSON lines: `{"header": …}`, then one record per line.

use super::Error;
use packetrig_probe::ProbeRecord;
use packetrig_probe::header::ProbeHeader;

pub(super) fn encode(header: &ProbeHeader, records: &[ProbeRecord]) -> Result<Vec<u8>, Error> {
    let mut out = serde_json::to_vec(&serde_json::json!({ "header": header }))?;
    out.push(b'\n');
    for record in records {
        serde_json::to_writer(&mut out, record)?;
        out.push(b'\n');
    }
    Ok(out)
}
