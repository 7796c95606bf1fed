//! Draws the ledger, that is, how many frames passed or were lost at each point, in three columns: our sender, the
//! path and our receiver.

use super::super::facts::{RunFacts, count_or_unmeasured};
use super::{Theme, draw_line};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// Height of the ledger on the screen: two lines of headings, and a line for each account.
pub(super) const LEDGER_ROWS: u16 = 7;
/// Gap between two columns of the ledger, in characters.
const LEDGER_COLUMN_GAP: u16 = 2;

/// Names of the accounts in `report.json`, each with its label on the screen.
const SENDER_ACCOUNT_LABELS: [(&str, &str); 4] =
    [("built", "built"), ("refused", "refused"), ("tx_dropped", "dropped"), ("on_wire", "on the wire")];
const RECEIVER_ACCOUNT_LABELS: [(&str, &str); 5] = [
    ("arrived", "arrived"),
    ("ring_dropped", "dropped"),
    ("foreign", "foreign"),
    ("duplicate", "duplicates"),
    ("counted", "counted"),
];

pub(super) fn draw_ledger(frame: &mut Frame<'_>, area: Rect, run: &RunFacts, theme: Theme) {
    let heading = Line::styled("Where frames went, and where they were lost", Theme::title_style());
    draw_line(frame, Rect { height: area.height.min(1), ..area }, heading);
    let width = (area.width.saturating_sub(2 * LEDGER_COLUMN_GAP) / 3).min(40);
    let [sender, path, receiver] = run.losses.losses_by_place();
    for (index, (place, accounts)) in
        [(sender, &SENDER_ACCOUNT_LABELS[..]), (path, &[][..]), (receiver, &RECEIVER_ACCOUNT_LABELS[..])]
            .into_iter()
            .enumerate()
    {
        let mut lines = vec![build_place_line(place, width, theme)];
        for (account, name) in accounts {
            // An account that is absent was not measured: it must not be drawn as zero.
            let count = run.ledger.get(*account).map(|count| count.0);
            lines.push(build_count_line(name, count, width, Style::new()));
        }
        let x = area.x + u16::try_from(index).unwrap_or(0) * (width + LEDGER_COLUMN_GAP);
        let height = area.height.saturating_sub(1);
        frame.render_widget(Paragraph::new(lines), Rect { x, y: area.y + 1, width, height });
    }
}

fn build_place_line((place, lost): (&'static str, Option<u64>), width: u16, theme: Theme) -> Line<'static> {
    build_count_line(place, lost, width, loss_style(lost, theme))
}

/// Builds a line with a name on the left and a count on the right.
fn build_count_line(name: &str, count: Option<u64>, width: u16, style: Style) -> Line<'static> {
    let width = usize::from(width);
    let mut text = count_or_unmeasured(count);
    // If the words `not measured` have no room beside the name, a question mark replaces them.
    if count.is_none() && name.len() + text.len() >= width {
        "?".clone_into(&mut text);
    }
    let gap = width.saturating_sub(name.len() + text.len());
    Line::from(vec![Span::raw(format!("{name}{}", " ".repeat(gap))), Span::styled(text, style)])
}

/// Returns the style of a count of lost frames: a count above 0 stands out.
pub(super) fn loss_style(lost: Option<u64>, theme: Theme) -> Style {
    match lost {
        // An unknown loss has no colour: it is neither good nor bad.
        None | Some(0) => Style::new(),
        Some(_) => theme.bad_style(),
    }
}
