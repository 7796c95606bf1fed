//! Judges the windows of a rule: raises an alert for each group that begins to cross the threshold, and clears it when
//! the group no longer crosses it. Does no I/O and reads no clock.

use super::rules::{AlertRule, AlertThreshold};
use super::windows::{AlertWindows, ClosedWindow};
use crate::grouping::GroupValue;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of alerts of one rule that are active at the same time.
const MAX_ACTIVE_ALERTS: usize = 10_000;

/// Reports that the alert of one group was raised or cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertEvent {
    pub kind: AlertEventKind,
    pub rule: Arc<AlertRule>,
    /// Values that identify the group, one for each part of the rule's `by`; empty without `by`.
    pub group: Vec<GroupValue>,
    /// Start of the window that was judged, nanoseconds since 1970; `to_ns` is its end.
    pub from_ns: u64,
    pub to_ns: u64,
    /// The value of the group in this window, in the unit of the rule's measure.
    pub value: u64,
    /// Start of the first window of this alert, nanoseconds since 1970.
    pub since_ns: u64,
    /// The value that was furthest beyond the threshold while the alert was active.
    pub extreme: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertEventKind {
    /// The group crosses the threshold and had no active alert.
    Raised,
    /// The group no longer crosses the threshold.
    Cleared,
}

#[derive(Debug)]
struct ActiveAlert {
    since_ns: u64,
    extreme: u64,
}

/// A rule with its windows and its active alerts.
#[derive(Debug)]
pub(super) struct AlertRuleState {
    pub(super) rule: Arc<AlertRule>,
    pub(super) windows: AlertWindows,
    active: BTreeMap<Box<[u8]>, ActiveAlert>,
    pub(super) raised: u64,
    /// Alerts that were not raised, because [`MAX_ACTIVE_ALERTS`] were active. A group without an alert counts once for
    /// each window in which it crosses the threshold.
    pub(super) left_out: u64,
}

impl AlertRuleState {
    pub(super) fn new(rule: Arc<AlertRule>, from_ns: u64) -> Self {
        let windows = AlertWindows::new(rule.window, from_ns);
        Self { rule, windows, active: BTreeMap::new(), raised: 0, left_out: 0 }
    }

    pub(super) fn active_alert_count(&self) -> usize {
        self.active.len()
    }

    /// Judges a window and appends its events: first the raised alerts, greatest values first, then the cleared ones.
    pub(super) fn judge_window(&mut self, window: &ClosedWindow, events: &mut Vec<AlertEvent>) {
        let mut over = self.groups_over_threshold(window);
        over.sort_unstable_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(other.0)));
        let from_ns = window.number.saturating_mul(self.rule.window.as_u64());
        for &(key, value) in &over {
            if let Some(alert) = self.active.get_mut(key) {
                alert.extreme = match self.rule.threshold {
                    AlertThreshold::Above(_) => alert.extreme.max(value),
                    AlertThreshold::Below(_) => alert.extreme.min(value),
                };
            } else if self.active.len() < MAX_ACTIVE_ALERTS {
                let alert = ActiveAlert { since_ns: from_ns, extreme: value };
                events.push(self.build_event(AlertEventKind::Raised, key, from_ns, value, &alert));
                self.active.insert(key.into(), alert);
                self.raised += 1;
            } else {
                self.left_out += 1;
            }
        }
        self.clear_alerts(window, from_ns, events);
    }

    /// The groups of a window that cross the threshold, with their values.
    fn groups_over_threshold<'a>(&self, window: &'a ClosedWindow) -> Vec<(&'a [u8], u64)> {
        let AlertRule { measure, threshold, window: length, .. } = &*self.rule;
        let values = window.groups.iter().map(|(key, sum)| (&**key, measure.value_of_group(*sum, *length)));
        let mut over: Vec<_> = values.filter(|(_, value)| threshold.is_crossed_by(*value)).collect();
        // A rule without `by` has the value 0 in a window without records. With `by`, only `above` is allowed, and no
        // value of 0 is above a threshold.
        if window.groups.is_empty() && threshold.is_crossed_by(0) {
            over.push((&[], 0));
        }
        over
    }

    fn clear_alerts(&mut self, window: &ClosedWindow, from_ns: u64, events: &mut Vec<AlertEvent>) {
        let threshold = self.rule.threshold;
        let rule = Arc::clone(&self.rule);
        let cleared = self
            .active
            .extract_if(.., |key, _| !threshold.is_crossed_by(value_in_window(&rule, window, key)))
            .collect::<Vec<_>>();
        for (key, alert) in cleared {
            let value = value_in_window(&rule, window, &key);
            events.push(self.build_event(AlertEventKind::Cleared, &key, from_ns, value, &alert));
        }
    }

    fn build_event(
        &self,
        kind: AlertEventKind,
        key: &[u8],
        from_ns: u64,
        value: u64,
        alert: &ActiveAlert,
    ) -> AlertEvent {
        AlertEvent {
            kind,
            rule: Arc::clone(&self.rule),
            group: self.rule.grouping.read_values(key),
            from_ns,
            to_ns: from_ns.saturating_add(self.rule.window.as_u64()),
            value,
            since_ns: alert.since_ns,
            extreme: alert.extreme,
        }
    }
}

