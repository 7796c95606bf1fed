//! Parses impairments as a user writes them: `delay=10ms,jitter=1ms,loss=1%`, or a YAML document with both directions.
//!
//! A spec is converted to a [`FaultPlan`]. An error names the mistake and the valid keys or the valid form.

use super::{
    DIRECTION_NAMES, DelayDistribution, DelayJitter, FaultPlan, FaultRule, FrameFault, GilbertElliott,
    QueueLimit, RateQueue, RulePositions,
};
use packetrig_plan::document::{self, DocumentMember, DocumentNode, DocumentValue};
use packetrig_units::{BitRate, Blame, Nanos};
use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;

/// Default number of later frames for which a reordered frame is held back.
const DEFAULT_REORDER_FRAMES: u32 = 3;
/// Default size of the queue before a limited rate, in frames.
const DEFAULT_QUEUE_FRAMES: u64 = 1000;
/// Longest time for which a reordered frame is held back.
const MAX_REORDER_HOLD: Nanos = Nanos::from_millis(200);
const GILBERT_SYNTAX: &str = "write it like gilbert:INTO_BAD/OUT_OF_BAD[/LOST_IN_BAD[/LOST_IN_GOOD]]";
const KNOWN_IMPAIRMENTS: &str =
    "delay, jitter, overtake, loss, duplicate, reorder, reorder-by, corrupt, corrupt-at, rate, queue";

/// An error in the text of a spec, which the user has to correct.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("impairment {0}")]
pub struct InvalidImpairmentSpec(String);

impl InvalidImpairmentSpec {
    pub const fn blame(&self) -> Blame {
        Blame::Usage
    }
}

/// Impairments of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectionSpec {
    /// Delay of every frame.
    pub delay: Option<Nanos>,
    pub jitter: Option<DelayJitter>,
    /// True if frames may overtake each other when their delays differ.
    pub overtake: bool,
    /// Frames that are dropped.
    pub loss: Option<RulePositions>,
    /// Frames that leave twice.
    pub duplicate: Option<RulePositions>,
    /// Frames that are held back behind later ones.
    pub reorder: Option<RulePositions>,
    pub reorder_by: Option<NonZeroU32>,
    /// Frames in which one bit is flipped.
    pub corrupt: Option<RulePositions>,
    /// The byte that is corrupted, counted back from the end of the frame; `None`: a random bit.
    pub corrupt_at: Option<NonZeroUsize>,
    /// Limit of the rate on layer 2, which includes the FCS.
    pub rate: Option<BitRate>,
    /// Capacity of the queue before the limited rate.
    pub queue: Option<QueueLimit>,
}

impl DirectionSpec {
    /// Returns true if the spec changes nothing.
    pub fn has_no_effect(&self) -> bool {
        *self == Self::default()
    }

    /// Converts the spec to a plan of faults.
    pub fn to_plan(&self, seed: u64) -> FaultPlan {
        let corrupt = self.corrupt_at.map_or(FrameFault::CorruptAnywhere, |byte| FrameFault::Corrupt {
            from_end: byte.get(),
            mask: 1,
        });
        let hold =
            FrameFault::HoldBack { frames: self.reorder_by.map_or(DEFAULT_REORDER_FRAMES, NonZeroU32::get) };
        // The order of the rules is fixed, so that each rule draws the same random numbers with or without the others.
        let rules = [
            self.loss.clone().map(|select| (select, FrameFault::Drop)),
            self.corrupt.clone().map(|select| (select, corrupt)),
            self.duplicate.clone().map(|select| (select, FrameFault::Duplicate { copies: 1 })),
            self.reorder.clone().map(|select| (select, hold)),
            self.delay.map(|delay| (RulePositions::All, FrameFault::Delay(delay))),
            self.jitter.map(|jitter| (RulePositions::All, FrameFault::Jitter(jitter))),
        ];
        let any = rules.iter().any(Option::is_some);
        let rules = rules.into_iter().map(|rule| match rule {
            Some((select, fault)) => FaultRule::new(select, fault),
            // A rule without positions has no effect. It only keeps the indices of the other rules.
            None => FaultRule::new(RulePositions::At([].into()), FrameFault::Drop),
        });
        let rules = rules.collect();
        let room = self.queue.unwrap_or(QueueLimit::Frames(DEFAULT_QUEUE_FRAMES));
        FaultPlan {
            seed,
            rules: if any { rules } else { Vec::new() },
            queue: self.rate.map(|rate| RateQueue { rate, room }),
            in_order: !self.overtake,
            // The wait is limited, because the last frames of a series have no later frames to wait for.
            held_at_most: Some(MAX_REORDER_HOLD),
            ..FaultPlan::without_faults()
        }
    }

