//! Doubts of a run, each with its meaning and a remedy.

use super::caveat_words::{describe_caveat, describe_caveat_remedy};
use super::elements::{
    ResultSign, TableCell, describe_omitted_entries, number_column, prose_column, tabulate_rows, word_column,
};
use crate::markup::Markup;
use packetrig_stats::caveat::Caveat;

/// Maximum number of subjects that a row lists by name.
const MAX_NAMED: usize = 8;
/// Maximum number of rows of the table.
const MAX_ROWS: usize = 100;

/// Equal doubts about several streams, ports or nodes.
struct CaveatGroup<'a> {
    first: &'a Caveat,
    subjects: Vec<&'a str>,
}

pub(super) fn write_caveats(page: &mut Markup, caveats: &[Caveat]) {
    if caveats.is_empty() {
        page.add_element("p", &[], "packetrig has no doubt about this result.");
        return;
    }
    page.open_element("p", &[])
        .add_text("A caveat is a doubt that packetrig has about its own measurement. ");
    let legend = "“No PASS” means that a run with this caveat cannot pass; a “note” only explains a value.";
    page.add_text(legend).close_element("p");
    let groups = group_caveats(caveats);
    let headings = [
        word_column("weight"),
        word_column("about"),
        prose_column("what was found"),
        prose_column("what it means"),
        prose_column("what to do"),
        number_column("times", ""),
    ];
    // Doubts that forbid PASS were sorted first, so the limit of rows never hides them in favour of notes.
    let rows: Vec<Vec<TableCell>> = groups.iter().take(MAX_ROWS).map(CaveatGroup::to_row).collect();
    tabulate_rows(page, "Caveats", None, &headings, &rows);
    if groups.len() > MAX_ROWS {
        page.add_element("p", &[("class", "muted")], &describe_omitted_entries(groups.len() - MAX_ROWS));
    }
}

/// Groups equal doubts. Those that forbid PASS come first, all others in the order of the report.
fn group_caveats(caveats: &[Caveat]) -> Vec<CaveatGroup<'_>> {
    let mut groups: Vec<CaveatGroup<'_>> = Vec::new();
    // A map, because a run of thousands of streams can have as many doubts: a search in the list would take the
    // square of their number.
    let mut places = std::collections::HashMap::new();
    for caveat in caveats {
        // The key has no subject, so equal doubts about several subjects share a group.
        let place =
            *places.entry((caveat.doubt, caveat.matters, caveat.text.as_str())).or_insert_with(|| {
                groups.push(CaveatGroup { first: caveat, subjects: Vec::new() });
                groups.len() - 1
            });
        groups[place].subjects.push(&caveat.subject);
    }
    // The sort is stable, so the order of the report remains within both halves.
    groups.sort_by_key(|group| !group.first.matters);
    groups
}

impl CaveatGroup<'_> {
    fn to_row(&self) -> Vec<TableCell> {
        let weight = if self.first.matters {
            TableCell::verdict(ResultSign::Unknown, "no PASS")
        } else {
            TableCell::text("note")
        };
        vec![
            weight,
            TableCell::text(self.describe_subjects()),
            TableCell::text(self.first.text.clone()),
            TableCell::text(describe_caveat(self.first.doubt)),
            TableCell::text(describe_caveat_remedy(self.first.doubt)),
            TableCell::count(self.subjects.len() as u64),
        ]
    }

    fn describe_subjects(&self) -> String {
        // A doubt about thousands of streams would fill the page with their names.
        let named = self.subjects.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
        match self.subjects.len().saturating_sub(MAX_NAMED) {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_stats::caveat::CaveatKind;

    fn caveat(subject: &str, matters: bool) -> Caveat {
        Caveat { doubt: CaveatKind::SentLate, subject: subject.into(), text: "late".into(), matters }
    }

    #[test]
    fn equal_caveats_are_grouped_with_important_ones_first() {
        let caveats = [caveat("a", false), caveat("b", false), caveat("c", true)];
        let groups = group_caveats(&caveats);
        let subjects: Vec<_> = groups.iter().map(|group| group.subjects.clone()).collect();
        assert_eq!(subjects, [vec!["c"], vec!["a", "b"]]);
    }

    #[test]
    fn caveat_row_names_some_subjects_and_counts_rest() {
        let caveats: Vec<Caveat> = (0..10).map(|n| caveat(&format!("s{n}"), false)).collect();
        assert!(group_caveats(&caveats)[0].describe_subjects().ends_with("s7 and 2 more"));
    }
}
