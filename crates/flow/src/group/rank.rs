//! The rules that compare two members. Both of a pair must come to the same answer from what they advertise.

use super::{Advertisement, ElectionOptions, GroupTerm};
use packetrig_units::Nanos;

/// Whether a standby leaves the active role to `active`.
///
/// A ready member takes over from one that is not. A preempting member takes over from lower priority, once it is ready.
pub(super) const fn defers_to(active: &Advertisement, options: &ElectionOptions, is_ready: bool) -> bool {
    if !is_ready {
        return true;
    }
    active.is_ready && !(options.preempt && active.priority < options.priority)
}

/// Whether a member that is active in `term` steps down because `other` is active too.
///
/// The ready one stays. If one of the two preempts, the one of higher priority stays. Otherwise the later term stays: its member took
/// over because something had failed. The meter's number is a part of the term, so terms are never equal.
pub(super) fn yields_to(
    other: &Advertisement,
    options: &ElectionOptions,
    is_ready: bool,
    term: GroupTerm,
) -> bool {
    if other.is_ready != is_ready {
        return other.is_ready;
    }
    if (options.preempt || other.preempts) && other.priority != options.priority {
        return other.priority > options.priority;
    }
    other.term > term
}

/// How much longer than the detection time a standby waits, one interval at most, so that usually only one takes over.
///
/// VRRPv3 (RFC 9568, section 6.1) derives this from the priority alone. At 10 ms that keeps neighbouring priorities 40 us apart, less
/// than the network's delay. Standbys hear each other, so they also divide the interval among themselves.
pub(super) fn takeover_skew<'a>(
    rivals: impl Iterator<Item = &'a Advertisement>,
    options: &ElectionOptions,
) -> Nanos {
    let own = (options.priority, options.meter);
    let (mut before, mut candidates) = (0_u64, 1_u64);
    for rival in rivals {
        candidates += 1;
        before += u64::from((rival.priority, rival.meter) > own);
    }
    let parts = before * 256 + u64::from(u8::MAX - options.priority);
    Nanos::new(options.interval.as_u64() / (256 * candidates) * parts)
}
