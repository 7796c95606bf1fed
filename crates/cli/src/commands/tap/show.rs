//! The accounts of a tap as text.

use crate::numbers::{count, per_second, scaled};
use crate::table::table;
use packetrig_engine::capture::record::RecordingOutcome;
use packetrig_engine::tap::{MirrorAccount, TapAccounts, TapDirection, TapState};
use packetrig_units::Nanos;

/// What happened since the last accounts, in a line.
pub(super) fn line(now: &TapAccounts, last: Option<&TapAccounts>) -> String {
    let before_ns = last.map_or(0, |last| last.elapsed.as_u64());
    let length = Nanos::new(now.elapsed.as_u64().saturating_sub(before_ns));
    let before = |index: usize| last.and_then(|last| last.directions.get(index));
    let way = |(index, direction): (usize, &TapDirection)| {
        let (frames, bytes) = before(index).map_or((0, 0), |before| (before.received, before.received_bytes));
        let rate = |now: u64, before: u64| per_second(now.saturating_sub(before), length);
        let mut text = format!(
            "{} > {}: {} frames ({}, {})",
            direction.from,
            direction.to,
            count(direction.received),
            scaled(rate(direction.received, frames), "f/s"),
            scaled(rate(direction.received_bytes, bytes) * 8.0, "bit/s"),
        );
        if direction.lost() > 0 {
            text.extend([", dropped ", &count(direction.lost())]);
        }
        let missing: u64 = direction.mirrors.iter().flat_map(|mirror| mirror.dropped.values()).sum();
        if missing > 0 {
            text.extend([", copies dropped ", &count(missing)]);
        }
        text
    };
    now.directions.iter().enumerate().map(way).collect::<Vec<_>>().join("; ")
}

/// All accounts: one row each.
pub(super) fn result(
    state: &TapState,
    accounts: &TapAccounts,
    recorded: Option<&RecordingOutcome>,
) -> String {
    let [a, b] = &state.sides;
    let elapsed = accounts.elapsed.as_secs_f64();
    let mut text =
        format!("{}: {} <> {}, way {}, {elapsed:.3} s\n", state.name, a.location, b.location, state.way);
    let header = ["direction", "account", "frames", "because"];
    let rows = accounts.directions.iter().flat_map(rows);
    text.push_str(&table(&header, rows));
    if let Some(recording) = accounts.recording {
        let row = |what: &str, frames: u64| vec![what.to_owned(), count(frames)];
        let rows = [
            row("taken for the file", recording.frames),
            row("dropped: ring full", recording.ring_dropped),
            row("dropped: queue to the disk full", recording.queue_dropped),
            row("dropped: disk", recording.disk_lost),
        ];
        text.push_str(&table(&["capture", "frames"], rows));
    }
    for file in recorded.iter().flat_map(|recorded| &recorded.files) {
        text.extend(["wrote ", &file.display().to_string(), "\n"]);
    }
    text
}

fn rows(direction: &TapDirection) -> Vec<Vec<String>> {
    let way = format!("{} > {}", direction.from, direction.to);
    let row =
        |what: &str, frames: String, why: &str| vec![way.clone(), what.to_owned(), frames, why.to_owned()];
    let known = |frames: Option<u64>| frames.map_or_else(|| "–".to_owned(), count);
    let mut rows = vec![row("received", count(direction.received), "")];
    if direction.made > 0 {
        rows.push(row("made", count(direction.made), "on purpose"));
    }
    rows.push(row("forwarded", known(direction.forwarded), ""));
    let dropped = direction.dropped.iter();
    rows.extend(dropped.map(|(cause, frames)| row("dropped", count(*frames), cause.words())));
    if direction.mirrors.is_empty() {
        return rows;
    }
    rows.push(row("to be copied", count(direction.wanted), ""));
    let uncopied = direction.uncopied.iter();
    rows.extend(uncopied.map(|(why, frames)| row("not to be copied", count(*frames), why.words())));
    let mirrors = direction.mirrors.iter().flat_map(|mirror: &MirrorAccount| {
        let copied = row(&format!("copied to {}", mirror.to), known(mirror.mirrored), "");
        let dropped = mirror.dropped.iter().map(|(cause, frames)| {
            row(&format!("not copied to {}", mirror.to), count(*frames), cause.words())
        });
        std::iter::once(copied).chain(dropped).collect::<Vec<_>>()
    });
    rows.extend(mirrors);
    rows
}
