//! Typed access to the tree of a document. Every problem is recorded with its path, and no key that has a
//! value is skipped silently.
//!
//! A [`DocumentObject`] remembers the keys that were read; [`DocumentObject::refuse_unread_members`] reports
//! the remaining keys as unknown. Keys that OTG has and packetrig does not are refused with
//! [`DocumentObject::refuse_members`].

use crate::document::{self, DocumentMember, DocumentNode, DocumentValue, TextPosition};
use crate::nearest::nearest_name;
use crate::{PlanProblem, ProblemSeverity};
use std::cell::{Cell, RefCell};

/// The problems found so far.
#[derive(Debug, Default)]
pub(crate) struct ProblemCollector {
    noted: RefCell<Vec<PlanProblem>>,
    warnings: Cell<usize>,
    unlisted: Cell<usize>,
}

/// Maximum number of listed problems: a hostile document can have millions. If the list is full, a further
/// error replaces a warning.
const MAX_NOTES: usize = 1_000;

impl ProblemCollector {
    pub(crate) fn add_problem(&self, problem: PlanProblem) {
        let mut noted = self.noted.borrow_mut();
        let is_warning = problem.severity == ProblemSeverity::Warning;
        let problem = problem.shorten();
        if noted.len() < MAX_NOTES {
            self.warnings.set(self.warnings.get() + usize::from(is_warning));
            noted.push(problem);
            return;
        }
        // Either the new problem or the warning that it replaces is not listed: in both cases, one more is unlisted.
        self.unlisted.set(self.unlisted.get() + 1);
        if is_warning || self.warnings.get() == 0 {
            return;
        }
        // Only errors refuse a document, so an error is never dropped while a warning can make room.
        if let Some(warning) = noted.iter_mut().find(|noted| noted.severity == ProblemSeverity::Warning) {
            *warning = problem;
            self.warnings.set(self.warnings.get() - 1);
        }
    }

    fn is_full(&self) -> bool {
        self.noted.borrow().len() >= MAX_NOTES
    }

    /// The listed problems, in document order. If some were not listed, an additional last entry says how many.
    pub(crate) fn into_problems(self) -> Vec<PlanProblem> {
        let mut problems = self.noted.into_inner();
        // Problems without a position come last. The sort is stable, so problems at one position stay in order.
        problems.sort_by_key(|problem| problem.span.map_or(usize::MAX, |(start, _)| start));
        if self.unlisted.get() > 0 {
            // An error is unlisted only if all listed problems are errors, so no unlisted problem is worse than
            // the worst listed one.
            let worst =
                problems.iter().map(|problem| problem.severity).max().unwrap_or(ProblemSeverity::Error);
            let message = format!("{} more problems are not listed", self.unlisted.get());
            problems.push(PlanProblem { severity: worst, ..PlanProblem::error("", message) });
        }
        problems
    }
}

/// A value of the document, with its path.
#[derive(Clone, Debug)]
pub(crate) struct DocumentItem<'a> {
    pub(crate) path: String,
    node: &'a DocumentNode<'a>,
    notes: &'a ProblemCollector,
}

impl<'a> DocumentItem<'a> {
    pub(crate) fn from_root(node: &'a DocumentNode<'a>, notes: &'a ProblemCollector) -> Self {
        Self { path: String::new(), node, notes }
    }

    pub(crate) fn place(&self) -> TextPosition {
        self.node.place
    }

    pub(crate) fn add_item_error(&self, message: impl Into<String>) {
        self.add_problem(PlanProblem::error(&*self.path, message));
    }

    pub(crate) fn add_item_warning(&self, message: impl Into<String>) {
        self.add_problem(PlanProblem::warning(&*self.path, message));
    }

    pub(crate) fn add_problem(&self, problem: PlanProblem) {
        self.notes.add_problem(self.node.place.locate_problem(problem));
    }

    pub(crate) fn as_object(&self) -> Option<DocumentObject<'a>> {
        match &self.node.value {
            DocumentValue::Object(members) => Some(DocumentObject::new(self.clone(), members)),
            // In YAML, a member without a value is null. It counts as an object whose members all have their defaults.
            DocumentValue::Null => Some(DocumentObject::new(self.clone(), &[])),
            _ if self.path.is_empty() => {
                let problem = PlanProblem::error("", "a plan must be an object with ports and flows");
                self.add_problem(problem.with_hint("`packetrig docs plan` describes plans"));
                None
            }
            _ => {
                self.add_item_error("must be an object");
                None
            }
        }
    }

    pub(crate) fn as_list(&self) -> Vec<Self> {
        self.clone().iter_items().collect()
    }

    /// Returns the items of a list one at a time: the paths of a long list would take more memory than its values. A
    /// value that is not a list is an error and has no items.
    fn iter_items(self) -> impl ExactSizeIterator<Item = Self> + use<'a> {
        let items: &'a [DocumentNode<'a>] = if let DocumentValue::List(items) = &self.node.value {
            items
        } else {
            self.add_item_error("must be a list");
            &[]
        };
        let Self { path, notes, .. } = self;
        items.iter().enumerate().map(move |(i, node)| Self { path: format!("{path}[{i}]"), node, notes })
    }

    pub(crate) fn as_text(&self) -> Option<&'a str> {
        let DocumentValue::Scalar(text) = &self.node.value else {
            self.add_item_error("must be a single value");
            return None;
        };
        Some(text)
    }

    /// Reads a whole number from `least` to `most`. OTG also writes numbers as text, YAML also as `0x88a8`.
    pub(crate) fn as_number(&self, least: u128, most: u128) -> Option<u128> {
        let text = self.as_text()?;
        let read = match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match read {
            // `parse` accepts `+5`, which JSON does not allow.
            _ if text.contains('+') => self.report_invalid_number(text, least, most),
            Ok(value) if (least..=most).contains(&value) => Some(value),
            _ => self.report_invalid_number(text, least, most),
        }
    }

    fn report_invalid_number(&self, text: &str, least: u128, most: u128) -> Option<u128> {
        self.add_item_error(format!("`{text}` is not a whole number from {least} to {most}"));
        None
    }
}

