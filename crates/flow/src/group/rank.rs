//! Rules that compare two members. Both members of a pair must reach the same answer from their advertisements.

use super::coverage::{ExportedSpan, MeterCoverage, NO_WHOLE_RECORD};
use super::{Advertisement, ElectionOptions};
use packetrig_units::Nanos;

/// Returns whether the records that `other` exports are as complete as those of a member that has seen the
/// traffic since `own_seen_ns`. Records of that member before `whole_until_ns` do not matter: they have been
/// exported, or they are incomplete as well.
const fn exports_as_complete_records(other: &Advertisement, own_seen_ns: u64, whole_until_ns: u64) -> bool {
    other.seen_since_ns <= own_seen_ns
        || other.whole_from_ns != NO_WHOLE_RECORD && other.whole_from_ns <= whole_until_ns
}

/// Returns whether a standby may forget the records that `active` reports as exported.
pub(super) fn is_trusted(
    active: &Advertisement,
    coverage: MeterCoverage,
    mark: Option<ExportedSpan>,
) -> bool {
    let exported_ns = mark.map_or(0, |mark| mark.watermark_ns);
    let whole_until_ns = exported_ns.max(coverage.complete_from_ns.unwrap_or(NO_WHOLE_RECORD));
    exports_as_complete_records(active, coverage.seen_since_ns, whole_until_ns)
}

/// Returns whether an active member steps down because `other` is active too.
///
/// The member with the more complete records stays, then the one that is ready. If one of the two preempts, the one of
/// higher priority stays. Otherwise the later term stays: its member took over because something had failed. Terms
/// contain the meter's number, so they are never equal.
pub(super) fn must_step_down_for(other: &Advertisement, own: &Advertisement) -> bool {
    let may_yield = exports_as_complete_records(other, own.seen_since_ns, own.exported_span().end_ns());
    let may_stay = exports_as_complete_records(own, other.seen_since_ns, other.exported_span().end_ns());
    // Only one of the two exports records as complete as those of the other: that one stays.
    if may_yield != may_stay {
        return may_yield;
    }
    if other.is_ready != own.is_ready {
        return other.is_ready;
    }
    if (own.preempts || other.preempts) && other.priority != own.priority {
        return other.priority > own.priority;
    }
    other.term > own.term
}

/// Returns how much longer than the detection time a standby waits, one interval at most, so that usually
/// only one takes over.
///
/// VRRPv3 (RFC 9568, section 6.1) derives this skew from the priority alone. At 10 ms that keeps neighbouring
/// priorities 40 us apart, less than the network's delay. Standbys receive each other's advertisements, so they also
/// divide the interval among themselves.
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
    // Each stronger rival takes a whole share of the interval; the priority divides this member's own share.
    let parts = before * 256 + u64::from(u8::MAX - options.priority);
    Nanos::new(options.interval.as_u64() / (256 * candidates) * parts)
}
