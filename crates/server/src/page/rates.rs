//! Converts a rate that a person types into an OTG update of flows.

use crate::tester::{RefusalKind, Tester, TesterRefusal};
use crate::viewing::ViewRefusal;
use packetrig_units::Rate;
use serde_json::{Map, Value, json};

/// Maximum percentage of the current rate. A larger one is probably a typing error.
const MAX_PERCENT: u64 = 1000;
/// OTG's default of `rate.pps`, and its limits of `rate.bps` and `rate.percentage`.
const DEFAULT_PPS: u64 = 1000;
const MIN_BIT_RATE: u64 = 672;
const FULL_LINK_PERCENT: f64 = 100.0;
/// Steps of a rate in one percent of the link: a plan stores such a rate in billionths of the link.
const PERCENT_STEPS: f64 = 1e7;

/// A new rate for the named streams, or for all streams if none is named.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RateChange {
    streams: Vec<String>,
    new_rate: RequestedRate,
}

#[derive(Clone, Debug, PartialEq)]
enum RequestedRate {
    /// The value of OTG's `rate`.
    Fixed(Value),
    PercentOfCurrent(u64),
}

impl RateChange {
    /// Reads `{"rate": "2kpps", "streams": ["f1"]}`, or with `"percent": 110` in place of `rate`.
    pub(super) fn parse_rate_change(body: &[u8]) -> Result<Self, ViewRefusal> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            rate: Option<String>,
            percent: Option<u64>,
            #[serde(default)]
            streams: Vec<String>,
        }
        let read: Body = serde_json::from_slice(body)
            .map_err(|error| ViewRefusal::Invalid(format!("the request body is not valid: {error}")))?;
        let new_rate = match (read.rate, read.percent) {
            (Some(rate), None) => RequestedRate::Fixed(parse_otg_rate(&rate)?),
            (None, Some(percent @ 1..=MAX_PERCENT)) => RequestedRate::PercentOfCurrent(percent),
            (None, Some(percent)) => {
                let message = format!("percent: {percent} is not between 1 and {MAX_PERCENT}");
                return Err(ViewRefusal::Invalid(message));
            }
            _ => {
                return Err(ViewRefusal::Invalid(
                    "the body must have exactly one of `rate` and `percent`".to_owned(),
                ));
            }
        };
        Ok(Self { streams: read.streams, new_rate })
    }

    /// Changes the rates. Streams that transmit continue at their new rates.
    pub(super) fn apply_rates(&self, tester: &dyn Tester) -> Result<Vec<String>, TesterRefusal> {
        // The caller holds the lock of changes, so the configuration cannot change before it is updated.
        let update = self.build_config_update(&tester.current_config())?;
        tester.update_config(update)
    }

    /// Builds the `ConfigUpdate` of OTG that gives the flows of `config` their new rates.
    fn build_config_update(&self, config: &Value) -> Result<Value, TesterRefusal> {
        let flows = config["flows"].as_array().map(Vec::as_slice).unwrap_or_default();
        let unknown =
            self.streams.iter().filter(|name| !flows.iter().any(|flow| flow["name"] == name.as_str()));
        let mut errors: Vec<String> =
            unknown.map(|name| format!("streams: there is no stream `{name}`")).collect();
        if flows.is_empty() && errors.is_empty() {
            errors.push("there is no configuration, so there is no stream with a rate to change".to_owned());
        }
        if !errors.is_empty() {
            return Err(TesterRefusal { kind: RefusalKind::Validation, errors });
        }
        // As in every call of OTG, an empty list means all flows.
        let changed: Vec<Value> = flows
            .iter()
            .filter(|flow| {
                self.streams.is_empty() || self.streams.iter().any(|name| flow["name"] == name.as_str())
            })
            .map(|flow| {
                let mut flow = flow.clone();
                flow["rate"] = self.new_rate.build_replacement_rate(&flow["rate"]);
                flow
            })
            .collect();
        Ok(json!({ "choice": "flows", "flows": { "property_names": ["rate"], "flows": changed } }))
    }
}

impl RequestedRate {
    /// Builds the `rate` of OTG that replaces `current`.
    fn build_replacement_rate(&self, current: &Value) -> Value {
        match self {
            Self::Fixed(rate) => rate.clone(),
            Self::PercentOfCurrent(percent) => scale_rate(current, *percent),
        }
    }
}

/// Converts a rate as users write it to OTG's `rate`.
fn parse_otg_rate(text: &str) -> Result<Value, ViewRefusal> {
    let rate: Rate =
        text.parse().map_err(|error: packetrig_units::Error| invalid_rate_refusal(error.to_string()))?;
    Ok(match rate {
        Rate::Frames(rate) => {
            // OTG's `pps` is a whole number, so it cannot express a rate such as one frame in three seconds.
            let frames = (rate.seconds() == 1).then(|| rate.frames()).ok_or_else(|| {
                invalid_rate_refusal(format!(
                    "`{text}` is not a whole number of frames per second; write a bit rate"
                ))
            })?;
            json!({ "choice": "pps", "pps": frames.to_string() })
        }
        Rate::Bits(rate) => json!({ "choice": "bps", "bps": rate.bits_per_second().to_string() }),
        Rate::Share(share) => {
            // A billionth of the link is 10^-7 percent.
            json!({ "choice": "percentage", "percentage": share.billionths() as f64 / PERCENT_STEPS })
        }
    })
}

fn invalid_rate_refusal(message: String) -> ViewRefusal {
    ViewRefusal::Invalid(format!("rate: {message}"))
}

