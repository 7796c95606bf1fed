//! Works on frames that packetrig did not build, such as frames in capture files: finds their headers, and
//! changes some of their fields.
//!
//! [`PacketLayers`] finds IP and transport headers, [`FrameRewrite`] changes addresses and VLAN tags, and
//! [`PayloadTagPosition`] finds the place where a test tag fits. After a change, a checksum is corrected by the
//! difference and not computed anew, so a captured checksum that is wrong stays wrong by the same amount.
//! [`complete_checksum`] and [`split_merged_frame`] do the work that a sender left to its network card.
//!
//! This module does not validate headers, and it parses no protocol above the transport layer.
//!
//! Invariant: any bytes are valid input. Parts that are not understood stay unchanged.

mod content;
mod layers;
mod other_run;
mod place;
mod rewrite;
mod split;
#[cfg(test)]
mod tests;

pub use content::content_hash;
pub use layers::{IpHeaderLayer, PacketLayers, TransportLayer};
pub use other_run::{KnownRun, OtherRun, find_other_run};
pub use place::{PayloadTagPosition, compare_payload_with_tag};
pub use rewrite::{AddressMap, FrameRewrite, RewriteError, VlanEdit};
pub use split::split_merged_frame;

use crate::checksum::ones_complement_sum;
use crate::tag::word_at;

/// Completes the transport checksum of a frame whose sender left it to a network card: the field then
/// contains only the sum of the pseudo-header, not inverted, as Linux writes it. The caller must know that the
/// checksum is incomplete. Returns whether the frame has a transport checksum.
pub fn complete_checksum(frame: &mut [u8]) -> bool {
    let Some(transport) = PacketLayers::from_frame(frame).and_then(|layers| layers.transport) else {
        return false;
    };
    let (Some(at), Some(covered)) = (transport.checksum_at, frame.get(transport.at..transport.payload.end))
    else {
        return false;
    };
    let whole = !ones_complement_sum(covered);
    let whole = if whole == 0 && transport.zero_means_no_checksum() { 0xffff } else { whole };
    frame[at..at + 2].copy_from_slice(&whole.to_be_bytes());
    true
}

/// Corrects the checksum at `at` for a change from `old` to `new` (RFC 1624). `odd`: the changed bytes are at an odd
/// distance from the start of the summed bytes. `never_zero`: a checksum of zero would mean that there is none.
fn correct_checksum(frame: &mut [u8], at: usize, old: &[u8], new: &[u8], odd: bool, never_zero: bool) {
    let Some(place) = frame.get_mut(at..at + 2) else { return };
    let before = u16::from_be_bytes([place[0], place[1]]);
    // At an odd offset from the start of the summed bytes, each byte is in the other half of its 16-bit word.
    // That is the same as swapping the bytes of the sum (RFC 1071).
    let removed = if odd { ones_complement_sum(old).swap_bytes() } else { ones_complement_sum(old) };
    let added = if odd { ones_complement_sum(new).swap_bytes() } else { ones_complement_sum(new) };
    // HC' = ~(~HC + ~m + m'), RFC 1624 equation 3.
    let after = !ones_complement_sum([!before, !removed, added].map(u16::to_be_bytes).as_flattened());
    let after = if never_zero && after == 0 { 0xffff } else { after };
    place.copy_from_slice(&after.to_be_bytes());
}
