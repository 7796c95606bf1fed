//! Schedules from other sources: chirps, files with departure times, and the times of a capture.
//!
//! The functions read text, not files. Invariant: the error for an invalid line has the number of the line.

use crate::schedule::{PlannedProbe, ProbeKind, ProbeSchedule, ScheduleRefusal};
use crate::small_count;
use packetrig_units::Nanos;
use serde::Deserialize;

/// Reason why a text is not a valid schedule.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error(
        "line {line} of the schedule is invalid: {why}; write `offset_ns,length[,train[,kind]]` or JSON with \
            these names"
    )]
    Row {
        /// Number of the line, from 1.
        line: usize,
        why: String,
    },
    #[error(transparent)]
    Refused(#[from] ScheduleRefusal),
}

/// Chirps: trains whose distances shrink by a factor, one chirp every `every`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChirpScript {
    pub count: u32,
    pub every: Nanos,
    pub of: u32,
    pub first_gap: Nanos,
    /// Each distance is shorter than the one before by this factor; values below 1 count as 1.
    pub factor: f64,
    pub length: u32,
}

impl ChirpScript {
    pub fn to_schedule(&self) -> Result<ProbeSchedule, ScheduleRefusal> {
        let starts = (0..self.count).map(|n| (n, self.every.as_u64().saturating_mul(n.into())));
        let all = starts.flat_map(|(train, start)| (0..self.of).map(move |nth| (train, start, nth)));
        let planned = all.map(|(train, start, nth)| PlannedProbe {
            number: 0,
            train,
            kind: ProbeKind::Chirp,
            at: Nanos::new(start) + self.offset_of(nth),
            length: self.length,
        });
        ProbeSchedule::new(planned.collect())
    }

    /// The time from the first probe of a chirp to its probe with the index `nth`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive and far below 2^53"
    )]
    fn offset_of(&self, nth: u32) -> Nanos {
        // The sum always starts from the first gap, in floats, so that rounding errors do not add up from gap to gap.
        let first = self.first_gap.as_u64() as f64;
        let sum: f64 = (0..nth).map(|n| first / self.factor.max(1.0).powi(n.cast_signed())).sum();
        Nanos::new(sum as u64)
    }
}

