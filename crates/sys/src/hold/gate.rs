//! The gate: a program at an interface's egress that holds the frames of one socket back until their release times.
//!
//! A [`KernelGate`] owns the program's attachment, which ends when the value is dropped or the process ends. Frames of
//! other sockets pass unchanged.

use super::{
    FrameReleaseRecord, GATE_PROGRAM, MAX_HELD_NS, SHARED_TABLE_BYTES, load_release_counter,
    load_release_record,
};
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
    /// Attaches the program to the egress of interface number `index`. It holds only the frames of the socket
    /// with this cookie (`SO_COOKIE`).
    pub fn attach_gate_at_egress(netns: &NetNs, index: u32, name: &str, cookie: u64) -> Result<Self, Error> {
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
                feature: "holding frames back at an interface's egress",
                needs: "Linux 6.6 (tcx)".into(),
                found: kernel::kernel_release_name(),
            }
            .into(),
            _ => error,
        })?;
        Ok(Self { table, _attachment: attachment })
    }

    /// Number of frames of the socket that have passed the gate so far.
    pub fn passed_count(&self) -> u64 {
        load_release_counter(&self.table, PASSED)
    }

    /// Returns the record of frame `number`, counted from 0. The frame must be one of the
    /// last [`super::MAX_HELD_FRAMES`] that passed.
    pub fn gated_frame(&self, number: u64) -> FrameReleaseRecord {
        load_release_record(&self.table, number)
    }
}
