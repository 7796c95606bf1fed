//! What the verdict has to be, written before the code that makes it: each fault of the rig with each fault of the device.
//!
//! The rules behind the table: a fault of the rig alone is never FAIL. What the device does outside the time of the rig's fault
//! is FAIL. The three back ends have to say the same.

use packetrig_tests::rig_fault::RigFault;
use packetrig_tests::rig_fault::RigFault::*;

pub(super) const BACK_ENDS: [&str; 3] = ["packet", "xdp", "af-xdp"];

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Pass,
    Inconclusive,
    Fail,
}

/// What the device does to a stream, and the rule of the forwarder without its `key=`.
#[derive(Debug)]
pub(super) struct DeviceFault {
    pub(super) name: &'static str,
    pub(super) rule: &'static str,
    /// The criteria that it breaks.
    pub(super) breaks: &'static [&'static str],
    /// The least of its lost frames that the rig's faults leave certain: those lost long before.
    pub(super) least_certain: u64,
}

/// Frames 60 to 159 of a stream leave long before the rig's fault begins.
pub(super) const DEVICE_FAULTS: [DeviceFault; 9] = [
    fault("none", "", &[], 0),
    fault("block dropped", "drop frames=60-160", &["loss"], 100),
    fault("random loss", "drop share=50 seed=9", &["loss"], 2),
    fault("copies", "copy frames=60-160 copies=2", &["duplicates"], 0),
    fault("corruption", "corrupt frames=60-160 offset_from_end=60 mask=0x40", &["damage"], 0),
    fault("misdelivery", "misdeliver frames=60-160 to=port2", &["loss", "misdelivery"], 100),
    fault("flood", "flood frames=60-160 to=port2", &["misdelivery"], 0),
    fault("reflection", "reflect frames=60-160", &["misdelivery"], 0),
    fault("delay of 400 ms", "delay ms=400", &[], 0),
];

const fn fault(
    name: &'static str,
    rule: &'static str,
    breaks: &'static [&'static str],
    least_certain: u64,
) -> DeviceFault {
    DeviceFault { name, rule, breaks, least_certain }
}

pub(super) const PASS: Wanted = Wanted::Exactly(Verdict::Pass);
pub(super) const FAIL: Wanted = Wanted::Exactly(Verdict::Fail);
pub(super) const UNKNOWN: Wanted = Wanted::Exactly(Verdict::Inconclusive);
const P: Wanted = PASS;
const F: Wanted = FAIL;
const U: Wanted = UNKNOWN;
/// INCONCLUSIVE. Some senders hold frames back until the fault is over: then all frames arrive, and PASS is right.
const I: Wanted = Wanted::InconclusiveOrWhole;

/// What the verdict has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Exactly(Verdict),
    /// INCONCLUSIVE, or PASS if every planned frame arrived.
    InconclusiveOrWhole,
}

impl Wanted {
    pub(super) fn is_kept(self, verdict: Verdict, is_whole: bool) -> bool {
        match self {
            Self::Exactly(wanted) => verdict == wanted,
            Self::InconclusiveOrWhole => {
                verdict == Verdict::Inconclusive || verdict == Verdict::Pass && is_whole
            }
        }
    }
}

/// A fault of the rig.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) fault: RigFault,
    /// What the report calls it, and whom it names as the cause.
    pub(super) event: Option<(&'static str, &'static str)>,
    /// By fault of the device, in the order of [`DEVICE_FAULTS`].
    pub(super) wanted: [Wanted; 9],
}

//                                                             none dropped random copies corrupt misdel. flood refl. delay
pub(super) const TABLE: [Row; 9] = [
    row(None, Option::None, [P, F, F, F, F, F, F, F, P]),
    row(TxDown, Some(("switched_down", "rig")), [I, F, F, F, F, F, F, F, I]),
    row(TxMtuLowered, Some(("mtu_lowered", "rig")), [I, F, F, F, F, F, F, F, I]),
    row(TxDeleted, Some(("deleted", "rig")), [I, F, F, F, F, F, F, F, I]),
    row(RxDeleted, Some(("deleted", "rig")), [I, F, F, F, F, F, F, F, I]),
    row(BothDeleted, Some(("deleted", "rig")), [I, F, F, F, F, F, F, F, I]),
    row(RxDown, Some(("switched_down", "rig")), [I, F, F, F, F, F, F, F, I]),
    row(RxCarrierLost, Some(("carrier_lost", "unknown")), [I, F, F, F, F, F, F, F, I]),
    row(Stalled, Some(("sender_stalled", "rig")), [U, F, F, F, F, F, F, F, U]),
];

const fn row(fault: RigFault, event: Option<(&'static str, &'static str)>, wanted: [Wanted; 9]) -> Row {
    Row { fault, event, wanted }
}

pub(super) fn row_of(fault: RigFault) -> &'static Row {
    TABLE.iter().find(|row| row.fault == fault).expect("the table has a row for each fault")
}
