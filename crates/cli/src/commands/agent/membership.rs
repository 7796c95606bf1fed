//! Keeps the membership of a node valid, and notices when the operator has taken the node out of the fleet.

use super::NodeHome;
use crate::error::Error;
use crate::output::print_remark;
use packetrig_fleet::fabric::Error as FabricError;
use packetrig_nats::NatsFabric;
use packetrig_nats::enrol::{self, FleetMembership};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Interval between two checks whether the certificate expires soon.
const CERTIFICATE_CHECK_INTERVAL: Nanos = Nanos::from_secs(6 * 3600);
/// Interval between two checks of the number of refused log-ins.
const LOGIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of refused log-ins after which the node checks whether it was removed. Fewer are normal: a message server
/// that reloads its configuration refuses every log-in for a moment.
const MAX_REFUSED_LOGINS: u32 = 4;
/// Shortest time between two checks whether this node was removed.
const QUESTION_PAUSE: Nanos = Nanos::from_secs(20);

/// Expiry of the certificate, in seconds since 1970; 0 if it is not known. All clones share one value.
#[derive(Clone, Debug)]
pub(super) struct CertificateExpiry(Arc<AtomicU64>);

impl CertificateExpiry {
    pub(super) fn from_membership(membership: &FleetMembership) -> Self {
        Self(Arc::new(AtomicU64::new(membership.expires().unwrap_or(0))))
    }

    pub(super) fn read_expiry_seconds(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|seconds| *seconds > 0)
    }

    fn update_certificate_expiry(&self, renewed: &FleetMembership) {
        self.0.store(renewed.expires().unwrap_or(0), Ordering::Relaxed);
    }
}

/// A thread that renews the certificate and watches for removal as long as the process runs.
#[derive(Debug)]
pub(super) struct MembershipWatch {
    removed: Arc<OnceLock<enrol::Error>>,
}

impl MembershipWatch {
    /// Starts the thread. It sets `over` once the node is not in the fleet any more.
    pub(super) fn start_thread(
        home: &NodeHome,
        fabric: NatsFabric,
        expiry: CertificateExpiry,
        over: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let removed = Arc::new(OnceLock::new());
        let job = WatchJob { home: home.clone(), fabric, expiry, over, removed: Arc::clone(&removed) };
        let started =
            std::thread::Builder::new().name("membership".to_owned()).spawn(move || job.watch_membership());
        started.map_err(packetrig_fleet_io::Error::Thread)?;
        Ok(Self { removed })
    }

    /// Fails if the operator removed this node from the fleet; the error then ends the command.
    pub(super) fn into_result(self) -> Result<(), Error> {
        match self.removed.get() {
            Some(enrol::Error::Removed(why)) => Err(enrol::Error::Removed(why.clone()).into()),
            _ => Ok(()),
        }
    }
}

struct WatchJob {
    home: NodeHome,
    fabric: NatsFabric,
    expiry: CertificateExpiry,
    over: Arc<AtomicBool>,
    removed: Arc<OnceLock<enrol::Error>>,
}

impl WatchJob {
    fn watch_membership(&self) {
        let (mut renewed_at, mut asked_at) = (None, None);
        // A removed node has nothing left to renew: the loop ends, and the process with it.
        while self.removed.get().is_none() {
            if is_due(renewed_at, CERTIFICATE_CHECK_INTERVAL) {
                renewed_at = Some(clock::boottime_ns());
                self.renew_certificate();
            }
            if self.fabric.refused_log_ins() >= MAX_REFUSED_LOGINS && is_due(asked_at, QUESTION_PAUSE) {
                asked_at = Some(clock::boottime_ns());
                self.check_node_removal();
            }
            std::thread::sleep(LOGIN_CHECK_INTERVAL);
        }
    }

    /// Renews the certificate if a renewal is due. Open connections stay open; later ones use the new certificate.
    fn renew_certificate(&self) {
        match super::renew_membership_if_due(&self.home) {
            Ok(Some(renewed)) => {
                self.expiry.update_certificate_expiry(&renewed);
                self.fabric.renew_credentials(renewed.renewed_credentials());
            }
            Ok(None) => {}
            // The next attempt is six hours away, so printing every failure does not flood the log.
            Err(error) => print_remark(format_args!(
                "cannot renew the certificate of this node: {error}; the agent tries again in six hours"
            )),
        }
    }

    fn check_node_removal(&self) {
        if let Some(removed) = find_removal_by_renewing(&self.home) {
            // Only this thread sets `removed`, and its loop ends then: `set` cannot fail.
            drop(self.removed.set(removed));
            self.over.store(true, Ordering::Release);
        }
    }
}

fn is_due(last_ns: Option<u64>, every: Nanos) -> bool {
    // CLOCK_BOOTTIME counts suspended time, too: certificates also expire while the machine sleeps.
    last_ns.is_none_or(|last| clock::boottime_ns().saturating_sub(last) >= every.as_u64())
}

/// Requests a renewal of the certificate only to find out whether the operator removed this node: then the server
/// refuses the renewal, and its error is returned. `None` otherwise, also if no answer comes.
fn find_removal_by_renewing(home: &NodeHome) -> Option<enrol::Error> {
    let membership = FleetMembership::load_from(&home.membership_file()).ok()?;
    match enrol::renew_membership(&membership) {
        // Only a refusal by the enrolment server proves a removal. All other errors may be network failures.
        Err(enrol::Error::Refused(why)) => Some(enrol::Error::Removed(why)),
        _ => None,
    }
}

/// Error for a refusal by the message server. If the fleet has removed the node, the error says so.
pub(super) fn refusal_error(home: &NodeHome, error: FabricError) -> Error {
    let removed =
        matches!(error, FabricError::NotPermitted(_)).then(|| find_removal_by_renewing(home)).flatten();
    removed.map_or_else(|| packetrig_fleet_io::Error::from(error).into(), Error::Enrol)
}
