use super::ring::*;
use crate::area::SharedArea;
use std::sync::atomic::Ordering;

/// Plays the program's part.
fn write(rings: &mut InterfaceRings, ring: usize, time: u64, bytes: &[u8]) {
    let written = rings.area.atomic_u64(ring * VALUE + WRITTEN).load(Ordering::Relaxed);
    let at = ring * VALUE + DATA + ring_offset(written);
    let len = u32::try_from(bytes.len()).unwrap();
    rings.area.bytes_mut(at, 8).copy_from_slice(&time.to_ne_bytes());
    rings.area.bytes_mut(at + 8, 4).copy_from_slice(&len.to_ne_bytes());
    rings.area.bytes_mut(at + 12, 4).copy_from_slice(&len.to_ne_bytes());
    rings.area.bytes_mut(at + HEAD, bytes.len()).copy_from_slice(bytes);
    let need = (HEAD + bytes.len().next_multiple_of(8)) as u64;
    rings.area.atomic_u64(ring * VALUE + WRITTEN).store(written + need, Ordering::Release);
}

fn given(rings: &mut InterfaceRings, most: usize, now: u64) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    rings.receive_frames(most, now, &mut |frame| frames.push((frame.monotonic_ns, frame.bytes.to_vec())));
    frames
}

#[test]
fn frames_of_several_cpus_are_merged_by_time() {
    let mut rings = InterfaceRings::new(SharedArea::plain(2 * VALUE), 2);
    for (ring, time) in [(0, 10), (0, 40), (1, 20), (1, 30), (0, 50), (1, 60)] {
        write(&mut rings, ring, time, &[u8::try_from(time).unwrap(); 60]);
    }
    let times = |frames: Vec<(u64, Vec<u8>)>| frames.iter().map(|(time, _)| *time).collect::<Vec<_>>();
    assert_eq!(times(given(&mut rings, 4, 1_000_000)), [10, 20, 30, 40]);
    // A record that is too young stays, in case the other processor is still writing an older one.
    assert_eq!(times(given(&mut rings, 9, MIN_FRAME_AGE_NS + 50)), [50]);
    assert_eq!(times(given(&mut rings, 9, MIN_FRAME_AGE_NS + 60)), [60]);
}

#[test]
fn ring_records_wrap_around_its_end() {
    let mut rings = InterfaceRings::new(SharedArea::plain(VALUE), 1);
    for round in 0..40_000u64 {
        let frame = vec![u8::try_from(round % 251).unwrap(); 60 + usize::try_from(round % 1_450).unwrap()];
        write(&mut rings, 0, round, &frame);
        assert_eq!(given(&mut rings, 9, 0), [(round, frame)]);
    }
}
