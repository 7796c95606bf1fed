//! Parses text (YAML, of which JSON is a part) into a tree of nodes with their positions in the text.
//!
//! Hostile input is refused early: size, depth and number of nodes are limited, an alias counts as all nodes
//! that it expands to (so a "billion laughs" document is refused, not expanded), and duplicate keys and a
//! second document are errors.
//!
//! The tree borrows its strings from the text, and its lists have no spare capacity: a value of a few bytes becomes a
//! node of dozens of bytes.
//!
//! This module does not know the structure of a plan.

use crate::PlanProblem;
use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span as Mark};
use packetrig_units::clamp_to_u32;
use std::borrow::Cow;
use std::collections::HashMap;

pub const MAX_BYTES: usize = 32 << 20;
// A value of one byte becomes a node of dozens of bytes, so a limit on the length of the text alone
// does not limit memory.
const MAX_NODES: usize = 4_000_000;
// `NodeBuilder::read_document_node` calls itself for each level: deep nesting would overflow the stack.
const MAX_DOCUMENT_DEPTH: usize = 64;

/// The position of a node in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextPosition {
    /// Start and end in the text, in bytes. A text has at most [`MAX_BYTES`] bytes, so 32 bits are enough.
    span: (u32, u32),
    /// Line and column, from 1.
    position: (u32, u32),
}

impl TextPosition {
    /// The position of a value. For a value of several lines, the position ends with the first line, which is
    /// short enough to show.
    fn from_mark(mark: &Mark, text: &str) -> Self {
        let start = mark.start.byte_offset().unwrap_or(0);
        let mut end = mark.end.byte_offset().unwrap_or(start).max(start);
        if mark.end.line() > mark.start.line() {
            end = text.get(start..end).and_then(|of| of.find('\n')).map_or(end, |line| start + line);
        }
        Self::new((start, end), (mark.start.line(), mark.start.col() + 1))
    }

    fn new(span: (usize, usize), position: (usize, usize)) -> Self {
        // A text has at most `MAX_BYTES` bytes, so 32 bits hold all numbers.
        let [start, end, line, column] = [span.0, span.1, position.0, position.1].map(clamp_to_u32);
        Self { span: (start, end), position: (line, column) }
    }

    /// The position of the character at byte `offset` of the text.
    fn at_offset(offset: usize, text: &str) -> Self {
        let before = &text[..offset];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Self::new((offset, offset + 1), (line, column))
    }

    /// Adds this position to a problem.
    pub(crate) fn locate_problem(self, problem: PlanProblem) -> PlanProblem {
        let pair = |(one, other): (u32, u32)| Some((one as usize, other as usize));
        PlanProblem { span: pair(self.span), position: pair(self.position), ..problem }
    }

    /// Makes an error at this position. Callers return the error and read no more of the document.
    fn document_error(self, message: impl Into<String>) -> PlanProblem {
        self.locate_problem(PlanProblem::error("", message))
    }
}

/// A value of the document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentNode<'t> {
    pub value: DocumentValue<'t>,
    pub place: TextPosition,
}

/// A member of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentMember<'t> {
    pub name: Cow<'t, str>,
    /// Position of the name.
    pub place: TextPosition,
    pub node: DocumentNode<'t>,
}

/// The contents of a node. A scalar is stored as its text: the reader of a field decides whether `50` is a number.
#[derive(Clone, Debug, PartialEq)]
pub enum DocumentValue<'t> {
    /// An explicit `null`, or no value after the key.
    Null,
    /// A string, number or boolean.
    Scalar(Cow<'t, str>),
    List(Box<[DocumentNode<'t>]>),
    /// An object: its members in document order, each name once.
    Object(Box<[DocumentMember<'t>]>),
}

pub fn parse_document(text: &str) -> Result<DocumentNode<'_>, DocumentRefusal> {
    if text.len() > MAX_BYTES {
        let message = format!("the document has {} bytes; at most {MAX_BYTES} are allowed", text.len());
        return Err(Box::new(PlanProblem::error("", message)));
    }
    let mut options = Options::default();
    // Nothing uses comments, so the parser need not report them.
    options.set_emit_comments(false);
    options.flow_nesting_limit = MAX_DOCUMENT_DEPTH;
    options.block_nesting_limit = MAX_DOCUMENT_DEPTH;
    let mut builder = NodeBuilder {
        text,
        events: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        nodes: 0,
    };
    builder.read_document()
}

/// Boxed, because results are moved often and refusals are rare.
type DocumentRefusal = Box<PlanProblem>;

struct NodeBuilder<'a> {
    text: &'a str,
    events: Parser<'a, granit_parser::StrInput<'a>>,
    /// Complete nodes that have an anchor, by the number of the anchor; an alias repeats such a node.
    anchors: HashMap<usize, AnchoredNode<'a>>,
    nodes: usize,
}

struct AnchoredNode<'a> {
    node: DocumentNode<'a>,
    /// Number of nodes in `node`, including the node itself.
    nodes: usize,
}

/// An event of the YAML parser, with its position in the text.
struct PositionedYamlEvent<'a> {
    event: Event<'a>,
    place: TextPosition,
}

