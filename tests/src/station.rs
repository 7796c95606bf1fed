//! A station of a lab that sends frames as they are.

use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_testkit::lab::LabPort;

/// Room for a frame that is not a jumbo.
const USUAL: usize = 2000;

/// A sender at a port that keeps its ring: to open and close one takes the kernel many milliseconds.
#[derive(Debug)]
pub struct Station(TxRing);

impl Station {
    /// Opens a ring for frames that are no jumbos.
    pub fn open(port: &LabPort) -> Self {
        Self::with_options(port, TxOptions { longest: USUAL, ..TxOptions::default() })
    }

    fn with_options(port: &LabPort, options: TxOptions) -> Self {
        Self(TxRing::open_on_interface(port.netns(), port.link.index, "test", options).expect("a ring opens"))
    }

    /// Sends frames; the kernel has taken all of them when this returns.
    pub fn send<'a>(&mut self, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
        let ring = &mut self.0;
        let taken_before = ring.counts().taken;
        let mut sent = 0;
        for frame in frames {
            while ring.next_slot().is_none() {
                ring.kick_kernel().expect("the kernel takes frames");
            }
            let slot = ring.next_slot().expect("there is room");
            slot[..frame.len()].copy_from_slice(frame);
            ring.commit_frame(frame.len());
            sent += 1;
        }
        while ring.pending_frames() > 0 {
            ring.kick_kernel().expect("the kernel takes frames");
        }
        assert_eq!(ring.counts().taken - taken_before, sent);
    }
}

/// Sends frames from a port; the kernel has taken all of them when this returns.
pub fn send<'a>(port: &LabPort, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
    let frames: Vec<&Vec<u8>> = frames.into_iter().collect();
    let longest = frames.iter().map(|frame| frame.len()).max().unwrap_or(0);
    let options = match longest {
        0..=USUAL => TxOptions { longest: USUAL, ..TxOptions::default() },
        longest => TxOptions { longest, slots: 64, ..TxOptions::default() },
    };
    Station::with_options(port, options).send(frames);
}
