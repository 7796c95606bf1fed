//! Tables of text: a header, rows, names to the left and numbers to the right. Knows nothing of what it shows.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// Table without frames: they cost width and help no one to read numbers.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().enumerate().map(|(index, text)| aligned(index, text)));
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(index, text)| aligned(index, text)));
    }
    let text = table.to_string();
    text.lines().flat_map(|line| [" ", line.trim_end(), "\n"]).collect()
}

fn aligned(index: usize, text: &str) -> Cell {
    let alignment = if index == 0 { CellAlignment::Left } else { CellAlignment::Right };
    Cell::new(text).set_alignment(alignment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_left_and_numbers_right() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long name".to_owned(), "1 000".to_owned()]];
        let lines: Vec<String> = table(&["stream", "sent"], rows).lines().map(str::to_owned).collect();
        assert_eq!(lines, ["  stream      sent", "  a              1", "  long name  1 000"]);
    }
}
