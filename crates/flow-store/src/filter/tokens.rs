//! Splits a filter expression into words and symbols, each with its position.

use super::error::FilterError;

/// A word, a symbol or a quoted text of a filter, or the filter's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterToken<'a> {
    pub(super) kind: TokenKind,
    pub(super) text: &'a str,
    /// Byte offset in the text.
    pub(super) at: usize,
}

impl<'a> FilterToken<'a> {
    /// The token's text without quotation marks.
    pub(super) fn without_quotes(&self) -> &'a str {
        // Each quotation mark is a single byte.
        if self.kind == TokenKind::Quoted { &self.text[1..self.text.len() - 1] } else { self.text }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Word,
    /// A text in quotation marks, which are part of the token.
    Quoted,
    And,
    Or,
    Not,
    Open,
    Close,
    OpenList,
    CloseList,
    Comma,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    End,
}

// Longer symbols first: `<=` must not be read as `<` and `=`.
const SYMBOL_TOKENS: [(&str, TokenKind); 16] = [
    ("&&", TokenKind::And),
    ("||", TokenKind::Or),
    ("==", TokenKind::Equal),
    ("!=", TokenKind::Unequal),
    ("<=", TokenKind::LessOrEqual),
    (">=", TokenKind::GreaterOrEqual),
    ("(", TokenKind::Open),
    (")", TokenKind::Close),
    ("[", TokenKind::OpenList),
    ("]", TokenKind::CloseList),
    (",", TokenKind::Comma),
    ("=", TokenKind::Equal),
    ("<", TokenKind::Less),
    (">", TokenKind::Greater),
    ("!", TokenKind::Not),
    ("&", TokenKind::And),
];

/// Words that are operators. Like nfdump, packetrig has words for the comparisons, too, because shells
/// interpret `<` and `>`.
const WORD_OPERATORS: [(&str, TokenKind); 9] = [
    ("and", TokenKind::And),
    ("or", TokenKind::Or),
    ("not", TokenKind::Not),
    ("eq", TokenKind::Equal),
    ("ne", TokenKind::Unequal),
    ("lt", TokenKind::Less),
    ("le", TokenKind::LessOrEqual),
    ("gt", TokenKind::Greater),
    ("ge", TokenKind::GreaterOrEqual),
];

/// Splits a text into tokens; the last one is [`TokenKind::End`]. A comment goes from `#` to the end of the line.
pub(super) fn split_tokens(text: &str) -> Result<Vec<FilterToken<'_>>, FilterError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first.is_whitespace() {
            at += first.len_utf8();
        } else if first == '#' {
            at += rest.find('\n').unwrap_or(rest.len());
        } else {
            let token = first_token(rest, at);
            if token.text.is_empty() {
                let (what, help) = if matches!(first, '"' | '\'') {
                    ("this quotation mark is not closed".to_owned(), "end the text with the same mark")
                } else {
                    let help = "use words, numbers, addresses, ( ) [ ] , and the comparisons = != < <= > >=";
                    (format!("`{first}` cannot be part of a filter"), help)
                };
                return Err(FilterError::new(text, at, first.len_utf8(), what, help));
            }
            at += token.text.len();
            tokens.push(token);
        }
    }
    // The end token is directly after the last word, so that errors point to where something is missing.
    tokens.push(FilterToken { kind: TokenKind::End, text: "", at: text.trim_end().len() });
    Ok(tokens)
}

fn first_token(rest: &str, at: usize) -> FilterToken<'_> {
    if let Some((symbol, kind)) = SYMBOL_TOKENS.iter().find(|(symbol, _)| rest.starts_with(symbol)) {
        return FilterToken { kind: *kind, text: &rest[..symbol.len()], at };
    }
    // Without a closing quotation mark the token is empty, which the caller reports at this position.
    for mark in ['"', '\''] {
        if let Some((quoted, _)) = rest.strip_prefix(mark).and_then(|rest| rest.split_once(mark)) {
            return FilterToken { kind: TokenKind::Quoted, text: &rest[..quoted.len() + 2], at };
        }
    }
    // Addresses, prefixes, times and names with dashes are single words.
    let end =
        rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | ':' | '/' | '-' | '+' | '_'));
    let text = &rest[..end.unwrap_or(rest.len())];
    let operator = WORD_OPERATORS.iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
    FilterToken { kind: operator.map_or(TokenKind::Word, |(_, kind)| *kind), text, at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_one_token_and_must_close() {
        let found = split_tokens(r#"field applicationName = "a (b) # c" or"#).unwrap();
        assert_eq!(
            (found[3].kind, found[3].text, found[4].kind),
            (TokenKind::Quoted, r#""a (b) # c""#, TokenKind::Or)
        );
        let single = split_tokens("field applicationName 'a \"b\"'").unwrap();
        assert_eq!((single[2].kind, single[2].text), (TokenKind::Quoted, "'a \"b\"'"));
        assert!(split_tokens("field applicationName \"a").is_err());
    }

    #[test]
    fn a_text_is_cut_into_words_and_symbols() {
        let text = "src ip 2001:2::/48 and packets>=1k # comment\n or not (ip in [10.0.0.1,::1])";
        let found: Vec<_> = split_tokens(text).unwrap().iter().map(|token| token.text).collect();
        let expected = "src|ip|2001:2::/48|and|packets|>=|1k|or|not|(|ip|in|[|10.0.0.1|,|::1|]|)|";
        assert_eq!(found.join("|"), expected);
    }

    #[test]
    fn a_strange_character_is_shown_at_its_place() {
        let said = split_tokens("port 53\n and \u{fc}ber 5").unwrap_err().to_string();
        assert_eq!(said.lines().next(), Some("line 2: `\u{fc}` cannot be part of a filter"));
        assert_eq!(said.lines().nth(2), Some("       ^"));
    }
}
