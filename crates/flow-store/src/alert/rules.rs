//! Rules of alerts, as users write them in TOML.

use crate::filter::{FlowFilter, parse_count};
use crate::grouping::FlowGrouping;
use crate::names::FlowNames;
use crate::top::GroupTotals;
use packetrig_units::{Nanos, clamp_to_u64};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Default of `delay`. It is longer than a minute, because meters send records of long flows once a minute.
const DEFAULT_DELAY: Nanos = Nanos::from_secs(90);
const MIN_WINDOW: Nanos = Nanos::from_secs(1);
const MAX_WINDOW: Nanos = Nanos::from_secs(24 * 3600);
const MAX_RULES: usize = 256;
const MAX_NAME_CHARACTERS: usize = 100;

/// The alert rules of a TOML file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRules {
    /// Time from the end of a window until the window is judged, for live records. A record that arrives after it does
    /// not count in the window.
    pub delay: Nanos,
    pub rules: Vec<Arc<AlertRule>>,
}

/// A rule raises an alert for each group of records that crosses the threshold in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRule {
    pub name: String,
    pub filter: FlowFilter,
    /// Without `by`, all selected records are one group.
    pub grouping: FlowGrouping,
    pub window: Nanos,
    pub measure: AlertMeasure,
    pub threshold: AlertThreshold,
}

/// Which value of a group is compared with the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertMeasure {
    Bytes,
    Packets,
    Flows,
    /// Bits per second: the average of the whole window.
    Bps,
    /// Packets per second: the average of the whole window.
    Pps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertThreshold {
    Above(u64),
    Below(u64),
}

/// Reason why a text does not contain valid alert rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAlertRules {
    #[error("{0}")]
    Syntax(String),
    #[error("the file has no rule; a rule begins with [[alert]]")]
    Empty,
    #[error("the file has more than {MAX_RULES} rules")]
    TooMany,
    #[error("the file has two rules named `{0}`")]
    Twice(String),
    #[error("rule `{rule}`: {why}")]
    Rule { rule: String, why: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRules {
    delay: Option<String>,
    #[serde(default)]
    alert: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    name: String,
    filter: Option<String>,
    by: Option<String>,
    window: String,
    measure: AlertMeasure,
    above: Option<WrittenCount>,
    below: Option<WrittenCount>,
}

/// A count: a number, or a text with a suffix for powers of a thousand (`10m` is ten million).
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenCount {
    Number(u64),
    Text(String),
}

impl AlertRules {
    /// Parses rules in TOML. Their filters and groups may use the lists in `names`.
    pub fn parse_with_names(text: &str, names: &Arc<FlowNames>) -> Result<Self, InvalidAlertRules> {
        let written: WrittenRules = toml::from_str(text)
            .map_err(|error| InvalidAlertRules::Syntax(error.to_string().trim_end().to_owned()))?;
        if written.alert.is_empty() {
            return Err(InvalidAlertRules::Empty);
        }
        if written.alert.len() > MAX_RULES {
            return Err(InvalidAlertRules::TooMany);
        }
        let delay = written.delay.as_deref().map_or(Ok(DEFAULT_DELAY), str::parse);
        let delay = delay.map_err(|error| InvalidAlertRules::Syntax(format!("delay: {error}")))?;
        let mut rules: Vec<Arc<AlertRule>> = Vec::new();
        for rule in written.alert {
            let name = rule.name.clone();
            if rules.iter().any(|known| known.name == name) {
                return Err(InvalidAlertRules::Twice(name));
            }
            let rule = rule.into_rule(names).map_err(|why| InvalidAlertRules::Rule { rule: name, why })?;
            rules.push(Arc::new(rule));
        }
        Ok(Self { delay, rules })
    }
}

impl WrittenRule {
    fn into_rule(self, names: &Arc<FlowNames>) -> Result<AlertRule, String> {
        let is_name = !self.name.is_empty() && !self.name.contains(char::is_control);
        if !is_name || self.name.chars().count() > MAX_NAME_CHARACTERS {
            return Err(format!(
                "the name must have 1 to {MAX_NAME_CHARACTERS} characters and no control characters"
            ));
        }
        let filter = FlowFilter::parse_with_names(self.filter.as_deref().unwrap_or("any"), names);
        let grouping = match &self.by {
            None => FlowGrouping::everything(),
            Some(text) => {
                let grouping: FlowGrouping = text.parse().map_err(|error| format!("{error}"))?;
                grouping.with_names(names).map_err(|error| error.to_string())?
            }
        };
        let window: Nanos = self.window.parse().map_err(|error| format!("window: {error}"))?;
        if window < MIN_WINDOW || window > MAX_WINDOW {
            return Err("`window` must be 1s to 24h long".to_owned());
        }
        let threshold = match (self.above, self.below) {
            (Some(above), None) => AlertThreshold::Above(above.parse()?),
            (None, Some(_)) if self.by.is_some() => {
                return Err("`below` cannot be used with `by`: packetrig cannot see groups without traffic"
                    .to_owned());
            }
            (None, Some(below)) => AlertThreshold::Below(below.parse()?),
            _ => return Err("the rule needs either `above` or `below`, not both".to_owned()),
        };
        Ok(AlertRule {
            name: self.name,
            filter: filter.map_err(|error| format!("filter: {error}"))?,
            grouping,
            window,
            measure: self.measure,
            threshold,
        })
    }
}

impl WrittenCount {
    fn parse(self) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Text(text) => parse_count(&text)
                .ok_or_else(|| format!("`{text}` is not a number; write 5000 or \"10m\" (k, m, g, t)")),
        }
    }
}