/// The value of the member with this name, if the object has one.
pub(crate) fn find_member<'a>(members: &'a [DocumentMember<'a>], name: &str) -> Option<&'a DocumentNode<'a>> {
    members.iter().find(|member| member.name == name).map(|member| &member.node)
}

impl<'a> NodeBuilder<'a> {
    fn next_event(&mut self) -> Result<PositionedYamlEvent<'a>, DocumentRefusal> {
        match self.events.next_event() {
            Some(Ok((event, mark))) => {
                Ok(PositionedYamlEvent { event, place: TextPosition::from_mark(&mark, self.text) })
            }
            Some(Err(error)) => Err(Box::new(build_syntax_problem(&error, self.text))),
            // The parser has no more events: callers get the usual event for the end, so that they need no third case.
            None => Ok(PositionedYamlEvent { event: Event::StreamEnd, place: TextPosition::default() }),
        }
    }

    fn read_document(&mut self) -> Result<DocumentNode<'a>, DocumentRefusal> {
        let mut root = None;
        loop {
            let PositionedYamlEvent { event, place } = self.next_event()?;
            match event {
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                // The reading continues to the end of the stream; otherwise a second document would stay unnoticed.
                Event::StreamEnd => break,
                _ if root.is_some() => {
                    return Err(place
                        .document_error("the file contains a second document; a plan is one document")
                        .into());
                }
                event => root = Some(self.read_document_node(PositionedYamlEvent { event, place }, 0)?),
            }
        }
        root.ok_or_else(|| Box::new(PlanProblem::error("", "the document is empty")))
    }

    fn read_document_node(
        &mut self,
        PositionedYamlEvent { event, place }: PositionedYamlEvent<'a>,
        depth: usize,
    ) -> Result<DocumentNode<'a>, DocumentRefusal> {
        self.count_nodes(1, place)?;
        if depth > MAX_DOCUMENT_DEPTH {
            return Err(place
                .document_error(format!("the document is nested deeper than {MAX_DOCUMENT_DEPTH} levels"))
                .into());
        }
        let before = self.nodes;
        // The parser numbers anchors from 1; 0 is a node without an anchor.
        let anchor = match event {
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(_, anchor, _)
            | Event::MappingStart(_, anchor, _) => anchor,
            _ => 0,
        };
        let value = match event {
            Event::Scalar(text, style, ..) => scalar_value(text, style),
            Event::SequenceStart(..) => self.read_list(depth)?,
            Event::MappingStart(..) => self.read_object(depth)?,
            Event::Alias(anchor) => return self.expand_alias(anchor, place),
            other => return Err(place.document_error(format!("unexpected YAML event {other:?}")).into()),
        };
        let node = DocumentNode { value, place };
        if anchor > 0 {
            // The copy for the anchor counts, too: with anchors inside anchors, each level copies all levels below it.
            self.count_nodes(self.nodes - before, place)?;
            // An alias counts as all nodes below the anchor, and the anchored node itself.
            let anchored = AnchoredNode { node: node.clone(), nodes: self.nodes - before + 1 };
            self.anchors.insert(anchor, anchored);
        }
        Ok(node)
    }

    fn expand_alias(
        &mut self,
        anchor: usize,
        place: TextPosition,
    ) -> Result<DocumentNode<'a>, DocumentRefusal> {
        // An anchor is stored when its node is complete. If the anchor of an alias is not stored, the alias is
        // inside the anchored node.
        let Some(nodes) = self.anchors.get(&anchor).map(|anchored| anchored.nodes) else {
            return Err(place
                .document_error("an alias refers to a value that contains the alias itself")
                .into());
        };
        // The size is counted before the copy: a document of a kilobyte could ask for terabytes.
        self.count_nodes(nodes, place)?;
        // The copy has the position of the alias; values inside it keep the positions of the anchor.
        Ok(DocumentNode { value: self.anchors[&anchor].node.value.clone(), place })
    }

    fn count_nodes(&mut self, nodes: usize, place: TextPosition) -> Result<(), DocumentRefusal> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(place
                .document_error(format!(
                    "the document has more than {MAX_NODES} values after its aliases are expanded"
                ))
                .into());
        }
        Ok(())
    }

    fn read_list(&mut self, depth: usize) -> Result<DocumentValue<'a>, DocumentRefusal> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                PositionedYamlEvent { event: Event::SequenceEnd, .. } => {
                    return Ok(DocumentValue::List(items.into()));
                }
                event => items.push(self.read_document_node(event, depth + 1)?),
            }
        }
    }

    fn read_object(&mut self, depth: usize) -> Result<DocumentValue<'a>, DocumentRefusal> {
        let mut members: Vec<DocumentMember<'a>> = Vec::new();
        loop {
            let PositionedYamlEvent { event, place } = self.next_event()?;
            let name = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text,
                _ => {
                    return Err(place
                        .document_error("a key must be text, not a list, a mapping or an alias")
                        .into());
                }
            };
            let event = self.next_event()?;
            let node = self.read_document_node(event, depth + 1)?;
            members.push(DocumentMember { name, place, node });
        }
        // Parsers disagree about which of two members with the same key counts, so neither is used.
        if let Some(DocumentMember { name, place, .. }) = find_repeated_member(&members) {
            return Err(place.document_error(format!("key `{name}` is given twice")).into());
        }
        Ok(DocumentValue::Object(members.into()))
    }
}