    fn with_value(mut self, key: &str, value: &str) -> Result<Self, InvalidImpairmentSpec> {
        match self.set_value(key, value) {
            Ok(true) => Ok(self),
            Ok(false) => {
                Err(InvalidImpairmentSpec(format!("`{key}` is unknown; use one of {KNOWN_IMPAIRMENTS}")))
            }
            Err(why) => Err(InvalidImpairmentSpec(format!("`{key}={value}`: {why}"))),
        }
    }

    /// Sets the impairment that a key names; `false` if the key is unknown.
    fn set_value(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "delay" => self.delay = Some(value.parse().map_err(|error| format!("{error}"))?),
            "jitter" => self.jitter = Some(parse_jitter(value)?),
            "overtake" => self.overtake = parse_yes_no(value)?,
            "loss" => self.loss = Some(parse_rule_positions(value)?),
            "duplicate" => self.duplicate = Some(parse_rule_positions(value)?),
            "reorder" => self.reorder = Some(parse_rule_positions(value)?),
            "reorder-by" => self.reorder_by = Some(parse_number(value)?),
            "corrupt" => self.corrupt = Some(parse_rule_positions(value)?),
            "corrupt-at" => self.corrupt_at = Some(parse_number(value)?),
            "rate" => self.rate = Some(parse_rate(value)?),
            "queue" => self.queue = Some(parse_queue_limit(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds one item: `key=value`, or just `overtake`.
    fn with_item(self, item: &str) -> Result<Self, InvalidImpairmentSpec> {
        match item.split_once('=') {
            Some((key, value)) => self.with_value(key.trim(), value.trim()),
            None if item == "overtake" => self.with_value("overtake", "yes"),
            None => Err(InvalidImpairmentSpec(format!(
                "`{item}` has no value; write it like delay=10ms or loss=1%"
            ))),
        }
    }

    fn check_impairment_combination(self) -> Result<Self, InvalidImpairmentSpec> {
        let pairs = [
            ("jitter", self.jitter.is_some(), "delay", self.delay.is_some()),
            ("overtake", self.overtake, "jitter", self.jitter.is_some()),
            ("reorder-by", self.reorder_by.is_some(), "reorder", self.reorder.is_some()),
            ("corrupt-at", self.corrupt_at.is_some(), "corrupt", self.corrupt.is_some()),
            ("queue", self.queue.is_some(), "rate", self.rate.is_some()),
        ];
        match pairs.iter().find(|(_, is_given, _, has_base)| *is_given && !has_base) {
            Some((what, _, needs, _)) => {
                Err(InvalidImpairmentSpec(format!("`{what}` has no effect without `{needs}`")))
            }
            None => Ok(self),
        }
    }

    /// Reads the spec of one direction; an error names its key in the document.
    fn from_entry(key: &str, node: &DocumentNode<'_>) -> Result<Self, InvalidImpairmentSpec> {
        Self::from_node(node).map_err(|error| InvalidImpairmentSpec(format!("of `{key}`: {}", error.0)))
    }

    fn from_node(node: &DocumentNode<'_>) -> Result<Self, InvalidImpairmentSpec> {
        match &node.value {
            DocumentValue::Scalar(text) => text.parse(),
            DocumentValue::Object(entries) => {
                let mut spec = Self::default();
                for DocumentMember { name: key, node, .. } in entries {
                    let DocumentValue::Scalar(value) = &node.value else {
                        return Err(InvalidImpairmentSpec(format!(
                            "`{key}` must be a single value, such as 10ms or 1%"
                        )));
                    };
                    spec = spec.with_value(key, value)?;
                }
                spec.check_impairment_combination()
            }
            DocumentValue::Null => Ok(Self::default()),
            DocumentValue::List(_) => {
                Err(InvalidImpairmentSpec("the value must be a text or a mapping, not a list".into()))
            }
        }
    }
}

impl fmt::Display for DirectionSpec {
    /// Writes the spec in a fixed order. For a spec that came from a text, parsing this text gives the same spec.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = [
            ("delay", self.delay.map(format_nanos)),
            ("jitter", self.jitter.map(format_jitter)),
            ("overtake", self.overtake.then(|| "yes".to_owned())),
            ("loss", self.loss.as_ref().map(format_positions)),
            ("duplicate", self.duplicate.as_ref().map(format_positions)),
            ("reorder", self.reorder.as_ref().map(format_positions)),
            ("reorder-by", self.reorder_by.map(|frames| frames.to_string())),
            ("corrupt", self.corrupt.as_ref().map(format_positions)),
            ("corrupt-at", self.corrupt_at.map(|byte| byte.to_string())),
            ("rate", self.rate.map(|rate| format!("{}bit/s", rate.bits_per_second()))),
            ("queue", self.queue.map(format_queue_limit)),
        ];
        let items: Vec<String> =
            items.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?))).collect();
        f.write_str(&items.join(","))
    }
}

