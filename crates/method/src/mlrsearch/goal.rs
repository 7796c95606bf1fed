//! Goals of a search, and their form on the command line.

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Requirements that a load must meet to be a lower bound, and how the search proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchGoal {
    /// A trial is good if its loss ratio is not above this. From 0 to less than 1.
    pub loss_ratio: f64,
    /// The share of trial time that may be bad at a lower bound. From 0 to less than 1.
    pub exceed_ratio: f64,
    /// Total time of the trials that are needed to classify a load.
    #[serde(rename = "duration_sum_ns", alias = "duration_sum")]
    pub duration_sum: Nanos,
    /// Trials of at least this length count in full; shorter trials cannot make a load a lower bound.
    #[serde(rename = "final_trial_ns", alias = "final_trial")]
    pub final_trial: Nanos,
    /// Length of the first trials. Trials that are shorter than `final_trial` only guide the search.
    #[serde(rename = "initial_trial_ns", alias = "initial_trial")]
    pub initial_trial: Nanos,
    /// The search ends when the bounds are this close, as a share of the upper bound.
    pub width: f64,
    /// Factor by which a step grows when the searched bound is not found.
    pub expansion: u32,
    /// Number of coarser targets on the way to the goal.
    pub preceding_targets: u32,
}

/// Reason why a goal cannot be searched, or why a text is not a goal.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GoalError {
    #[error("`{0}` is not a goal; write ndr, pdr, rfc2544, tst009, or loss=0,duration=60s")]
    NotAGoal(String),
    #[error(
        "a goal has no member `{0}`; its members are loss, duration, sum, exceed, width, initial, expansion \
         and preceding"
    )]
    UnknownName(String),
    #[error("the goal has the member `{0}` twice")]
    Twice(&'static str),
    #[error("the goal lacks the member `{0}`; write for example loss=0,duration=60s")]
    Lacks(&'static str),
    #[error("`{name}={text}` of the goal is not a {kind}; write it like {example}")]
    Unreadable { name: &'static str, text: String, kind: &'static str, example: &'static str },
    #[error("`{name}` of the goal is {value}, but must be {wanted}")]
    OutOfRange { name: &'static str, value: String, wanted: &'static str },
}

impl SearchGoal {
    /// A goal without loss: the non-drop rate, as the FD.io project measures it.
    pub const NDR: Self = Self {
        loss_ratio: 0.0,
        exceed_ratio: 0.5,
        duration_sum: Nanos::from_secs(21),
        final_trial: Nanos::from_secs(1),
        initial_trial: Nanos::from_secs(1),
        width: 0.005,
        expansion: 2,
        preceding_targets: 2,
    };
    /// Like [`Self::NDR`], but with 0.5 % loss: the partial drop rate.
    pub const PDR: Self = Self { loss_ratio: 0.005, ..Self::NDR };
    /// The throughput of RFC 2544: one trial of 60 s without loss.
    pub const RFC2544: Self = Self {
        exceed_ratio: 0.0,
        duration_sum: Nanos::from_secs(60),
        final_trial: Nanos::from_secs(60),
        ..Self::NDR
    };
    /// Binary search with loss verification (ETSI GS NFV-TST 009): one of two trials of 60 s without loss.
    pub const TST009: Self = Self { exceed_ratio: 0.5, duration_sum: Nanos::from_secs(120), ..Self::RFC2544 };

    /// Returns the goal of that name.
    pub fn goal_preset_by_name(name: &str) -> Option<Self> {
        Some(match name {
            "ndr" => Self::NDR,
            "pdr" => Self::PDR,
            "rfc2544" => Self::RFC2544,
            "tst009" => Self::TST009,
            _ => return None,
        })
    }

    /// Checks the ranges that the search relies on.
    pub fn check_goal_ranges(&self) -> Result<(), GoalError> {
        let out_of_range = |name, value: String, wanted| Err(GoalError::OutOfRange { name, value, wanted });
        // With a loss of 1, a trial in which nothing arrived would be good.
        if !(0.0..1.0).contains(&self.loss_ratio) {
            return out_of_range("loss", self.loss_ratio.to_string(), "from 0 to less than 1");
        }
        // With 1, all trial time may be bad. The classification also divides by the share that must be good.
        if !(0.0..1.0).contains(&self.exceed_ratio) {
            return out_of_range("exceed", self.exceed_ratio.to_string(), "from 0 to less than 1");
        }
        // The condition has this form so that not-a-number is refused, too.
        if !(self.width > 0.0 && self.width < 1.0) {
            return out_of_range("width", self.width.to_string(), "above 0 and below 1");
        }
        if self.initial_trial == Nanos::ZERO || self.initial_trial > self.final_trial {
            return out_of_range("initial", self.initial_trial.to_string(), "above 0 and at most `duration`");
        }
        if self.duration_sum < self.final_trial {
            return out_of_range("sum", self.duration_sum.to_string(), "at least `duration`");
        }
        // With a factor of 1 the step would not grow, and the search would need very many trials to reach its bound.
        if self.expansion < 2 {
            return out_of_range("expansion", self.expansion.to_string(), "at least 2");
        }
        // Without preceding targets no trial would have the initial length.
        if self.preceding_targets == 0 && self.initial_trial < self.duration_sum {
            return out_of_range("preceding", "0".to_owned(), "at least 1 unless `initial` equals `sum`");
        }
        Ok(())
    }
}

/// Shows a short name if the goal has one, for screens and tables.
impl fmt::Display for SearchGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let presets =
            [("NDR", Self::NDR), ("PDR", Self::PDR), ("RFC 2544", Self::RFC2544), ("TST 009", Self::TST009)];
        match presets.iter().find(|(_, preset)| preset == self) {
            Some((name, _)) => f.pad(name),
            None => {
                f.pad(&format!("loss {} % in {} s", self.loss_ratio * 100.0, self.duration_sum.as_secs_f64()))
            }
        }
    }
}

