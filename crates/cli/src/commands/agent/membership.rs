//! Keeps the membership of a node valid, and notices when the operator has taken the node out of the fleet.

use super::NodeHome;
use crate::error::Error;
use crate::output::remark;
use packetrig_fleet::fabric::Error as FabricError;
use packetrig_nats::NatsFabric;
use packetrig_nats::enrol::{self, FleetMembership};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often the certificate is checked for its end.
const RENEWAL: Nanos = Nanos::from_secs(6 * 3600);
/// How often it is looked whether the server refuses this node.
const LOOK: Duration = Duration::from_secs(1);
/// Refused connections in a row until the fleet is asked: a server that reads its configuration again refuses everybody meanwhile.
const MANY_REFUSED: u32 = 4;
/// Between two such questions.
const QUESTION_PAUSE: Nanos = Nanos::from_secs(20);

/// A thread that looks after the membership as long as the process lives.
#[derive(Debug)]
pub(super) struct MembershipWatch {
    removed: Arc<OnceLock<enrol::Error>>,
}

impl MembershipWatch {
    /// Starts it. Once the node is not in the fleet any more, `over` is set.
    pub(super) fn start(home: &NodeHome, fabric: NatsFabric, over: Arc<AtomicBool>) -> Result<Self, Error> {
        let removed = Arc::new(OnceLock::new());
        let job = WatchJob { home: home.clone(), fabric, over, removed: Arc::clone(&removed) };
        let started = std::thread::Builder::new().name("membership".to_owned()).spawn(move || job.run());
        started.map_err(packetrig_fleet_io::Error::Thread)?;
        Ok(Self { removed })
    }

    /// The error with which the node ends, if it was taken out.
    pub(super) fn finish(self) -> Result<(), Error> {
        match self.removed.get() {
            Some(enrol::Error::Removed(why)) => Err(enrol::Error::Removed(why.clone()).into()),
            _ => Ok(()),
        }
    }
}

struct WatchJob {
    home: NodeHome,
    fabric: NatsFabric,
    over: Arc<AtomicBool>,
    removed: Arc<OnceLock<enrol::Error>>,
}

impl WatchJob {
    fn run(&self) {
        let (mut renewed_at, mut asked_at) = (None, None);
        while self.removed.get().is_none() {
            if is_due(renewed_at, RENEWAL) {
                renewed_at = Some(clock::boottime_ns());
                self.renew();
            }
            if self.fabric.refused_log_ins() >= MANY_REFUSED && is_due(asked_at, QUESTION_PAUSE) {
                asked_at = Some(clock::boottime_ns());
                self.ask_whether_removed();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Open connections stay; the next one uses the new certificate.
    fn renew(&self) {
        match super::renew(&self.home) {
            Ok(Some(renewed)) => self.fabric.renew(renewed.newest()),
            Ok(None) => {}
            // The next attempt is six hours away, so a line for each failure is no flood.
            Err(error) => remark(format_args!("cannot renew the certificate of this node: {error}")),
        }
    }

    fn ask_whether_removed(&self) {
        if let Some(removed) = removal(&self.home) {
            // Nobody else sets it.
            drop(self.removed.set(removed));
            self.over.store(true, Ordering::Release);
        }
    }
}

fn is_due(last_ns: Option<u64>, every: Nanos) -> bool {
    last_ns.is_none_or(|last| clock::boottime_ns().saturating_sub(last) >= every.as_u64())
}

/// The error if the fleet says that this node is not in it any more. A fleet that does not answer says nothing.
fn removal(home: &NodeHome) -> Option<enrol::Error> {
    let membership = FleetMembership::load(&home.membership()).ok()?;
    match enrol::renew(&membership) {
        Err(enrol::Error::Refused(why)) => Some(enrol::Error::Removed(why)),
        _ => None,
    }
}

/// Why the message server does not let the node in: if the node was removed, that is the reason.
pub(super) fn why_refused(home: &NodeHome, error: FabricError) -> Error {
    let removed = matches!(error, FabricError::NotPermitted(_)).then(|| removal(home)).flatten();
    removed.map_or_else(|| packetrig_fleet_io::Error::from(error).into(), Error::Enrol)
}
