//! The flow meter's loop: from the bytes of a file into the table.

use packetrig_flow::parse::ParseOptions;
use packetrig_flow::table::{FlowTable, TableOptions};
use packetrig_flow_io::source::{FileOptions, PacketSource, TakeOutcome, open_files};
use packetrig_flow_io::{OutputChannels, OutputQueues, PacketIntake};

const PACKETS: u64 = 60_000;

#[test]
fn metering_allocates_nothing() {
    let (_directory, file) =
        packetrig_tests::recording::stored(&packetrig_tests::recording::mixture(PACKETS, 2_000));
    let options = FileOptions { files: vec![file.clone(), file], workers: 1, pace: None };
    let mut source = open_files(&options).unwrap().sources.pop().unwrap();
    let mut intake = PacketIntake::new(ParseOptions::default(), 1, None);
    let mut table = FlowTable::<()>::new(&TableOptions { capacity: 1024, ..TableOptions::default() });
    let mut outbox = OutputQueues::new(&OutputChannels::default());
    let mut seen = |until: u64| {
        while intake.counts().seen < until {
            intake.clear();
            assert_eq!(source.take_packets(&mut intake).unwrap(), TakeOutcome::Some);
            let now_ns = source.delivered_until_ns(false);
            table.meter_packets(intake.packets(), now_ns, &mut outbox);
            table.advance_to(now_ns, &mut outbox);
        }
        table.counts().metered
    };
    // The first blocks make the room that the others use.
    seen(PACKETS / 4);
    let mut metered = 0;
    let allocated = super::allocations(|| metered = seen(PACKETS - 1000));
    assert_eq!(allocated, 0);
    assert!(metered > PACKETS * 3 / 4, "{metered}");
}
