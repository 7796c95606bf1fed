//! Chooses how a port sends: live frames, or an AF_XDP socket.
//!
//! The plan's needs are known when the port is opened. Whether the interface accepts live frames is known only when
//! all ports are open, because the other end of a virtual cable may be one of them. So the choice is made then,
//! before any worker runs.
//!
//! Invariant: after the choice, the port's description names the method that sends its frames.

use super::socket::SocketTx;
use crate::Error;
use crate::clock::RealClock;
use crate::device::PortInterfaceHandle;
use crate::packet::{InterfaceMeter, PortHold};
use crate::rig::HeldPort;
use crate::sender::TestSender;
use crate::stream::{NextStep, SendingRecord, SteeredSender, StreamControl, StreamTx, TxJob};
use packetrig_stats::counts::StreamTxCounts;
use packetrig_stats::port::{BackEnd, PortInfo, StampKind, TxCounters};
use packetrig_stats::result::SendResult;
use packetrig_sys::netdev::{self, XdpFeatures};
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::PromiscuousMode;
use packetrig_sys::xsk::{XskOptions, XskTx};
use packetrig_units::MonoTime;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of frame slots of a socket: about a millisecond at a million frames/s, in memory that an
/// ordinary user may lock.
const SOCKET_RING_SLOTS: usize = 1024;

/// Passes the socket from the [`XdpHold`] that opened it to the [`XdpTransmitHalf`] that sends through it.
#[derive(Clone, Debug, Default)]
pub(super) struct SocketHandover(Arc<Mutex<Option<SocketTx>>>);

impl SocketHandover {
    fn put_socket(&self, socket: SocketTx) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
    }

    fn take_socket(&self) -> Option<SocketTx> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The transmit half: sends live frames, unless `exchange` contains a socket when this half is armed.
pub(super) struct XdpTransmitHalf {
    sender: Box<dyn StreamTx>,
    exchange: SocketHandover,
}

impl XdpTransmitHalf {
    pub(super) fn new(live: impl StreamTx + 'static, exchange: SocketHandover) -> Self {
        Self { sender: Box::new(live), exchange }
    }
}

impl XdpTransmitHalf {
    /// Sends through the socket from now on, if `exchange` contains one.
    fn send_through_provided_socket(&mut self) {
        if let Some(socket) = self.exchange.take_socket() {
            self.sender = Box::new(TestSender::new(socket, RealClock::new()));
        }
    }
}

impl StreamTx for XdpTransmitHalf {
    fn arm_sender(&mut self, job: TxJob) -> Result<(), Error> {
        self.send_through_provided_socket();
        self.sender.arm_sender(job)
    }

    fn steered_sender(&mut self) -> Option<&mut dyn SteeredSender> {
        // Only a sender with a socket can be steered, so the socket is adopted first. It was opened before the sender
        // is armed, if at all.
        self.send_through_provided_socket();
        self.sender.steered_sender()
    }

    fn apply_control(&mut self, control: StreamControl) {
        self.sender.apply_control(control);
    }

    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        self.sender.send_due(now)
    }

    fn stream_counts(&self) -> Vec<StreamTxCounts> {
        self.sender.stream_counts()
    }

    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        self.sender.port_counters()
    }

    fn sending_record(&self) -> SendingRecord {
        self.sender.sending_record()
    }

    fn finish_sending(&mut self) -> Vec<SendResult> {
        self.sender.finish_sending()
    }
}

/// Keeps the port open and chooses the send method.
#[derive(Debug)]
pub(super) struct XdpHold {
    pub(super) netns: NetNs,
    pub(super) index: u32,
    pub(super) location: String,
    /// Length of the longest frame that the port sends; `None` if the port sends nothing.
    pub(super) longest: Option<usize>,
    pub(super) exchange: SocketHandover,
    /// Description of the socket, if frames leave through one.
    pub(super) socket: Option<String>,
    pub(super) _promiscuous: Option<PromiscuousMode>,
    pub(super) port: PortHold,
}

impl XdpHold {
    /// Opens a socket for the transmit half, which then sends through it. `reason` tells why frames do not leave as
    /// live frames; `None` if the user requested the socket.
    pub(super) fn switch_to_socket(
        &mut self,
        features: XdpFeatures,
        reason: Option<&str>,
    ) -> Result<(), Error> {
        // A port that sends nothing needs no socket.
        let Some(longest) = self.longest else { return Ok(()) };
        let options = XskOptions { slots: SOCKET_RING_SLOTS, longest, zero_copy: features.zero_copy };
        let socket = XskTx::open_on_interface(&self.netns, self.index, &self.location, options)?;
        let mode = socket.mode().name();
        self.socket = Some(match reason {
            None => format!("frames leave through AF_XDP ({mode})"),
            Some(reason) => format!("frames leave through AF_XDP ({mode}), not as live frames: {reason}"),
        });
        self.exchange.put_socket(SocketTx::new(socket, InterfaceMeter::start(&self.netns, self.index)?));
        Ok(())
    }
}

impl HeldPort for XdpHold {
    fn await_ready(&mut self) -> Result<(), Error> {
        self.port.await_carrier()?;
        // The socket was chosen while the port was opened.
        if self.socket.is_some() {
            return Ok(());
        }
        match netdev::read_xdp_features(&self.netns, self.index) {
            Ok(features) if !features.transmit => self.switch_to_socket(
                features,
                Some("the interface, or the other end of its cable, does not accept them"),
            ),
            // The interface accepts live frames, or the kernel cannot tell. In the second case the counters of the
            // receiving port show whether frames arrive.
            _ => Ok(()),
        }
    }

    fn correct_port_info(&self, info: &mut PortInfo) {
        if let Some(socket) = &self.socket {
            info.back_end = BackEnd::AfXdp;
            info.tx_stamp = StampKind::User;
            info.why = format!("{}; {socket}", info.why);
        }
    }

    fn caveats(&self) -> Vec<String> {
        self.port.caveats().to_vec()
    }

    fn device_site(&self) -> Result<Option<PortInterfaceHandle>, Error> {
        Ok(Some(self.port.interface_site()?))
    }

    fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        self.port.switch_link(up)
    }
}
