//! Parses text (YAML, of which JSON is a part) into a tree whose nodes have their positions in the text.
//!
//! Hostile input is refused early: size, depth and number of nodes are limited, aliases count with all that they expand to (so a
//! "billion laughs" document is refused, not expanded), duplicate keys and a second document are errors.
//!
//! This module does not know the structure of a plan.

use crate::PlanProblem;
use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span as Mark};
use std::collections::{HashMap, HashSet};

pub const MOST_BYTES: usize = 32 << 20;
// A value of one byte becomes a node of dozens, so a limit of bytes alone does not limit memory.
const MOST_NODES: usize = 4_000_000;
// `NodeBuilder::read_node` calls itself for each level: deep nesting would overflow the stack.
const DEEPEST: usize = 64;

/// The position of a node in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextPosition {
    pub span: (usize, usize),
    /// Line and column, from 1.
    pub position: (usize, usize),
}

impl TextPosition {
    /// The position of a value. For a value of several lines only the first line counts: enough to find it,
    /// short enough to show.
    fn from_mark(mark: &Mark, text: &str) -> Self {
        let start = mark.start.byte_offset().unwrap_or(0);
        let mut end = mark.end.byte_offset().unwrap_or(start).max(start);
        if mark.end.line() > mark.start.line() {
            end = text.get(start..end).and_then(|of| of.find('\n')).map_or(end, |line| start + line);
        }
        Self { span: (start, end), position: (mark.start.line(), mark.start.col() + 1) }
    }

    /// The position of one character.
    fn at_offset(offset: usize, text: &str) -> Self {
        let before = &text[..offset];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Self { span: (offset, offset + 1), position: (line, column) }
    }

    /// The problem at this position.
    pub(crate) fn locate_problem(self, problem: PlanProblem) -> PlanProblem {
        PlanProblem { span: Some(self.span), position: Some(self.position), ..problem }
    }

    /// An error at this position, which stops the reading.
    fn refuse_document(self, message: impl Into<String>) -> PlanProblem {
        self.locate_problem(PlanProblem::error("", message))
    }
}

/// A value of the document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentNode {
    pub value: DocumentValue,
    pub place: TextPosition,
}

/// Kinds of values. Scalars keep their text: the reader decides whether `50` is a number.
#[derive(Clone, Debug, PartialEq)]
pub enum DocumentValue {
    /// An explicit `null`, or no value after the key.
    Null,
    /// A string, number or boolean.
    Scalar(String),
    List(Vec<DocumentNode>),
    /// An object, in document order, keys unique.
    Object(Vec<(String, TextPosition, DocumentNode)>),
}

pub fn parse_document(text: &str) -> Result<DocumentNode, DocumentRefusal> {
    if text.len() > MOST_BYTES {
        let message = format!("the document has {} bytes; at most {MOST_BYTES} are allowed", text.len());
        return Err(Box::new(PlanProblem::error("", message)));
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.flow_nesting_limit = DEEPEST;
    options.block_nesting_limit = DEEPEST;
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
    /// Nodes that an alias may repeat.
    anchors: HashMap<usize, AnchoredNode>,
    nodes: usize,
}

struct AnchoredNode {
    node: DocumentNode,
    /// Number of nodes in it, itself included.
    nodes: usize,
}

/// An event of the parser.
struct PlacedEvent<'a> {
    event: Event<'a>,
    place: TextPosition,
}

/// The value of a member.
pub(crate) fn find_member<'a>(
    members: &'a [(String, TextPosition, DocumentNode)],
    name: &str,
) -> Option<&'a DocumentNode> {
    members.iter().find(|(key, ..)| key == name).map(|(.., node)| node)
}

