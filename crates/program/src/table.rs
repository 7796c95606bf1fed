//! Tables of text with a header and rows. The first column is aligned to the left, all other columns to the right.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use packetrig_units::text::one_line;

/// Maximum number of characters of a cell. The text of a cell may come from other machines, so it is also made one
/// line: otherwise a text with a line end would look like a separate row.
const MAX_CELL_CHARACTERS: usize = 4096;

/// Formats a table without borders: they cost width and do not help to read numbers.
pub fn format_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    // Cells are never wrapped: for a narrow terminal, `format_fitted_table` leaves columns out instead.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().enumerate().map(|(index, text)| align_cell(index, text)));
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(index, text)| align_cell(index, text)));
    }
    // Trailing blanks would wrap in narrow terminals and clutter text that is copied.
    let text = table.to_string();
    text.lines().flat_map(|line| [" ", line.trim_end(), "\n"]).collect()
}

/// Formats a table that is no wider than `width`, if possible. To make it fit, columns are left out in the order of
/// `least_important`. A line below the table then says how many, and names the command that shows all columns
/// (`all_are_in`). A name in `least_important` means all columns with this name.
pub fn format_fitted_table(
    width: Option<usize>,
    header: &[&str],
    rows: &[Vec<String>],
    least_important: &[&str],
    all_are_in: &str,
) -> String {
    // If the table is too wide even without all of these columns, it stays too wide: the other columns are needed.
    let mut left_out: &[&str] = &[];
    for count in 0..=least_important.len() {
        left_out = &least_important[..count];
        if width.is_none_or(|width| table_width(header, rows, left_out) <= width) {
            break;
        }
    }
    let shown: Vec<usize> = (0..header.len()).filter(|index| !left_out.contains(&header[*index])).collect();
    let names: Vec<&str> = shown.iter().map(|index| header[*index]).collect();
    let cells = rows.iter().map(|row| shown.iter().filter_map(|index| row.get(*index).cloned()).collect());
    let mut text = format_table(&names, cells);
    if shown.len() < header.len() {
        let more = header.len() - shown.len();
        let columns = if more == 1 { "1 column does" } else { &format!("{more} columns do") };
        text.extend([format!("  {columns} not fit; {all_are_in} shows all\n")]);
    }
    text
}

/// Returns the length of the longest line of the table without the columns `left_out`.
fn table_width(header: &[&str], rows: &[Vec<String>], left_out: &[&str]) -> usize {
    let shown = (0..header.len()).filter(|index| !left_out.contains(&header[*index]));
    shown.map(|index| column_width(header[index], rows.iter().filter_map(|row| row.get(index)))).sum()
}

/// Returns the width of a column, with the two blanks before it.
fn column_width<'a>(heading: &str, cells: impl Iterator<Item = &'a String>) -> usize {
    let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
    // Each cell has one blank on both sides. `format_table` adds one blank before a line and removes the last
    // one, so the sum of the columns is the length of the line.
    2 + widest.max(heading.chars().count())
}

fn align_cell(index: usize, text: &str) -> Cell {
    let alignment = if index == 0 { CellAlignment::Left } else { CellAlignment::Right };
    Cell::new(one_line(text, MAX_CELL_CHARACTERS)).set_alignment(alignment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_drops_least_important_columns_to_fit() {
        let rows = [vec!["a".to_owned(), "1".to_owned(), "22".to_owned(), "333".to_owned()]];
        let of = |width| {
            format_fitted_table(
                width,
                &["stream", "sent", "late", "lost"],
                &rows,
                &["late", "sent"],
                "--wide",
            )
        };
        let shown = |width| of(width).lines().next().unwrap().trim_start().to_owned();
        assert_eq!(shown(None), "stream  sent  late  lost");
        assert_eq!(shown(Some(26)), "stream  sent  late  lost");
        assert_eq!(shown(Some(25)), "stream  sent  lost");
        assert_eq!(shown(Some(3)), "stream  lost", "the others are too important to be left out");
        assert!(of(Some(25)).ends_with("\n  1 column does not fit; --wide shows all\n"));
        assert!(!of(None).contains("--wide"));
    }

    #[test]
    fn table_cell_stays_one_line() {
        let forged = "a  1\nb  idle\t\u{1b}[31m".to_owned();
        let text = format_table(&["node", "seen"], [vec![forged, "2".to_owned()]]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("a  1\\u{a}b  idle\\u{9}\\u{1b}[31m  "), "{text}");
    }

    #[test]
    fn names_stand_left_and_numbers_right() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long name".to_owned(), "1 000".to_owned()]];
        let lines: Vec<String> = format_table(&["stream", "sent"], rows).lines().map(str::to_owned).collect();
        assert_eq!(lines, ["  stream      sent", "  a              1", "  long name  1 000"]);
    }
}
