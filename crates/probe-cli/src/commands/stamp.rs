//! `packetrig probe stamp`: a session with a STAMP reflector.

use super::asking::{self, ProbeLineRun, ProbeLineTurn, TargetProbeSeries};
use super::{bounds, show};
use crate::HostProgram;
use crate::args::{ProbeSeriesArgs, SessionFlags, StampArgs};
use crate::error::Error;
use packetrig_probe::series::{AnswerMeaning, SeriesCounts, SeriesTimes};
use packetrig_probe::session::delays::{self, ClockRelation, DirectionDelays, OwnClock, SessionDelays};
use packetrig_probe::session::sender::{StampSender, StampSenderSettings, StampSessionFacts};
use packetrig_probe::session::{SessionKey, TimeFormat};
use packetrig_probe_io::ask::{ProbeSeriesEvent, ProbeSeriesOutcome};
use packetrig_probe_io::listener::SilencedPort;
use packetrig_program::exit::CommandExit;
use packetrig_program::numbers::format_count;
use packetrig_program::output::CommandOutput;
use packetrig_sys::{clock, signal};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;

/// The reflector of a session, and whether the session must compare the clocks.
#[derive(Clone, Copy)]
pub(super) struct StampSessionRequest {
    pub(super) target: SocketAddr,
    /// True if the session compares the clocks itself, except where both ends state that their clocks follow UTC.
    pub(super) compares_clocks: bool,
}

pub(super) fn run_stamp(
    arguments: &StampArgs,
    host: HostProgram,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    bounds::print_resolved_addresses([&arguments.target.target]);
    let wanted = StampSessionRequest { target: arguments.target.address(), compares_clocks: false };
    run_session(wanted, &arguments.session, &arguments.asking, host, output)
}

/// Runs a session with a reflector and prints its result.
pub(super) fn run_session(
    wanted: StampSessionRequest,
    flags: &SessionFlags,
    asking: &ProbeSeriesArgs,
    host: HostProgram,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let permit = bounds::read_permit(&asking.bounds)?;
    let way = asking::find_permitted_path(asking, &permit, wanted.target.ip())?;
    let _loopback = asking::open_loopback(std::slice::from_ref(&way))?;
    let own = SilencedPort::reserve_any_port(way.location.namespace.as_deref(), way.ends.source)?;
    let mut listeners = asking::open_listeners(std::slice::from_ref(&way), Some(own.port()))?;
    let before = clock::measure_realtime_offset();
    let mut sender = StampSender::new(
        way.ends,
        session_settings(wanted.target.port(), flags, own.port(), before.offset_ns)?,
    );
    let TargetProbeSeries { line, mut header } =
        asking::open_probe_line(asking, host.files, way, Box::new(&mut sender), ProbeLineTurn::ALONE)?;
    header.targets = vec![wanted.target.to_string()];
    let mut lines = [line];
    let headers = [header];
    signal::record_end_signals()?;
    let has_lines = !asking.quiet && !asking.json;
    let run = ProbeLineRun { asking, host, measured: "round trip to", headers: &headers };
    let outcomes = run.run_lines(&mut lines, &mut listeners, &mut |event: ProbeSeriesEvent<'_>| {
        if has_lines {
            print_event(&event, output);
        }
    })?;
    // The lines borrow the sender, which is needed below: it has collected the values that the reflector
    // reported.
    drop(lines);
    let after = clock::measure_realtime_offset();
    // The offset that was measured after the session is used for the whole session; the bound is widened to
    // cover the earlier offset, too.
    let clock = OwnClock {
        offset_ns: after.offset_ns,
        // If the wall clock was set during the session, it is unknown which timestamps were taken before and
        // which after that.
        bound_ns: after.bound_ns.max(before.bound_ns) + after.offset_ns.abs_diff(before.offset_ns),
        error_ns: flags.clock_bound.map(packetrig_units::Nanos::as_u64),
    };
    asking::write_records(asking, host.files, &headers, &outcomes)?;
    for (header, outcome) in headers.iter().zip(&outcomes) {
        let found = SessionFindings::new(outcome, &sender, clock, wanted.compares_clocks);
        if asking.json {
            let mut value = show::series_json(header, outcome);
            value["directions"] = json!(found.directions);
            value["one_way"] = json!(found.both);
            value["one_way"]["clocks"] = found.relation.name().into();
            output.write_json(&value)?;
        } else {
            output.write_text(found.append_findings_to(show::summary_text(header, outcome)));
        }
    }
    Ok(asking::exit_code_of_series(asking, &outcomes))
}

/// The findings of a session about the two directions.
struct SessionFindings {
    counts: SeriesCounts,
    directions: StampSessionFacts,
    relation: ClockRelation,
    both: SessionDelays,
}

