//! `x_criteria`, the limits that a run must keep to pass: packetrig's own addition to OTG.

use crate::criteria::{AcceptanceCriteria, LatencyFigure, LatencyLimit};
use crate::reader::{DocumentItem, DocumentObject};
use std::fmt::Display;
use std::str::FromStr;

/// The criteria of a document; missing ones have their defaults.
pub(super) fn criteria(config: &DocumentObject<'_>) -> AcceptanceCriteria {
    let mut criteria = AcceptanceCriteria::default();
    let Some(object) = config.object("x_criteria") else { return criteria };
    set(&mut criteria.max_loss, object.get("max_loss"));
    set(&mut criteria.max_duplicates, object.get("max_duplicates"));
    set(&mut criteria.max_damaged, object.get("max_damaged"));
    set(&mut criteria.max_misdelivered, object.get("max_misdelivered"));
    set(&mut criteria.min_verified, object.get("min_verified"));
    set(&mut criteria.max_late, object.get("max_late"));
    set(&mut criteria.carrier_loss, object.get("carrier_loss"));
    criteria.max_reordered = read(object.get("max_reordered"));
    criteria.max_altered = read(object.get("max_altered"));
    criteria.max_jitter = read(object.get("max_jitter"));
    criteria.max_outage = read(object.get("max_outage"));
    criteria.min_rate = read(object.get("min_rate"));
    criteria.max_skew = read(object.get("max_skew"));
    if let Some(latency) = object.object("max_latency") {
        for (name, figure) in LatencyFigure::ALL {
            let limit = read(latency.get(name));
            criteria.latency.extend(limit.map(|limit| LatencyLimit { figure, limit }));
        }
        latency.close();
    }
    object.close();
    criteria
}

fn set<T: FromStr<Err: Display>>(value: &mut T, item: Option<DocumentItem<'_>>) {
    if let Some(read) = read(item) {
        *value = read;
    }
}

fn read<T: FromStr<Err: Display>>(item: Option<DocumentItem<'_>>) -> Option<T> {
    let item = item?;
    item.text()?.parse().map_err(|error: T::Err| item.error(error.to_string())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::criteria::CarrierLossCause;
    use packetrig_units::{Nanos, Share};

    fn document(criteria: &str) -> String {
        format!("ports:\n- {{name: a, location: a}}\nx_criteria: {criteria}\n")
    }

    #[test]
    fn a_document_says_what_a_run_has_to_keep() {
        let text = document(
            "{max_loss: 0.1%, max_outage: 50ms, min_rate: 99.5, max_latency: {p99.9: 2ms, max: 10ms}}",
        );
        let criteria = Plan::read(&text).unwrap().criteria;
        assert_eq!(criteria.max_loss, Share::from_billionths(1_000_000));
        assert_eq!(criteria.min_rate, Some(Share::from_billionths(995_000_000)));
        assert_eq!(criteria.max_outage, Some(Nanos::from_millis(50)));
        let limits: Vec<_> = criteria.latency.iter().map(|limit| (limit.figure, limit.limit)).collect();
        let ms = Nanos::from_millis;
        assert_eq!(limits, [(LatencyFigure::P999, ms(2)), (LatencyFigure::Max, ms(10))]);
        assert_eq!(Plan::read(&document("{}")).unwrap().criteria, AcceptanceCriteria::default());
    }

    #[test]
    fn a_document_says_who_takes_the_carrier_away() {
        let criteria = Plan::read(&document("{carrier_loss: device}")).unwrap().criteria;
        assert_eq!(criteria.carrier_loss, CarrierLossCause::Device);
        let problems = Plan::read(&document("{carrier_loss: rig}")).unwrap_err();
        assert_eq!(problems.0[0].path, "x_criteria.carrier_loss");
        assert!(problems.0[0].message.contains("`device` or `unknown`"), "{}", problems.0[0].message);
    }

    #[test]
    fn what_is_no_criterion_is_named_with_its_path() {
        let problems =
            Plan::read(&document("{max_loss: a lot, max_los: 1, max_latency: {p98: 1ms}}")).unwrap_err();
        let paths: Vec<_> = problems.0.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["x_criteria.max_loss", "x_criteria.max_los", "x_criteria.max_latency.p98"]);
    }
}