impl FromStr for SearchGoal {
    type Err = GoalError;

    /// Parses a preset, or `loss=0,duration=60s` with `sum` (default: `duration`), `exceed` (0), `width` (0.5 %),
    /// `initial` (1 s, or `duration` if that is shorter), `expansion` (2) and `preceding` (2).
    fn from_str(text: &str) -> Result<Self, GoalError> {
        if let Some(preset) = Self::goal_preset_by_name(&text.trim().to_ascii_lowercase()) {
            return Ok(preset);
        }
        let fields = GoalFields::split_fields(text)?;
        let final_trial = fields.parse_goal_time("duration")?.ok_or(GoalError::Lacks("duration"))?;
        let goal = Self {
            loss_ratio: fields.parse_goal_ratio("loss")?.ok_or(GoalError::Lacks("loss"))?,
            exceed_ratio: fields.parse_goal_ratio("exceed")?.unwrap_or(0.0),
            duration_sum: fields.parse_goal_time("sum")?.unwrap_or(final_trial),
            final_trial,
            initial_trial: fields
                .parse_goal_time("initial")?
                .unwrap_or_else(|| Self::NDR.initial_trial.min(final_trial)),
            width: fields.parse_goal_ratio("width")?.unwrap_or(Self::NDR.width),
            expansion: fields.parse_count("expansion")?.unwrap_or(Self::NDR.expansion),
            preceding_targets: fields.parse_count("preceding")?.unwrap_or(Self::NDR.preceding_targets),
        };
        goal.check_goal_ranges()?;
        Ok(goal)
    }
}

const GOAL_MEMBER_NAMES: [&str; 8] =
    ["loss", "duration", "sum", "exceed", "width", "initial", "expansion", "preceding"];

/// The texts of a goal's members, in the order of [`GOAL_MEMBER_NAMES`]; `None` for a member that is not given.
struct GoalFields<'a>([Option<&'a str>; GOAL_MEMBER_NAMES.len()]);

