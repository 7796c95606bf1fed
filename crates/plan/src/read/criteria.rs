//! `x_criteria`, the limits that a run must keep to pass: packetrig's own addition to OTG.

use crate::criteria::{AcceptanceCriteria, LatencyFigure, LatencyLimit};
use crate::reader::{DocumentItem, DocumentObject};
use std::fmt::Display;
use std::str::FromStr;

/// The criteria of a document; missing ones have their defaults.
pub(super) fn read_criteria(config: &DocumentObject<'_>) -> AcceptanceCriteria {
    let mut criteria = AcceptanceCriteria::default();
    let Some(object) = config.read_object("x_criteria") else { return criteria };
    set_if_given(&mut criteria.max_loss, object.read_member("max_loss"));
    set_if_given(&mut criteria.max_duplicates, object.read_member("max_duplicates"));
    set_if_given(&mut criteria.max_damaged, object.read_member("max_damaged"));
    set_if_given(&mut criteria.max_misdelivered, object.read_member("max_misdelivered"));
    set_if_given(&mut criteria.min_verified, object.read_member("min_verified"));
    set_if_given(&mut criteria.max_late, object.read_member("max_late"));
    set_if_given(&mut criteria.carrier_loss, object.read_member("carrier_loss"));
    criteria.max_reordered = read_value(object.read_member("max_reordered"));
    criteria.max_altered = read_value(object.read_member("max_altered"));
    criteria.max_jitter = read_value(object.read_member("max_jitter"));
    criteria.max_outage = read_value(object.read_member("max_outage"));
    criteria.min_rate = read_value(object.read_member("min_rate"));
    criteria.max_skew = read_value(object.read_member("max_skew"));
    if let Some(latency) = object.read_object("max_latency") {
        for (name, figure) in LatencyFigure::ALL {
            let limit = read_value(latency.read_member(name));
            criteria.latency.extend(limit.map(|limit| LatencyLimit { figure, limit }));
        }
        latency.refuse_unread_members();
    }
    object.refuse_unread_members();
    criteria
}

fn set_if_given<T: FromStr<Err: Display>>(value: &mut T, item: Option<DocumentItem<'_>>) {
    if let Some(read) = read_value(item) {
        *value = read;
    }
}

fn read_value<T: FromStr<Err: Display>>(item: Option<DocumentItem<'_>>) -> Option<T> {
    let item = item?;
    item.as_text()?.parse().map_err(|error: T::Err| item.add_item_error(error.to_string())).ok()
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
    fn criteria_are_read_from_document() {
        let text = document(
            "{max_loss: 0.1%, max_outage: 50ms, min_rate: 99.5, max_latency: {p99.9: 2ms, max: 10ms}}",
        );
        let criteria = Plan::from_text(&text).unwrap().criteria;
        assert_eq!(criteria.max_loss, Share::from_billionths(1_000_000));
        assert_eq!(criteria.min_rate, Some(Share::from_billionths(995_000_000)));
        assert_eq!(criteria.max_outage, Some(Nanos::from_millis(50)));
        let limits: Vec<_> = criteria.latency.iter().map(|limit| (limit.figure, limit.limit)).collect();
        let ms = Nanos::from_millis;
        assert_eq!(limits, [(LatencyFigure::P999, ms(2)), (LatencyFigure::Max, ms(10))]);
        assert_eq!(Plan::from_text(&document("{}")).unwrap().criteria, AcceptanceCriteria::default());
    }

    #[test]
    fn a_document_says_who_takes_the_carrier_away() {
        let criteria = Plan::from_text(&document("{carrier_loss: device}")).unwrap().criteria;
        assert_eq!(criteria.carrier_loss, CarrierLossCause::Device);
        let problems = Plan::from_text(&document("{carrier_loss: rig}")).unwrap_err();
        assert_eq!(problems.0[0].path, "x_criteria.carrier_loss");
        assert!(problems.0[0].message.contains("`device` or `unknown`"), "{}", problems.0[0].message);
    }

    #[test]
    fn invalid_criteria_are_named_with_paths() {
        let problems =
            Plan::from_text(&document("{max_loss: a lot, max_los: 1, max_latency: {p98: 1ms}}")).unwrap_err();
        let paths: Vec<_> = problems.0.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["x_criteria.max_loss", "x_criteria.max_los", "x_criteria.max_latency.p98"]);
    }
}
