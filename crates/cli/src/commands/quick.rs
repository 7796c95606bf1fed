//! Flags become a document: the meaning of what `args` let the user type. The writing is `plan`'s.

use crate::args::{FromFlags, Size};
use crate::document::Document;
use crate::error::Error;
use packetrig_plan::quick::{Quick, QuickLength, QuickSize};
use packetrig_units::{FrameRate, FrameSize, Nanos, Rate};

const SIZE: FrameSize = FrameSize::new(128);
const FRAMES_PER_SECOND: u64 = 1_000;
const TIME: Nanos = Nanos::from_secs(10);

/// The document these flags mean.
pub(crate) fn document(flags: &FromFlags) -> Result<Document, Error> {
    Ok(Document { name: "the plan made from flags".into(), text: quick(flags)?.yaml() })
}

fn quick(flags: &FromFlags) -> Result<Quick, Error> {
    let tx = flags.tx.as_ref().ok_or_else(|| Error::Usage("neither a plan nor --tx was given".into()))?;
    Ok(Quick {
        tx: tx.to_string(),
        rx: flags.rx.iter().map(ToString::to_string).collect(),
        size: match flags.size {
            None => QuickSize::Fixed(SIZE),
            Some(Size::Fixed(size)) => QuickSize::Fixed(size),
            Some(Size::Range(least, most)) => QuickSize::Range(least, most),
            Some(Size::Imix) => QuickSize::Imix,
        },
        rate: flags.rate.or_else(usual_rate).ok_or_else(|| Error::Usage("--rate is missing".into()))?,
        length: match (flags.time, flags.packets, flags.continuous) {
            (_, _, true) => QuickLength::Continuous,
            (_, Some(packets), _) => QuickLength::Packets(packets),
            (time, None, false) => QuickLength::Time(time.unwrap_or(TIME)),
        },
        streams: flags.streams.unwrap_or(1),
        vlan: flags.vlan,
        ipv6: flags.ipv6,
    })
}

fn usual_rate() -> Option<Rate> {
    FrameRate::per_second(FRAMES_PER_SECOND).map(Rate::Frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use packetrig_plan::Plan;

    fn flags(line: &str) -> FromFlags {
        let words = ["packetrig", "run"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Run(run) => run.flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_flag_reaches_the_plan() {
        let quick = quick(&flags(
            "--tx a/eth0 --rx b/eth0,eth7 --size 64..1518 --rate 200kpps --packets 5 --streams 3 --vlan 7 --ipv6",
        ))
        .unwrap();
        assert_eq!((quick.tx.as_str(), quick.rx.join(" ").as_str()), ("a/eth0", "b/eth0 eth7"));
        assert_eq!(quick.size, QuickSize::Range(FrameSize::new(64), FrameSize::new(1518)));
        assert_eq!(quick.rate, "200kpps".parse().unwrap());
        assert_eq!(quick.length, QuickLength::Packets(5));
        assert_eq!((quick.streams, quick.vlan, quick.ipv6), (3, Some(7), true));
    }

    #[test]
    fn what_is_not_said_is_usual() {
        let quick = quick(&flags("--tx eth1 --rx eth2")).unwrap();
        assert_eq!((quick.size, quick.length), (QuickSize::Fixed(SIZE), QuickLength::Time(TIME)));
        assert_eq!(quick.rate, "1kpps".parse().unwrap());
        assert_eq!((quick.streams, quick.vlan, quick.ipv6), (1, None, false));
    }

    #[test]
    fn the_document_reads_as_a_plan() {
        let document = document(&flags("--tx eth1 --rx eth2 --size imix --continuous")).unwrap();
        let plan = Plan::read(&document.text).unwrap();
        assert_eq!((plan.ports.len(), plan.streams.len()), (2, 1));
    }
}