/// Finds a member with a name that occurs earlier in the same object.
fn find_repeated_member<'m, 't>(members: &'m [DocumentMember<'t>]) -> Option<&'m DocumentMember<'t>> {
    // `order` has the indices of the members, sorted by name: a set of the names would take several
    // times as much memory.
    let mut order: Vec<u32> = (0..).take(members.len()).collect();
    let member = |place: u32| &members[place as usize];
    // The index breaks ties, so that of two equal names the second one is reported.
    order.sort_unstable_by(|one, other| member(*one).name.cmp(&member(*other).name).then(one.cmp(other)));
    let pairs = order.windows(2);
    let mut repeated = pairs.filter(|pair| member(pair[0]).name == member(pair[1]).name);
    repeated.next().map(|pair| member(pair[1]))
}

fn build_syntax_problem(error: &ScanError, text: &str) -> PlanProblem {
    if let Some(at) = find_misplaced_tab(error, text) {
        let problem = PlanProblem::error("", "a tab is used for indentation, and YAML allows spaces only");
        return TextPosition::at_offset(at, text)
            .locate_problem(problem.with_hint("replace each tab with spaces"));
    }
    let marker = error.marker();
    let at = marker.byte_offset().unwrap_or(0);
    let place = TextPosition::new((at, at), (marker.line(), marker.col() + 1));
    let problem = PlanProblem::error("", format!("cannot read this as YAML or JSON: {error}"));
    place.locate_problem(problem.with_hint("a plan is an OTG document; see `packetrig docs plan`"))
}

/// The offset of the tab that the parser complains about; `None` if its error has another cause. The parser names the
/// token before the tab, which can be lines away, or the one after it.
fn find_misplaced_tab(error: &ScanError, text: &str) -> Option<usize> {
    let is_about_tab = matches!(
        error.kind(),
        ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabInPlainScalar
    );
    // `split_at_checked`: an offset inside a character would panic otherwise.
    let (before, after) = text.split_at_checked(error.marker().byte_offset()?).filter(|_| is_about_tab)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let indentation = &before[line_start..];
    if indentation.trim().is_empty()
        && let Some(tab) = indentation.find('\t')
    {
        return Some(line_start + tab);
    }
    after.find('\t').map(|tab| before.len() + tab)
}

fn scalar_value(text: Cow<'_, str>, style: ScalarStyle) -> DocumentValue<'_> {
    // Only an unquoted word can mean null: a quoted "null" is text, as in YAML's core schema.
    if style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL") {
        DocumentValue::Null
    } else {
        DocumentValue::Scalar(text)
    }
}

#[cfg(test)]
mod tests;
