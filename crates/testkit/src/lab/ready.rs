//! Waits until a bridge forwards frames. A bridge begins to forward some time after its ports are up, and no state of
//! the kernel shows this reliably, so this module sends frames until one arrives.

use super::{INTERFACE, LabPort};
use packetrig_sys::packet::{RxOptions, RxRing, TxOptions, TxRing};
use packetrig_sys::{Error, UnsupportedFeature, clock};

/// EtherType that IEEE 802 reserves for local experiments.
const READY_FRAME_ETHERTYPE: [u8; 2] = [0x88, 0xb5];
// The shortest Ethernet frame has 64 bytes; its 4 bytes of FCS are not in the ring.
const LENGTH: usize = 60;
const FORWARDING_TIMEOUT_NS: u64 = 10_000_000_000;
const READY_FRAME_INTERVAL_NS: u64 = 2_000_000;

/// Waits until frames from the first port reach all other ports, and frames from all other ports reach the first one.
pub(super) fn await_forwarding(ports: &[LabPort]) -> Result<(), Error> {
    let Some((first, others)) = ports.split_first() else { return Ok(()) };
    // A bridge port forwards to all ports or to none, so it is enough to test each pair with the first port.
    for other in others {
        await_test_frame(first, other)?;
        await_test_frame(other, first)?;
    }
    Ok(())
}

fn await_test_frame(from: &LabPort, to: &LabPort) -> Result<(), Error> {
    let small = RxOptions { blocks: 4, retire_ms: 1, ..RxOptions::default() };
    let mut rx = RxRing::open_on_interface(to.netns(), to.link.index, INTERFACE, small)?;
    let options = TxOptions { slots: 16, ..TxOptions::default() };
    let mut tx = TxRing::open_on_interface(from.netns(), from.link.index, INTERFACE, options)?;
    let deadline = clock::monotonic_ns() + FORWARDING_TIMEOUT_NS;
    while clock::monotonic_ns() < deadline {
        if let Some(slot) = tx.next_slot() {
            slot[..LENGTH].fill(0);
            slot[..6].fill(0xff);
            // The frame is a broadcast from a locally administered address, so the bridge floods it and does
            // not learn the address of a port.
            slot[6] = 0x02;
            slot[12..14].copy_from_slice(&READY_FRAME_ETHERTYPE);
            tx.commit_frame(LENGTH);
        }
        tx.kick_kernel()?;
        rx.wait_for_frames(READY_FRAME_INTERVAL_NS)?;
        let mut arrived = false;
        rx.receive_frames(usize::MAX, &mut |frame| {
            arrived |= frame.bytes.get(12..14) == Some(&READY_FRAME_ETHERTYPE);
        });
        if arrived {
            return Ok(());
        }
    }
    Err(UnsupportedFeature {
        feature: "a bridge between network namespaces",
        needs: "a kernel whose bridge forwards frames within ten seconds".into(),
        found: format!("no frame from {} to {} in this time", from.location(), to.location()),
    }
    .into())
}
