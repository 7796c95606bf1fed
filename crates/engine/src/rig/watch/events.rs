//! Derives events from observations of an interface. Pure: times are arguments.

use packetrig_stats::port_event::{EventCause, PortEvent, PortEventKind};
use packetrig_units::MonoTime;

/// Maximum number of events that are stored for each port. Later events extend the last one.
const MAX_EVENTS: usize = 256;

/// State of an interface at one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortState {
    pub(super) is_up: bool,
    pub(super) has_carrier: bool,
    pub(super) mtu: u32,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) master: Option<u32>,
    /// Number of carrier changes since the interface was created.
    pub(super) carrier_changes: u64,
    /// Frames that the card or its driver dropped for lack of buffers, since the interface was created.
    pub(super) driver_dropped: u64,
}

/// Result of one check of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkObservation {
    Present(PortState),
    /// The interface does not exist any more.
    Gone,
}

/// Turns the states that the checks of one port's interface find into events.
#[derive(Debug)]
pub(super) struct EventLog {
    expected: PortState,
    last_good: MonoTime,
    last_seen: MonoTime,
    /// The event that has not ended yet.
    open: Option<PortEvent>,
    events: Vec<PortEvent>,
    /// Whether the plan switched the link down, and no check has found the link in order since.
    is_declared: bool,
}

impl EventLog {
    /// Creates a log for an interface with this `state`, which was requested at `now`. Deviations from `state` become
    /// events; but the interface is expected to be up and to have a carrier, whatever `state` says.
    pub(super) fn new(state: PortState, now: MonoTime) -> Self {
        Self {
            expected: PortState { is_up: true, has_carrier: true, ..state },
            last_good: now,
            last_seen: now,
            open: None,
            events: Vec::new(),
            is_declared: false,
        }
    }

    /// Tells the log that the plan switches the link. After a switch down, link faults count as planned until the link
    /// is in order again.
    pub(super) fn declare_link_change(&mut self, down: bool) {
        self.is_declared |= down;
    }

    /// Updates the log with an observation that was requested at `asked` and received at `answered`.
    pub(super) fn on_observation(&mut self, asked: MonoTime, answered: MonoTime, seen: LinkObservation) {
        if let LinkObservation::Present(state) = seen {
            self.count_drops(answered, state);
        }
        let fault = self.classify_link_fault(seen);
        match (fault, &mut self.open) {
            // Faults that follow each other without a break are one event, whatever their kinds.
            (Some(kind), Some(open)) => open.what = combine_event_kinds(open.what, kind),
            (Some(kind), None) => self.begin_event(kind),
            (None, Some(_)) => self.end_event(answered),
            (None, None) => self.record_link_flap(answered, seen),
        }
        if fault.is_none() {
            // An event begins at the last request that found everything in order and ends at the first answer that
            // does so again. Both lie outside the true event, so the range can only be too wide: a doubt must not be
            // too short (decision 0017).
            self.last_good = asked;
        }
        if let LinkObservation::Present(state) = seen {
            // Each change is reported once: changes during an event belong to the event.
            self.expected.carrier_changes = state.carrier_changes;
        }
        self.last_seen = asked;
    }

    /// Returns all events in the order of their start, and clears the list. An event that is not over has no end time.
    pub(super) fn take_events(&mut self) -> Vec<PortEvent> {
        self.events.extend(self.open.take());
        self.events.sort_by_key(|event| event.from);
        std::mem::take(&mut self.events)
    }

    fn classify_link_fault(&self, seen: LinkObservation) -> Option<PortEventKind> {
        let LinkObservation::Present(state) = seen else { return Some(PortEventKind::Deleted) };
        let link = if state.is_up { PortEventKind::CarrierLost } else { PortEventKind::SwitchedDown };
        if !state.is_up || !state.has_carrier {
            return Some(if self.is_declared { PortEventKind::Declared } else { link });
        }
        // A larger MTU loses no frames.
        if state.mtu < self.expected.mtu {
            return Some(PortEventKind::MtuLowered { from: self.expected.mtu, to: state.mtu });
        }
        let is_other = state.mac != self.expected.mac || state.master != self.expected.master;
        is_other.then_some(PortEventKind::Reconfigured)
    }

    fn begin_event(&mut self, what: PortEventKind) {
        self.open = Some(PortEvent { what, from: self.last_good, until: None, only_sending: false });
    }

    fn end_event(&mut self, at: MonoTime) {
        self.is_declared = false;
        if let Some(open) = self.open.take() {
            self.push_event(PortEvent { until: Some(at), ..open });
        }
    }

    /// Records a flap: the link was in order at two checks, but the carrier changed between them.
    fn record_link_flap(&mut self, at: MonoTime, seen: LinkObservation) {
        let LinkObservation::Present(state) = seen else { return };
        if state.carrier_changes == self.expected.carrier_changes {
            return;
        }
        // The time of the flap is unknown, so the event covers all the time between the two checks.
        self.begin_event(if self.is_declared { PortEventKind::Declared } else { PortEventKind::CarrierLost });
        self.end_event(at);
    }

    fn count_drops(&mut self, at: MonoTime, state: PortState) {
        let before = std::mem::replace(&mut self.expected.driver_dropped, state.driver_dropped);
        let frames = state.driver_dropped.saturating_sub(before);
        if frames == 0 {
            return;
        }
        // The counter was read at the last check, so the drops came after it.
        let from = self.last_seen;
        // Adjacent drops are one event, so that steady loss does not fill the log.
        if let Some(last) = self.events.last_mut()
            && let PortEventKind::DriverDropped { frames: so_far } = last.what
            && last.until >= Some(from)
        {
            last.what = PortEventKind::DriverDropped { frames: so_far + frames };
            last.until = Some(at);
            return;
        }
        let what = PortEventKind::DriverDropped { frames };
        self.push_event(PortEvent { what, from, until: Some(at), only_sending: false });
    }

