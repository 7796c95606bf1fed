//! The release mechanisms and their names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Mechanism that releases a probe on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseMechanism {
    /// The sender sleeps until the departure time and then sends, as most programs do.
    Sleep,
    /// The sender, with real-time priority if allowed, sleeps until shortly before the departure time and then spins.
    Spin,
    /// Frames wait in a packet ring; one call at the departure time of the first frame hands the whole
    /// train to the kernel.
    Ring,
    /// Frames are handed over early; a BPF program at the interface's egress holds each one back until it is due.
    Gate,
    /// An XDP program makes each frame when it is due, a train in one call.
    Live,
    /// Frames are handed over early with their departure times; the queueing discipline `fq` releases them.
    Fq,
    /// Frames are handed over early with their departure times; the queueing discipline `etf`
    /// releases them, in software.
    Etf,
    /// Frames are handed over early with their departure times; the network card releases them, by its own clock.
    Launch,
}

impl ReleaseMechanism {
    pub const ALL: [Self; 8] =
        [Self::Sleep, Self::Spin, Self::Ring, Self::Gate, Self::Live, Self::Fq, Self::Etf, Self::Launch];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Spin => "spin",
            Self::Ring => "ring",
            Self::Gate => "gate",
            Self::Live => "live",
            Self::Fq => "fq",
            Self::Etf => "etf",
            Self::Launch => "launch",
        }
    }
}

impl fmt::Display for ReleaseMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReleaseMechanism {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is not a release mechanism; use one of {names}")
        })
    }
}
