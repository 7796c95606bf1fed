//! Parses the text of a filter into an expression: nfdump's grammar, by recursive descent.
//!
//! ```text
//! either    = both { "or" both }
//! both      = single { "and" single }
//! single    = { "not" } ( "(" either ")" | condition )
//! condition = words of a term or name of a column, then the operands that its syntax requires
//! ```
//! Invariant: the length of the text, the nesting and the number of conditions are bounded, and so is the cost of parsing
//! and of testing a record.

mod field;
mod named;
mod operands;

use super::condition::{ConditionOperand, FlowCondition, ValueTest};
use super::error::FilterError;
use super::expression::FilterExpression;
use super::fields::FieldName;
use super::ranges::{RangeSet, ValueRange};
use super::terms::{FILTER_TERMS, TermSyntax, reason_if_unsupported};
use super::tokens::{FilterToken, TokenKind, split_tokens};
use super::values::{parse_value, syntax_for_kind};
use crate::columns::{find_column, flow_columns};
use crate::names::{FlowNames, NameKind};
use packetrig_flow::IPV4_MAPPED_PREFIX;
use packetrig_flow::element::ElementKind;

/// Maximum number of bytes of a filter.
const MAX_TEXT: usize = 1 << 20;
/// Deepest nesting of parentheses.
const MAX_DEPTH: usize = 64;
/// Maximum number of conditions; a list counts as one.
const MAX_CONDITIONS: usize = 1024;
/// Number of words of the longest term.
const MAX_TERM_WORDS: usize = 3;
const TCP: u128 = 6;
const ADDRESS_COLUMNS: [&str; 2] = ["sourceIPv6Address", "destinationIPv6Address"];
/// Protocol numbers of ICMP and ICMPv6.
const ICMP: [u128; 2] = [1, 58];

pub(super) fn parse_filter_expression(
    text: &str,
    names: &FlowNames,
) -> Result<FilterExpression, FilterError> {
    // The length is checked before the text is split, so that the tokens are bounded, too.
    if text.len() > MAX_TEXT {
        let what = format!("the filter has {} bytes; the maximum is {MAX_TEXT}", text.len());
        return Err(FilterError::new(text, 0, 0, what, "join values into lists: `ip in [...]`"));
    }
    let mut parser =
        FilterParser { text, names, tokens: split_tokens(text)?, next: 0, depth: 0, conditions: 0 };
    if parser.peek().kind == TokenKind::End {
        return Ok(FilterExpression::All(Vec::new()));
    }
    // `or` binds weakest, so the grammar starts with it.
    let expression = parser.parse_or_terms()?;
    match parser.peek().kind {
        TokenKind::End => Ok(expression),
        TokenKind::Close => {
            Err(parser
                .error_at_next_token("this `)` has no matching `(`", "remove it, or add a `(` before it"))
        }
        _ => {
            Err(parser
                .error_at_next_token("`and` or `or` is missing here", "join conditions with `and` or `or`"))
        }
    }
}

struct FilterParser<'a> {
    text: &'a str,
    names: &'a FlowNames,
    /// The last token is [`TokenKind::End`].
    tokens: Vec<FilterToken<'a>>,
    next: usize,
    depth: usize,
    conditions: usize,
}

/// The subject of a condition: a term of [`FILTER_TERMS`], a column or a field.
struct FilterSubject {
    /// The term in lower case, or the name of the column or field.
    phrase: String,
    syntax: TermSyntax,
    operands: Vec<ConditionOperand>,
    /// Present for [`TermSyntax::Field`].
    field: Option<FieldName>,
}

/// The values that satisfy a condition.
struct WantedValues {
    set: RangeSet,
    /// True if all values outside of `set` satisfy the condition instead.
    is_negated: bool,
}

impl FilterSubject {
    fn example_values(&self) -> &'static str {
        self.field.as_ref().map_or_else(|| self.syntax.example_values(), FieldName::example_values)
    }

    fn has_ordered_values(&self) -> bool {
        let syntax = self.syntax;
        let is_name = syntax.name_kind().is_some_and(|kind| kind != NameKind::AsNumber);
        let is_word =
            matches!(syntax, TermSyntax::Address | TermSyntax::Mac | TermSyntax::Protocol | TermSyntax::Word);
        let has_order = !is_name && !is_word;
        self.field.as_ref().map_or(has_order, FieldName::has_ordered_values)
    }

    fn parse_value(&self, word: &str) -> Option<ValueRange> {
        self.field.as_ref().map_or_else(|| parse_value(self.syntax, word), |field| field.parse_value(word))
    }

    /// The largest value that a record can have; `None` if an operand is computed or has no numbers.
    fn largest_value(&self) -> Option<u128> {
        let bits = self.operands.iter().map(|operand| {
            let ConditionOperand::Column(name) = operand else { return None };
            let ElementKind::Unsigned(bits) = find_column(name)?.kind else { return None };
            Some(bits)
        });
        // The columns have different widths. A value is allowed if the widest column can have it.
        let widest = bits.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some((1 << widest) - 1)
    }

    /// The expression that holds if one of the operands passes the test.
    fn expression_of_test(&self, test: &ValueTest) -> FilterExpression {
        let mut conditions: Vec<_> =
            self.operands.iter().map(|&operand| single_condition(operand, test.clone())).collect();
        if conditions.len() == 1 { conditions.swap_remove(0) } else { FilterExpression::Any(conditions) }
    }

    /// The expression that holds if one of the operands is in the set. If negated, it holds if none of them is.
    fn expression_of_values(&self, wanted: WantedValues) -> FilterExpression {
        let found = self.expression_of_test(&ValueTest::Values(wanted.set));
        if wanted.is_negated { found.to_negated() } else { found }
    }
}