    fn push_event(&mut self, event: PortEvent) {
        // The list is bounded, because a link that flaps all day would otherwise fill the memory. The last event then
        // also covers all later ones: it is too wide, but no event is missing.
        let is_full = self.events.len() == MAX_EVENTS;
        match self.events.last_mut().filter(|_| is_full) {
            None => self.events.push(event),
            Some(last) => {
                last.what = combine_event_kinds(last.what, event.what);
                last.until = event.until;
            }
        }
    }
}

/// Combines the kinds of two faults within one event. A change on this machine wins, because it
/// explains a lost carrier.
fn combine_event_kinds(before: PortEventKind, now: PortEventKind) -> PortEventKind {
    match (before, now) {
        (PortEventKind::MtuLowered { from, to }, PortEventKind::MtuLowered { to: other, .. }) => {
            PortEventKind::MtuLowered { from, to: to.min(other) }
        }
        (_, now) if now.cause() == EventCause::Rig && before.cause() != EventCause::Rig => now,
        (before, _) => before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_units::Nanos;

    const GOOD: PortState = PortState {
        is_up: true,
        has_carrier: true,
        mtu: 1500,
        mac: Some([2, 0, 0, 0, 0, 1]),
        master: None,
        carrier_changes: 2,
        driver_dropped: 0,
    };

    fn at(ms: u64) -> MonoTime {
        MonoTime::default() + Nanos::from_millis(ms)
    }

    /// Looks every 20 ms, each answered after 1 ms.
    fn events_of(states: &[LinkObservation]) -> Vec<PortEvent> {
        let mut log = EventLog::new(GOOD, at(0));
        for (look, seen) in (1..).zip(states) {
            log.on_observation(at(20 * look), at(20 * look + 1), *seen);
        }
        log.take_events()
    }

    fn event(what: PortEventKind, from: u64, until: Option<u64>) -> PortEvent {
        PortEvent { what, from: at(from), until: until.map(at), only_sending: false }
    }

    #[test]
    fn port_event_spans_last_good_to_next_good() {
        let good = LinkObservation::Present(GOOD);
        let dark = LinkObservation::Present(PortState { has_carrier: false, carrier_changes: 3, ..GOOD });
        let back = LinkObservation::Present(PortState { carrier_changes: 4, ..GOOD });
        let wanted = event(PortEventKind::CarrierLost, 20, Some(81));
        assert_eq!(events_of(&[good, dark, dark, back, back]), [wanted]);
    }

    #[test]
    fn local_action_explains_lost_carrier() {
        let dark = LinkObservation::Present(PortState { has_carrier: false, ..GOOD });
        let down = LinkObservation::Present(PortState { has_carrier: false, is_up: false, ..GOOD });
        assert_eq!(events_of(&[dark, down]), [event(PortEventKind::SwitchedDown, 0, None)]);
        assert_eq!(events_of(&[LinkObservation::Gone]), [event(PortEventKind::Deleted, 0, None)]);
    }

    #[test]
    fn short_flap_is_seen_by_carrier_change_count() {
        let flapped = LinkObservation::Present(PortState { carrier_changes: 4, ..GOOD });
        let events = events_of(&[LinkObservation::Present(GOOD), flapped, flapped]);
        assert_eq!(events, [event(PortEventKind::CarrierLost, 20, Some(41))]);
    }

    #[test]
    fn planned_link_down_is_declared_until_recovery() {
        let mut log = EventLog::new(GOOD, at(0));
        log.declare_link_change(true);
        log.on_observation(
            at(20),
            at(21),
            LinkObservation::Present(PortState { is_up: false, has_carrier: false, ..GOOD }),
        );
        log.declare_link_change(false);
        log.on_observation(
            at(40),
            at(41),
            LinkObservation::Present(PortState { has_carrier: false, ..GOOD }),
        );
        log.on_observation(at(60), at(61), LinkObservation::Present(GOOD));
        assert_eq!(log.take_events(), [event(PortEventKind::Declared, 0, Some(61))]);
        log.on_observation(
            at(80),
            at(81),
            LinkObservation::Present(PortState { has_carrier: false, ..GOOD }),
        );
        assert_eq!(log.take_events(), [event(PortEventKind::CarrierLost, 60, None)]);
    }

    #[test]
    fn events_report_smallest_mtu_and_all_driver_drops() {
        let mtu = |mtu| LinkObservation::Present(PortState { mtu, ..GOOD });
        let wanted = PortEventKind::MtuLowered { from: 1500, to: 600 };
        assert_eq!(events_of(&[mtu(900), mtu(600), mtu(1500)]), [event(wanted, 0, Some(61))]);
        assert_eq!(events_of(&[mtu(9000)]), []);
        let dropped = |driver_dropped| LinkObservation::Present(PortState { driver_dropped, ..GOOD });
        let wanted = event(PortEventKind::DriverDropped { frames: 7 }, 0, Some(41));
        assert_eq!(events_of(&[dropped(3), dropped(7), dropped(7)]), [wanted]);
    }

    #[test]
    fn event_count_stays_bounded_and_covers_same_time() {
        let dark = LinkObservation::Present(PortState { has_carrier: false, ..GOOD });
        let states: Vec<_> =
            (0..2000).map(|n| if n % 2 == 0 { dark } else { LinkObservation::Present(GOOD) }).collect();
        let events = events_of(&states);
        assert_eq!(events.len(), MAX_EVENTS);
        assert_eq!(events.last().unwrap().until, Some(at(20 * 2000 + 1)));
    }
}
