//! A tap: what arrives at one interface leaves at another and back, unchanged, and copies go to mirrors or into a file.
//!
//! ```text
//!            +--------- Tap ---------+
//!   A <----->| kernel or process     |<-----> B        way `xdp`: BPF programs; way `packet`: a thread for each direction
//!            +---+---------------+---+
//!                | copies        | copies
//!             mirrors          rings -> recorder -> file
//! ```
//! Forwarding comes first: a copy that cannot be made, taken or written is counted and given up, never waited for. In the
//! kernel the forwarding goes on when this process dies; another one finds it again ([`found`]) and ends it.
//!
//! Invariant: every frame that arrived was forwarded or is in an account of why not, and so is every copy that was wanted.

mod account;
mod begin;
mod choose;
mod copies;
mod found;
mod guard;
mod hold;
mod kernel;
mod lanes;
mod link_state;
mod place;
mod record;

pub use account::{MirrorAccount, RecordingAccount, TapAccounts, TapDirection, TapLossCause, UncopiedReason};
pub use choose::TapMethod;
pub use found::{DescribedTap, FoundTap, described, found};
pub use place::TapState;

use crate::Error;
use guard::TapGuard;
use kernel::KernelTap;
use lanes::{OwnLosses, TapLanes};
use link_state::{LinkWatch, SeenLinks};
use packetrig_engine::capture::record::RecordingOutcome;
use packetrig_engine::port::WorkerClock;
use packetrig_engine::tap_losses::TapLossLog;
use packetrig_plan::PortLocation;
use packetrig_sys::link::Mac;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::bpf::FilterProgram;
use record::RecordThread;
use std::path::PathBuf;

/// Bytes of a frame that copies keep by default.
pub const WHOLE: u32 = 9600;
/// How often the accounts are left for others to read.
const PUBLISH_EVERY: Nanos = Nanos::from_secs(1);

/// An interface that copies go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSpec {
    pub at: PortLocation,
    /// New destination address of copies.
    pub to: Option<Mac>,
}

/// What a tap is to be.
#[derive(Clone, Debug)]
pub struct TapSpec {
    /// For those who look for it.
    pub name: String,
    /// The interfaces of the link.
    pub sides: [PortLocation; 2],
    pub mirrors: Vec<MirrorSpec>,
    /// Frames to copy, as typed and compiled; all if there is none.
    pub filter: Option<(String, FilterProgram)>,
    /// Bytes of a frame that copies keep.
    pub snap_len: Option<u32>,
    /// Whether copies carry a trailer.
    pub trailer: bool,
    /// A file for copies, made anew.
    pub capture: Option<PathBuf>,
    /// The way, if the user insists.
    pub way: Option<TapMethod>,
    /// Forwarding is to end with this process.
    pub fail_closed: bool,
    /// Whether one side goes down while the other has no carrier.
    pub link_state: bool,
    /// Interfaces that the user has confirmed.
    pub confirmed: Vec<PortLocation>,
}

/// Why a tap cannot be like that. The user's to decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TapRefusal {
    /// An interface has two parts.
    #[error("{0} is named twice; side A, side B and each mirror need interfaces of their own")]
    Twice(String),
    /// They are in several namespaces.
    #[error(
        "{0} and {1} are in different network namespaces; all interfaces of a tap must be in the same one"
    )]
    Apart(String, String),
    /// There are too many mirrors.
    #[error("{0} mirrors are too many; a tap can have at most {1}")]
    TooMany(usize, usize),
    /// A name that is none.
    #[error("`{0}` is not a valid tap name; use 1 to 64 letters, digits, `-` or `_`")]
    Name(String),
    /// There is a tap of that name.
    #[error(
        "a tap named `{0}` exists already; `packetrig tap status {0}` shows it, `packetrig tap stop {0}` ends it"
    )]
    Taken(String),
    /// There is none of that name.
    #[error("no tap is named `{0}`; `packetrig tap status` lists all taps")]
    Unknown(String),
    /// The way that the user insists on cannot do this.
    #[error("back end {way} cannot forward here: {reason}")]
    Way { way: TapMethod, reason: String },
    /// It cannot do without its process.
    #[error("--detach needs back end xdp, because back end packet forwards in this process: {0}")]
    NeedsProcess(String),
}

/// A tap at work. Dropping it ends it and restores the interfaces.
pub struct RunningTap {
    plane: TapPlane,
    record: Option<RecordThread>,
    watch: LinkWatch,
    gone: Vec<String>,
    /// Sides that had no carrier at the last look, by name; absent before the first look.
    waiting: Option<Vec<String>>,
    /// For runs beside it; only of a tap that forwards in its process.
    losses: Option<TapLossLog>,
    state: TapState,
    // Behind the forwarding, so that a drop restores the interfaces after it.
    guard: TapGuard,
    began: MonoTime,
    published: MonoTime,
    clock: Box<dyn WorkerClock>,
}