impl<'a> FilterParser<'a> {
    fn peek(&self) -> FilterToken<'a> {
        // After the last token, this returns the End token again and again, so callers need no check.
        self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn next_token(&mut self) -> FilterToken<'a> {
        let token = self.peek();
        self.next += 1;
        token
    }

    /// An error at the next token.
    fn error_at_next_token(&self, what: impl Into<String>, help: impl Into<String>) -> FilterError {
        self.error_at(self.peek(), what, help)
    }

    fn error_at(
        &self,
        token: FilterToken<'_>,
        what: impl Into<String>,
        help: impl Into<String>,
    ) -> FilterError {
        FilterError::new(self.text, token.at, token.text.len(), what, help)
    }

    fn parse_or_terms(&mut self) -> Result<FilterExpression, FilterError> {
        let mut parts = vec![self.parse_and_terms()?];
        while self.peek().kind == TokenKind::Or {
            self.next += 1;
            parts.push(self.parse_and_terms()?);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { FilterExpression::Any(parts) })
    }

    fn parse_and_terms(&mut self) -> Result<FilterExpression, FilterError> {
        let mut parts = vec![self.parse_single_term()?];
        while self.peek().kind == TokenKind::And {
            self.next += 1;
            parts.push(self.parse_single_term()?);
        }
        Ok(if parts.len() == 1 {
            parts.swap_remove(0)
        } else {
            FilterExpression::conjunction_of_parts(parts)
        })
    }

    fn parse_single_term(&mut self) -> Result<FilterExpression, FilterError> {
        // A loop and not recursion: a text of many `not` must not use up the stack.
        let mut is_negated = false;
        while self.peek().kind == TokenKind::Not {
            self.next += 1;
            is_negated = !is_negated;
        }
        let expression = if self.peek().kind == TokenKind::Open {
            self.parse_parenthesised()?
        } else {
            self.parse_condition()?
        };
        Ok(if is_negated { expression.to_negated() } else { expression })
    }

    fn parse_parenthesised(&mut self) -> Result<FilterExpression, FilterError> {
        // The parser calls itself only through parentheses, so `MAX_DEPTH` bounds the stack for any text.
        let open = self.next_token();
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let what = format!("parentheses are nested more than {MAX_DEPTH} levels deep");
            return Err(self.error_at(open, what, "remove unnecessary parentheses, or use lists"));
        }
        let inside = self.parse_or_terms()?;
        // Only open parentheses count, because a long filter may have many closed ones.
        self.depth -= 1;
        if self.peek().kind != TokenKind::Close {
            return Err(self.error_at(
                open,
                "this `(` is not closed",
                "add `)` after the last condition inside",
            ));
        }
        self.next += 1;
        Ok(inside)
    }

    fn parse_condition(&mut self) -> Result<FilterExpression, FilterError> {
        self.conditions += 1;
        if self.conditions > MAX_CONDITIONS {
            let what = format!("the filter has more than {MAX_CONDITIONS} conditions");
            return Err(self.error_at_next_token(what, "use lists: `ip in [...]`, `port in [...]`"));
        }
        let subject = self.parse_subject()?;
        if let Some(kind) = subject.syntax.name_kind() {
            return self.parse_named_condition(&subject, kind);
        }
        Ok(match subject.syntax {
            TermSyntax::Field => self.parse_field_condition()?,
            TermSyntax::Everything => FilterExpression::All(Vec::new()),
            TermSyntax::Version4 => both_ends_ipv4_expression(),
            TermSyntax::Version6 => one_end_ipv6_expression(),
            TermSyntax::SameTtl => same_ttl_expression(&subject),
            // Other protocols have zero in this column and would match `flags = 0`, so TCP is part of the condition.
            TermSyntax::Flags => {
                let test = self.parse_flag_test(&subject)?;
                FilterExpression::All(vec![protocol_expression(&[TCP]), subject.expression_of_test(&test)])
            }
            // Other protocols have zero in this column and would match type 0, an echo reply.
            TermSyntax::Icmp => {
                let wanted = self.parse_wanted_values(&subject)?;
                FilterExpression::All(vec![protocol_expression(&ICMP), subject.expression_of_values(wanted)])
            }
            TermSyntax::Word => {
                let test = self.parse_word_test(&subject)?;
                subject.expression_of_test(&test)
            }
            _ => {
                let wanted = self.parse_wanted_values(&subject)?;
                subject.expression_of_values(wanted)
            }
        })
    }

    /// Reads the words of a term. The longest match wins: `src ip` before `src`.
    fn parse_subject(&mut self) -> Result<FilterSubject, FilterError> {
        for words in (1..=MAX_TERM_WORDS).rev() {
            let Some(phrase) = self.peek_phrase(words) else { continue };
            if let Some(term) = FILTER_TERMS.iter().find(|term| term.phrases.contains(&phrase.as_str())) {
                self.next += words;
                let operands = term.operands.to_vec();
                return Ok(FilterSubject { phrase, syntax: term.syntax, operands, field: None });
            }
            // To a user of nfdump, this reason says more than the message that no condition begins with the word.
            if let Some(why) = reason_if_unsupported(&phrase) {
                return Err(self.error_at_next_token(format!("nfdump's `{phrase}` is not supported"), why));
            }
        }
        // No term begins here, so it must be the name of a column.
        let name = self.peek().text;
        let column = flow_columns()
            .iter()
            .find(|column| column.kind != ElementKind::Fields && column.name.eq_ignore_ascii_case(name));
        let Some(column) = column else { return Err(self.unknown_subject_error()) };
        self.next += 1;
        let operands = vec![ConditionOperand::Column(column.name)];
        let phrase = column.name.to_owned();
        Ok(FilterSubject { phrase, syntax: syntax_for_kind(column.kind), operands, field: None })
    }

    /// The next `count` words, in lower case; `None` if one of the next tokens is not a word.
    fn peek_phrase(&self, count: usize) -> Option<String> {
        let tokens = self.tokens.get(self.next..self.next + count)?;
        let is_word = tokens.iter().all(|token| token.kind == TokenKind::Word);
        let words: Vec<_> = tokens.iter().map(|token| token.text.to_ascii_lowercase()).collect();
        is_word.then(|| words.join(" "))
    }

    fn unknown_subject_error(&self) -> FilterError {
        let token = self.peek();
        if token.kind == TokenKind::End {
            return self.error_at_next_token(
                "a condition is missing here",
                "for example: `src ip 198.18.0.1`, `port > 1024`",
            );
        }
        let prefix = format!("{} ", token.text.to_ascii_lowercase());
        let mut following: Vec<_> =
            supported_phrases().filter_map(|phrase| phrase.strip_prefix(&prefix)).collect();
        if !following.is_empty() {
            following.sort_unstable();
            let what = format!("`{}` is not a complete condition", token.text);
            return self
                .error_at_next_token(what, format!("one of these must follow: {}", following.join(", ")));
        }
        let mut first: Vec<_> = supported_phrases().filter_map(|phrase| phrase.split(' ').next()).collect();
        first.sort_unstable();
        first.dedup();
        let what = format!("no condition begins with `{}`", token.text);
        self.error_at_next_token(
            what,
            format!("begin with the name of a column, or with one of: {}", first.join(", ")),
        )
    }
}

