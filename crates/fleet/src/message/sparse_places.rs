//! Encodes the places of ports (node and interface) in messages. A series of places that do not concern the receiving
//! node is sent as its length.
//!
//! Example: `[{"node":"a","interface":"eth1"}, 4998, …]`. A number stands for that many [`PortPlace::elsewhere`].

use super::PortPlace;
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Maximum number of ports of a plan. With this limit, a short message cannot make a node allocate much memory.
const MAX_PLAN_PORTS: usize = 1 << 16;

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PlaceOrGap {
    Place(PortPlace),
    Gap(usize),
}

pub(super) fn serialize<S: Serializer>(places: &[PortPlace], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(None)?;
    let mut gap = 0;
    for place in places {
        if place.is_elsewhere() {
            gap += 1;
            continue;
        }
        if gap > 0 {
            list.serialize_element(&gap)?;
            gap = 0;
        }
        list.serialize_element(place)?;
    }
    // A gap at the end is sent, too: the list must keep its length, because places are found by their index.
    if gap > 0 {
        list.serialize_element(&gap)?;
    }
    list.end()
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PortPlace>, D::Error> {
    deserializer.deserialize_seq(PlacesVisitor)
}

struct PlacesVisitor;

impl<'de> Visitor<'de> for PlacesVisitor {
    type Value = Vec<PortPlace>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX_PLAN_PORTS} port locations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<PortPlace>, A::Error> {
        let mut places = Vec::new();
        while let Some(next) = list.next_element()? {
            let length = match &next {
                PlaceOrGap::Place(_) => 1,
                PlaceOrGap::Gap(count) => *count,
            };
            // The number is checked before memory for the places is allocated, because one short number can stand
            // for a huge gap.
            if length > MAX_PLAN_PORTS - places.len() {
                return Err(A::Error::custom(format_args!(
                    "the list has more than {MAX_PLAN_PORTS} port locations"
                )));
            }
            match next {
                PlaceOrGap::Place(place) => places.push(place),
                PlaceOrGap::Gap(count) => places.resize(places.len() + count, PortPlace::elsewhere()),
            }
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use crate::message::{NodeName, PortPlace, RunPreparation};

    #[test]
    fn places_elsewhere_are_counted_and_come_back() {
        let place = |node: &str| PortPlace { node: NodeName(node.into()), interface: "eth1".into() };
        let mut places = vec![PortPlace::elsewhere(); 5000];
        places[0] = place("a");
        places[4000] = place("b");
        let told = RunPreparation { places, ..RunPreparation::default() };
        let text = serde_json::to_string(&told).unwrap();
        assert!(text.contains(
            r#""places":[{"node":"a","interface":"eth1"},3999,{"node":"b","interface":"eth1"},999]"#
        ));
        assert_eq!(serde_json::from_str::<RunPreparation>(&text).unwrap(), told);
        for bad in ["[65537]", "[65536, 1]", "[-1]", "[\"a\"]"] {
            let places = format!(r#""places":{bad}"#);
            let start = text.find(r#""places":["#).unwrap();
            let end = start + text[start..].find(']').unwrap() + 1;
            let text = format!("{}{places}{}", &text[..start], &text[end..]);
            assert!(serde_json::from_str::<RunPreparation>(&text).is_err(), "{bad}");
        }
    }
}
