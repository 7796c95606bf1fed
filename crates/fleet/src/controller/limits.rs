//! How long the controller waits for what.

use packetrig_units::Nanos;

/// Times of a run's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the decision on T to T, in the first attempt; doubled in each further one.
    pub lead: Nanos,
    /// Acknowledgements of a commit that come later than this before T are too late.
    pub guard: Nanos,
    /// How often a start is tried.
    pub attempts: u32,
    /// For every node to prepare, and again to arm.
    pub prepare: Nanos,
    /// After T, for every node to say that it has started.
    pub start: Nanos,
    /// Without a word from a node that runs, until it is given up.
    pub silence: Nanos,
    /// For senders to stop when told.
    pub stop: Nanos,
    /// From the last sender's end until receivers stop.
    pub drain: Nanos,
    /// For results to come in.
    pub collect: Nanos,
    /// Until an unanswered command is repeated.
    pub repeat: Nanos,
}

impl Limits {
    /// For one machine.
    pub const fn local(drain: Nanos) -> Self {
        Self {
            lead: Nanos::from_millis(150),
            guard: Nanos::from_millis(50),
            attempts: 5,
            prepare: Nanos::from_secs(30),
            start: Nanos::from_secs(10),
            silence: Nanos::from_secs(30),
            stop: Nanos::from_secs(10),
            drain,
            collect: Nanos::from_secs(60),
            repeat: Nanos::from_secs(1),
        }
    }
}
