//! Documents that each process reads only once, and the plan of a run, which grows with each newer document.
//!
//! The types tell how far a document is processed. A [`SentDocument`] is in a message, a [`PlanDocument`] was
//! read here, and a [`PlanGrowth`] is its effect on the plan of a run. Code that gets a [`PlanDocument`] or a
//! [`PlanGrowth`] need not parse the text.

use crate::PlanProblems;
use crate::model::{BoundPlan, Plan, PlanParseOptions};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// A document that was read in this process, with its plan.
#[derive(Clone, Debug)]
pub struct PlanDocument {
    text: Arc<str>,
    reading: PlanParseOptions,
    plan: Arc<Plan>,
}

impl PlanDocument {
    pub fn read_text(text: impl Into<Arc<str>>, reading: PlanParseOptions) -> Result<Self, PlanProblems> {
        let text = text.into();
        // Messages inside a process carry the plan with its document. The `Arc` avoids a copy of the
        // plan for each message.
        let plan = Arc::new(Plan::from_text_with(&text, reading)?);
        Ok(Self { text, reading, plan })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }
}

/// A document in a message. Inside the process that has read it, the message also has its plan; between processes it
/// has only the text.
#[derive(Clone)]
pub struct SentDocument {
    text: Arc<str>,
    read: Option<PlanDocument>,
}

impl SentDocument {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the document with its plan. The text is parsed only if it comes from another process, or was
    /// parsed with other options.
    pub fn read_document(&self, reading: PlanParseOptions) -> Result<PlanDocument, PlanProblems> {
        match &self.read {
            // Other options give another plan: the seed, placeholders and locations depend on them.
            Some(read) if read.reading == reading => Ok(read.clone()),
            _ => PlanDocument::read_text(Arc::clone(&self.text), reading),
        }
    }
}

impl fmt::Debug for SentDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Default for SentDocument {
    fn default() -> Self {
        Self::from("")
    }
}

// Two documents with the same text are equal, whether or not they were read already.
impl PartialEq for SentDocument {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for SentDocument {}

impl From<&str> for SentDocument {
    fn from(text: &str) -> Self {
        // A document without a plan comes from another process. It is parsed when its plan is requested.
        Self { text: text.into(), read: None }
    }
}

impl From<String> for SentDocument {
    fn from(text: String) -> Self {
        Self { text: text.into(), read: None }
    }
}

impl From<PlanDocument> for SentDocument {
    fn from(read: PlanDocument) -> Self {
        Self { text: Arc::clone(&read.text), read: Some(read) }
    }
}

impl Serialize for SentDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for SentDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// The plan of a run that is under way; newer documents can add streams. The controller and each agent have one in
/// their process, and all other code of the process gets the plan from it.
///
/// A newer plan is proposed first. It becomes the current plan only when all nodes have made the change.
#[derive(Clone, Debug)]
pub struct GrowingPlan {
    current: Arc<Plan>,
    proposed: Option<Arc<Plan>>,
}

/// The effect of a newer plan on the plan of a run.
#[derive(Clone, Debug)]
pub struct PlanGrowth {
    newer: Arc<Plan>,
    grown: Arc<Plan>,
    /// For each stream of the newer plan, its index in the grown plan.
    indices: Vec<usize>,
    /// Number of streams that the plan had before the growth.
    known: usize,
}

impl GrowingPlan {
    pub const fn new(plan: Arc<Plan>) -> Self {
        Self { current: plan, proposed: None }
    }

    pub const fn current(&self) -> &Arc<Plan> {
        &self.current
    }

    /// Proposes `newer`, which must have the same ports, and returns its effect on the plan. An
    /// earlier proposal is dropped.
    pub fn propose_plan(&mut self, newer: &Arc<Plan>) -> PlanGrowth {
        // The change is made on a copy: until all nodes have made it, the current plan must stay as it is.
        let mut grown = Plan::clone(&self.current);
        let indices = grown.add_or_replace_streams_of(newer);
        let grown = Arc::new(grown);
        self.proposed = Some(Arc::clone(&grown));
        PlanGrowth { newer: Arc::clone(newer), grown, indices, known: self.current.streams.len() }
    }

    /// Makes the proposal the current plan. Returns whether there was a proposal.
    pub fn accept_proposal(&mut self) -> bool {
        let proposed = self.proposed.take();
        let has_grown = proposed.is_some();
        self.current = proposed.unwrap_or_else(|| Arc::clone(&self.current));
        has_grown
    }

