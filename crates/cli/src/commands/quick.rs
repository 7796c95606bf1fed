//! Makes a plan document from flags. The crate `plan` writes its text, and a run from flags is then like any other run.

use crate::args::{PortText, QuickPlanFlags, SizeArg};
use crate::document::PlanText;
use crate::error::Error;
use crate::output::print_remark;
use packetrig_plan::PortLocation;
use packetrig_plan::quick::{self, QuickLength, QuickPattern, QuickPlan, QuickSize};
use packetrig_units::{FrameRate, FrameSize, Nanos, Rate};
use std::collections::BTreeSet;
use std::path::Path;

const DEFAULT_FRAME_SIZE: FrameSize = FrameSize::new(128);
const FRAMES_PER_SECOND: u64 = 1_000;
/// Error text for options that describe hosts, if there are several senders or receivers.
pub(crate) const SINGLE_PAIR_ERROR: &str = "options for addresses and gateways need exactly one sender and one receiver; write a plan file for more ports";
const DEFAULT_RUN_TIME: Nanos = Nanos::from_secs(10);

/// Function that counts the ports of a fleet that match a location like `any-tx`.
pub(crate) type PortCountFunction<'a> = &'a dyn Fn(&str) -> Option<usize>;

/// Makes the document that these flags describe. `fleet` counts the ports that `*all` stands for. Without a fleet it is
/// `None`, and all ports are on this machine.
pub(crate) fn plan_text_from_flags(
    flags: &QuickPlanFlags,
    fleet: Option<PortCountFunction<'_>>,
) -> Result<PlanText, Error> {
    Ok(PlanText {
        name: "the plan made from the options".into(),
        text: make_quick_plan(flags, fleet)?.to_yaml(),
        is_from_options: true,
    })
}

fn make_quick_plan(flags: &QuickPlanFlags, fleet: Option<PortCountFunction<'_>>) -> Result<QuickPlan, Error> {
    let tx = port_locations(&flags.tx, fleet)?;
    let rx = port_locations(&flags.rx, fleet)?;
    if tx.is_empty() {
        return Err(Error::Usage("give a plan file or --tx".into()));
    }
    refuse_repeated_locations(&tx, &rx)?;
    let pattern = flags.pattern.map_or(QuickPattern::ToAll, QuickPattern::from);
    if let Some(objection) = pattern.explain_mismatch(tx.len(), rx.len()) {
        return Err(Error::Usage(objection));
    }
    let hosts = flags.hosts.make_hosts(flags.sends_ipv6()).map_err(Error::Usage)?;
    // The flags have one address for each end, and two ports cannot have the same address.
    if hosts.is_some() && (tx.len(), rx.len()) != (1, 1) {
        return Err(Error::Usage(SINGLE_PAIR_ERROR.into()));
    }
    Ok(QuickPlan {
        tx,
        rx,
        pattern,
        size: match flags.size {
            None => QuickSize::Fixed(DEFAULT_FRAME_SIZE),
            Some(SizeArg::Fixed(size)) => QuickSize::Fixed(size),
            Some(SizeArg::Range(least, most)) => QuickSize::Range(least, most),
            Some(SizeArg::Imix) => QuickSize::Imix,
        },
        rate: flags.rate.or_else(default_rate).ok_or_else(|| Error::Usage("--rate is missing".into()))?,
        // The parser accepts at most one of the three options.
        length: match (flags.time, flags.packets, flags.continuous) {
            (_, _, true) => QuickLength::Continuous,
            (_, Some(packets), _) => QuickLength::Packets(packets),
            (time, None, false) => QuickLength::Time(time.unwrap_or(DEFAULT_RUN_TIME)),
        },
        streams: flags.streams.unwrap_or(1),
        vlan: flags.vlan,
        ipv6: flags.sends_ipv6(),
        hosts,
    })
}

/// Prints a remark if the smallest frames of a mix are larger than the usual 64 bytes.
pub(crate) fn print_imix_size_remark(size: Option<SizeArg>, has_vlan: bool, is_ipv6: bool) {
    let least = quick::least_imix_size(has_vlan, is_ipv6);
    if matches!(size, Some(SizeArg::Imix)) && least > FrameSize::MIN {
        print_remark(format_args!(
            "the smallest frames of imix have {least}, not 64 B: the headers and the test tag need that much"
        ));
    }
}

/// Locations of the typed ports. Without a fleet they are interfaces of this machine.
fn port_locations(typed: &[PortText], fleet: Option<PortCountFunction<'_>>) -> Result<Vec<String>, Error> {
    let mut locations = Vec::new();
    for PortText(text) in typed {
        match fleet {
            // `any-LABEL*N` becomes N locations, because a document lists its ports one by one.
            Some(how_many) => locations.extend(quick::expand_copies(text, how_many).map_err(Error::Usage)?),
            // If an interface has this name, the text means the interface.
            None if text.starts_with("any-") && !is_interface(text) => {
                return Err(Error::Usage(format!(
                    "`{text}` means ports of a fleet, but there is no fleet (--fleet, $PACKETRIG_FLEET); \
                    `packetrig fleet up` makes one"
                )));
            }
            None => locations.push(text.parse::<PortLocation>().map_err(Error::Usage)?.to_string()),
        }
    }
    Ok(locations)
}

