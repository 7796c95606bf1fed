//! Reports on sent packets in a socket's error queue: stamps of their departure, and drops because
//! of their release time.

use super::{ControlMessages, ControlledMessage, PacketStamps};
use crate::Error;
use std::os::fd::AsFd;

/// `SO_EE_ORIGIN_TXTIME`, and its codes (linux/errqueue.h).
const ORIGIN_RELEASE_TIME: u8 = 6;
const CODE_MISSED: u8 = 2;

/// Stage that a packet had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketSendStage {
    /// Entered the queueing discipline.
    Queued,
    /// Handed to the driver (software stamp), or sent onto the wire (stamp of the device).
    Sent,
}

/// Kernel's report on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelReport {
    /// The packet reached this stage.
    Departed {
        /// Number of the packet, from 0 on.
        number: u32,
        stage: PacketSendStage,
        stamps: PacketStamps,
    },
    /// The packet was dropped because its release time passed while it was queued.
    Missed {
        /// The release time of the packet.
        at_ns: u64,
    },
    /// The queueing discipline refused the packet, because its release time or clock was invalid.
    Invalid {
        /// The release time of the packet.
        at_ns: u64,
    },
    /// Another report, with the numbers of `sock_extended_err`.
    Other { errno: u32, origin: u8 },
}

/// Calls `take` with every waiting report; does not wait for more. Returns how many reports there were.
pub fn drain_reports(socket: &impl AsFd, take: &mut dyn FnMut(KernelReport)) -> Result<usize, Error> {
    let mut message = ControlledMessage::new();
    let mut count = 0;
    let flags = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
    while message.receive_from(socket, &mut [0; 64], flags)?.is_some() {
        if let Some(report) = kernel_report_from(message.control_messages()) {
            take(report);
            count += 1;
        }
    }
    Ok(count)
}

/// Builds a report. Error and stamp may come in any order.
pub(super) fn kernel_report_from(controls: ControlMessages<'_>) -> Option<KernelReport> {
    let mut error = None;
    let mut stamps = PacketStamps::default();
    for control in controls {
        let carries_error = matches!(
            (control.level, control.kind),
            (libc::SOL_PACKET, libc::PACKET_TX_TIMESTAMP)
                | (libc::IPPROTO_IP, libc::IP_RECVERR)
                | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        if carries_error {
            error = ExtendedError::from_bytes(control.data);
        } else if let Some(found) = control.read_stamps() {
            stamps = found;
        }
    }
    error.map(|error| error.to_report(stamps))
}

/// `struct sock_extended_err`.
struct ExtendedError {
    errno: u32,
    origin: u8,
    code: u8,
    info: u32,
    data: u32,
}

impl ExtendedError {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            errno: number_at(bytes, 0)?,
            origin: *bytes.get(4)?,
            code: *bytes.get(6)?,
            info: number_at(bytes, 8)?,
            data: number_at(bytes, 12)?,
        })
    }

    fn to_report(&self, stamps: PacketStamps) -> KernelReport {
        match (self.origin, self.info) {
            (libc::SO_EE_ORIGIN_TIMESTAMPING, SENT_STAMP) => {
                KernelReport::Departed { number: self.data, stage: PacketSendStage::Sent, stamps }
            }
            (libc::SO_EE_ORIGIN_TIMESTAMPING, QUEUED_STAMP) => {
                KernelReport::Departed { number: self.data, stage: PacketSendStage::Queued, stamps }
            }
            (ORIGIN_RELEASE_TIME, low) => {
                // `ee_data` and `ee_info` hold the upper and the lower half of the release time (linux/errqueue.h).
                let at_ns = u64::from(self.data) << 32 | u64::from(low);
                if self.code == CODE_MISSED {
                    KernelReport::Missed { at_ns }
                } else {
                    KernelReport::Invalid { at_ns }
                }
            }
            _ => KernelReport::Other { errno: self.errno, origin: self.origin },
        }
    }
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// `SCM_TSTAMP_SND`, `SCM_TSTAMP_SCHED`.
const SENT_STAMP: u32 = 0;
const QUEUED_STAMP: u32 = 1;
