//! Parses the operands after the subject of a condition: comparisons, values, lists, netmasks, flags and words.

use super::{FilterParser, FilterSubject, WantedValues};
use crate::filter::AddressPrefix;
use crate::filter::condition::ValueTest;
use crate::filter::error::FilterError;
use crate::filter::ranges::{RangeSet, ValueRange};
use crate::filter::terms::reason_if_unsupported;
use crate::filter::tokens::{FilterToken, TokenKind};
use crate::tcp_flags;
use std::net::Ipv4Addr;

impl FilterParser<'_> {
    /// Reads a value, a comparison with a value, or a list of values.
    pub(super) fn parse_wanted_values(
        &mut self,
        subject: &FilterSubject,
    ) -> Result<WantedValues, FilterError> {
        if self.peek().text.eq_ignore_ascii_case("in") {
            self.next += 1;
            return Ok(WantedValues { set: self.parse_value_list(subject)?, is_negated: false });
        }
        let comparison = self.parse_comparison(subject)?;
        let value = self.parse_value(subject)?;
        let range = match comparison {
            // A value can be a range, such as a millisecond: `<` means below its start, and `>` above its end.
            TokenKind::Less => (value.least > 0).then(|| ValueRange { least: 0, greatest: value.least - 1 }),
            TokenKind::LessOrEqual => Some(ValueRange { least: 0, ..value }),
            TokenKind::Greater => {
                value.greatest.checked_add(1).map(|least| ValueRange { least, greatest: u128::MAX })
            }
            TokenKind::GreaterOrEqual => Some(ValueRange { greatest: u128::MAX, ..value }),
            // `!=` has the same set as `=`, and is negated as a whole below.
            _ => Some(value),
        };
        let set = RangeSet::new(range.into_iter().collect());
        Ok(WantedValues { set, is_negated: comparison == TokenKind::Unequal })
    }

    /// Reads a comparison; if there is none, it is *equal*.
    pub(super) fn parse_comparison(&mut self, subject: &FilterSubject) -> Result<TokenKind, FilterError> {
        let token = self.peek();
        let has_order = matches!(
            token.kind,
            TokenKind::Less | TokenKind::LessOrEqual | TokenKind::Greater | TokenKind::GreaterOrEqual
        );
        if !has_order && !matches!(token.kind, TokenKind::Equal | TokenKind::Unequal) {
            return Ok(TokenKind::Equal);
        }
        if has_order && !subject.has_ordered_values() {
            let what = format!("values of `{}` have no order; compare them with `=` or `!=`", subject.phrase);
            return Err(self.error_at_next_token(what, format!("for example: {}", subject.example_values())));
        }
        self.next += 1;
        Ok(token.kind)
    }

    fn parse_value_list(&mut self, subject: &FilterSubject) -> Result<RangeSet, FilterError> {
        let open = self.peek();
        // nfdump has the form `port in nat pblock`, which gets an error of its own.
        let absent = self.peek_phrase(2).map(|words| format!("in {words}"));
        if let Some(phrase) = absent
            && let Some(why) = reason_if_unsupported(&phrase)
        {
            return Err(self.error_at_next_token(format!("nfdump's `{phrase}` is not supported"), why));
        }
        if open.kind != TokenKind::OpenList {
            return Err(self.error_at_next_token(
                "a list begins with `[`",
                format!("for example: {}", subject.example_values()),
            ));
        }
        self.next += 1;
        let mut ranges = Vec::new();
        loop {
            match self.peek().kind {
                TokenKind::CloseList => break,
                TokenKind::Comma => self.next += 1,
                TokenKind::End => return Err(self.error_at(open, "this `[` is not closed", "add `]`")),
                _ => ranges.push(self.parse_value(subject)?),
            }
        }
        if ranges.is_empty() {
            return Err(self.error_at_next_token(
                "the list is empty",
                format!("for example: {}", subject.example_values()),
            ));
        }
        self.next += 1;
        Ok(RangeSet::new(ranges))
    }

    fn parse_value(&mut self, subject: &FilterSubject) -> Result<ValueRange, FilterError> {
        let token = self.peek();
        let found = (token.kind == TokenKind::Word).then(|| subject.parse_value(token.text)).flatten();
        let Some(found) = found else { return Err(self.not_a_value_error(subject)) };
        if let Some(largest) = subject.largest_value().filter(|largest| found.greatest > *largest) {
            let what = format!("`{}` is too large for `{}`", token.text, subject.phrase);
            return Err(self.error_at_next_token(what, format!("the largest value is {largest}")));
        }
        self.next += 1;
        // Only the terms `net`, `src net` and so on accept nfdump's form with a mask after the address.
        if subject.phrase.ends_with("net") && !token.text.contains('/') {
            return self.parse_optional_netmask(token, found);
        }
        Ok(found)
    }

    pub(super) fn not_a_value_error(&self, subject: &FilterSubject) -> FilterError {
        let token = self.peek();
        let what = if token.kind == TokenKind::End {
            // The message names the comparison too, if there is one.
            let last = self.tokens.get(self.next.saturating_sub(1)).map_or("", |token| token.text);
            let is_part = subject.phrase.split(' ').any(|word| word.eq_ignore_ascii_case(last));
            let after = if is_part { subject.phrase.clone() } else { format!("{} {last}", subject.phrase) };
            format!("a value is missing after `{after}`")
        } else {
            format!("`{}` is not a value for `{}`", token.text, subject.phrase)
        };
        self.error_at_next_token(what, format!("for example: {}", subject.example_values()))
    }

    /// Reads the mask of nfdump's form `net 10.0.0.0 255.0.0.0`, if there is one.
    fn parse_optional_netmask(
        &mut self,
        network: FilterToken<'_>,
        address: ValueRange,
    ) -> Result<ValueRange, FilterError> {
        let Ok(mask) = self.peek().text.parse::<Ipv4Addr>() else { return Ok(address) };
        let bits = mask.to_bits();
        // In a netmask, all zero bits are at the end.
        if bits.count_zeros() != bits.trailing_zeros() || !network.text.contains('.') {
            let help = "a netmask has ones first, then zeros: 255.255.0.0; for IPv6 write 2001:2::/48";
            return Err(self.error_at_next_token("this is not a valid netmask", help));
        }
        self.next += 1;
        let prefix: Option<AddressPrefix> = format!("{}/{}", network.text, bits.count_ones()).parse().ok();
        Ok(prefix.map_or(address, |prefix| prefix.address_range()))
    }

    pub(super) fn parse_flag_test(&mut self, subject: &FilterSubject) -> Result<ValueTest, FilterError> {
        // Letters are tried first. Everything else is a number, with a comparison or without.
        if let Some(mask) = self.tcp_flags_at(self.next) {
            self.next += 1;
            return Ok(ValueTest::AllFlags(mask));
        }
        // `flags =S`: these flags and no others.
        let comparison = self.peek().kind;
        if matches!(comparison, TokenKind::Equal | TokenKind::Unequal)
            && let Some(mask) = self.tcp_flags_at(self.next + 1)
        {
            self.next += 2;
            let exactly = RangeSet::new(vec![ValueRange::from_value(mask.into())]);
            return Ok(ValueTest::Values(if comparison == TokenKind::Equal {
                exactly
            } else {
                exactly.complement()
            }));
        }
        let wanted = self.parse_wanted_values(subject)?;
        Ok(ValueTest::Values(if wanted.is_negated { wanted.set.complement() } else { wanted.set }))
    }

    /// Returns the TCP flags that the token at an index names by their letters; `None` if it is another token.
    fn tcp_flags_at(&self, at: usize) -> Option<u64> {
        let token = self.tokens.get(at).filter(|token| token.kind == TokenKind::Word)?;
        tcp_flags::parse_tcp_flags(token.text)
    }

    pub(super) fn parse_word_test(&mut self, subject: &FilterSubject) -> Result<ValueTest, FilterError> {
        let comparison = self.parse_comparison(subject)?;
        let token = self.peek();
        if token.kind != TokenKind::Word {
            return Err(self.not_a_value_error(subject));
        }
        self.next += 1;
        let word = token.text.to_ascii_lowercase();
        Ok(if comparison == TokenKind::Unequal { ValueTest::NotWord(word) } else { ValueTest::Word(word) })
    }
}
