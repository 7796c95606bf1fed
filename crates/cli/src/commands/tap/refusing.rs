//! Detects interfaces of a tap that accept no frames, and interfaces that no longer exist. Each one is reported once,
//! while the tap runs, so that the user can react.

use packetrig_link_io::tap::{TapAccounts, TapDirection, TapLossCause};
use std::collections::BTreeMap;

/// Counters of each direction at the last check, and which interfaces were reported already.
#[derive(Default)]
pub(super) struct RefusingInterfaceWatch {
    past: BTreeMap<String, TapDirectionCounters>,
    gone: Vec<String>,
}

#[derive(Default)]
struct TapDirectionCounters {
    forwarded: u64,
    not_taken: u64,
    is_reported: bool,
}

impl RefusingInterfaceWatch {
    /// Returns remarks on interfaces that have refused frames and accepted none since the last call. Each interface
    /// is reported only once.
    pub(super) fn take_refusal_remarks(&mut self, accounts: &TapAccounts) -> Vec<String> {
        accounts.directions.iter().filter_map(|direction| self.check_refused_frames(direction)).collect()
    }

    /// Returns remarks on interfaces that have disappeared since the last call.
    pub(super) fn take_gone_interface_remarks(&mut self, gone: &[String]) -> Vec<String> {
        let new: Vec<String> = gone.iter().filter(|name| !self.gone.contains(name)).cloned().collect();
        let remarks = new.iter().map(|name| format_gone_interface_remark(name)).collect();
        self.gone.extend(new);
        remarks
    }

    fn check_refused_frames(&mut self, direction: &TapDirection) -> Option<String> {
        // Without a count of forwarded frames, an interface that accepts some frames looks like one that accepts none.
        let forwarded = direction.forwarded?;
        let passed_over = dropped_frames(direction, TapLossCause::Skipped);
        let not_taken = passed_over + dropped_frames(direction, TapLossCause::NoRedirect);
        let past = self.past.entry(direction.to.clone()).or_default();
        let lost = not_taken.saturating_sub(past.not_taken);
        // An interface that accepts some frames and drops others is only overloaded.
        let is_refusing = lost > 0 && forwarded == past.forwarded;
        past.forwarded = forwarded;
        past.not_taken = not_taken;
        if !is_refusing || std::mem::replace(&mut past.is_reported, true) {
            return None;
        }
        // For frames that go to several interfaces, the kernel does not report why one of them refused them. Then the
        // message names all causes.
        let others = if passed_over > 0 { "it is down, or its MTU is too small, or " } else { "" };
        Some(format!(
            "{} refused the last {lost} frames: {others}it is a virtual cable (veth) whose other end has \
                neither GRO on nor an XDP program any more; `--back-end packet` forwards to such a cable",
            direction.to
        ))
    }
}

fn dropped_frames(direction: &TapDirection, cause: TapLossCause) -> u64 {
    direction.dropped.get(&cause).copied().unwrap_or(0)
}

/// Formats the remark on an interface that no longer exists.
pub(super) fn format_gone_interface_remark(name: &str) -> String {
    format!(
        "the interface {name} no longer exists, so frames for it are dropped; restart the tap to use a new interface of that name"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(forwarded: u64, passed_over: u64) -> TapAccounts {
        not_taken(forwarded, TapLossCause::Skipped, passed_over)
    }

    fn not_taken(forwarded: u64, cause: TapLossCause, frames: u64) -> TapAccounts {
        let dropped = [(cause, frames)].into();
        let direction =
            TapDirection { to: "b".into(), forwarded: Some(forwarded), dropped, ..TapDirection::default() };
        TapAccounts { directions: vec![direction], ..TapAccounts::default() }
    }

    #[test]
    fn refusing_side_is_reported_once() {
        let mut deafness = RefusingInterfaceWatch::default();
        assert!(deafness.take_refusal_remarks(&accounts(10, 0)).is_empty());
        assert!(deafness.take_refusal_remarks(&accounts(20, 5)).is_empty(), "it takes some");
        let said = deafness.take_refusal_remarks(&accounts(20, 9));
        assert!(said.len() == 1 && said[0].starts_with("b refused the last 4 frames"), "{said:?}");
        assert!(deafness.take_refusal_remarks(&accounts(20, 12)).is_empty(), "it is known");
    }

    #[test]
    fn refusal_remark_follows_kernel_loss_cause() {
        let said = RefusingInterfaceWatch::default().take_refusal_remarks(&not_taken(
            0,
            TapLossCause::NoRedirect,
            7,
        ));
        assert!(
            said.len() == 1 && said[0].contains("refused the last 7 frames: it is a virtual"),
            "{said:?}"
        );
        assert!(
            RefusingInterfaceWatch::default()
                .take_refusal_remarks(&not_taken(0, TapLossCause::Down, 7))
                .is_empty(),
            "it is known to be down"
        );
    }

    #[test]
    fn vanished_interface_is_reported_once() {
        let mut deafness = RefusingInterfaceWatch::default();
        assert!(deafness.take_gone_interface_remarks(&[]).is_empty());
        let said = deafness.take_gone_interface_remarks(&["m0".into()]);
        assert!(said.len() == 1 && said[0].contains("m0 no longer exists"), "{said:?}");
        let said = deafness.take_gone_interface_remarks(&["m0".into(), "b".into()]);
        assert!(said.len() == 1 && said[0].contains("b no longer exists"), "{said:?}");
    }
}