const fn single_condition(operand: ConditionOperand, test: ValueTest) -> FilterExpression {
    FilterExpression::One(FlowCondition { operand, test })
}

fn protocol_expression(numbers: &[u128]) -> FilterExpression {
    let ranges = numbers.iter().map(|&number| ValueRange::from_value(number)).collect();
    single_condition(ConditionOperand::Column("protocolIdentifier"), ValueTest::Values(RangeSet::new(ranges)))
}

fn supported_phrases() -> impl Iterator<Item = &'static str> {
    FILTER_TERMS.iter().flat_map(|term| term.phrases).copied()
}

/// Makes the condition that the greatest TTL is known and equals the least one. The TTL is stored as 0 if
/// the exporter sends none.
fn same_ttl_expression(subject: &FilterSubject) -> FilterExpression {
    let known = RangeSet::new(vec![ValueRange { least: 1, ..ValueRange::ALL }]);
    let none = RangeSet::new(vec![ValueRange::from_value(0)]);
    let parts = subject.operands.iter().zip([known, none]);
    FilterExpression::All(
        parts.map(|(&operand, set)| single_condition(operand, ValueTest::Values(set))).collect(),
    )
}

/// Makes the condition that one of the addresses is IPv6. Flows of protocols below IP have zeros as addresses, and
/// belong to neither version.
fn one_end_ipv6_expression() -> FilterExpression {
    let some = RangeSet::new(vec![ValueRange { least: 1, ..ValueRange::ALL }]);
    let has_address = ADDRESS_COLUMNS
        .map(|end| single_condition(ConditionOperand::Column(end), ValueTest::Values(some.clone())))
        .to_vec();
    FilterExpression::All(vec![both_ends_ipv4_expression().to_negated(), FilterExpression::Any(has_address)])
}

// IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2), so they are one range of 2^32 values.
fn both_ends_ipv4_expression() -> FilterExpression {
    let mut last = [0xff; 16];
    last[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
    let greatest = u128::from_be_bytes(last);
    let mapped = RangeSet::new(vec![ValueRange { least: greatest - u128::from(u32::MAX), greatest }]);
    FilterExpression::All(
        ADDRESS_COLUMNS
            .map(|end| single_condition(ConditionOperand::Column(end), ValueTest::Values(mapped.clone())))
            .to_vec(),
    )
}