impl SessionFindings {
    fn new(
        outcome: &ProbeSeriesOutcome,
        sender: &StampSender,
        clock: OwnClock,
        compares_clocks: bool,
    ) -> Self {
        let records = outcome.series.records();
        let follow_ups = sender.follow_ups();
        let directions = sender.build_session_facts();
        // Timestamps of the two ends can be subtracted only if both ends have stated how far their clocks can
        // be from UTC.
        let follows_utc = clock.error_ns.is_some() && directions.is_far_synchronised;
        let relation = if compares_clocks && !follows_utc {
            delays::compare_clocks(records, follow_ups)
        } else {
            ClockRelation::Utc(clock)
        };
        let both = delays::compute_delays(records, follow_ups, &directions, &relation);
        Self { counts: outcome.series.counts(), directions, relation, both }
    }

    /// Appends the findings to the text about the series, and returns it.
    fn append_findings_to(&self, mut text: String) -> String {
        let Self { counts, directions, relation, both } = self;
        text += &times_line_or_empty("  round trip without the time in the reflector", both.path.as_ref());
        for (name, DirectionDelays { delay, variation }) in
            [("forward", &both.there), ("reverse", &both.back)]
        {
            text += &times_line_or_empty(&format!("  {name} delay"), delay.as_ref());
            let name = format!("  {name} delay variation (delay above the minimum)");
            text += &times_line_or_empty(&name, variation.as_ref());
        }
        match (both.no_delay, relation) {
            (Some(why), _) => text.extend([format!("  no one-way delays: {}\n", why.as_text())]),
            (None, ClockRelation::Exchanges(_)) => {
                text += "  the session itself compared the clocks: a path that is always slower in one \
                    direction looks like a clock offset\n";
            }
            (None, ClockRelation::Utc(_)) => {}
        }
        // A stateless reflector repeats the sender's number (RFC 8762), so its numbers cannot show in which
        // direction a packet was lost.
        match (directions.lost_there, directions.lost_back) {
            (Some(there), Some(back)) => {
                text.extend([format!(
                    "  lost: forward {}, reverse {}\n",
                    format_count(there),
                    format_count(back)
                )]);
            }
            _ if directions.is_stateful || counts.answered == 0 => {}
            // Every probe was answered, so no packet was lost in either direction.
            _ if counts.lost == 0 && counts.refused == 0 => text += "  lost: forward 0, reverse 0\n",
            _ => {
                text += "  loss of each direction is unknown: the reflector's sequence numbers always \
                    equal those of the probes, so perhaps it does not count its reflections\n";
            }
        }
        let invalid = directions.invalid.total();
        if invalid > 0 {
            let reasons = directions.invalid.to_text();
            text.extend([format!(
                "  reflections that were invalid and count as lost: {} ({reasons})\n",
                format_count(invalid)
            )]);
        }
        text
    }
}

fn times_line_or_empty(name: &str, times: Option<&SeriesTimes>) -> String {
    times.map(|times| show::format_times_line(name, times)).unwrap_or_default()
}

fn session_settings(
    port: u16,
    flags: &SessionFlags,
    own_port: u16,
    realtime_offset_ns: i64,
) -> Result<StampSenderSettings, Error> {
    // The session number distinguishes the sessions of one sender. Zero would mean that the session has no
    // number (RFC 8972).
    let [.., high, low] = asking::random_number().to_be_bytes();
    Ok(StampSenderSettings {
        ports: (own_port, port),
        key: flags.auth.as_deref().map(read_key).transpose()?,
        // RFC 8186: the Z bit of each packet states which of the two formats its timestamps have.
        format: if flags.ntp { TimeFormat::Ntp } else { TimeFormat::Ptp },
        number: u16::from_be_bytes([high, low]).max(1),
        realtime_offset_ns,
        synchronised_ns: flags.clock_bound.map(packetrig_units::Nanos::as_u64),
        follow_up: true,
    })
}

/// Reads the key for authenticated mode from a file.
pub(super) fn read_key(file: &Path) -> Result<SessionKey, Error> {
    let text = std::fs::read_to_string(file).map_err(|source| Error::unreadable_file(file, source))?;
    SessionKey::from_text(&text).ok_or_else(|| {
        let file = file.display();
        Error::Usage(format!("{file} does not contain a valid key; write at least 16 bytes in hexadecimal"))
    })
}

fn print_event(event: &ProbeSeriesEvent<'_>, output: &mut CommandOutput) {
    match event {
        ProbeSeriesEvent::Sent { .. } => {}
        ProbeSeriesEvent::Ended { end, .. } => {
            output.write_line(show::series_end_text(end).unwrap_or_default());
        }
        ProbeSeriesEvent::Answered { reply, meaning: AnswerMeaning::First(Some(took)), answer, .. } => {
            output.write_line(format_args!(
                "{}: seq={} time={}",
                answer.from,
                reply.number,
                show::format_measured_time(*took)
            ));
        }
        ProbeSeriesEvent::Answered { reply, meaning, .. } => {
            let meaning = show::describe_answer_meaning(*meaning);
            output.write_line(format_args!("seq={}{meaning}", reply.number));
        }
    }
}
