//! Where the ports of a plan are in a fleet: the interface that is named, or any free one with the wanted label.
//!
//! It knows what nodes said of themselves, not what they will say when they are asked to prepare. Either every port has a
//! place or every reason why not is given.
//!
//! Invariant: no interface is given twice; the same plan and the same nodes give the same places; ports by label are
//! found places whenever that is possible at all.

use crate::members::{MemberRow, Members, Presence};
use crate::message::{NodeName, Place, RunId};
use packetrig_plan::{Plan, Problem, Problems, Site};
use packetrig_units::MonoTime;
use std::collections::BTreeSet;

/// A place for each port of `plan`, by its index. `run` is the run it is for: nodes that are busy with another one
/// are left alone.
pub fn settle(
    plan: &Plan,
    members: &Members,
    run: Option<&RunId>,
    now: MonoTime,
) -> Result<Vec<Place>, Problems> {
    let mut search = Search::new(plan, members.rows(now), run);
    for (index, port) in plan.ports.iter().enumerate() {
        if let Err(problem) = search.named(index, &port.site, &port.location.to_string()) {
            search.problems.push(*problem);
        }
    }
    for index in 0..plan.ports.len() {
        if matches!(plan.ports[index].site, Site::Any(_)) && !search.give(index, &mut BTreeSet::new()) {
            search.short_of_one(index);
        }
    }
    search.finish()
}

/// An interface that could be given.
#[derive(Debug)]
struct Offer {
    place: Place,
    labels: Vec<String>,
    up: bool,
    /// Why its node takes no part.
    hindrance: Option<String>,
    /// The plan's port that has it.
    given: Option<usize>,
}

#[derive(Debug)]
struct Search<'a> {
    plan: &'a Plan,
    rows: Vec<MemberRow>,
    offers: Vec<Offer>,
    hindered: Vec<Option<String>>,
    problems: Vec<Problem>,
}

fn path(index: usize) -> String {
    format!("ports[{index}].location")
}

impl<'a> Search<'a> {
    fn new(plan: &'a Plan, rows: Vec<MemberRow>, run: Option<&RunId>) -> Self {
        let hindered: Vec<_> = rows.iter().map(|row| row.hindrance(run)).collect();
        let mut offers: Vec<Offer> = Vec::new();
        for (row, hindrance) in rows.iter().zip(&hindered) {
            offers.extend(row.hello.ports.iter().map(|port| Offer {
                place: Place { node: row.node.clone(), interface: port.interface.clone() },
                labels: row.hello.labels.iter().chain(&port.labels).cloned().collect(),
                up: port.up,
                hindrance: hindrance.clone(),
                given: None,
            }));
        }
        offers.sort_by(|one, other| one.place.cmp(&other.place));
        Self { plan, rows, offers, hindered, problems: Vec::new() }
    }

    /// Gives a port the interface it names.
    fn named(&mut self, index: usize, site: &Site, interface: &str) -> Result<(), Box<Problem>> {
        let wrong = |message: String| Box::new(Problem::error(path(index), message));
        let helped =
            |message: String, hint: String| Box::new(Problem::error(path(index), message).with_hint(hint));
        let node = match site {
            Site::Any(_) => return Ok(()),
            Site::Here => return Err(wrong(format!("`{interface}` does not say on which node it is"))),
            Site::Node(node) => node,
        };
        let Some(row) = self.rows.iter().position(|row| row.node.0 == *node) else {
            let known: Vec<&str> = self.rows.iter().map(|row| row.node.0.as_str()).collect();
            let hint = match known.as_slice() {
                [] => "no node has joined yet; see `packetrig fleet status`".to_owned(),
                known => format!("nodes of this fleet: {}", some(known)),
            };
            return Err(helped(format!("there is no node `{node}`"), hint));
        };
        if let Some(hindrance) = &self.hindered[row] {
            return Err(wrong(format!("node `{node}` cannot take part: {hindrance}")));
        }
        let is_it = |offer: &&mut Offer| offer.place.node.0 == *node && offer.place.interface == interface;
        let Some(offer) = self.offers.iter_mut().find(is_it) else {
            let offered: Vec<&str> =
                self.rows[row].hello.ports.iter().map(|port| port.interface.as_str()).collect();
            let hint = match offered.as_slice() {
                [] => format!("the owner of `{node}` offers no port"),
                offered => format!("its owner offers: {}", some(offered)),
            };
            return Err(helped(format!("node `{node}` does not offer a port `{interface}`"), hint));
        };
        if !offer.up {
            return Err(wrong(format!("the link of `{node}/{interface}` is down")));
        }
        if let Some(other) = offer.given {
            return Err(wrong(format!(
                "`{node}/{interface}` is port `{}` already",
                self.plan.ports[other].name
            )));
        }
        offer.given = Some(index);
        Ok(())
    }