impl<'a> GoalFields<'a> {
    fn split_fields(text: &'a str) -> Result<Self, GoalError> {
        let mut texts = [None; GOAL_MEMBER_NAMES.len()];
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| GoalError::NotAGoal(text.to_owned()))?;
            let known = GOAL_MEMBER_NAMES.iter().position(|known| *known == name.trim());
            let index = known.ok_or_else(|| GoalError::UnknownName(name.trim().to_owned()))?;
            if texts[index].replace(value.trim()).is_some() {
                return Err(GoalError::Twice(GOAL_MEMBER_NAMES[index]));
            }
        }
        Ok(Self(texts))
    }

    fn parse_goal_field<T>(
        &self,
        name: &'static str,
        kind: &'static str,
        example: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, GoalError> {
        let text =
            GOAL_MEMBER_NAMES.iter().zip(self.0).find_map(|(known, text)| text.filter(|_| *known == name));
        let Some(text) = text else { return Ok(None) };
        let value =
            parse(text).ok_or_else(|| GoalError::Unreadable { name, text: text.to_owned(), kind, example });
        value.map(Some)
    }

    fn parse_goal_time(&self, name: &'static str) -> Result<Option<Nanos>, GoalError> {
        self.parse_goal_field(name, "time", "60s or 500ms", |text| text.parse().ok())
    }

    fn parse_goal_ratio(&self, name: &'static str) -> Result<Option<f64>, GoalError> {
        self.parse_goal_field(name, "ratio", "0.005 or 0.5%", |text| match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok().map(|percent| percent / 100.0),
            None => text.parse().ok(),
        })
    }

    fn parse_count(&self, name: &'static str) -> Result<Option<u32>, GoalError> {
        self.parse_goal_field(name, "whole number", "2", |text| text.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_read_from_its_text() {
        let goal: SearchGoal = "loss=0,duration=60s".parse().unwrap();
        assert_eq!(goal, SearchGoal::RFC2544);
        let goal: SearchGoal = "loss=0.5%, duration=1s, sum=21s, exceed=50%".parse().unwrap();
        assert_eq!(goal, SearchGoal::PDR);
        for (name, preset) in [
            ("ndr", SearchGoal::NDR),
            ("PDR", SearchGoal::PDR),
            ("rfc2544", SearchGoal::RFC2544),
            ("tst009", SearchGoal::TST009),
        ] {
            assert_eq!(name.parse(), Ok(preset));
            assert_eq!(preset.check_goal_ranges(), Ok(()));
        }
        let goal: SearchGoal =
            "loss=0,duration=200ms,width=1%,preceding=1,expansion=3,initial=100ms".parse().unwrap();
        assert_eq!(goal.initial_trial, Nanos::from_millis(100));
        assert_eq!((goal.width, goal.preceding_targets, goal.expansion), (0.01, 1, 3));
    }

    #[test]
    fn a_wrong_goal_is_refused_in_plain_words() {
        let refusal = |text: &str| text.parse::<SearchGoal>().unwrap_err().to_string();
        assert!(refusal("fast").starts_with("`fast` is not a goal; write ndr,"));
        assert!(refusal("loss=0").starts_with("the goal lacks the member `duration`"));
        assert!(refusal("loss=0,duration=1s,speed=3").starts_with("a goal has no member `speed`"));
        assert_eq!(refusal("loss=0,loss=1,duration=1s"), "the goal has the member `loss` twice");
        assert!(refusal("loss=x,duration=1s").starts_with("`loss=x` of the goal is not a ratio"));
        assert_eq!(
            refusal("loss=0,duration=2s,sum=1s"),
            "`sum` of the goal is 1s, but must be at least `duration`"
        );
        assert_eq!(
            refusal("loss=1,duration=2s"),
            "`loss` of the goal is 1, but must be from 0 to less than 1"
        );
        assert!(refusal("loss=NaN,duration=2s").contains("`loss` of the goal is NaN"));
        assert!(refusal("loss=0,duration=1s,width=0").contains("must be above 0 and below 1"));
        assert!(refusal("loss=0,duration=1s,initial=2s").contains("`initial` of the goal is 2s"));
    }
}
