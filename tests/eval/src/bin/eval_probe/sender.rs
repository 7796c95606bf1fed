//! Our own senders: every mechanism as the program uses it, each with a thread of its own, which has its priority and timer slack.

use crate::frames::{self, Key};
use packetrig_plan::PortLocation;
use packetrig_probe::ReleaseMechanism;
use packetrig_probe_io::Error;
use packetrig_probe_io::release::{self, DepartedFrame, DueFrame, FrameReleaser, ReleaseOptions};
use packetrig_testkit::lab::{INTERFACE, LabPort};
use packetrig_units::{MonoTime, Nanos};

/// A mechanism and how it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) mechanism: ReleaseMechanism,
    pub(crate) options: ReleaseOptions,
    /// In tables.
    pub(crate) name: String,
}

impl Way {
    /// With the usual options; what tables call it is the mechanism's name.
    pub(crate) fn usual(mechanism: ReleaseMechanism) -> Self {
        Self {
            mechanism,
            options: ReleaseOptions { stamps: false, ..ReleaseOptions::common() },
            name: mechanism.to_string(),
        }
    }

    /// Handed over so long ahead.
    pub(crate) fn ahead(self, us: u64) -> Self {
        Self {
            options: ReleaseOptions { ahead: Nanos::from_micros(us), ..self.options },
            name: format!("{}, {us} us ahead", self.name),
            ..self
        }
    }

    /// Spinning from so long before an instant on.
    pub(crate) fn spinning_from(self, us: u64) -> Self {
        let options = ReleaseOptions { spin_from: Nanos::from_micros(us), ..self.options };
        Self { options, name: format!("{}, from {us} us before", self.name), ..self }
    }

    /// As programs are that ask for nothing.
    pub(crate) fn plain(slack: Nanos) -> Self {
        let way = Self::usual(ReleaseMechanism::Sleep);
        let name = format!("sleep, slack {slack}");
        Self { options: ReleaseOptions { slack, priority: None, ..way.options }, name, ..way }
    }

    pub(crate) fn with_stamps(self) -> Self {
        Self { options: ReleaseOptions { stamps: true, ..self.options }, ..self }
    }
}

/// One train to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Train {
    pub(crate) number: u32,
    pub(crate) frames: u16,
    pub(crate) gap: Nanos,
    /// When its first frame is due.
    pub(crate) start: MonoTime,
    pub(crate) size: usize,
}

impl Train {
    /// When its frame of this number is due.
    pub(crate) fn due(&self, number: u16) -> MonoTime {
        self.start + Nanos::new(self.gap.as_u64() * u64::from(number))
    }
}

/// An open mechanism.
pub(crate) struct Sender {
    mechanism: Box<dyn FrameReleaser>,
    whose: u16,
}

impl Sender {
    /// Opens it; `whose` marks its frames. The error is the mechanism's own refusal.
    pub(crate) fn open(from: &LabPort, way: &Way, whose: u16) -> Result<Self, Error> {
        let location =
            PortLocation { namespace: Some(from.namespace().to_owned()), interface: INTERFACE.to_owned() };
        Ok(Self { mechanism: release::open_release(&location, way.mechanism, way.options)?, whose })
    }

    /// Sends a train; what became of each frame.
    pub(crate) fn send(&mut self, train: Train) -> anyhow::Result<Vec<DepartedFrame>> {
        let key = |number| Key { whose: self.whose, train: train.number, number };
        let all: Vec<Vec<u8>> = (0..train.frames).map(|n| frames::frame(key(n), train.size)).collect();
        let due: Vec<DueFrame<'_>> =
            (0..).zip(&all).map(|(n, frame)| DueFrame { at: train.due(n), frame }).collect();
        let mut gone = Vec::with_capacity(due.len());
        self.mechanism.release_train(&due, &mut gone)?;
        Ok(gone)
    }
}