impl FromStr for DirectionSpec {
    type Err = InvalidImpairmentSpec;

    fn from_str(text: &str) -> Result<Self, InvalidImpairmentSpec> {
        let mut items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.try_fold(Self::default(), Self::with_item)?.check_impairment_combination()
    }
}

/// Impairments of each direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImpairSpecs {
    /// The seed, if the document names one.
    pub seed: Option<u64>,
    /// Specs in the order of [`DIRECTION_NAMES`].
    pub ways: [DirectionSpec; 2],
}

impl ImpairSpecs {
    /// Creates specs with the same impairments in both directions.
    pub fn same_both_ways(spec: &DirectionSpec) -> Self {
        Self { seed: None, ways: [spec.clone(), spec.clone()] }
    }

    /// Reads a YAML document with the keys `seed`, `both`, `a->b` and `b->a`. Each direction is a mapping or a
    /// text such as `delay=10ms,loss=1%`.
    pub fn parse_document(text: &str) -> Result<Self, InvalidImpairmentSpec> {
        let node = document::parse_document(text)
            .map_err(|problem| InvalidImpairmentSpec(format!("document: {}", problem.message)))?;
        let DocumentValue::Object(entries) = node.value else {
            return Err(InvalidImpairmentSpec(
                "document must be a mapping with the key both, a->b or b->a".into(),
            ));
        };
        let mut specs = Self::default();
        // `both` comes first wherever it stands, so that the specs of single directions replace it.
        let (both, others): (Vec<_>, Vec<_>) = entries.iter().partition(|member| &*member.name == "both");
        for DocumentMember { name: key, node, .. } in both.into_iter().chain(others) {
            match (&**key, &node.value) {
                ("seed", DocumentValue::Scalar(value)) => {
                    let seed = parse_number(value);
                    specs.seed = Some(seed.map_err(|why| InvalidImpairmentSpec(format!("`seed`: {why}")))?);
                }
                ("both", _) => specs.ways = Self::same_both_ways(&DirectionSpec::from_entry(key, node)?).ways,
                (key, _) if key == DIRECTION_NAMES[0] => {
                    specs.ways[0] = DirectionSpec::from_entry(key, node)?;
                }
                (key, _) if key == DIRECTION_NAMES[1] => {
                    specs.ways[1] = DirectionSpec::from_entry(key, node)?;
                }
                (key, _) => {
                    return Err(InvalidImpairmentSpec(format!(
                        "key `{key}` is unknown; use seed, both, a->b or b->a"
                    )));
                }
            }
        }
        Ok(specs)
    }

    /// Converts the specs of both directions to plans of faults.
    pub fn to_fault_plans(&self, seed: u64) -> [FaultPlan; 2] {
        let [there, back] = &self.ways;
        [there.to_plan(seed), back.to_plan(seed)]
    }
}

fn format_nanos(time: Nanos) -> String {
    format!("{}ns", time.as_u64())
}

fn format_jitter(jitter: DelayJitter) -> String {
    match jitter.shape {
        DelayDistribution::Uniform => format_nanos(jitter.spread),
        DelayDistribution::Normal => format!("{}:normal", format_nanos(jitter.spread)),
    }
}

fn format_queue_limit(room: QueueLimit) -> String {
    match room {
        QueueLimit::Frames(frames) => frames.to_string(),
        QueueLimit::Bytes(bytes) => format!("{bytes}B"),
    }
}

fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number, or too small or too large"))
}

fn parse_yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err("the value must be yes or no".into()),
    }
}

fn parse_rate(text: &str) -> Result<BitRate, String> {
    let rate: BitRate = text.parse().map_err(|error| format!("{error}"))?;
    if rate.bits_per_second() > 0 { Ok(rate) } else { Err("the rate must be at least 1 bit/s".into()) }
}

/// Parses a percentage such as `1%` into millionths.
fn parse_percent(text: &str) -> Result<u32, String> {
    parse_millionths(text)
        .ok_or_else(|| format!("`{text}` is not a percentage; write it like 1% or 0.0001%, at most 100%"))
}