impl std::fmt::Debug for RunningTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningTap").field("state", &self.state).finish_non_exhaustive()
    }
}

enum TapPlane {
    Kernel(KernelTap),
    Process(TapLanes),
}

/// How a tap ended.
#[derive(Debug)]
pub struct TapEnd {
    /// What became of every frame.
    pub accounts: TapAccounts,
    /// Rules that the accounts break.
    pub imbalances: Vec<String>,
    /// What became of the file, if there was to be one.
    pub recorded: Option<RecordingOutcome>,
}

impl RunningTap {
    /// What it is, and why it is so.
    pub fn state(&self) -> &TapState {
        &self.state
    }

    /// All accounts as they are now.
    pub fn accounts(&mut self) -> Result<TapAccounts, Error> {
        let mut accounts = match &mut self.plane {
            TapPlane::Kernel(kernel) => kernel.accounts(&self.state, false)?,
            TapPlane::Process(lanes) => lanes.accounts(&self.state),
        };
        accounts.elapsed = self.clock.now().since(self.began);
        accounts.recording = self.record.as_ref().map(RecordThread::counts);
        Ok(accounts)
    }

    /// To be called some times a second: looks after the links, and leaves the accounts for others to read.
    pub fn tend(&mut self) -> Result<(), Error> {
        let now = self.clock.now();
        if let Some(seen) = self.watch.see(&self.guard.held) {
            if self.watch.pass_on(now, &seen, &mut self.guard.held.sides)? {
                self.guard.remember(&mut self.state)?;
            }
            self.note(&seen);
        }
        if now >= self.published + PUBLISH_EVERY {
            self.published = now;
            let accounts = self.accounts()?;
            self.guard.files.publish(&accounts)?;
        }
        if let TapPlane::Process(lanes) = &mut self.plane {
            lanes.check()?;
            if let Some(log) = &mut self.losses {
                let OwnLosses { looked, frames } = lanes.own_losses();
                // Best effort: a run that finds no news takes the time since the last ones for doubtful.
                drop(log.tell(looked, self.clock.now(), frames));
            }
        }
        Ok(())
    }

    /// Whether a frame that is sent now is forwarded: the forwarding is active since [`RunningTap::begin`], and by the last look both
    /// sides had their carrier and had been taken into service.
    pub fn is_ready(&self) -> bool {
        self.waiting.as_ref().is_some_and(Vec::is_empty)
    }

    /// The sides that a frame could not arrive at or leave from at the last look.
    pub fn waiting(&self) -> &[String] {
        self.waiting.as_deref().unwrap_or_default()
    }

    /// Interfaces that no longer exist. A new one with the same name is another interface, and is not used.
    pub fn gone(&self) -> &[String] {
        &self.gone
    }

    fn note(&mut self, seen: &SeenLinks) {
        let parts = self.state.sides.iter().chain(&self.state.mirrors).zip(seen);
        let gone = parts.filter(|(_, link)| link.is_none()).map(|(part, _)| part.location.clone());
        self.gone = gone.collect();
        let sides = self.state.sides.iter().zip(seen);
        let waiting =
            sides.filter(|(_, link)| !link.as_ref().is_some_and(packetrig_sys::link::Link::is_operational));
        self.waiting = Some(waiting.map(|(side, _)| side.location.clone()).collect());
        if let TapPlane::Process(lanes) = &self.plane {
            lanes.bound(seen);
        }
    }

    /// Ends it: nothing is forwarded from now on, and the interfaces are as they were. If one cannot be restored, this is
    /// an error, and `tap stop` can try again.
    pub fn end(mut self) -> Result<TapEnd, Error> {
        let elapsed = self.clock.now().since(self.began);
        let mut accounts = match &mut self.plane {
            TapPlane::Kernel(kernel) => {
                kernel.end();
                kernel.accounts(&self.state, true)?
            }
            TapPlane::Process(lanes) => {
                lanes.end()?;
                if let Some(log) = self.losses.take() {
                    // Best effort, as in `tend`.
                    drop(log.end(self.clock.now(), lanes.own_losses().frames));
                }
                lanes.accounts(&self.state)
            }
        };
        let recorded = match self.record.take() {
            Some(thread) => {
                let ended = thread.end()?;
                accounts.recording = Some(ended.account);
                Some(ended.outcome)
            }
            None => None,
        };
        accounts.elapsed = elapsed;
        accounts.is_final = true;
        self.guard.restore()?;
        let imbalances = accounts.imbalances();
        Ok(TapEnd { accounts, imbalances, recorded })
    }

    /// Leaves it to the kernel. Only for a tap that goes on without a process.
    pub fn leave(mut self) -> Result<(), Error> {
        self.guard.remember(&mut self.state)?;
        self.guard.leave();
        Ok(())
    }
}
