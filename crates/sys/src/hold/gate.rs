//! The gate: a program at an interface's egress that holds the frames of one socket back until the release times they carry.
//!
//! A [`KernelGate`] owns the program's attachment, which ends with it and with the process; frames of others pass untouched.

use super::{GATE, GatedFrame, MOST_HELD_NS, TABLE, held, passed};
use crate::area::SharedArea;
use crate::bpf::{AttachPoint, BpfAttachment, BpfMap, BpfProgram, MapKind};
use crate::{Error, UnsupportedFeature, kernel, netns::NetNs};
use std::sync::atomic::Ordering;

use crate::layout::gate::gate::{COOKIE, MOST, PASSED};

#[derive(Debug)]
pub struct KernelGate {
    table: SharedArea,
    _attachment: BpfAttachment,
}

impl KernelGate {
    /// Attaches to the egress of the interface with this number, for the frames of the socket with this cookie.
    pub fn open(netns: &NetNs, index: u32, name: &str, cookie: u64) -> Result<Self, Error> {
        let map = BpfMap::create("gate", MapKind::SharedArray, TABLE, 1)?;
        let program =
            BpfProgram::load_for(AttachPoint::Egress, "gate", &GATE.program("tc", &[&map])?, false)?;
        let table = map.share()?;
        // Before the program is attached, so that its first frame finds both.
        table.long(COOKIE).store(cookie, Ordering::Relaxed);
        table.long(MOST).store(MOST_HELD_NS, Ordering::Release);
        let attached = program.attach_egress(netns, index, name);
        let attachment = attached.map_err(|error| match error.errno() {
            Some(libc::EINVAL) => UnsupportedFeature {
                feature: "a gate at egress",
                needs: "Linux 6.6 (tcx)".into(),
                found: kernel::release(),
            }
            .into(),
            _ => error,
        })?;
        Ok(Self { table, _attachment: attachment })
    }

    /// Frames that have passed so far.
    pub fn passed(&self) -> u64 {
        passed(&self.table, PASSED)
    }

    /// Record of frame `number`, counted from 0, one of the last [`super::SLOTS`] that passed.
    pub fn held(&self, number: u64) -> GatedFrame {
        held(&self.table, number)
    }
}