fn parse_millionths(text: &str) -> Option<u32> {
    let number = text.trim().strip_suffix('%')?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > 4 {
        return None;
    }
    // One percent is ten thousand millionths, so four decimals are exact. The text is read as digits and not
    // as a float, because a float cannot represent 0.1 exactly.
    let millionths: u32 = format!("{whole}{fraction:0<4}").parse().ok()?;
    (millionths <= 1_000_000).then_some(millionths)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_jitter(text: &str) -> Result<DelayJitter, String> {
    let (spread, shape) = text.split_once(':').unwrap_or((text, "uniform"));
    let shape = match shape {
        "uniform" => DelayDistribution::Uniform,
        "normal" => DelayDistribution::Normal,
        _ => return Err(format!("`{shape}` is not a distribution; write uniform or normal")),
    };
    Ok(DelayJitter { spread: spread.parse().map_err(|error| format!("{error}"))?, shape })
}

/// Parses a queue limit: `100` frames, or `64KiB`.
fn parse_queue_limit(text: &str) -> Result<QueueLimit, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    // Upper and lower case matter: kB is 1000 bytes (SI), KiB is 1024 bytes (IEC 80000-13).
    let factor = match text[digits.len()..].trim() {
        "" => return parse_number(digits.trim()).map(QueueLimit::Frames),
        "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return Err("this is not a queue limit; write it like 100 (frames), 64KiB or 1MB".into()),
    };
    let count: u64 = parse_number(digits.trim())?;
    count.checked_mul(factor).map(QueueLimit::Bytes).ok_or_else(|| format!("`{text}` is too large"))
}

/// Parses a selection of frames: `1%`, `every:100`, `burst:0.1%x5`, `gilbert:1%/20%[/BAD/GOOD]`.
fn parse_rule_positions(text: &str) -> Result<RulePositions, String> {
    let Some((kind, rest)) = text.split_once(':') else {
        return Ok(RulePositions::Random { millionths: parse_percent(text)? });
    };
    match kind {
        "every" => match parse_number(rest)? {
            0 => Err("`every:0` selects no frame; write every:1 or more".into()),
            nth => Ok(RulePositions::Every { nth }),
        },
        "burst" => {
            let (share, frames) = rest.split_once('x').ok_or("write it like burst:0.1%x5")?;
            let frames = parse_number::<u64>(frames)?;
            if frames == 0 {
                return Err("a burst needs at least one frame".into());
            }
            Ok(RulePositions::Bursts { millionths: parse_percent(share)?, frames })
        }
        "gilbert" => parse_gilbert_elliott(rest),
        _ => Err(format!("`{kind}` is not a pattern; write 1%, every:100, burst:0.1%x5 or gilbert:1%/20%")),
    }
}

fn format_percent(millionths: u32) -> String {
    format!("{}.{:04}%", millionths / 10_000, millionths % 10_000)
}

/// Formats a selection in the syntax of a spec. A selection that a spec cannot express is written as 0 %.
fn format_positions(select: &RulePositions) -> String {
    match select {
        RulePositions::Random { millionths } => format_percent(*millionths),
        RulePositions::Every { nth } => format!("every:{nth}"),
        RulePositions::Bursts { millionths, frames } => {
            format!("burst:{}x{frames}", format_percent(*millionths))
        }
        RulePositions::GilbertElliott(model) => {
            let parts = [model.into_bad, model.out_of_bad, model.in_bad, model.in_good];
            format!("gilbert:{}", parts.map(format_percent).join("/"))
        }
        RulePositions::All => format_percent(1_000_000),
        RulePositions::At(_) | RulePositions::Within(_) => format_percent(0),
    }
}

fn parse_gilbert_elliott(text: &str) -> Result<RulePositions, String> {
    let parts = text.split('/').map(parse_percent).collect::<Result<Vec<_>, _>>()?;
    let [into_bad, out_of_bad, ref rest @ ..] = parts[..] else {
        return Err(GILBERT_SYNTAX.into());
    };
    let model = match rest {
        [] => GilbertElliott { into_bad, out_of_bad, in_bad: 1_000_000, in_good: 0 },
        [in_bad] => GilbertElliott { into_bad, out_of_bad, in_bad: *in_bad, in_good: 0 },
        [in_bad, in_good] => GilbertElliott { into_bad, out_of_bad, in_bad: *in_bad, in_good: *in_good },
        _ => return Err(GILBERT_SYNTAX.into()),
    };
    Ok(RulePositions::GilbertElliott(model))
}

#[cfg(test)]
mod tests;
