//! Where a collector listens, by its own word.

use crate::program::Running;
use packetrig_sys::clock;

const WORDS: &str = "listening at ";
const MAX_LOOKS: u32 = 10_000;
const LOOK_NS: u64 = 5_000_000;

/// Waits until a collector says where it listens; that place, as `tcp://127.0.0.1:4739`.
pub fn await_place(collector: &mut Running) -> String {
    collector.await_remark(WORDS);
    for _ in 0..MAX_LOOKS {
        let said = collector.remarks();
        // The end of a line is written by itself.
        let line = said.split_once(WORDS).and_then(|(_, rest)| rest.split_once('\n'));
        if let Some((place, _)) = line {
            return place.to_owned();
        }
        clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
    }
    panic!("the line never ends: {}", collector.remarks());
}
