//! `packetrig replay`: a capture file becomes a plan with one stream, and a request to execute it.

use super::execution::{self, ExecutionRequest};
use super::quick;
use super::run::check_fleet_options;
use crate::args::{PaceArg, ReplayArgs as Arguments};
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle, print_remark};
use packetrig_engine::replay::{ReplaySurvey, survey_file};
use packetrig_plan::recording::{PlannedRecording, ReplaySpeed, ReplayTiming};
use packetrig_plan::replay::ReplayRequest;
use packetrig_units::Nanos;
use packetrig_wire::foreign::FrameRewrite;

pub(crate) fn replay_file(arguments: Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let rewrite = frame_rewrite(&arguments);
    // The whole file is read once before the run, so that a damaged file is reported before anything is sent.
    let survey = survey_file(&arguments.file, &rewrite).map_err(packetrig_fleet_io::Error::Engine)?;
    let document = replay_document(&arguments, rewrite, &survey)?;
    // The options are checked with the document, because the locations of its ports decide whether it is for a fleet.
    check_fleet_options(&arguments.execution, &document)?;
    if arguments.execution.print_plan {
        return execution::print_plan(&document, &arguments.execution.fleet, output);
    }
    if !arguments.execution.quiet {
        print_survey_remarks(&arguments, &survey);
    }
    execution::execute_request(&ExecutionRequest::from_arguments(document, arguments.execution), output)
}

fn frame_rewrite(arguments: &Arguments) -> FrameRewrite {
    FrameRewrite {
        src_mac: arguments.rewrite_src_mac.map(|mac| mac.0),
        dst_mac: arguments.rewrite_dst_mac.map(|mac| mac.0),
        addresses: arguments.map_ip.clone(),
        vlan: arguments.vlan,
    }
}

/// Returns true if frames get a tag. Without a receiver nothing verifies tags, so frames are sent unchanged.
fn is_tagged(arguments: &Arguments) -> bool {
    arguments.tag || (!arguments.rx.is_empty() && !arguments.no_tag)
}

fn replay_document(
    arguments: &Arguments,
    rewrite: FrameRewrite,
    survey: &ReplaySurvey,
) -> Result<PlanText, Error> {
    // A plan from `--print-plan` may be run later from another directory, so the path in it is absolute.
    let file = arguments.file.canonicalize().unwrap_or_else(|_| arguments.file.clone());
    let Some(file) = file.to_str().map(Into::into) else {
        let why = format!("cannot write the path {} into a plan: it is not valid UTF-8", file.display());
        return Err(Error::Usage(why));
    };
    let timing = match (arguments.rate, arguments.speed) {
        (Some(_), _) => ReplayTiming::Even,
        (None, Some(PaceArg::Max)) => ReplayTiming::Fastest,
        (None, Some(PaceArg::Recorded(speed))) => ReplayTiming::Recorded(speed),
        (None, None) => ReplayTiming::Recorded(ReplaySpeed::ORIGINAL_SPEED),
    };
    let tagged = is_tagged(arguments);
    let recording =
        PlannedRecording { file, timing, loops: arguments.loops, rewrite, tagged, facts: survey.facts };
    let hosts = arguments.hosts.make_replay_hosts(arguments.rewrite_dst_mac).map_err(Error::Usage)?;
    if hosts.is_some() && arguments.rx.len() != 1 {
        return Err(Error::Usage(quick::SINGLE_PAIR_ERROR.into()));
    }
    let replay = ReplayRequest {
        tx: arguments.tx.to_string(),
        rx: arguments.rx.iter().map(ToString::to_string).collect(),
        recording,
        rate: arguments.rate,
        hosts,
    };
    let text = replay.to_yaml().map_err(|error| Error::Usage(error.to_string()))?;
    Ok(PlanText { name: "the plan made from the file".into(), text, is_from_options: false })
}

/// Prints the facts and doubts about the file before anything is sent.
fn print_survey_remarks(arguments: &Arguments, survey: &ReplaySurvey) {
    let style = TextStyle::for_remarks();
    let facts = &survey.facts;
    let file = arguments.file.display();
    let frames = facts.frames;
    let fcs = if facts.has_fcs { ", FCS removed" } else { "" };
    print_remark(format_args!("{file}: {frames} frames, {} bytes, over {}{fcs}", facts.bytes, facts.span));
    let doubts = survey.skipped.describe_reasons().into_iter().chain(survey.ending.describe_for_replay());
    // Some tools write files with the same time for all frames.
    let is_timeless = arguments.rate.is_none() && facts.frames > 1 && facts.span == Nanos::ZERO;
    let timeless = is_timeless.then(|| {
        "all frames of the file have the same time, so they are sent as fast as the link can carry them"
            .to_owned()
    });
    let untagged = (is_tagged(arguments) && survey.untaggable > 0).then(|| {
        format!("{} of {frames} frames have no room for a tag and are sent without one", survey.untaggable)
    });
    for doubt in doubts.chain(timeless).chain(untagged) {
        print_remark(format_args!("{} {doubt}", style.doubtful("warning:")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CommandLine, RigCommand};
    use clap::Parser;

    fn arguments(line: &str) -> Arguments {
        let words = ["packetrig", "replay", "a.pcap"].into_iter().chain(line.split_whitespace());
        match CommandLine::try_parse_from(words).unwrap().command {
            RigCommand::Replay(replay) => *replay,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frames_are_tagged_for_receivers_unless_told_otherwise() {
        for (line, tagged) in [
            ("--tx a", false),
            ("--tx a --tag", true),
            ("--tx a --rx b", true),
            ("--tx a --rx b --no-tag", false),
        ] {
            assert_eq!(is_tagged(&arguments(line)), tagged, "{line}");
        }
        let both = ["packetrig", "replay", "a.pcap", "--tx", "a", "--tag", "--no-tag"];
        assert!(CommandLine::try_parse_from(both).is_err());
    }

    #[test]
    fn rewrite_flags_are_parsed() {
        let line = "--tx a --rewrite-src-mac 02:00:00:00:00:0A --vlan push:7 --map-ip 10.0.0.0/8=198.18.0.0/8,::/0=2001::/0";
        let rewrite = frame_rewrite(&arguments(line));
        assert_eq!((rewrite.src_mac, rewrite.dst_mac), (Some([2, 0, 0, 0, 0, 10]), None));
        assert_eq!((rewrite.addresses.len(), rewrite.vlan), (2, "push:7".parse().ok()));
    }
}
