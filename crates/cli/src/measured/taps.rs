//! Taps of this user, from the files that their processes wrote last.

use super::{SCHEMA_VERSION, to_ms};
use packetrig_link_io::tap::{DescribedTap, describe_taps};
use packetrig_server::{RigPartSource, ViewRefusal, write_large_counts_as_text};
use packetrig_sys::clock;
use serde_json::{Value, json};

pub(super) struct UserTapFacts;

impl RigPartSource for UserTapFacts {
    fn read_facts(&self) -> Result<Value, ViewRefusal> {
        let taps: Vec<Value> = describe_taps().iter().map(build_tap_json).collect();
        Ok(write_large_counts_as_text(json!({
            "schema_version": SCHEMA_VERSION,
            "user": packetrig_sys::owner::own_user(),
            // The page computes ages from the time on this machine, because the browser's clock may differ.
            "now_ms": to_ms(clock::wall_clock_ns()),
            "taps": taps,
        })))
    }
}

fn build_tap_json(tap: &DescribedTap) -> Value {
    let state = &tap.state;
    json!({
        "name": state.name,
        "method": state.way,
        "why": state.why,
        "since_ms": to_ms(state.since_ns),
        "process": state.process,
        "process_runs": tap.process_runs,
        "sides": state.sides.iter().map(|side| &side.location).collect::<Vec<_>>(),
        "mirrors": state.mirrors.iter().map(|mirror| &mirror.location).collect::<Vec<_>>(),
        "filter": state.filter,
        "caveats": state.caveats,
        "counted_ms": tap.counted.as_ref().map(|(at_ns, _)| to_ms(*at_ns)),
        "accounts": tap.counted.as_ref().map(|(_, accounts)| accounts),
    })
}
