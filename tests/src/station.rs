//! A station of a lab that sends frames as they are.

use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_testkit::lab::LabPort;

/// Room for a frame that is not a jumbo.
const USUAL: usize = 2000;

/// Sends frames from a port; the kernel has taken all of them when this returns.
pub fn send<'a>(port: &LabPort, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
    let frames: Vec<&[u8]> = frames.into_iter().map(Vec::as_slice).collect();
    let longest = frames.iter().map(|frame| frame.len()).max().unwrap_or(0);
    let options = match longest {
        0..=USUAL => TxOptions { longest: USUAL, ..TxOptions::default() },
        longest => TxOptions { longest, slots: 64, ..TxOptions::default() },
    };
    let mut ring = TxRing::open(port.netns(), port.link.index, "test", options).expect("a ring opens");
    for frame in &frames {
        while ring.next_slot().is_none() {
            ring.kick().expect("the kernel takes frames");
        }
        let slot = ring.next_slot().expect("there is room");
        slot[..frame.len()].copy_from_slice(frame);
        ring.commit(frame.len());
    }
    while ring.pending() > 0 {
        ring.kick().expect("the kernel takes frames");
    }
    assert_eq!(ring.counts().taken, frames.len() as u64);
}
