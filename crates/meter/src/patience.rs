//! Whether to wait for room in a queue, or to lose.
//!
//! A live meter never waits: packets do not wait for it either. A meter of files has the time, until its user wants it to end
//! or a queue has had no room for ten seconds: then whoever is behind it is as good as dead.

use crossbeam_channel::{SendTimeoutError, Sender, TrySendError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often one who waits looks whether to go on.
const LOOK: Duration = Duration::from_millis(20);
/// So many looks without room are the end of it.
const LOOKS: u32 = 500;

/// See the module. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<AtomicBool>);

impl Patience {
    /// With patience, until it is [ended](Self::end).
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// From now on nobody waits.
    pub fn end(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Puts something into a queue, waiting for room if there is patience; gives it back if nothing came of it.
    pub(crate) fn give<T>(&self, queue: &Sender<T>, mut value: T) -> Result<(), T> {
        for _ in 0..LOOKS {
            if !self.0.load(Ordering::Acquire) {
                break;
            }
            match queue.send_timeout(value, LOOK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) => value = back,
                Err(SendTimeoutError::Disconnected(back)) => return Err(back),
            }
        }
        self.end();
        queue.try_send(value).map_err(TrySendError::into_inner)
    }

    /// Waits until all of these have room, if there is patience.
    pub(crate) fn await_room<T>(&self, queues: &[Sender<T>]) {
        let mut looks = 0;
        while queues.iter().any(Sender::is_full) && self.0.load(Ordering::Acquire) {
            std::thread::sleep(LOOK / 20);
            looks += 1;
            if looks >= LOOKS * 20 {
                self.end();
            }
        }
    }
}