impl<'a> NodeBuilder<'a> {
    fn next_event(&mut self) -> Result<PlacedEvent<'a>, DocumentRefusal> {
        match self.events.next_event() {
            Some(Ok((event, mark))) => {
                Ok(PlacedEvent { event, place: TextPosition::from_mark(&mark, self.text) })
            }
            Some(Err(error)) => Err(Box::new(syntax_problem(&error, self.text))),
            // The parser has no more events. Callers see the usual end, so that they need no third case.
            None => Ok(PlacedEvent { event: Event::StreamEnd, place: TextPosition::default() }),
        }
    }

    fn read_document(&mut self) -> Result<DocumentNode, DocumentRefusal> {
        let mut root = None;
        loop {
            let PlacedEvent { event, place } = self.next_event()?;
            match event {
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                Event::StreamEnd => break,
                _ if root.is_some() => {
                    return Err(place
                        .refuse_document("the file holds a second document; a plan is one document")
                        .into());
                }
                event => root = Some(self.read_node(PlacedEvent { event, place }, 0)?),
            }
        }
        root.ok_or_else(|| Box::new(PlanProblem::error("", "the document is empty")))
    }

    fn read_node(
        &mut self,
        PlacedEvent { event, place }: PlacedEvent<'a>,
        depth: usize,
    ) -> Result<DocumentNode, DocumentRefusal> {
        self.count_nodes(1, place)?;
        if depth > DEEPEST {
            return Err(place
                .refuse_document(format!("the document is nested deeper than {DEEPEST} levels"))
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
            Event::Scalar(text, style, ..) => scalar_value(&text, style),
            Event::SequenceStart(..) => self.read_list(depth)?,
            Event::MappingStart(..) => self.read_object(depth)?,
            Event::Alias(anchor) => return self.repeat_anchor(anchor, place),
            other => return Err(place.refuse_document(format!("unexpected {other:?}")).into()),
        };
        let node = DocumentNode { value, place };
        if anchor > 0 {
            // The copy for the anchor counts, too: with anchors inside anchors, each level copies all levels below it.
            self.count_nodes(self.nodes - before, place)?;
            let anchored = AnchoredNode { node: node.clone(), nodes: self.nodes - before + 1 };
            self.anchors.insert(anchor, anchored);
        }
        Ok(node)
    }

    fn repeat_anchor(&mut self, anchor: usize, place: TextPosition) -> Result<DocumentNode, DocumentRefusal> {
        // An anchor is known only when its node is complete, so an unknown one is inside its own node.
        let Some(nodes) = self.anchors.get(&anchor).map(|anchored| anchored.nodes) else {
            return Err(place
                .refuse_document("an alias refers to a value that contains the alias itself")
                .into());
        };
        // Counted before it is copied: a document of a kilobyte could ask for terabytes.
        self.count_nodes(nodes, place)?;
        // The copy has the position of the alias; values inside it keep the positions of the anchor.
        Ok(DocumentNode { value: self.anchors[&anchor].node.value.clone(), place })
    }

    fn count_nodes(&mut self, nodes: usize, place: TextPosition) -> Result<(), DocumentRefusal> {
        self.nodes += nodes;
        if self.nodes > MOST_NODES {
            return Err(place
                .refuse_document(format!("more than {MOST_NODES} values after aliases are expanded"))
                .into());
        }
        Ok(())
    }

    fn read_list(&mut self, depth: usize) -> Result<DocumentValue, DocumentRefusal> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                PlacedEvent { event: Event::SequenceEnd, .. } => return Ok(DocumentValue::List(items)),
                event => items.push(self.read_node(event, depth + 1)?),
            }
        }
    }

    fn read_object(&mut self, depth: usize) -> Result<DocumentValue, DocumentRefusal> {
        let mut members: Vec<(String, TextPosition, DocumentNode)> = Vec::new();
        let mut names = HashSet::new();
        loop {
            let PlacedEvent { event, place } = self.next_event()?;
            let name = match event {
                Event::MappingEnd => return Ok(DocumentValue::Object(members)),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(place.refuse_document("a key must be a plain word").into()),
            };
            let event = self.next_event()?;
            let value = self.read_node(event, depth + 1)?;
            // Parsers differ in which of two values counts, so neither is taken.
            if !names.insert(name.clone()) {
                return Err(place.refuse_document(format!("key `{name}` is given twice")).into());
            }
            members.push((name, place, value));
        }
    }
}

fn syntax_problem(error: &ScanError, text: &str) -> PlanProblem {
    if let Some(at) = misplaced_tab(error, text) {
        let problem = PlanProblem::error("", "a tab is used for indentation, and YAML allows spaces only");
        return TextPosition::at_offset(at, text)
            .locate_problem(problem.with_hint("replace each tab by spaces"));
    }
    let marker = error.marker();
    let at = marker.byte_offset().unwrap_or(0);
    let place = TextPosition { span: (at, at), position: (marker.line(), marker.col() + 1) };
    let problem = PlanProblem::error("", format!("this is neither YAML nor JSON: {error}"));
    place
        .locate_problem(problem.with_hint("a plan is an Open Traffic Generator configuration; see examples/"))
}