    /// Gives a port any interface with its label. If all are given, one whose port can move makes room.
    fn give(&mut self, index: usize, tried: &mut BTreeSet<usize>) -> bool {
        let candidates = self.candidates(index);
        if let Some(free) = candidates.iter().find(|offer| self.offers[**offer].given.is_none()) {
            self.offers[*free].given = Some(index);
            return true;
        }
        for offer in candidates {
            let Some(holder) = self.offers[offer].given.filter(|_| tried.insert(offer)) else { continue };
            // A port whose interface is named stays.
            if matches!(self.plan.ports[holder].site, Site::Any(_)) && self.give(holder, tried) {
                self.offers[offer].given = Some(index);
                return true;
            }
        }
        false
    }

    /// Offers with the label of a port, those on the least used nodes first.
    fn candidates(&self, index: usize) -> Vec<usize> {
        let Site::Any(label) = &self.plan.ports[index].site else { return Vec::new() };
        let suits = |offer: &Offer| offer.up && offer.hindrance.is_none() && offer.labels.contains(label);
        let mut found: Vec<usize> =
            (0..self.offers.len()).filter(|offer| suits(&self.offers[*offer])).collect();
        found.sort_by_cached_key(|offer| {
            let node = &self.offers[*offer].place.node;
            let there =
                self.offers.iter().filter(|other| other.place.node == *node).filter_map(|other| other.given);
            let alike =
                there.clone().filter(|port| self.plan.ports[*port].site == self.plan.ports[index].site);
            // The order of the offers decides what is equal otherwise.
            (alike.count(), there.count(), *offer)
        });
        found
    }

    fn short_of_one(&mut self, index: usize) {
        let port = &self.plan.ports[index];
        let Site::Any(label) = &port.site else { return };
        let wanted = self.plan.ports.iter().filter(|other| other.site == port.site).count();
        let labelled: Vec<&Offer> = self.offers.iter().filter(|offer| offer.labels.contains(label)).collect();
        let usable = labelled.iter().filter(|offer| offer.up && offer.hindrance.is_none()).count();
        let mut reasons: BTreeSet<String> = BTreeSet::new();
        for offer in &labelled {
            let Place { node, interface } = &offer.place;
            match &offer.hindrance {
                Some(hindrance) => reasons.insert(format!("node `{node}` cannot take part: {hindrance}")),
                None if !offer.up => reasons.insert(format!("the link of `{node}/{interface}` is down")),
                None => false,
            };
        }
        let hint = match (labelled.len(), reasons.is_empty()) {
            (0, _) => format!("no owner gave a port or node the label `{label}`"),
            (_, true) => "other ports of the plan have the rest".to_owned(),
            (_, false) => some(&reasons.iter().map(String::as_str).collect::<Vec<_>>()),
        };
        let message =
            format!("no port is left for `any-{label}`: the plan wants {wanted}, {usable} can be had");
        self.problems.push(Problem::error(path(index), message).with_hint(hint));
    }

    fn finish(self) -> Result<Vec<Place>, Problems> {
        if !self.problems.is_empty() {
            return Err(Problems(self.problems));
        }
        let place = |index: usize| {
            let offer = self.offers.iter().find(|offer| offer.given == Some(index));
            offer.map(|offer| offer.place.clone())
        };
        // Every port without a place has left a problem.
        Ok((0..self.plan.ports.len()).filter_map(place).collect())
    }
}

/// Ports a plan could have for `any-LABEL` now: what `any-LABEL*all` means.
pub fn free(label: &str, members: &Members, now: MonoTime) -> usize {
    let rows = members.rows(now);
    let at_hand = rows.iter().filter(|row| row.presence == Presence::Fresh && row.hindrance(None).is_none());
    let labelled = |row: &MemberRow| {
        let whole = row.hello.labels.iter().any(|own| own == label);
        let has = |labels: &[String]| whole || labels.iter().any(|own| own == label);
        row.hello.ports.iter().filter(|port| port.up && has(&port.labels)).count()
    };
    at_hand.map(labelled).sum()
}

/// The nodes that places are on, each once.
pub fn nodes(places: &[Place]) -> Vec<NodeName> {
    let names: BTreeSet<&NodeName> = places.iter().map(|place| &place.node).collect();
    names.into_iter().cloned().collect()
}

/// A list for people; of many, the first.
fn some(words: &[&str]) -> String {
    const MOST: usize = 8;
    match words.len().checked_sub(MOST) {
        None | Some(0) => words.join(", "),
        Some(more) => format!("{} and {more} more", words[..MOST].join(", ")),
    }
}

#[cfg(test)]
mod tests;