impl AlertMeasure {
    /// Computes the value of a group from its totals in a window. Rates are rounded down.
    pub(super) fn value_of_group(self, sum: GroupTotals, window: Nanos) -> u64 {
        match self {
            Self::Bytes => sum.bytes,
            Self::Packets => sum.packets,
            Self::Flows => sum.flows,
            Self::Bps => count_per_second(sum.bytes, 8, window),
            Self::Pps => count_per_second(sum.packets, 1, window),
        }
    }
}

fn count_per_second(count: u64, factor: u128, window: Nanos) -> u64 {
    clamp_to_u64(u128::from(count) * factor * 1_000_000_000 / u128::from(window.as_u64()))
}

impl AlertThreshold {
    pub(super) const fn is_crossed_by(self, value: u64) -> bool {
        match self {
            Self::Above(limit) => value > limit,
            Self::Below(limit) => value < limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AlertRules, InvalidAlertRules> {
        AlertRules::parse_with_names(text, &Arc::default())
    }

    const RULE: &str = "[[alert]]\nname = \"big\"\nwindow = \"1min\"\nmeasure = \"bps\"\n";

    #[test]
    fn alert_rules_are_read_as_written() {
        let text = format!(
            "delay = \"10s\"\n{RULE}above = \"10m\"\nby = \"src-ip/24\"\nfilter = \"proto tcp\"\n\
             [[alert]]\nname = \"silence\"\nwindow = \"5s\"\nmeasure = \"packets\"\nbelow = 1\n"
        );
        let AlertRules { delay, rules } = parse(&text).unwrap();
        assert_eq!(delay, Nanos::from_secs(10));
        assert_eq!((rules[0].window, rules[0].measure), (Nanos::from_secs(60), AlertMeasure::Bps));
        assert_eq!(rules[0].threshold, AlertThreshold::Above(10_000_000));
        assert_eq!(rules[0].grouping.parts().len(), 1);
        assert_eq!((rules[1].threshold, rules[1].grouping.parts().len()), (AlertThreshold::Below(1), 0));
    }

    #[test]
    fn wrong_alert_rules_are_refused_with_reason() {
        for (text, why) in [
            (String::new(), "no rule"),
            (format!("{RULE}above = 1\nbelow = 2"), "not both"),
            (RULE.to_owned(), "`above` or `below`"),
            (format!("{RULE}below = 1\nby = \"src-ip\""), "groups without traffic"),
            (format!("{RULE}above = \"many\""), "not a number"),
            (format!("{RULE}above = 1\nby = \"colour\""), "colour"),
            (format!("{RULE}above = 1\nby = \"src-country\""), "--names"),
            (format!("{RULE}above = 1\nfilter = \"port port\""), "filter:"),
            (format!("{RULE}above = 1\nlimit = 2"), "unknown field"),
            (format!("{RULE}above = 1\n{RULE}above = 1"), "two rules named `big`"),
            (RULE.replace("1min", "2d") + "above = 1", "window"),
            (RULE.replace("1min", "1ms") + "above = 1", "1s to 24h"),
            (RULE.replace("big", "a\\nb") + "above = 1", "the name must have"),
        ] {
            let said = parse(&text).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn alert_measure_is_per_second_of_the_window() {
        let sum = GroupTotals { flows: 3, packets: 600, bytes: 75_000 };
        let value = |measure: AlertMeasure| measure.value_of_group(sum, Nanos::from_secs(60));
        assert_eq!([AlertMeasure::Bps, AlertMeasure::Pps, AlertMeasure::Flows].map(value), [10_000, 10, 3]);
    }
}