    /// Drops the proposal: the plan stays as it is.
    pub fn drop_proposal(&mut self) {
        self.proposed = None;
    }
}

impl PlanGrowth {
    /// The plan of the newer document alone.
    pub const fn newer(&self) -> &Arc<Plan> {
        &self.newer
    }

    /// For each stream of the newer plan, its index in the grown plan.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl BoundPlan {
    /// Returns this plan after a growth, with schedules. `newer` is the newer plan, bound to the same links. `None` if
    /// this plan has missed an earlier growth: the indices would then mean other streams.
    pub fn with_growth(&self, growth: &PlanGrowth, newer: &Self) -> Option<Self> {
        // A rig that has missed a growth has fewer streams. The indices would then name other streams (decision 0021).
        if self.streams.len() != growth.known {
            return None;
        }
        let mut streams = self.streams.clone();
        for (index, stream) in growth.indices.iter().zip(&newer.streams) {
            // New streams come in ascending order at the end, so the next one is always pushed at its own index.
            match streams.get_mut(*index) {
                Some(own) => *own = *stream,
                None => streams.push(*stream),
            }
        }
        let plan = Plan { streams: growth.grown.streams.clone(), ..self.plan.clone() };
        Some(Self { plan, streams, speeds: self.speeds.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlanChange;

    fn document(flows: &[&str]) -> String {
        let flow = |name: &&str| {
            format!("{{name: {name}, tx_rx: {{choice: port, port: {{tx_name: a, rx_names: [b]}}}}}}")
        };
        let flows: Vec<String> = flows.iter().map(flow).collect();
        format!(
            "{{ports: [{{name: a, location: a}}, {{name: b, location: b}}], flows: [{}]}}",
            flows.join(", ")
        )
    }

    fn plan(flows: &[&str]) -> Arc<Plan> {
        Arc::new(Plan::from_text(&document(flows)).expect("reads"))
    }

    #[test]
    fn already_read_document_is_reused() {
        let reading = PlanParseOptions { seed: 3, ..PlanParseOptions::default() };
        let read = PlanDocument::read_text(document(&["x"]), reading).expect("reads");
        let sent = SentDocument::from(read.clone());
        assert!(Arc::ptr_eq(sent.read_document(reading).expect("known").plan(), read.plan()));
        // Another way of reading it gives another plan.
        let other = sent.read_document(PlanParseOptions::default()).expect("reads");
        assert!(!Arc::ptr_eq(other.plan(), read.plan()));
    }

    #[test]
    fn only_the_text_leaves_the_process() {
        let read = PlanDocument::read_text(document(&["x"]), PlanParseOptions::default()).expect("reads");
        let change: PlanChange = PlanChange::Replan(read.clone()).into();
        let text = serde_json::to_string(&change).expect("encodes");
        assert_eq!(text, serde_json::json!({"replan": document(&["x"])}).to_string());
        let received: PlanChange = serde_json::from_str(&text).expect("decodes");
        assert_eq!(received, change);
        let PlanChange::Replan(received) = received else { panic!("{received:?}") };
        let again = received.read_document(PlanParseOptions::default()).expect("reads");
        assert!(!Arc::ptr_eq(again.plan(), read.plan()), "another process has to read it");
    }

    #[test]
    fn a_plan_grows_when_the_change_is_made() {
        let mut own = GrowingPlan::new(plan(&["x"]));
        let growth = own.propose_plan(&plan(&["y", "x"]));
        assert_eq!((growth.indices(), own.current().streams.len()), (&[1, 0][..], 1));
        own.drop_proposal();
        assert!(!own.accept_proposal(), "what was dropped is not accepted later");
        let growth = own.propose_plan(&plan(&["z"]));
        assert!(own.accept_proposal());
        assert!(Arc::ptr_eq(own.current(), &growth.grown));
        let names: Vec<&str> = own.current().streams.iter().map(|stream| stream.name.as_str()).collect();
        assert_eq!(names, ["x", "z"]);
    }

    #[test]
    fn bound_plan_requires_growths_in_order() {
        let bound = |flows: &[&str]| Plan::clone(&plan(flows)).bind_to_links(&[]).expect("binds");
        let mut own = GrowingPlan::new(plan(&["x"]));
        let first = own.propose_plan(&plan(&["y"]));
        own.accept_proposal();
        let second = own.propose_plan(&plan(&["z"]));
        let before = bound(&["x"]);
        assert!(before.with_growth(&second, &bound(&["z"])).is_none());
        let after = before.with_growth(&first, &bound(&["y"])).expect("is the plan that grows");
        let after = after.with_growth(&second, &bound(&["z"])).expect("is the plan that grows");
        assert_eq!((after.streams.len(), after.plan.streams.len()), (3, 3));
    }
}
