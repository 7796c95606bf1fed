//! A tap: a frame that arrives at one interface leaves at the other interface, unchanged. Copies go to mirrors
//! or into a file.
//!
//! ```text
//!            +--------- Tap ---------+
//!   A <----->| kernel or process     |<-----> B        back end `xdp`: BPF programs; `packet`: two threads
//!            +---+---------------+---+
//!                | copies        | copies
//!             mirrors          rings -> recorder -> file
//! ```
//! Forwarding comes first: a copy that cannot be made, accepted or written is dropped and counted, and the
//! tap never waits for it. The kernel continues to forward when this process dies; another process finds the
//! tap again ([`find_taps`]) and ends it.
//!
//! Invariant: every frame that arrived was forwarded, or is counted with the reason why not. The same is true
//! of every wanted copy.

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
pub use found::{DescribedTap, FoundTap, describe_taps, find_taps};
pub use place::TapState;

use crate::Error;
use guard::TapGuard;
use kernel::KernelTap;
use lanes::{TapLanes, TapRingLosses};
use link_state::{LinkWatch, PresentInterfaces};
use packetrig_engine::capture::record::RecordingOutcome;
use packetrig_engine::port::WorkerClock;
use packetrig_engine::tap_losses::TapLossLog;
use packetrig_plan::PortLocation;
use packetrig_sys::link::Mac;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::bpf::FilterProgram;
use record::RecordThread;
use std::path::PathBuf;

/// Maximum length of copies by default, in bytes. Longer frames are cut in the copy.
pub const DEFAULT_COPY_BYTES: u32 = 9600;
/// Interval between two publications of the accounts.
const ACCOUNT_PUBLICATION_INTERVAL: Nanos = Nanos::from_secs(1);

/// An interface that receives copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSpec {
    pub at: PortLocation,
    /// New destination MAC address of copies; `None` leaves the address as it is.
    pub to: Option<Mac>,
}

/// Configuration of a tap.
#[derive(Clone, Debug)]
pub struct TapSpec {
    /// Name under which other processes find the tap. If it is empty, a name is made from the sides.
    pub name: String,
    /// The two interfaces of the link.
    pub sides: [PortLocation; 2],
    pub mirrors: Vec<MirrorSpec>,
    /// Filter of the frames to copy, as typed and compiled; all frames if there is none.
    pub filter: Option<(String, FilterProgram)>,
    /// Maximum length of copies, in bytes, without the trailer. Longer frames are cut in the copy.
    pub snap_len: Option<u32>,
    /// True if copies carry a trailer.
    pub trailer: bool,
    /// A file for copies; an existing file is replaced.
    pub capture: Option<PathBuf>,
    /// The back end that the user requires, if any.
    pub way: Option<TapMethod>,
    /// True if forwarding must end with this process.
    pub fail_closed: bool,
    /// True if one side is to be switched down while the other side has no carrier.
    pub link_state: bool,
    /// Interfaces that the user has confirmed.
    pub confirmed: Vec<PortLocation>,
}

/// Reason why the requested tap is not possible; the user can change it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TapRefusal {
    /// One interface has two roles.
    #[error("{0} is named twice; side A, side B and all mirrors must be different interfaces")]
    Twice(String),
    /// The interfaces are in several network namespaces.
    #[error(
        "{0} and {1} are in different network namespaces; all interfaces of a tap must be in the same one"
    )]
    Apart(String, String),
    /// There are too many mirrors.
    #[error("{0} mirrors are too many; a tap can have at most {1}")]
    TooMany(usize, usize),
    /// The name is not valid.
    #[error("`{0}` is not a valid tap name; use 1 to 64 letters, digits, `-` or `_`")]
    Name(String),
    /// A tap with this name exists.
    #[error(
        "a tap named `{0}` exists already; `packetrig tap status {0}` shows it, `packetrig tap stop {0}` ends it"
    )]
    Taken(String),
    /// No tap has this name.
    #[error("no tap is named `{0}`; `packetrig tap status` lists all taps")]
    Unknown(String),
    /// The required back end cannot run this tap.
    #[error("back end `{way}` cannot run this tap: {reason}")]
    Way { way: TapMethod, reason: String },
    /// The tap cannot work without its process.
    #[error(
        "--detach needs back end `xdp`, but this tap uses `packet`, which forwards in this process (reason: {0})"
    )]
    NeedsProcess(String),
}

/// A running tap. Dropping it ends it and restores the interfaces.
pub struct RunningTap {
    plane: TapForwardingBackEnd,
    record: Option<RecordThread>,
    watch: LinkWatch,
    gone: Vec<String>,
    /// Locations of sides that were not operational at the last poll; `None` before the first poll.
    waiting: Option<Vec<String>>,
    /// Log from which runs on the same link learn the tap's own losses; only if the tap forwards in this process.
    losses: Option<TapLossLog>,
    state: TapState,
    // The guard is declared after the forwarding, so that a drop ends the forwarding before it restores the
    // interfaces.
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

enum TapForwardingBackEnd {
    Kernel(KernelTap),
    Process(TapLanes),
}

/// Result of a tap that has ended.
#[derive(Debug)]
pub struct EndedTapResult {
    /// Final accounts of all frames.
    pub accounts: TapAccounts,
    /// Accounting rules that the accounts break.
    pub imbalances: Vec<String>,
    /// Result of the recording, if there was one.
    pub recorded: Option<RecordingOutcome>,
}

impl RunningTap {
    /// Returns the saved state of the tap: its interfaces, its back end, the reason for that back end, and limitations.
    pub fn state(&self) -> &TapState {
        &self.state
    }