/// Returns true if this network namespace has an interface of that name.
fn is_interface(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

/// Refuses repeated locations. Groups of a fleet may be repeated: each repetition stands for another port.
fn refuse_repeated_locations(tx: &[String], rx: &[String]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let mut named = tx.iter().chain(rx).filter(|location| !location.starts_with("any-"));
    match named.find(|location| !seen.insert(*location)) {
        None => Ok(()),
        Some(twice) => Err(Error::Usage(format!(
            "{twice} is given twice (--tx, --rx); use a different interface for each port"
        ))),
    }
}

fn default_rate() -> Option<Rate> {
    FrameRate::per_second(FRAMES_PER_SECOND).map(Rate::Frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CommandLine, RigCommand};
    use clap::Parser;
    use packetrig_plan::Plan;

    fn flags(line: &str) -> QuickPlanFlags {
        let words = ["packetrig", "run"].into_iter().chain(line.split_whitespace());
        match CommandLine::try_parse_from(words).unwrap().command {
            RigCommand::Run(run) => run.flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_flag_reaches_the_plan() {
        let quick = make_quick_plan(&flags(
            "--tx a/eth0 --rx b/eth0,eth7 --size 64..1518 --rate 200kpps --packets 5 --streams 3 --vlan 7 --ipv6",
        ), None)
        .unwrap();
        assert_eq!((quick.tx.join(" ").as_str(), quick.rx.join(" ").as_str()), ("a/eth0", "b/eth0 eth7"));
        assert_eq!(quick.pattern, QuickPattern::ToAll);
        assert_eq!(quick.size, QuickSize::Range(FrameSize::new(64), FrameSize::new(1518)));
        assert_eq!(quick.rate, "200kpps".parse().unwrap());
        assert_eq!(quick.length, QuickLength::Packets(5));
        assert_eq!((quick.streams, quick.vlan, quick.ipv6), (3, Some(7), true));
    }

    #[test]
    fn quick_plan_uses_defaults_for_missing_flags() {
        let quick = make_quick_plan(&flags("--tx eth1 --rx eth2"), None).unwrap();
        assert_eq!(
            (quick.size, quick.length),
            (QuickSize::Fixed(DEFAULT_FRAME_SIZE), QuickLength::Time(DEFAULT_RUN_TIME))
        );
        assert_eq!(quick.rate, "1kpps".parse().unwrap());
        assert_eq!((quick.streams, quick.vlan, quick.ipv6), (1, None, false));
    }

    #[test]
    fn host_flags_reach_the_document() {
        let line = "--tx eth1 --rx eth2 --gateway fd00::1 --src-ip fd00::2 --dst-ip fd00:1::2 --size imix";
        let quick = make_quick_plan(&flags(line), None).unwrap();
        assert!(quick.ipv6 && quick.hosts.is_some());
        for (line, why) in [
            ("--tx eth1 --rx eth2,eth3 --both-ways", "one sender and one receiver"),
            ("--tx eth1 --rx eth2 --ipv6 --gateway 10.0.0.1", "IPv4"),
            ("--tx eth1 --rx eth2 --dst-mac 02:00:00:00:00:09 --both-ways", "--rx-gateway"),
        ] {
            let refused = make_quick_plan(&flags(line), None).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        for line in [
            "run --tx a --gateway 10.0.0.1",
            "run --tx a --rx b --rx-gateway 10.0.0.1",
            "run --tx a --rx b --gateway ::1 --dst-mac 02:00:00:00:00:09",
            "run plan.yaml --gateway 10.0.0.1",
            "test bisect plan.yaml --both-ways",
            "replay a.pcap --tx a --rx b --gateway ::1 --rewrite-dst-mac 02:00:00:00:00:09",
        ] {
            let words = ["packetrig"].into_iter().chain(line.split_whitespace());
            assert!(CommandLine::try_parse_from(words).is_err(), "{line}");
        }
    }

    #[test]
    fn quick_groups_need_fleet_and_fitting_pattern() {
        let three: PortCountFunction<'_> = &|_| Some(3);
        let grouped = |line: &str| make_quick_plan(&flags(line), Some(three));
        let mesh = grouped("--tx any-tx*2,node7/eth1 --rx any-rx*all --pattern mesh").unwrap();
        assert_eq!((mesh.tx.join(" "), mesh.rx.len()), ("any-tx any-tx node7/eth1".to_owned(), 3));
        assert_eq!(mesh.pattern, QuickPattern::Mesh);
        assert_eq!(grouped("--tx a/ns/eth1 --rx any-rx").unwrap().tx, ["a/ns/eth1"]);
        assert!(grouped("--tx any-tx*2 --rx any-rx*3 --pattern n-to-n").is_err());
        let alone = make_quick_plan(&flags("--tx any-tx*2 --rx eth1"), None);
        assert!(matches!(alone, Err(Error::Usage(_))), "{alone:?}");
        assert_eq!(
            make_quick_plan(&flags("--tx eth1,eth3 --rx eth2 --pattern n-to-one"), None).unwrap().tx.len(),
            2
        );
    }

    #[test]
    fn the_document_reads_as_a_plan() {
        let document =
            plan_text_from_flags(&flags("--tx eth1 --rx eth2 --size imix --continuous"), None).unwrap();
        let plan = Plan::from_text(&document.text).unwrap();
        assert_eq!((plan.ports.len(), plan.streams.len()), (2, 1));
    }
}