/// The value of a group in a window. A group without records has the value 0.
fn value_in_window(rule: &AlertRule, window: &ClosedWindow, key: &[u8]) -> u64 {
    let sum = window.groups.get(key).copied().unwrap_or_default();
    rule.measure.value_of_group(sum, rule.window)
}

#[cfg(test)]
mod tests {
    use super::super::rules::AlertRules;
    use super::*;
    use crate::top::GroupTotals;

    fn watched(threshold: &str) -> AlertRuleState {
        let text = format!("[[alert]]\nname = \"r\"\nwindow = \"10s\"\nmeasure = \"bytes\"\n{threshold}");
        let rules = AlertRules::parse_with_names(&text, &Arc::default()).unwrap();
        AlertRuleState::new(Arc::clone(&rules.rules[0]), 0)
    }

    /// Judges windows of these sums; each port is a group.
    fn judge(rule: &mut AlertRuleState, number: u64, sums: &[(u64, u64)]) -> Vec<(AlertEventKind, u64, u64)> {
        let group = |&(port, bytes): &(u64, u64)| {
            let sum = GroupTotals { bytes, ..GroupTotals::default() };
            (Box::from(&port.to_be_bytes()[..]), sum)
        };
        let mut groups: super::super::windows::WindowGroups = sums.iter().map(group).collect();
        if rule.rule.grouping.parts().is_empty() {
            groups = groups.into_values().map(|sum| (Box::from(&[][..]), sum)).collect();
        }
        let mut events = Vec::new();
        rule.judge_window(&ClosedWindow { number, groups }, &mut events);
        let port = |event: &AlertEvent| match event.group[..] {
            [GroupValue::Number(port)] => port,
            _ => 0,
        };
        events.iter().map(|event| (event.kind, port(event), event.extreme)).collect()
    }

    #[test]
    fn alert_is_raised_once_and_cleared_once() {
        use AlertEventKind::{Cleared, Raised};
        let mut rule = watched("by = \"dst-port\"\nabove = 100");
        assert_eq!(
            judge(&mut rule, 1, &[(1, 100), (2, 101), (3, 500)]),
            [(Raised, 3, 500), (Raised, 2, 101)]
        );
        assert_eq!(judge(&mut rule, 2, &[(2, 300), (3, 200)]), []);
        assert_eq!(
            judge(&mut rule, 3, &[(1, 900), (2, 100)]),
            [(Raised, 1, 900), (Cleared, 2, 300), (Cleared, 3, 500)]
        );
        assert_eq!((rule.raised, rule.active_alert_count()), (3, 1));
    }

    #[test]
    fn missing_traffic_raises_an_alert() {
        use AlertEventKind::{Cleared, Raised};
        let mut rule = watched("below = 50");
        assert_eq!(judge(&mut rule, 1, &[(1, 60)]), []);
        assert_eq!(judge(&mut rule, 2, &[(1, 20)]), [(Raised, 0, 20)]);
        assert_eq!(judge(&mut rule, 3, &[]), []);
        assert_eq!(judge(&mut rule, 4, &[(1, 50)]), [(Cleared, 0, 0)]);
    }

    #[test]
    fn active_alerts_are_bounded() {
        let mut rule = watched("by = \"src-port\"\nabove = 0");
        let many: Vec<_> = (0..MAX_ACTIVE_ALERTS as u64 + 5).map(|port| (port, 1)).collect();
        assert_eq!(judge(&mut rule, 1, &many).len(), MAX_ACTIVE_ALERTS);
        assert_eq!((rule.left_out, rule.active_alert_count()), (5, MAX_ACTIVE_ALERTS));
    }
}