    /// Reads all accounts as they are now.
    pub fn read_accounts(&mut self) -> Result<TapAccounts, Error> {
        let mut accounts = match &mut self.plane {
            TapForwardingBackEnd::Kernel(kernel) => kernel.read_accounts(&self.state, false)?,
            TapForwardingBackEnd::Process(lanes) => lanes.read_accounts(&self.state),
        };
        accounts.elapsed = self.clock.now().since(self.began);
        accounts.recording = self.record.as_ref().map(RecordThread::counts);
        Ok(accounts)
    }

    /// Polls the links, passes on a change of the carrier, publishes the accounts once a second, and returns the error
    /// of a forwarding thread that has ended. Call it several times a second.
    pub fn poll_once(&mut self) -> Result<(), Error> {
        let now = self.clock.now();
        if let Some(seen) = self.watch.poll_links(&self.guard.held) {
            if self.watch.forward_link_state(now, &seen, &mut self.guard.held.sides)? {
                self.guard.save_state(&mut self.state)?;
            }
            self.update_link_states(&seen);
        }
        // Each publication reads all counters and replaces a file, so not every poll makes one.
        if now >= self.published + ACCOUNT_PUBLICATION_INTERVAL {
            self.published = now;
            let accounts = self.read_accounts()?;
            self.guard.files.save_accounts(&accounts)?;
        }
        if let TapForwardingBackEnd::Process(lanes) = &mut self.plane {
            lanes.check_threads()?;
            if let Some(log) = &mut self.losses {
                let TapRingLosses { looked, frames } = lanes.own_losses();
                // An error is ignored: without this report, a run treats the time since the last one as doubtful.
                drop(log.report_losses(looked, self.clock.now(), frames));
            }
        }
        Ok(())
    }

    /// True if a frame that is sent now is forwarded: the forwarding has been active since [`RunningTap::begin_tap`], and at the
    /// last poll both sides had their carrier and were operational.
    pub fn is_ready(&self) -> bool {
        self.waiting.as_ref().is_some_and(Vec::is_empty)
    }

    /// Sides that were not operational at the last poll: no frame could arrive or leave there.
    pub fn waiting_sides(&self) -> &[String] {
        self.waiting.as_deref().unwrap_or_default()
    }

    /// Interfaces of the tap that no longer exist. A new interface with the same name is a different one
    /// and is not used.
    pub fn gone_interfaces(&self) -> &[String] {
        &self.gone
    }

    fn update_link_states(&mut self, seen: &PresentInterfaces) {
        let parts = self.state.sides.iter().chain(&self.state.mirrors).zip(seen);
        let gone = parts.filter(|(_, link)| link.is_none()).map(|(part, _)| part.location.clone());
        self.gone = gone.collect();
        let sides = self.state.sides.iter().zip(seen);
        let waiting =
            sides.filter(|(_, link)| !link.as_ref().is_some_and(packetrig_sys::link::Link::is_operational));
        self.waiting = Some(waiting.map(|(side, _)| side.location.clone()).collect());
        if let TapForwardingBackEnd::Process(lanes) = &self.plane {
            lanes.update_mtus(seen);
        }
    }

    /// Ends the tap: it forwards no more frames, and its interfaces get their earlier settings back. If an
    /// interface cannot be restored, returns an error, and `tap stop` can try again.
    pub fn end_tap(mut self) -> Result<EndedTapResult, Error> {
        let elapsed = self.clock.now().since(self.began);
        let mut accounts = match &mut self.plane {
            TapForwardingBackEnd::Kernel(kernel) => {
                kernel.end_forwarding();
                kernel.read_accounts(&self.state, true)?
            }
            TapForwardingBackEnd::Process(lanes) => {
                lanes.end_forwarding()?;
                if let Some(log) = self.losses.take() {
                    // An error is ignored, as in `poll_once`.
                    drop(log.close_loss_log(self.clock.now(), lanes.own_losses().frames));
                }
                lanes.read_accounts(&self.state)
            }
        };
        let recorded = match self.record.take() {
            Some(thread) => {
                let ended = thread.end_recording()?;
                accounts.recording = Some(ended.account);
                Some(ended.outcome)
            }
            None => None,
        };
        accounts.elapsed = elapsed;
        // This happens only here: forwarding and recording have ended, so no frame is in transit.
        accounts.is_final = true;
        // This is the last step that can fail: the recording is complete by now, whatever happens to the interfaces.
        self.guard.restore_interfaces()?;
        let imbalances = accounts.find_imbalances();
        Ok(EndedTapResult { accounts, imbalances, recorded })
    }

    /// Leaves the forwarding to the kernel when this process ends. Only for a tap that can continue without a process.
    pub fn leave_forwarding_to_kernel(mut self) -> Result<(), Error> {
        // The process that ends the tap later needs all changes made so far.
        self.guard.save_state(&mut self.state)?;
        self.guard.leave_interfaces();
        Ok(())
    }
}
