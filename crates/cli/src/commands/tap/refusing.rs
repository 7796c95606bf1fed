//! Sides of a tap that accept no frame, and interfaces that are gone. Each is reported once, while the user can still react.

use packetrig_link_io::tap::{TapAccounts, TapDirection, TapLossCause};
use std::collections::BTreeMap;

/// Counters of each direction at the last check, and which remarks were printed already.
#[derive(Default)]
pub(super) struct RefusingSides {
    past: BTreeMap<String, SideCounters>,
    gone: Vec<String>,
}

#[derive(Default)]
struct SideCounters {
    forwarded: u64,
    not_taken: u64,
    is_reported: bool,
}

impl RefusingSides {
    /// Returns remarks on sides that have refused frames and accepted none since the last call. Each
    /// side is reported once.
    pub(super) fn refusal_remarks(&mut self, accounts: &TapAccounts) -> Vec<String> {
        accounts.directions.iter().filter_map(|direction| self.refusal_remark(direction)).collect()
    }

    /// Returns remarks on interfaces that have disappeared since the last call.
    pub(super) fn gone_interface_remarks(&mut self, gone: &[String]) -> Vec<String> {
        let new: Vec<String> = gone.iter().filter(|name| !self.gone.contains(name)).cloned().collect();
        let remarks = new.iter().map(|name| gone_interface_remark(name)).collect();
        self.gone.extend(new);
        remarks
    }

    fn refusal_remark(&mut self, direction: &TapDirection) -> Option<String> {
        // Without a count of forwarded frames, a side that takes some frames looks like a side that takes none.
        let forwarded = direction.forwarded?;
        let passed_over = dropped_frames(direction, TapLossCause::Skipped);
        let not_taken = passed_over + dropped_frames(direction, TapLossCause::NoRedirect);
        let past = self.past.entry(direction.to.clone()).or_default();
        let lost = not_taken.saturating_sub(past.not_taken);
        // A side that accepts some frames and drops others is only overloaded.
        let is_refusing = lost > 0 && forwarded == past.forwarded;
        past.forwarded = forwarded;
        past.not_taken = not_taken;
        if !is_refusing || std::mem::replace(&mut past.is_reported, true) {
            return None;
        }
        // If a frame has several exits, the kernel does not report why one exit took nothing: then all causes are named.
        let others = if passed_over > 0 { "it is down, or its MTU is too small, or " } else { "" };
        Some(format!(
            "{} refused the last {lost} frames: {others}it is a virtual cable whose far end no longer has GRO \
                on or an XDP program; `--back-end packet` forwards to such a cable",
            direction.to
        ))
    }
}

fn dropped_frames(direction: &TapDirection, cause: TapLossCause) -> u64 {
    direction.dropped.get(&cause).copied().unwrap_or(0)
}

/// The remark on an interface that is gone.
pub(super) fn gone_interface_remark(name: &str) -> String {
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
        let mut deafness = RefusingSides::default();
        assert!(deafness.refusal_remarks(&accounts(10, 0)).is_empty());
        assert!(deafness.refusal_remarks(&accounts(20, 5)).is_empty(), "it takes some");
        let said = deafness.refusal_remarks(&accounts(20, 9));
        assert!(said.len() == 1 && said[0].starts_with("b refused the last 4 frames"), "{said:?}");
        assert!(deafness.refusal_remarks(&accounts(20, 12)).is_empty(), "it is known");
    }

    #[test]
    fn refusal_remark_follows_kernel_loss_cause() {
        let said = RefusingSides::default().refusal_remarks(&not_taken(0, TapLossCause::NoRedirect, 7));
        assert!(
            said.len() == 1 && said[0].contains("refused the last 7 frames: it is a virtual"),
            "{said:?}"
        );
        assert!(
            RefusingSides::default().refusal_remarks(&not_taken(0, TapLossCause::Down, 7)).is_empty(),
            "it is known to be down"
        );
    }

    #[test]
    fn vanished_interface_is_reported_once() {
        let mut deafness = RefusingSides::default();
        assert!(deafness.gone_interface_remarks(&[]).is_empty());
        let said = deafness.gone_interface_remarks(&["m0".into()]);
        assert!(said.len() == 1 && said[0].contains("m0 no longer exists"), "{said:?}");
        let said = deafness.gone_interface_remarks(&["m0".into(), "b".into()]);
        assert!(said.len() == 1 && said[0].contains("b no longer exists"), "{said:?}");
    }
}
