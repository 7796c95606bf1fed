//! Formats the accounts of a tap, that is, its counts of frames, as text.

use crate::numbers::{format_count, format_scaled, per_second};
use crate::table::format_table;
use packetrig_engine::capture::record::RecordingOutcome;
use packetrig_link_io::tap::{TapAccounts, TapDirection, TapState};
use packetrig_units::Nanos;

/// Formats a line of progress: the total number of frames of each direction, and the rates since the last line.
pub(super) fn format_progress_line(now: &TapAccounts, last: Option<&TapAccounts>) -> String {
    let before_ns = last.map_or(0, |last| last.elapsed.as_u64());
    let length = Nanos::new(now.elapsed.as_u64().saturating_sub(before_ns));
    let directions = now.directions.iter().enumerate().map(|(index, direction)| {
        format_direction(direction, last.and_then(|last| last.directions.get(index)), length)
    });
    directions.collect::<Vec<_>>().join("; ")
}

fn format_direction(now: &TapDirection, last: Option<&TapDirection>, length: Nanos) -> String {
    let frames = now.received.saturating_sub(last.map_or(0, |last| last.received));
    let bytes = now.received_bytes.saturating_sub(last.map_or(0, |last| last.received_bytes));
    let mut text = format!(
        "{} > {}: {} frames ({}, {})",
        now.from,
        now.to,
        format_count(now.received),
        format_scaled(per_second(frames, length), "frames/s"),
        format_scaled(per_second(bytes, length) * 8.0, "bit/s"),
    );
    if now.lost_frames() > 0 {
        text.extend([", dropped ", &format_count(now.lost_frames())]);
    }
    // One number sums all mirrors: the tables at the end show each mirror.
    let missing: u64 = now.mirrors.iter().flat_map(|mirror| mirror.dropped.values()).sum();
    if missing > 0 {
        text.extend([", copies dropped ", &format_count(missing)]);
    }
    text
}

/// Formats all accounts as tables, with a row for each account, and the names of the written files.
pub(super) fn format_accounts(
    state: &TapState,
    accounts: &TapAccounts,
    recorded: Option<&RecordingOutcome>,
) -> String {
    let [a, b] = &state.sides;
    let elapsed = accounts.elapsed.as_secs_f64();
    let mut text =
        format!("{}: {} <> {}, back end {}, {elapsed:.3} s\n", state.name, a.location, b.location, state.way);
    let header = ["direction", "account", "frames", "because"];
    let rows = accounts.directions.iter().flat_map(build_direction_rows);
    text.push_str(&format_table(&header, rows));
    if let Some(recording) = accounts.recording {
        let rows = [
            ("read from the rings", recording.frames),
            ("dropped: ring full", recording.ring_dropped),
            ("dropped: disk queue full", recording.queue_dropped),
            ("dropped: disk", recording.disk_lost),
        ];
        let rows = rows.into_iter().map(|(what, frames)| vec![what.to_owned(), format_count(frames)]);
        text.push_str(&format_table(&["capture", "frames"], rows));
    }
    for file in recorded.iter().flat_map(|recorded| &recorded.files) {
        text.extend(["wrote ", &file.display().to_string(), "\n"]);
    }
    text
}

/// A count of frames of one direction, with its name. The count is `None` if the kernel does not count these frames.
struct AccountRow {
    account: String,
    frames: Option<u64>,
    why: &'static str,
}

impl AccountRow {
    fn new(account: impl Into<String>, frames: Option<u64>, why: &'static str) -> Self {
        Self { account: account.into(), frames, why }
    }
}

fn build_direction_rows(direction: &TapDirection) -> Vec<Vec<String>> {
    let name = format!("{} > {}", direction.from, direction.to);
    let cells = build_account_rows(direction).into_iter().map(|row| {
        let frames = row.frames.map_or_else(|| "–".to_owned(), format_count);
        vec![name.clone(), row.account, frames, row.why.to_owned()]
    });
    cells.collect()
}

/// Rows in the order in which frames pass: received, forwarded, then their copies.
fn build_account_rows(direction: &TapDirection) -> Vec<AccountRow> {
    let mut rows = vec![AccountRow::new("received", Some(direction.received), "")];
    if direction.made > 0 {
        // Frames that an impairment added.
        rows.push(AccountRow::new("made", Some(direction.made), "on purpose"));
    }
    rows.push(AccountRow::new("forwarded", direction.forwarded, ""));
    // One row for each cause: they have different remedies.
    for (cause, frames) in &direction.dropped {
        rows.push(AccountRow::new("dropped", Some(*frames), cause.to_text()));
    }
    // Without a mirror there are no copies to make, and zeros would look like a failing mirror.
    if direction.mirrors.is_empty() {
        return rows;
    }
    rows.push(AccountRow::new("to be copied", Some(direction.wanted), ""));
    for (why, frames) in &direction.uncopied {
        rows.push(AccountRow::new("not to be copied", Some(*frames), why.to_text()));
    }
    for mirror in &direction.mirrors {
        rows.push(AccountRow::new(format!("copied to {}", mirror.to), mirror.mirrored, ""));
        for (cause, frames) in &mirror.dropped {
            rows.push(AccountRow::new(
                format!("not copied to {}", mirror.to),
                Some(*frames),
                cause.to_text(),
            ));
        }
    }
    rows
}
