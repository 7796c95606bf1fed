//! Parses `field NAME` and the condition after it, for fields without a column.

use super::named::WantedTexts;
use super::{FilterParser, FilterSubject};
use crate::columns::find_column;
use crate::filter::error::FilterError;
use crate::filter::expression::FilterExpression;
use crate::filter::fields::{FieldCondition, FieldName, FieldTest};
use crate::filter::terms::TermSyntax;
use crate::filter::tokens::{FilterToken, TokenKind};
use packetrig_flow::collect::FieldPlace;

impl FilterParser<'_> {
    /// Reads the condition after the word `field`.
    pub(super) fn parse_field_condition(&mut self) -> Result<FilterExpression, FilterError> {
        let field = self.parse_field_name()?;
        let phrase = field.name.clone();
        let subject = FilterSubject {
            phrase,
            syntax: TermSyntax::Field,
            operands: Vec::new(),
            field: Some(field.clone()),
        };
        // Without a comparison, the condition holds if the record has the field.
        let is_alone =
            matches!(self.peek().kind, TokenKind::And | TokenKind::Or | TokenKind::Close | TokenKind::End);
        if is_alone {
            return Ok(field_expression(field, FieldTest::Present, false));
        }
        if field.is_text_field() {
            let WantedTexts { texts, is_negated } = self.parse_wanted_texts(&subject)?;
            return Ok(field_expression(field, FieldTest::Texts(texts), is_negated));
        }
        let wanted = self.parse_wanted_values(&subject)?;
        Ok(field_expression(field, FieldTest::Values(wanted.set), wanted.is_negated))
    }

    fn parse_field_name(&mut self) -> Result<FieldName, FilterError> {
        let token = self.peek();
        let found = (token.kind == TokenKind::Word).then(|| FieldName::find_field(token.text)).flatten();
        let Some(field) = found else { return Err(self.not_a_field_error(token)) };
        match field.place {
            FieldPlace::OtherFields => {}
            FieldPlace::Column(name) => return Err(self.column_exists_error(token.text, name)),
            FieldPlace::NoRecord => {
                let help = "the field describes the exporter and not a flow, or it has no content";
                return Err(
                    self.error_at_next_token(format!("no record has the field `{}`", token.text), help)
                );
            }
        }
        self.next += 1;
        Ok(field)
    }

    fn not_a_field_error(&self, token: FilterToken<'_>) -> FilterError {
        // The word may name a column that has no IANA element.
        if let Some(column) = find_column(token.text) {
            return self.column_exists_error(token.text, column.name);
        }
        let help = "write its IANA name, or enterprise/number as in `otherFields`: `field 9/8232`";
        let what = if token.kind == TokenKind::End {
            "the name of a field is missing here".to_owned()
        } else {
            format!("`{}` is not the name of a field", token.text)
        };
        self.error_at_next_token(what, help)
    }

    /// Fields with a column are never in `otherFields`, so a condition on them there would never hold.
    fn column_exists_error(&self, word: &str, column: &str) -> FilterError {
        self.error_at_next_token(
            format!("`{word}` has a column of its own"),
            format!("write `{column}` without `field`"),
        )
    }

    /// Reads a text, a comparison with a text, or a list of texts.
    pub(super) fn parse_wanted_texts(&mut self, subject: &FilterSubject) -> Result<WantedTexts, FilterError> {
        let mut texts = Vec::new();
        let mut is_negated = false;
        if self.peek().text.eq_ignore_ascii_case("in") {
            self.next += 1;
            let open = self.peek();
            if open.kind != TokenKind::OpenList {
                return Err(self.error_at_next_token(
                    "a list begins with `[`",
                    format!("for example: {}", subject.example_values()),
                ));
            }
            self.next += 1;
            while self.peek().kind != TokenKind::CloseList {
                match self.peek().kind {
                    TokenKind::Comma => self.next += 1,
                    TokenKind::End => return Err(self.error_at(open, "this `[` is not closed", "add `]`")),
                    _ => texts.push(self.parse_text_operand(subject)?),
                }
            }
            if texts.is_empty() {
                let help = format!("for example: {}", subject.example_values());
                return Err(self.error_at_next_token("the list is empty", help));
            }
            self.next += 1;
        } else {
            is_negated = self.parse_comparison(subject)? == TokenKind::Unequal;
            texts.push(self.parse_text_operand(subject)?);
        }
        // The texts are sorted, because the test of a record uses binary search.
        texts.sort_unstable();
        Ok(WantedTexts { texts, is_negated })
    }

    fn parse_text_operand(&mut self, subject: &FilterSubject) -> Result<String, FilterError> {
        let token = self.peek();
        if !matches!(token.kind, TokenKind::Word | TokenKind::Quoted) {
            return Err(self.not_a_value_error(subject));
        }
        self.next += 1;
        // Texts are compared in lower case.
        Ok(token.without_quotes().to_ascii_lowercase())
    }
}

const fn field_expression(field: FieldName, test: FieldTest, is_negated: bool) -> FilterExpression {
    FilterExpression::Field(FieldCondition { field, test, is_negated })
}
