//! The back end `xdp`: BPF programs forward and copy frames; this module turns their counters into accounts.

use super::account::{
    MirrorAccount, TapAccounts, TapDirection, TapLossCause, UncopiedReason, nonzero_counts,
};
use super::place::TapState;
use crate::Error;
use packetrig_sys::clock;
use packetrig_sys::xdp::tap::{TapCounts, TapForwarding};

/// Time after which frames that were in transit have been counted, once the programs are detached.
const TRANSIT_COUNTED_AFTER_NS: u64 = 30_000_000;

pub(super) struct KernelTap {
    pub(super) forwarding: TapForwarding,
}

impl KernelTap {
    pub(super) fn read_accounts(&self, state: &TapState, is_final: bool) -> Result<TapAccounts, Error> {
        read_accounts(self.forwarding.counts(), state, is_final)
    }

    /// Ends the forwarding; the counters can still be read.
    pub(super) fn end_forwarding(&mut self) {
        self.forwarding.end_forwarding();
        wait_until_counted();
    }
}

/// Waits until frames in transit have been counted.
pub(super) fn wait_until_counted() {
    clock::sleep_until_ns(clock::monotonic_ns() + TRANSIT_COUNTED_AFTER_NS);
}

/// Computes the accounts from the counters.
pub(super) fn read_accounts(
    counts: &TapCounts,
    state: &TapState,
    is_final: bool,
) -> Result<TapAccounts, Error> {
    let directions =
        [0, 1].into_iter().map(|side| read_direction(counts, state, side)).collect::<Result<_, _>>()?;
    Ok(TapAccounts { is_final, directions, ..TapAccounts::default() })
}

fn read_direction(counts: &TapCounts, state: &TapState, side: usize) -> Result<TapDirection, Error> {
    // The counters of arriving frames are read first, so that a frame in transit does not look lost.
    let inbound = counts.read_inbound_counts(side)?;
    let failed = counts.read_failed_redirects(side)?;
    let handed = counts.read_forwarded_counts(side)?;
    // Saturating, because the counters change while they are read.
    let tried = inbound.received.saturating_sub(inbound.gone);
    let refused = failed.down + failed.too_long + failed.memory + failed.deaf + failed.other;
    let seen = handed.sent + handed.dropped + refused;
    // The kernel skips an outgoing interface silently only if the frame goes to several interfaces.
    let passed_over = if state.knows_drivers { tried.saturating_sub(seen).min(inbound.wanted) } else { 0 };
    let mirrors = (0..state.mirrors.len())
        .map(|mirror| read_mirror_account(counts, state, side, mirror, inbound.wanted));
    Ok(TapDirection {
        from: state.sides[side].location.clone(),
        to: state.sides[1 - side].location.clone(),
        received: inbound.received,
        received_bytes: inbound.bytes,
        // The programs only forward and copy; impairments need the process.
        made: 0,
        forwarded: state.knows_drivers.then_some(handed.sent),
        dropped: nonzero_counts([
            (TapLossCause::Gone, inbound.gone),
            (TapLossCause::Down, failed.down),
            (TapLossCause::TooLong, failed.too_long),
            (TapLossCause::Memory, failed.memory),
            (TapLossCause::NoRedirect, failed.deaf),
            (TapLossCause::Other, failed.other),
            (TapLossCause::Driver, handed.dropped),
            (TapLossCause::Skipped, passed_over),
        ]),
        wanted: inbound.wanted,
        uncopied: nonzero_counts([
            (UncopiedReason::Filter, inbound.other),
            (UncopiedReason::Own, inbound.own),
            (UncopiedReason::TooLong, inbound.too_long),
        ]),
        mirrors: mirrors.collect::<Result<_, _>>()?,
    })
}

fn read_mirror_account(
    counts: &TapCounts,
    state: &TapState,
    side: usize,
    mirror: usize,
    wanted: u64,
) -> Result<MirrorAccount, Error> {
    let seen = counts.read_outbound_counts(side, mirror)?;
    let handed = counts.read_mirrored_counts(side, mirror)?;
    let refused_here = seen.too_long + seen.no_room;
    let came = seen.passed + refused_here;
    // The kernel's tracepoint also counts a frame as dropped if the program on the mirror refused it.
    let driver = if state.knows_drivers { handed.dropped.saturating_sub(refused_here) } else { 0 };
    Ok(MirrorAccount {
        to: state.mirrors[mirror].location.clone(),
        mirrored: state.knows_drivers.then_some(handed.sent),
        bytes: seen.bytes,
        dropped: nonzero_counts([
            (TapLossCause::TooLong, seen.too_long),
            (TapLossCause::NoRoom, seen.no_room),
            (TapLossCause::Driver, driver),
            (TapLossCause::Skipped, wanted.saturating_sub(came)),
        ]),
    })
}
