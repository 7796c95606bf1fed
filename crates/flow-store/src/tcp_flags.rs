//! TCP flags as letters.

/// One letter per bit, lowest first. `N` is AE, formerly NS.
const TCP_FLAG_LETTERS: &str = "FSRPAUECN";
/// nfdump's letter for all six flags that it supports.
const ALL_FLAGS_LETTER: char = 'X';
const ALL_FLAGS_MASK: u64 = 0x3f;

/// The letters of the bits that are set; bits without a letter follow as a number.
pub fn format_tcp_flags(bits: u64) -> String {
    let letters = TCP_FLAG_LETTERS.chars().enumerate();
    let mut text: String =
        letters.filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, letter)| letter).collect();
    let others = bits >> TCP_FLAG_LETTERS.len() << TCP_FLAG_LETTERS.len();
    if others > 0 {
        text.extend([format!("+{others:#x}")]);
    }
    text
}

/// Returns the bits of the flags with these letters; `None` for unknown or repeated letters, or if there are none.
pub(super) fn parse_tcp_flags(text: &str) -> Option<u64> {
    let mut mask = 0;
    for letter in text.chars().map(|letter| letter.to_ascii_uppercase()) {
        // The index of a letter in `TCP_FLAG_LETTERS` is the number of its bit.
        let bits =
            if letter == ALL_FLAGS_LETTER { ALL_FLAGS_MASK } else { 1 << TCP_FLAG_LETTERS.find(letter)? };
        if mask & bits == bits {
            return None;
        }
        mask |= bits;
    }
    (mask > 0).then_some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_flag_letters_round_trip() {
        for bits in 1..1 << TCP_FLAG_LETTERS.len() {
            assert_eq!(parse_tcp_flags(&format_tcp_flags(bits)), Some(bits));
            assert_eq!(parse_tcp_flags(&format_tcp_flags(bits).to_lowercase()), Some(bits));
        }
        assert_eq!(
            (parse_tcp_flags("X"), parse_tcp_flags(""), parse_tcp_flags("SS"), parse_tcp_flags("SQ")),
            (Some(0x3f), None, None, None)
        );
    }

    #[test]
    fn flags_have_letters_or_numbers() {
        assert_eq!([0x12, 0x1c2, 0x802, 0].map(format_tcp_flags), ["SA", "SECN", "S+0x800", ""]);
    }
}
