//! The `xdp` back end: sends live frames, which a BPF program builds in the kernel, and receives through rings that
//! a BPF program fills.
//!
//! To send, user space plans runs of frames (`runs`), and the program builds the frames from tables (`tables`). To
//! receive, the generic receiver reads the frames of [`XdpFrameReceiver`], so they are counted as on every other back end.
//! [`HeaderListener`] delivers only the parts of frames that a flow meter needs.
//!
//! Invariant: streams that the program cannot reproduce exactly are refused by name before the run.

mod headers;
mod runs;
mod rx;
mod socket;
mod switch;
mod tables;
mod tap;
mod tx;

pub use headers::{HeaderListener, HeaderRecord};
pub use rx::XdpFrameReceiver;
pub use socket::SocketTx;
pub use tap::make_filter_translator;
pub use tap::{XdpTap, XdpTapOptions};
pub use tx::LiveSender;

use crate::Error;
use crate::packet::{self, OpenOptions};
use crate::receiver::TestReceiver;
use crate::rig::OpenPort;
use crate::stream::StreamSpec;
use packetrig_plan::Port;
use packetrig_plan::recording::FrameOrigin;
use packetrig_stats::port::{BackEnd, StampKind};
use packetrig_sys::netdev::{self, XdpFeatures};
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::PromiscuousMode;
use packetrig_sys::xdp::rx::{FramesPassedToStack, MAX_WHOLE_FRAME_BYTES, XdpRx, XdpRxOptions};
use packetrig_sys::xdp::tx::{LiveOptions, LiveTx};
use std::sync::Arc;
use switch::{SocketHandover, XdpHold, XdpTransmitHalf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendMethod {
    /// Sends live frames if the interface accepts them, and uses a socket otherwise.
    Live,
    /// Sends through an AF_XDP socket: on request, or for the given reason why live frames are impossible.
    Socket(Option<String>),
}

/// Opens a port of a plan. Sends nothing, and everything that arrives from now on is in the rings. `why` is the reason
/// for this back end.
pub fn open_port(
    port: &Port,
    options: OpenOptions,
    method: SendMethod,
    why: String,
) -> Result<OpenPort, Error> {
    let claim = packet::reserve_interface(port, options.confirmed)?;
    let features = netdev::read_xdp_features(&claim.netns, claim.link.index).unwrap_or_default();
    // Without promiscuous mode a card drops frames for other addresses before the program sees them.
    let promiscuous =
        port.promiscuous.then(|| PromiscuousMode::enable_on(&claim.netns, claim.link.index, &claim.location));
    let mut rx_meter = claim.start_meter()?;
    let pass =
        if options.has_devices { FramesPassedToStack::Neighbours } else { FramesPassedToStack::Nothing };
    let rx_options = XdpRxOptions { native: features.native, snap: MAX_WHOLE_FRAME_BYTES, pass };
    let rx = XdpRx::open_on_interface(&claim.netns, claim.link.index, &claim.location, rx_options, None)?;
    // The count restarts immediately, as in `packet::open_port`: a frame in the ring and not in the interface's count
    // would make the counters of the port disagree.
    rx_meter.restart_interface_counts()?;
    let mut info = claim.port_info(port)?;
    info.back_end = if method == SendMethod::Socket(None) { BackEnd::AfXdp } else { BackEnd::Xdp };
    let receive = if features.native { "in the driver" } else { "in the kernel's generic path" };
    info.why = format!("{why}; XDP receives {receive}");
    info.tx_stamp = StampKind::Software;
    info.rx_stamp = stamp_kind_for(features);
    let exchange = SocketHandover::default();
    // The port begins with live frames: whether the other end of the link accepts them is known only when all ports are
    // open. If it does not, `XdpHold::await_ready` opens a socket and puts it into `exchange`.
    let tx = XdpTransmitHalf::new(LiveSender::new(&claim, claim.start_meter()?)?, exchange.clone());
    let mut hold = XdpHold {
        netns: NetNs::duplicate(&claim.netns)?,
        index: claim.link.index,
        location: claim.location.clone(),
        longest: options.largest.map(|largest| packet::max_frame_len_without_fcs(&claim.link, Some(largest))),
        exchange,
        socket: None,
        _promiscuous: promiscuous.transpose()?,
        port: claim.into_hold(),
    };
    if let SendMethod::Socket(reason) = method {
        hold.switch_to_socket(features, reason.as_deref())?;
    }
    Ok(OpenPort {
        info,
        tx: Box::new(tx),
        rx: Box::new(TestReceiver::new(XdpFrameReceiver::new(rx, rx_meter, stamp_kind_for(features)))),
        hold: Box::new(hold),
    })
}

/// Returns why the frames of flow `number` cannot be live frames, if they cannot.
pub fn live_send_obstacle(number: u16, frames: &FrameOrigin) -> Option<String> {
    let reason = tables::explain_live_refusal(number, frames.template())?;
    Some(format!("flows[{number}]: {reason}"))
}

/// Returns the kind of the arrival stamps, which the program makes in the driver or in the kernel's generic path.
fn stamp_kind_for(features: XdpFeatures) -> StampKind {
    if features.native { StampKind::Driver } else { StampKind::Software }
}

/// Measures how long the BPF programs take for a frame of the first stream, in its smallest size, in ns: (sending,
/// receiving). Uses no interface.
pub fn measure_time_per_frame(streams: &[Arc<StreamSpec>]) -> Result<(u32, u32), Error> {
    let compiled = tables::compile_tables(streams)?;
    let options = LiveOptions { key: 1, late_after_ns: 0, batch: 64, pace: tx::LIVE_FRAME_PACE };
    let mut live = LiveTx::open_on_interface(1, &compiled.tables, options)?;
    let shape = *compiled.shapes[0].values().next().ok_or(Error::Bug("a stream has no frame sizes"))?;
    let len = compiled.tables.shapes[shape as usize].len as usize;
    Ok((live.time_per_frame(shape)?, XdpRx::time_per_frame(&vec![0; len])?))
}