/// Reads an integer of normalised JSON: 64-bit integers are text, narrower ones are numbers.
fn read_json_integer(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Scales a rate to `percent` of its value. A percentage above 100 increases a rate in bits or frames by at least
/// one. A share of the link is rounded to the nearest step of a plan, and is never above the whole link.
fn scale_rate(current: &Value, percent: u64) -> Value {
    let unit = current["choice"].as_str().unwrap_or("pps");
    if unit == "percentage" {
        let share = current[unit].as_f64().unwrap_or(FULL_LINK_PERCENT) * percent as f64 / 100.0;
        // The rate is rounded to the steps of a plan; one step is the smallest rate.
        let share = (share * PERCENT_STEPS).round().max(1.0) / PERCENT_STEPS;
        return json!({ "choice": unit, "percentage": share.min(FULL_LINK_PERCENT) });
    }
    // The result is in bit/s or frames per second, because the larger units are too coarse for small changes.
    let (factor, least) = match unit {
        "bps" => (1, MIN_BIT_RATE),
        "kbps" => (1_000, MIN_BIT_RATE),
        "mbps" => (1_000_000, MIN_BIT_RATE),
        "gbps" => (1_000_000_000, MIN_BIT_RATE),
        // `pps`: whole frames per second.
        _ => (1, 1),
    };
    // OTG's defaults: 1 Gbit/s in every unit of bits, and 1000 frames per second.
    let default = if least == MIN_BIT_RATE { 1_000_000_000 / factor } else { DEFAULT_PPS };
    let before = read_json_integer(&current[unit]).unwrap_or(default).saturating_mul(factor);
    // 1000 percent of a rate in bit/s may exceed 64 bits.
    let scaled = u128::from(before) * u128::from(percent) / 100;
    let mut after = u64::try_from(scaled).unwrap_or(u64::MAX);
    // The scaled rate is rounded down, so a small one would never grow.
    if after == before && percent > 100 {
        after += 1;
    }
    let (choice, after) = (if least == MIN_BIT_RATE { "bps" } else { "pps" }, after.max(least).to_string());
    let mut rate = Map::new();
    rate.insert("choice".to_owned(), choice.into());
    rate.insert(choice.to_owned(), after.into());
    Value::Object(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(body: &str) -> Result<Value, String> {
        let config = json!({"flows": [
            {"name": "a", "rate": {"choice": "pps", "pps": "5"}, "size": {}},
            {"name": "b", "rate": {"choice": "mbps", "mbps": "10"}},
            {"name": "c", "rate": {"choice": "percentage", "percentage": 60.0}},
            {"name": "d"},
        ]});
        let change = RateChange::parse_rate_change(body.as_bytes()).map_err(|refusal| refusal.to_string())?;
        change.build_config_update(&config).map_err(|refusal| refusal.to_string())
    }

    fn rates(body: &str) -> Vec<Value> {
        let update = update(body).expect("an update");
        assert_eq!(update["flows"]["property_names"], json!(["rate"]));
        let flows = update["flows"]["flows"].as_array().expect("flows");
        flows.iter().map(|flow| flow["rate"].clone()).collect()
    }

    #[test]
    fn human_rate_text_becomes_otg_rate() {
        for (text, rate) in [
            ("2kpps", json!({"choice": "pps", "pps": "2000"})),
            ("1.5Mbit/s", json!({"choice": "bps", "bps": "1500000"})),
            ("12.5%", json!({"choice": "percentage", "percentage": 12.5})),
        ] {
            assert_eq!(rates(&format!("{{\"rate\":\"{text}\",\"streams\":[\"a\"]}}")), [rate]);
        }
        for bad in ["fast", "0.1pps", "0pps", ""] {
            assert!(update(&format!("{{\"rate\":\"{bad}\"}}")).expect_err("refused").starts_with("rate: "));
        }
    }

    #[test]
    fn percent_scales_every_rate_in_its_own_unit() {
        assert_eq!(
            rates("{\"percent\":110}"),
            [
                json!({"choice": "pps", "pps": "6"}),
                json!({"choice": "bps", "bps": "11000000"}),
                json!({"choice": "percentage", "percentage": 66.0}),
                json!({"choice": "pps", "pps": "1100"}),
            ]
        );
        assert_eq!(
            rates("{\"percent\":1}"),
            [
                json!({"choice": "pps", "pps": "1"}),
                json!({"choice": "bps", "bps": "100000"}),
                json!({"choice": "percentage", "percentage": 0.6}),
                json!({"choice": "pps", "pps": "10"}),
            ]
        );
        assert_eq!(rates("{\"percent\":1000,\"streams\":[\"c\"]}")[0]["percentage"], 100.0);
    }

    #[test]
    fn wrong_requests_are_refused_by_name() {
        for (body, named) in [
            ("{}", "`rate` and `percent`"),
            ("{\"rate\":\"1pps\",\"percent\":5}", "`rate` and `percent`"),
            ("{\"percent\":0}", "between 1 and 1000"),
            ("{\"percent\":5,\"streams\":[\"a\",\"x\"]}", "no stream `x`"),
            ("[]", "the request body is not valid: "),
        ] {
            assert!(update(body).expect_err("refused").contains(named), "{body}");
        }
        let change = RateChange::parse_rate_change(b"{\"percent\":50}").expect("reads");
        assert!(
            change
                .build_config_update(&json!({}))
                .is_err_and(|refusal| refusal.to_string().contains("configuration"))
        );
    }
}