/// The offset of the tab that the parser complains about. The parser names the token before the tab, which can be lines away, or the one
/// after it.
fn misplaced_tab(error: &ScanError, text: &str) -> Option<usize> {
    let is_about_tab = matches!(
        error.kind(),
        ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabInPlainScalar
    );
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

fn scalar_value(text: &str, style: ScalarStyle) -> DocumentValue {
    // Only plain words: a quoted "null" is text, as in YAML's core schema.
    if style == ScalarStyle::Plain && matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        DocumentValue::Null
    } else {
        DocumentValue::Scalar(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> PlanProblem {
        *parse_document(text).unwrap_err()
    }

    #[test]
    fn json_and_yaml_give_the_same_tree() {
        fn bare(node: &DocumentNode) -> String {
            match &node.value {
                DocumentValue::Null => "null".into(),
                DocumentValue::Scalar(text) => text.clone(),
                DocumentValue::List(items) => format!("{:?}", items.iter().map(bare).collect::<Vec<_>>()),
                DocumentValue::Object(members) => {
                    format!("{:?}", members.iter().map(|(k, _, v)| (k, bare(v))).collect::<Vec<_>>())
                }
            }
        }
        let json = parse_document("{\"a\": [1, \"2\", null], \"b\": {\"c\": true}}").unwrap();
        let yaml = parse_document("a: [1, '2', ~]\nb:\n  c: true\n").unwrap();
        assert_eq!(bare(&json), bare(&yaml));
    }

    #[test]
    fn places_point_at_the_value() {
        let node = parse_document("a: 1\nbcd: xyz\n").unwrap();
        let DocumentValue::Object(members) = node.value else { panic!("an object") };
        assert_eq!((members[1].2.place.span, members[1].2.place.position), ((10, 13), (2, 6)));
    }

    #[test]
    fn the_place_of_many_lines_is_the_first() {
        let node = parse_document("first line\nsecond line\nthird line\n").unwrap();
        assert_eq!((node.place.span, node.place.position), ((0, 10), (1, 1)));
    }

    #[test]
    fn duplicate_keys_and_extra_documents_are_refused() {
        assert!(error("a: 1\na: 2").message.contains("twice"));
        assert!(error("a: 1\n---\nb: 2").message.contains("second document"));
        assert!(error("").message.contains("empty"));
        assert!(error("{a: [").message.contains("neither YAML nor JSON"));
    }

    #[test]
    fn a_yaml_bomb_is_refused_and_not_expanded() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let below = format!("*a{}", level - 1);
            bomb.push_str(
                &[
                    "a",
                    &level.to_string(),
                    ": &a",
                    &level.to_string(),
                    " [",
                    &vec![below; 10].join(","),
                    "]\n",
                ]
                .concat(),
            );
        }
        assert!(error(&bomb).message.contains("values"), "{:?}", error(&bomb));
    }

    #[test]
    fn indentation_tab_is_reported_at_its_position() {
        for (text, position) in [
            ("ports:\n  - name: a\n    location: eth1\n\tspeed: x\nflows: []\n", (4, 1)),
            ("ports:\n\t- name: a\n", (2, 1)),
            ("a:\n  b: 1\n  \tc: 2\n", (3, 3)),
            ("a:\n  - b: über\n\n\t- c\n", (4, 1)),
        ] {
            let problem = error(text);
            assert_eq!(problem.position, Some(position), "{text:?}: {}", problem.message);
            assert!(problem.message.contains("tab"), "{}", problem.message);
            let (start, end) = problem.span.unwrap();
            assert_eq!(&text[start..end], "\t");
        }
        assert!(parse_document("{\n\t\"a\": [\n\t\t1\n\t]\n}\n").is_ok(), "JSON may be indented with tabs");
    }

    #[test]
    fn depth_and_size_are_limited() {
        assert!(parse_document(&"[".repeat(100_000)).is_err());
        assert!(parse_document("a:\n").is_ok());
        assert!(error(&" ".repeat(MOST_BYTES + 1)).message.contains("bytes"));
    }

    #[test]
    fn ten_megabytes_of_nonsense_end_in_an_error() {
        let nonsense: String = (0u32..10_000_000)
            .map(|i| char::from(33 + u8::try_from(u64::from(i) * 7919 % 90).unwrap()))
            .collect();
        assert!(parse_document(&nonsense).is_err());
    }
}
