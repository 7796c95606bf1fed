//! Impairing allocates nothing once its buffers have been made.

use super::allocations;
use packetrig_link::{DepartureLateness, ImpairSpecs};
use packetrig_link_io::impair::{ImpairTreatment, ImpairmentTruthLog};

#[test]
fn impairing_allocates_nothing_after_its_first_frames() {
    let directory = tempfile::tempdir().unwrap();
    let offset = packetrig_sys::clock::measure_realtime_offset();
    let truth =
        ImpairmentTruthLog::create_with_header(&directory.path().join("truth.jsonl"), "{}", offset).unwrap();
    // Patterns that repeat: the first frames need as many buffers as any.
    let spec = "delay=50us,loss=every:10,duplicate=every:7,reorder=every:11,corrupt=every:13,rate=1Gbit/s";
    let specs = ImpairSpecs::same_both_ways(&spec.parse().unwrap());
    let ([mut there, _], watch) = ImpairTreatment::for_both_directions(specs.to_fault_plans(1), Some(&truth));
    let frame = [7; 60];
    let mut left = 0u64;
    let mut pass = |frames: std::ops::Range<u64>| {
        for n in frames {
            there.accept_frame(n * 1_000, &frame, &mut |_, _| left += 1);
            there.release_due_frames(n * 1_000, &mut |_, _| left += 1);
            there.record_lateness(DepartureLateness::default());
        }
    };
    pass(0..50_000);
    assert_eq!(allocations(|| pass(50_000..100_000)), 0);
    let counts = watch.read_accounts()[0].counts;
    assert!(
        counts.dropped == 10_000 && counts.copies > 10_000 && counts.held > 5_000 && counts.corrupted > 5_000,
        "{counts:?}"
    );
    assert!(left > 95_000);
}
