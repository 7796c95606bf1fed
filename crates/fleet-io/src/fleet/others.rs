//! Finds out which other controllers are running, and removes the records of those that are not.

use super::{ControllerPresence, FREE_NODE_CHECK_INTERVAL, FleetExecutor};
use crate::agent::now;
use crate::error::Error;
use packetrig_fleet::fabric::{self, Fabric, RecordStore as _};
use packetrig_fleet::term::{OtherControllerTerm, TermRecord, TermState};
use packetrig_sys::clock;
use std::collections::BTreeSet;

impl<F: Fabric> FleetExecutor<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    pub fn controller(&self) -> &str {
        &self.me.controller
    }

    /// Reads the record of a controller, and judges the state of its term.
    fn read_controller_term(&mut self, controller: &str) -> Result<OtherControllerTerm, Error> {
        let is_there = ControllerPresence::build_presence_lookup(self.presence.as_ref());
        Ok(self.watch.read_controller_term(&mut self.records, controller, &is_there, now())?)
    }

    /// Selects the controllers that are running. A single check of a controller on another host proves nothing, so
    /// the check is repeated until the result is clear, as long as `goes_on` returns true. A controller that stays
    /// unclear counts as running.
    pub fn select_running_controllers(
        &mut self,
        controllers: &BTreeSet<String>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<BTreeSet<String>, Error> {
        let mut at_work = BTreeSet::new();
        let mut unclear = controllers.clone();
        // This process is certainly running, so its own record need not be read.
        if unclear.remove(&self.me.controller) {
            at_work.insert(self.me.controller.clone());
        }
        loop {
            for controller in std::mem::take(&mut unclear) {
                let seen = self.read_controller_term(&controller)?;
                match seen.state {
                    TermState::Over | TermState::Dead(_) => {}
                    TermState::Alive => _ = at_work.insert(controller),
                    TermState::Unclear(_) => _ = unclear.insert(controller),
                }
            }
            if unclear.is_empty() || !goes_on() {
                // An unclear controller counts as running: two controllers must not end the same run.
                at_work.append(&mut unclear);
                return Ok(at_work);
            }
            clock::sleep_until_ns((now() + FREE_NODE_CHECK_INTERVAL).as_nanos());
        }
    }

    /// Removes the records of dead controllers, and of controllers that another controller has ended. A missing record
    /// means the same as an ended one: in both cases the refresh of a controller that wakes up is refused.
    pub fn remove_dead_controllers(&mut self) -> Result<(), Error> {
        for key in self.records.list_keys(TermRecord::KEY_PREFIX)? {
            let Some(controller) = key.strip_prefix(TermRecord::KEY_PREFIX) else { continue };
            let seen = self.read_controller_term(controller)?;
            let Some(record) = seen.record else { continue };
            let ended = match seen.state {
                TermState::Over => Ok(()),
                TermState::Dead(revision) => record.end_term_if_unchanged(&mut self.records, revision),
                TermState::Alive | TermState::Unclear(_) => continue,
            };
            match ended {
                Ok(()) => self.records.remove_record(&key)?,
                // The record was refreshed in between, so the controller is running after all.
                Err(fabric::Error::Stale(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