/// Probes at the times of a capture, the first at zero. `frames`: time and length without FCS of each frame, in the order of the file.
pub fn schedule_from_capture_times(
    frames: impl IntoIterator<Item = (u64, u32)>,
) -> Result<ProbeSchedule, ScheduleRefusal> {
    let mut frames: Vec<_> = frames.into_iter().collect();
    // Captures of several queues are not always in order.
    frames.sort_by_key(|(at, _)| *at);
    let start = frames.first().map_or(0, |(at, _)| *at);
    let planned = (0..).zip(frames).map(|(train, (at, length))| PlannedProbe {
        number: 0,
        train,
        kind: ProbeKind::Single,
        // The smallest time comes first after the sort, so this does not underflow.
        at: Nanos::new(at - start),
        length,
    });
    ProbeSchedule::new(planned.collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptRow {
    offset_ns: u64,
    length: u32,
    train: Option<u32>,
    kind: Option<ProbeKind>,
}

/// Reads rows of CSV (`offset_ns,length[,train[,kind]]`, with or without a line of names) or of JSON, one object
/// a line. Rows without a train are trains of one. Empty lines and lines that begin with `#` do not count.
pub fn read_schedule(text: &str) -> Result<ProbeSchedule, ScriptError> {
    let mut planned = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        // A line of column names is accepted only before the first row: further down it would be a damaged row.
        if line.is_empty() || line.starts_with('#') || (planned.is_empty() && line.starts_with("offset_ns")) {
            continue;
        }
        let row = if line.starts_with('{') {
            serde_json::from_str(line).map_err(|error| error.to_string())
        } else {
            read_csv_row(line)
        };
        let row: ScriptRow = row.map_err(|why| ScriptError::Row { line: number, why })?;
        let train = row.train.unwrap_or_else(|| small_count(planned.len()));
        let kind = row.kind.unwrap_or(ProbeKind::Single);
        planned.push(PlannedProbe {
            number: 0,
            train,
            kind,
            at: Nanos::new(row.offset_ns),
            length: row.length,
        });
    }
    Ok(ProbeSchedule::new(planned)?)
}

fn read_csv_row(line: &str) -> Result<ScriptRow, String> {
    let cells: Vec<&str> = line.split(',').map(str::trim).collect();
    let [offset_ns, length, rest @ ..] = cells.as_slice() else {
        return Err(format!("it has {} value(s), not 2 to 4", cells.len()));
    };
    let [train, kind] = match rest {
        [] => [None, None],
        [train] => [Some(*train), None],
        [train, kind] => [Some(*train), Some(*kind)],
        _ => return Err(format!("it has {} value(s), not 2 to 4", cells.len())),
    };
    // CSV rows accept the same names of kinds as JSON rows.
    let kind = kind.filter(|kind| !kind.is_empty()).map(|kind| {
        serde_json::from_value(serde_json::Value::from(kind)).map_err(|_| {
            format!("`{kind}` is not a kind of probe (single, primer, tail, pair, train, chirp)")
        })
    });
    Ok(ScriptRow {
        offset_ns: parse_number(offset_ns)?,
        length: parse_number(length)?,
        train: train.filter(|train| !train.is_empty()).map(parse_number).transpose()?,
        kind: kind.transpose()?,
    })
}

fn parse_number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number, or it is negative or too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_and_json_rows_give_same_schedule() {
        let csv = "offset_ns,length,train,kind\n# a pair and one more\n0,60,0,pair\n 500 , 60 ,0,pair\n\n900,1514\n";
        let json = "{\"offset_ns\":0,\"length\":60,\"train\":0,\"kind\":\"pair\"}\n\
                    {\"offset_ns\":500,\"length\":60,\"train\":0,\"kind\":\"pair\"}\n\
                    {\"offset_ns\":900,\"length\":1514}\n";
        let schedule = read_schedule(csv).unwrap();
        assert_eq!(schedule, read_schedule(json).unwrap());
        let rows: Vec<_> =
            schedule.probes().iter().map(|p| (p.at.as_u64(), p.length, p.train, p.kind)).collect();
        assert_eq!(
            rows,
            [(0, 60, 0, ProbeKind::Pair), (500, 60, 0, ProbeKind::Pair), (900, 1514, 2, ProbeKind::Single)]
        );
    }

    #[test]
    fn invalid_script_row_is_refused_with_line_number() {
        for (text, line) in [
            ("0,60\nx,60", 2),
            ("0", 1),
            ("0,60,0,odd", 1),
            ("1,2,3,pair,5", 1),
            ("0,60\n{\"offset_ns\":1}", 2),
            ("0,60\noffset_ns,length", 2),
        ] {
            assert!(
                matches!(read_schedule(text), Err(ScriptError::Row { line: at, .. }) if at == line),
                "{text}"
            );
        }
        assert!(matches!(
            read_schedule("5,60\n4,60"),
            Err(ScriptError::Refused(ScheduleRefusal::Backwards(1)))
        ));
        assert!(matches!(read_schedule("# nothing"), Err(ScriptError::Refused(ScheduleRefusal::Empty))));
    }

    #[test]
    fn distances_of_a_chirp_shrink_by_its_factor() {
        let chirps = ChirpScript {
            count: 2,
            every: Nanos::from_millis(1),
            of: 4,
            first_gap: Nanos::from_micros(100),
            factor: 2.0,
            length: 60,
        };
        let at: Vec<_> =
            chirps.to_schedule().unwrap().probes().iter().map(|p| p.at.as_u64() / 1_000).collect();
        assert_eq!(at, [0, 100, 150, 175, 1_000, 1_100, 1_150, 1_175]);
    }

    #[test]
    fn times_of_a_capture_begin_at_zero() {
        let schedule = schedule_from_capture_times([(1_000, 60), (1_700, 100), (1_500, 70)]).unwrap();
        let rows: Vec<_> = schedule.probes().iter().map(|p| (p.at.as_u64(), p.length)).collect();
        assert_eq!(rows, [(0, 60), (500, 70), (700, 100)]);
    }
}
