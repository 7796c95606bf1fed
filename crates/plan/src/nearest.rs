//! Finds the known name that the user most likely meant.

/// Limits for the search for a hint, which must not take longer than reading the document.
const MAX_NAMES: usize = 100;
const MAX_COMPARED_CHARACTERS: usize = 100;

/// Finds the name in `known` that differs from `word` by a few wrong, missing, additional or swapped letters, or that
/// abbreviates `word` or is abbreviated by it. `None` if no name is like `word`, for more than [`MAX_NAMES`] names, or
/// for a word longer than [`MAX_COMPARED_CHARACTERS`].
pub(crate) fn nearest_name<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if known.len() > MAX_NAMES || word.len() > MAX_COMPARED_CHARACTERS {
        return None;
    }
    // One wrong letter is allowed, and one more for every four letters: more would suggest unrelated names. Among
    // several names at the same distance, the alphabetically first one is used, so that the hint never changes.
    let (distance, best) = known.iter().map(|other| (edit_distance(word, other), *other)).min()?;
    if distance <= 1 + word.chars().count() / 4 {
        return Some(best);
    }
    let by_initials = known.iter().find(|other| is_initials(word, other));
    by_initials.copied().or_else(|| shortest_expansion(word, known))
}

/// True if a word is the first letters of the words in a name: `ttl` of `time_to_live`.
fn is_initials(word: &str, name: &str) -> bool {
    let initials = name.split('_').filter_map(|part| part.chars().next());
    // Without an underscore, a single letter would match every name that begins with it.
    name.contains('_') && initials.eq(word.chars())
}

/// The name that differs least in length among those that abbreviate the word or that the word abbreviates.
fn shortest_expansion<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .filter(|other| is_abbreviation(word, other) || is_abbreviation(other, word))
        .min_by_key(|other| other.len().abs_diff(word.len()))
        .copied()
}

/// True if `short` has two letters or more of `long`, in order, from the first one on: `src` of `source`.
fn is_abbreviation(short: &str, long: &str) -> bool {
    let mut rest = long.chars();
    let starts_alike = short.chars().next() == long.chars().next();
    // `any` consumes the letters that it passes, so the letters of `short` must come in the same order.
    short.chars().count() > 1 && starts_alike && short.chars().all(|letter| rest.any(|other| other == letter))
}

/// Optimal string alignment: the Levenshtein distance, with two swapped neighbours as one edit.
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    // Characters, not bytes: a letter with an accent is one mistake, not two.
    let b: Vec<char> = b.chars().collect();
    // Row i has the distances of the first i letters of `a` to all beginnings of `b`. Only the last two rows are
    // needed.
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            let is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if is_swapped {
                // The two letters before the swap were compared two rows ago.
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 8] =
        ["ethernet", "udp", "tcp", "time_to_live", "total_length", "protocol", "src", "identification"];

    #[test]
    fn typing_errors_are_seen_through() {
        for (typed, meant) in
            [("upd", "udp"), ("etherent", "ethernet"), ("tpc", "tcp"), ("ethernett", "ethernet")]
        {
            assert_eq!(nearest_name(typed, &NAMES), Some(meant), "{typed}");
        }
    }

    #[test]
    fn nearest_name_knows_abbreviations() {
        for (typed, meant) in
            [("ttl", "time_to_live"), ("proto", "protocol"), ("source", "src"), ("id", "identification")]
        {
            assert_eq!(nearest_name(typed, &NAMES), Some(meant), "{typed}");
        }
    }

    #[test]
    fn nearest_name_suggests_nothing_for_unlike_words() {
        for typed in ["flaws", "x", "", "sctp_chunk"] {
            assert_eq!(nearest_name(typed, &NAMES), None, "{typed}");
        }
        assert_eq!(nearest_name("udp", &[]), None);
    }

    #[test]
    fn edit_distance_counts_replacements_and_swaps() {
        for (a, b, distance) in
            [("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!((edit_distance(a, b), edit_distance(b, a)), (distance, distance), "{a} {b}");
        }
    }
}
