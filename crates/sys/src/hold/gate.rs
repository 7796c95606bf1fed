//! The gate: a program at an interface's egress that holds the frames of one socket back until the release times they carry.
//!
//! A [`KernelGate`] owns the program's attachment, which ends with it and with the process; frames of
//! other programs pass unchanged.

use super::{GATE_PROGRAM, GatedFrame, MAX_HELD_NS, SHARED_TABLE_BYTES, read_gated_frame, read_passed_count};
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
    pub fn open_gate_at_egress(netns: &NetNs, index: u32, name: &str, cookie: u64) -> Result<Self, Error> {
        let map = BpfMap::create_zeroed("gate", MapKind::SharedArray, SHARED_TABLE_BYTES, 1)?;
        let program = BpfProgram::load_program_for(
            AttachPoint::Egress,
            "gate",
            &GATE_PROGRAM.link_program("tc", &[&map])?,
            false,
        )?;
        let table = map.share_memory()?;
        // Both values are written before the program is attached, so that its first frame finds both.
        table.atomic_u64(COOKIE).store(cookie, Ordering::Relaxed);
        table.atomic_u64(MOST).store(MAX_HELD_NS, Ordering::Release);
        let attached = program.attach_egress(netns, index, name);
        let attachment = attached.map_err(|error| match error.errno() {
            Some(libc::EINVAL) => UnsupportedFeature {
                feature: "a gate at egress",
                needs: "Linux 6.6 (tcx)".into(),
                found: kernel::kernel_release_name(),
            }
            .into(),
            _ => error,
        })?;
        Ok(Self { table, _attachment: attachment })
    }

    /// Frames that have passed so far.
    pub fn passed_count(&self) -> u64 {
        read_passed_count(&self.table, PASSED)
    }

    /// Record of frame `number`, counted from 0, one of the last [`super::MAX_HELD_FRAMES`] that passed.
    pub fn gated_frame(&self, number: u64) -> GatedFrame {
        read_gated_frame(&self.table, number)
    }
}
