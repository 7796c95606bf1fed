//! The meaning of each kind of caveat and its remedy, in short; `docs/book/caveats.md` has more.

use packetrig_stats::caveat::CaveatKind;

/// Returns how the caveat affects the result.
pub(super) const fn describe_caveat(kind: CaveatKind) -> &'static str {
    match kind {
        CaveatKind::SenderShort => {
            "The machine or the link is too slow for the plan: the device received less traffic than planned."
        }
        CaveatKind::LeaseEnded => "The controller did not renew the lease, so the sender stopped by itself.",
        CaveatKind::SentLate => {
            "Other work on the processors delayed the sender; bursts may have been denser than planned."
        }
        CaveatKind::ReceiverLost => "The rig itself lost frames, so a loss says nothing about the device.",
        CaveatKind::Unbalanced => {
            "Counts that must add up do not add up: another program may use the port, or a counter of the driver is wrong."
        }
        CaveatKind::NotMeasured => "A counter is missing, so the value named is absent or an estimate.",
        CaveatKind::ForeignFrames => "There was other traffic on the link. The results do not include it.",
        CaveatKind::Untagged => {
            "These frames are too short for the test tag; their contents were compared instead."
        }
        CaveatKind::Recording => "The replayed capture file was not sent exactly as it was recorded.",
        CaveatKind::NoSendTime => {
            "Latency is not known: the frames only have room for the short test tag, or clocks could not be \
             compared."
        }
        CaveatKind::Clock => {
            "The clocks of two nodes could not be compared well: latency is unknown or less exact."
        }
        CaveatKind::CaptureIncomplete => "The disk was full or too slow for the capture.",
        CaveatKind::Interrupted => "The plan was not sent to its end.",
        CaveatKind::StoppedListening => {
            "Frames were in flight longer than the receivers waited: late frames may have counted as lost."
        }
        CaveatKind::NotQuiet => "The interface may send or change frames by itself.",
        CaveatKind::NearLimit => {
            "The load is within 10 % of the limit of this rig, so the rig itself may have lost frames."
        }
        CaveatKind::NothingMeasured => "No frame arrived, or no stream ran.",
        CaveatKind::StoodStill => {
            "The program or its virtual machine was paused: times around the pause are not valid."
        }
        CaveatKind::CameLate => {
            "A node lost its connection at the end of the run and delivered its results later."
        }
        CaveatKind::EngineFailed => {
            "The engine that sent the frames failed, so it is not certain which frames it sent."
        }
        CaveatKind::PortFailed => {
            "The interface failed during the run. The report has the counts up to the failure."
        }
        CaveatKind::TapLost => {
            "A tap on this machine lost frames: the tap, not the device, may have caused losses at that time."
        }
        CaveatKind::BegunAgain => {
            "The start command reached some nodes too late, so the run was started again."
        }
    }
}

/// Returns what the user can do about the caveat.
pub(super) const fn describe_caveat_remedy(kind: CaveatKind) -> &'static str {
    match kind {
        CaveatKind::SenderShort => "Lower the rate, or use another back end.",
        CaveatKind::LeaseEnded => "Repair the control network and run again.",
        CaveatKind::SentLate => "Stop other work, or lower the rate.",
        CaveatKind::ReceiverLost => "Lower the rate, use back end xdp, or another machine for the receiver.",
        CaveatKind::Unbalanced => "Close other programs at the port; try back end packet.",
        CaveatKind::NotMeasured => "You need not do anything; this note explains the missing value.",
        CaveatKind::ForeignFrames => "If there should be no other traffic, find its sender.",
        CaveatKind::Untagged => "Send longer frames.",
        CaveatKind::Recording => "Copy the file to a place where no program writes to it.",
        CaveatKind::NoSendTime => "Send frames with at least 16 bytes of payload.",
        CaveatKind::Clock => "Synchronise the clocks of the nodes.",
        CaveatKind::CaptureIncomplete => "Use a faster disk, a filter, or a smaller packet_size.",
        CaveatKind::Interrupted => "Let the run end by itself, or plan a shorter run.",
        CaveatKind::StoppedListening => "Wait longer for late frames (--drain).",
        CaveatKind::NotQuiet => "Check the cable; switch off the named setting; see packetrig doctor.",
        CaveatKind::NearLimit => "Lower the rate, or use a faster back end.",
        CaveatKind::NothingMeasured => {
            "Check cables and device; check that the plan has streams with metrics and a receiver."
        }
        CaveatKind::StoodStill => "Run again; do not suspend the machine.",
        CaveatKind::CameLate => "You need not do anything; the results of the node are now in this report.",
        CaveatKind::EngineFailed => "Run the engine by hand to see why it fails, or use another engine.",
        CaveatKind::PortFailed => "Find out what deleted or moved the interface, and run again.",
        CaveatKind::TapLost => {
            "Run again without the tap if it is not on the path, or use the tap's back end xdp."
        }
        CaveatKind::BegunAgain => {
            "You need not do anything. If this happens often, the nodes or the network between them are \
            too busy."
        }
    }
}