/// An object that is being read. It remembers which of its members were read.
#[derive(Debug)]
pub(crate) struct DocumentObject<'a> {
    pub(crate) item: DocumentItem<'a>,
    members: &'a [DocumentMember<'a>],
    asked: RefCell<Vec<&'static str>>,
    /// Names of OTG that packetrig refuses, and that hints must not suggest.
    refused: RefCell<Vec<&'static str>>,
}

impl<'a> DocumentObject<'a> {
    fn new(item: DocumentItem<'a>, members: &'a [DocumentMember<'a>]) -> Self {
        Self { item, members, asked: RefCell::default(), refused: RefCell::default() }
    }

    /// Excludes names that packetrig refuses from all hints.
    pub(crate) fn exclude_from_hints(&self, names: &[&'static str]) {
        self.refused.borrow_mut().extend(names);
    }

    /// Returns those of `names` that packetrig does not refuse.
    fn supported_names(&self, names: &[&'static str]) -> Vec<&'static str> {
        let refused = self.refused.borrow();
        names.iter().copied().filter(|name| !refused.contains(name)).collect()
    }

    /// Returns the member of this name if it is present and not null. From then on, the name counts as known.
    pub(crate) fn read_member(&self, name: &'static str) -> Option<DocumentItem<'a>> {
        self.asked.borrow_mut().push(name);
        // In OTG, a member that is null counts as absent.
        self.present_member(name).filter(|item| item.node.value != DocumentValue::Null)
    }

    /// Returns the member of this name, even if it is null: in a union, null means an object with all defaults.
    fn present_member(&self, name: &str) -> Option<DocumentItem<'a>> {
        Some(self.make_member_item(name, document::find_member(self.members, name)?))
    }

    /// Returns those of `words` that name a member which is present: null members if `is_null`, otherwise the others.
    fn list_present_members(&self, words: &[&'static str], is_null: bool) -> Vec<&'static str> {
        let mut present = words.to_vec();
        present.retain(|word| {
            let node = document::find_member(self.members, word);
            node.is_some_and(|node| (node.value == DocumentValue::Null) == is_null)
        });
        present
    }

    fn make_member_item(&self, name: &str, node: &'a DocumentNode<'a>) -> DocumentItem<'a> {
        let dot = if self.item.path.is_empty() { "" } else { "." };
        DocumentItem { path: format!("{}{dot}{name}", self.item.path), node, notes: self.item.notes }
    }

    pub(crate) fn require_member(&self, name: &'static str) -> Option<DocumentItem<'a>> {
        let item = self.read_member(name);
        if item.is_none() {
            self.item.add_item_error(format!("`{name}` is missing"));
        }
        item
    }

    pub(crate) fn read_items(&self, name: &'static str) -> Vec<DocumentItem<'a>> {
        self.read_member(name).map(|item| item.as_list()).unwrap_or_default()
    }

    /// Returns the items of the list `name` one at a time, because the list may be long; `None` if it is missing.
    pub(crate) fn iter_items(
        &self,
        name: &'static str,
    ) -> Option<impl ExactSizeIterator<Item = DocumentItem<'a>> + use<'a>> {
        self.read_member(name).map(DocumentItem::iter_items)
    }

    pub(crate) fn read_object(&self, name: &'static str) -> Option<Self> {
        self.read_member(name)?.as_object()
    }

    /// Reads a whole number from `least` to `most`. An absent member gives the default; an invalid one too,
    /// and is an error.
    pub(crate) fn read_number(&self, name: &'static str, default: u64, least: u64, most: u64) -> u64 {
        let read = self.read_member(name).and_then(|item| item.as_number(least.into(), most.into()));
        read.and_then(|value| u64::try_from(value).ok()).unwrap_or(default)
    }

    pub(crate) fn read_flag(&self, name: &'static str, default: bool) -> bool {
        let Some(item) = self.read_member(name) else { return default };
        match item.as_text() {
            Some("true" | "True" | "TRUE") => true,
            Some("false" | "False" | "FALSE") => false,
            Some(other) => {
                item.add_item_error(format!("`{other}` is neither true nor false"));
                default
            }
            None => default,
        }
    }

    /// Reads one of `words`. An absent member gives the default; another word too, and is an error.
    pub(crate) fn read_word(
        &self,
        name: &'static str,
        words: &[&'static str],
        default: &'static str,
    ) -> &'static str {
        let Some(item) = self.read_member(name) else { return default };
        let Some(text) = item.as_text() else { return default };
        words.iter().find(|word| **word == text).copied().unwrap_or_else(|| {
            let words = self.supported_names(words);
            let problem =
                PlanProblem::error(&*item.path, format!("`{text}` is not one of {}", words.join(", ")));
            let hint = nearest_name(text, &words).map(|near| format!("did you mean `{near}`?"));
            item.add_problem(PlanProblem { hint, ..problem });
            default
        })
    }

    /// Reads an OTG union and returns the name of the member to use: the word of `choice`; without `choice`, the first
    /// member that is present, or the default. Any other member that is present is an error. A word need not have a
    /// member of that name.
    pub(crate) fn read_choice(&self, words: &[&'static str], default: &'static str) -> &'static str {
        // All words count as read: a member that was not chosen is reported as a conflict, not as an unknown field.
        self.asked.borrow_mut().extend(words);
        let given = self.list_present_members(words, false);
        // In YAML, `- ethernet:` is an Ethernet header with all defaults, although its value is null. Beside another
        // member, a null member counts as absent.
        let inferred = match (&given[..], &self.list_present_members(words, true)[..]) {
            ([first, ..], _) | ([], [first]) => first,
            _ => default,
        };
        let is_said = document::find_member(self.members, "choice")
            .is_some_and(|node| node.value != DocumentValue::Null);
        let chosen = self.read_word("choice", words, inferred);
        for word in given.iter().filter(|word| **word != chosen) {
            if let Some(item) = self.present_member(word) {
                let said = if is_said { "choice: " } else { "" };
                let message = format!("conflicts with `{said}{chosen}`; only one of them is allowed");
                item.add_problem(PlanProblem::error(&*item.path, message).with_hint("remove one of the two"));
            }
        }
        chosen
    }

    /// Returns the chosen member of a union as an object. If it is absent, returns an empty object with the
    /// path of the union.
    pub(crate) fn chosen_member_object(&self, name: &'static str) -> Option<Self> {
        match self.present_member(name) {
            Some(item) => item.as_object(),
            // `choice` alone is enough if all members of the chosen object have defaults.
            None => Some(Self::new(self.item.clone(), &[])),
        }
    }

    /// Adds an error for each of these members that is present and not empty: packetrig does not support them.
    pub(crate) fn refuse_members(&self, names: &[&'static str], why: &str) {
        self.exclude_from_hints(names);
        for name in names {
            if let Some(item) = self.read_member(name).filter(|item| !is_empty_value(item.node)) {
                item.add_item_error(format!("not supported: {why}"));
            }
        }
    }

    /// Adds a warning for each of these members that is present and not empty: they have no effect in packetrig.
    pub(crate) fn ignore_members(&self, names: &[&'static str], why: &str) {
        for name in names {
            if let Some(item) = self.read_member(name).filter(|item| !is_empty_value(item.node)) {
                item.add_item_warning(format!("has no effect: {why}"));
            }
        }
    }

    /// Adds an error "unknown field" for each member that nothing has read.
    pub(crate) fn refuse_unread_members(self) {
        let asked = self.asked.borrow();
        let known = self.supported_names(&asked);
        for DocumentMember { name: key, place, .. } in self.members {
            if asked.contains(&&**key) {
                continue;
            }
            let dot = if self.item.path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{key}", self.item.path);
            let problem = PlanProblem::error(path, format!("unknown field `{key}`"));
            // Unlisted problems get no hints, because a search for a hint compares the key with all names.
            let hint = if self.item.notes.is_full() {
                None
            } else if let Some(near) = nearest_name(key, &known) {
                Some(format!("did you mean `{near}`?"))
            } else {
                (!known.is_empty()).then(|| format!("known fields: {}", join_unique_names(&known)))
            };
            self.item.notes.add_problem(place.locate_problem(PlanProblem { hint, ..problem }));
        }
    }
}

/// Joins the names with commas, each name once, in their first order.
fn join_unique_names(names: &[&str]) -> String {
    let mut once: Vec<&str> = Vec::new();
    for name in names {
        if !once.contains(name) {
            once.push(name);
        }
    }
    once.join(", ")
}

fn is_empty_value(node: &DocumentNode<'_>) -> bool {
    match &node.value {
        DocumentValue::Null => true,
        DocumentValue::List(items) => items.is_empty(),
        DocumentValue::Object(members) => members.is_empty(),
        DocumentValue::Scalar(_) => false,
    }
}
