//! The ledger as a flow from planned to counted frames, with the places at which frames were lost.
//!
//! The flow is drawn by place and not to scale, because 3 of 10^9 frames would be less than a pixel. An account that
//! was not measured is shown as such, never as zero.

use super::ledger_picture;
use crate::markup::Markup;
use crate::quantity::{format_count, format_percent, format_short_percent};
use packetrig_report::LossPlaces;
use packetrig_stats::ledger::{BALANCE_RULES, FrameLedger, LedgerAccount, LedgerImbalance};

/// The part of a frame's way (sender, path or receiver) that a station or a loss belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerSide {
    Sender,
    Path,
    Receiver,
}

/// What it means for a frame to leave the flow at a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerBranchKind {
    /// The frame is never counted: for example, it was not sent, did not arrive, or arrived damaged.
    Lost,
    /// The frame was not expected: it is a copy, or it does not belong to the streams of this run.
    SetAside,
}

/// A branch at which frames leave the flow, or join it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerBranch {
    pub name: &'static str,
    /// `None` if it was not measured.
    pub frames: Option<u64>,
    pub kind: LedgerBranchKind,
}

/// Whether the counts of two neighbouring stations and of the exits between them add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowBalance {
    Balanced,
    /// The rule that does not hold.
    Broken(String),
    /// An account of the rule was not measured.
    NotChecked,
}

/// A station of the flow, with the losses between it and the next station.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerStage {
    pub account: LedgerAccount,
    pub frames: Option<u64>,
    pub exits: Vec<LedgerBranch>,
    /// The balance between this station and the next one.
    pub balance: FlowBalance,
}

/// The ledger of a run, ready to be drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDiagram {
    pub stations: Vec<LedgerStage>,
    /// Copies and frames of other programs, which join the flow on the path.
    pub joined: Vec<LedgerBranch>,
    pub planned: Option<u64>,
    pub expected: Option<u64>,
    pub lost: Option<u64>,
}

/// A station, and the index in [`BALANCE_RULES`] of the rule between it and the next station. No rule
/// applies to the path.
const LEDGER_STATIONS: [(LedgerAccount, Option<usize>); 8] = [
    (LedgerAccount::Planned, Some(0)),
    (LedgerAccount::Built, Some(1)),
    (LedgerAccount::HandedOver, Some(2)),
    (LedgerAccount::OnWire, None),
    (LedgerAccount::Arrived, Some(3)),
    (LedgerAccount::Seen, Some(4)),
    (LedgerAccount::Recognised, Some(5)),
    (LedgerAccount::Counted, Some(6)),
];

impl LedgerDiagram {
    /// Builds the diagram of these accounts; `places` contains the losses on the path.
    pub fn from_ledger(ledger: &FrameLedger, imbalances: &[LedgerImbalance], places: &LossPlaces) -> Self {
        let stations = LEDGER_STATIONS.iter().map(|(account, rule)| LedgerStage {
            account: *account,
            frames: ledger.get(*account),
            exits: build_loss_branches(*account, ledger, places),
            // No rule compares the two sides of the path: losses of the device are a result, not a fault of the
            // counters.
            balance: rule.map_or(FlowBalance::Balanced, |rule| check_flow_balance(rule, ledger, imbalances)),
        });
        let joined = [
            LedgerAccount::Foreign,
            LedgerAccount::Protocol,
            LedgerAccount::OtherRuns,
            LedgerAccount::Duplicate,
        ];
        // Frames of other programs are shown only if there were any, unlike losses.
        // Losses stay in the picture with a zero, because their absence is a result.
        let joined = joined
            .iter()
            .map(|account| build_account_branch(*account, ledger))
            .filter(|exit| exit.frames.unwrap_or(0) > 0);
        Self {
            stations: stations.collect(),
            joined: joined.collect(),
            planned: ledger.get(LedgerAccount::Planned),
            expected: ledger.get(LedgerAccount::Expected),
            lost: ledger.get(LedgerAccount::Lost),
        }
    }

    /// Draws the ledger twice: for wide pages and paper, and for narrow screens. The page's style shows one of them.
    pub fn draw_figure(&self) -> Markup {
        let mut figure = Markup::new();
        figure.open_element("figure", &[("class", "ledger")]);
        // The file has both, because the same file may be shown on paper and on a narrow screen.
        figure
            .append(&ledger_picture::draw_wide_diagram(self))
            .append(&ledger_picture::draw_narrow_diagram(self));
        figure.close_element("figure");
        figure
    }

    /// A description of the flow for readers who do not see the picture.
    pub(super) fn describe_flow(&self) -> String {
        // The description has all numbers of the flow in order: naming only the kind of drawing would hide the facts.
        let known = self.stations.iter().map(|station| {
            let frames = station.frames.map_or_else(|| "not measured".to_owned(), format_count);
            format!("{} {frames}", account_name(station.account))
        });
        let lost = self.lost.map_or_else(|| "not known".to_owned(), format_count);
        format!("Frames from planned to counted: {}. Lost: {lost}.", known.collect::<Vec<_>>().join(", "))
    }

    /// A text like `12 (0.1 %)`, or `not measured`.
    pub(super) fn describe_share(&self, frames: Option<u64>) -> String {
        match (frames, self.planned) {
            (None, _) => "not measured".to_owned(),
            (Some(0), _) => "0".to_owned(),
            // Without planned frames there is no percentage, so only the count is shown.
            (Some(frames), Some(planned)) if planned > 0 => {
                format!("{} ({})", format_count(frames), format_short_percent(frames, planned))
            }
            (Some(frames), _) => format_count(frames),
        }
    }
}

impl LedgerStage {
    pub(super) const fn side(&self) -> LedgerSide {
        match self.account {
            LedgerAccount::Planned
            | LedgerAccount::Built
            | LedgerAccount::HandedOver
            | LedgerAccount::OnWire => LedgerSide::Sender,
            _ => LedgerSide::Receiver,
        }
    }

    /// True if the device and the path follow this station.
    pub(super) fn is_before_path(&self) -> bool {
        self.account == LedgerAccount::OnWire
    }
}

fn build_loss_branches(
    account: LedgerAccount,
    ledger: &FrameLedger,
    places: &LossPlaces,
) -> Vec<LedgerBranch> {
    use LedgerAccount as Account;
    let accounts: &[LedgerAccount] = match account {
        Account::Planned => &[Account::Unsent],
        Account::Built => &[Account::Refused],
        Account::HandedOver => &[Account::TxDropped],
        Account::Arrived => &[Account::RingDropped],
        Account::Seen => &[Account::Misdelivered, Account::OtherRuns, Account::Protocol, Account::Foreign],
        Account::Recognised => &[Account::Duplicate, Account::Stale, Account::Unnumbered],
        Account::OnWire => {
            let path =
                LedgerBranch { name: "lost on the path", frames: places.path, kind: LedgerBranchKind::Lost };
            // These frames were lost while a port had a fault or a link had no carrier, so the cause of
            // the loss is unknown.
            let doubt = LedgerBranch {
                name: "lost in doubt",
                frames: Some(places.in_doubt),
                kind: LedgerBranchKind::Lost,
            };
            return vec![path, doubt];
        }
        _ => &[],
    };
    accounts.iter().map(|account| build_account_branch(*account, ledger)).collect()
}

fn build_account_branch(account: LedgerAccount, ledger: &FrameLedger) -> LedgerBranch {
    use LedgerAccount as Account;
    let kind = match account {
        // These frames were not planned, so the test did not lose them.
        Account::Foreign | Account::Protocol | Account::OtherRuns | Account::Duplicate => {
            LedgerBranchKind::SetAside
        }
        _ => LedgerBranchKind::Lost,
    };
    LedgerBranch { name: account_name(account), frames: ledger.get(account), kind }
}

fn check_flow_balance(rule: usize, ledger: &FrameLedger, imbalances: &[LedgerImbalance]) -> FlowBalance {
    let rule = &BALANCE_RULES[rule];
    // A broken rule comes first: it is certain, even if a part of the run did not measure the rule.
    if let Some(broken) = imbalances.iter().find(|imbalance| imbalance.rule == rule.name) {
        return FlowBalance::Broken(broken.to_string());
    }
    let is_measured = rule.accounts().all(|account| ledger.get(account).is_some());
    // The sum over several nodes can contain an account that one of the nodes did not measure.
    let is_unchecked = ledger.unchecked_rules().contains(&rule.name);
    if is_measured && !is_unchecked { FlowBalance::Balanced } else { FlowBalance::NotChecked }
}

/// The displayed name of an account.
pub const fn account_name(account: LedgerAccount) -> &'static str {
    match account {
        LedgerAccount::Planned => "planned",
        LedgerAccount::Unsent => "unsent",
        LedgerAccount::Built => "built",
        LedgerAccount::Refused => "refused",
        LedgerAccount::HandedOver => "handed over",
        LedgerAccount::TxDropped => "dropped on send",
        LedgerAccount::OnWire => "on the wire",
        LedgerAccount::Arrived => "arrived",
        LedgerAccount::RingDropped => "ring full",
        LedgerAccount::Seen => "seen",
        LedgerAccount::Foreign => "foreign",
        LedgerAccount::Protocol => "protocol",
        LedgerAccount::OtherRuns => "other runs",
        LedgerAccount::Misdelivered => "misdelivered",
        LedgerAccount::Recognised => "recognised",
        LedgerAccount::Counted => "counted",
        LedgerAccount::Duplicate => "copies",
        LedgerAccount::Stale => "too late",
        LedgerAccount::Unnumbered => "damaged tag",
        LedgerAccount::Expected => "expected",
        LedgerAccount::Lost => "lost",
    }
}

/// The meaning of an account, in a sentence.
const fn describe_account(account: LedgerAccount) -> &'static str {
    match account {
        LedgerAccount::Planned => "Frames that the schedule planned until the sender stopped.",
        LedgerAccount::Unsent => "Planned frames that were not built before the run ended.",
        LedgerAccount::Built => "Frames that the sender wrote into a send buffer.",
        LedgerAccount::Refused => "Built frames that the kernel refused.",
        LedgerAccount::HandedOver => "Frames that the kernel accepted for sending.",
        LedgerAccount::TxDropped => "Frames that the sending interface dropped.",
        LedgerAccount::OnWire => "Frames that the sending interface transmitted.",
        LedgerAccount::Arrived => "Frames that the receiving interface received.",
        LedgerAccount::RingDropped => "Frames that the rig itself lost, because its receive ring was full.",
        LedgerAccount::Seen => "Frames that the receiver of the rig saw.",
        LedgerAccount::Foreign => "Frames that the receiver saw and that are not from packetrig.",
        LedgerAccount::Protocol => {
            "Frames for ARP, neighbour discovery and echo of emulated interfaces that the receiver saw."
        }
        LedgerAccount::OtherRuns => "Frames of another run that the receiver saw.",
        LedgerAccount::Misdelivered => "Frames of this run that arrived at a port that does not expect them.",
        LedgerAccount::Recognised => "Frames of this run that arrived at a port that expects them.",
        LedgerAccount::Counted => "Distinct frames that arrived; further copies are not counted.",
        LedgerAccount::Duplicate => "Copies of frames that were counted.",
        LedgerAccount::Stale => "Frames that arrived more than 65 536 frames late; they count as lost.",
        LedgerAccount::Unnumbered => {
            "Frames that were recognised only by their headers, because their test tag was damaged."
        }
        LedgerAccount::Expected => "Frames that all receivers together should have counted.",
        LedgerAccount::Lost => "Expected frames that were never counted.",
    }
}

/// All accounts and all rules as tables: the same facts as the drawing, for reading and copying.
pub fn tabulate_ledger(ledger: &FrameLedger, imbalances: &[LedgerImbalance]) -> Markup {
    let planned = ledger.get(LedgerAccount::Planned);
    let mut table = Markup::new();
    table
        .open_element(
            "div",
            &[("class", "table-box"), ("tabindex", "0"), ("role", "group"), ("aria-label", "Accounts")],
        )
        .open_element("table", &[]);
    table.add_element(
        "caption",
        &[],
        "Accounts, in the order in which a frame passes them. Missing accounts were not measured.",
    );
    table.add_element_with("thead", &[], |head| {
        head.open_element("tr", &[]);
        head.add_element("th", &[("scope", "col")], "account");
        head.add_element("th", &[("scope", "col"), ("class", "number")], "frames");
        head.add_element("th", &[("scope", "col"), ("class", "number")], "of planned");
        head.add_element("th", &[("scope", "col")], "meaning");
        head.close_element("tr");
    });
    table.open_element("tbody", &[]);
    // Only accounts that were measured are listed: a missing one must not look like zero.
    for (account, frames) in ledger.accounts() {
        table.open_element("tr", &[]);
        table.add_element("th", &[("scope", "row")], account_name(account));
        table.add_element(
            "td",
            &[("class", "number"), ("data-value", &frames.to_string())],
            &format_count(frames),
        );
        let share = planned.map_or_else(String::new, |planned| format_percent(frames, planned));
        table.add_element("td", &[("class", "number")], &share);
        table.add_element("td", &[], describe_account(account));
        table.close_element("tr");
    }
    table.close_element("tbody").close_element("table").close_element("div");
    tabulate_rules(&mut table, ledger, imbalances);
    table
}

fn tabulate_rules(table: &mut Markup, ledger: &FrameLedger, imbalances: &[LedgerImbalance]) {
    table.add_element("h3", &[], "Rules between accounts");
    table.open_element("ul", &[("class", "rules")]);
    for (index, rule) in BALANCE_RULES.iter().enumerate() {
        let (sign, state) = match check_flow_balance(index, ledger, imbalances) {
            FlowBalance::Balanced => ("✓", "holds".to_owned()),
            FlowBalance::Broken(how) => ("✗", how),
            FlowBalance::NotChecked => ("–", "not checked, because an account was not measured".to_owned()),
        };
        table.open_element("li", &[]).add_element("span", &[("aria-hidden", "true")], sign);
        table
            .add_text(" ")
            .add_element("code", &[], rule.name)
            .add_text(": ")
            .add_text(&state)
            .close_element("li");
    }
    table.close_element("ul");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> LedgerDiagram {
        let mut ledger = FrameLedger::default();
        for (account, frames) in [
            (LedgerAccount::Planned, 1000),
            (LedgerAccount::Unsent, 0),
            (LedgerAccount::Built, 1000),
            (LedgerAccount::Arrived, 990),
            (LedgerAccount::RingDropped, 0),
            (LedgerAccount::Seen, 991),
            (LedgerAccount::Foreign, 7),
            (LedgerAccount::Lost, 10),
        ] {
            ledger.add_frames(account, frames);
        }
        let places =
            LossPlaces { total: 10, sender: Some(0), receiver: Some(0), in_doubt: 0, path: Some(10) };
        LedgerDiagram::from_ledger(&ledger, &ledger.find_imbalances(), &places)
    }

    #[test]
    fn unmeasured_account_is_not_drawn_as_zero() {
        let flow = flow();
        let wire = &flow.stations[3];
        assert_eq!((wire.account, wire.frames), (LedgerAccount::OnWire, None));
        let drawn = flow.draw_figure().into_string();
        assert!(drawn.contains("not measured"), "{drawn}");
    }

    #[test]
    fn broken_balance_is_located_and_unmeasured_one_unchecked() {
        let flow = flow();
        let states: Vec<_> = flow.stations.iter().map(|station| &station.balance).collect();
        assert_eq!(states[0], &FlowBalance::Balanced);
        assert_eq!(states[2], &FlowBalance::NotChecked);
        assert!(
            matches!(states[4], FlowBalance::Broken(how) if how.contains("left side 990, right side 991"))
        );
    }

    #[test]
    fn wrong_final_sum_shows_in_both_drawings() {
        let mut ledger = FrameLedger::default();
        let counts =
            [(LedgerAccount::Counted, 985), (LedgerAccount::Expected, 1000), (LedgerAccount::Lost, 10)];
        for (account, frames) in counts {
            ledger.add_frames(account, frames);
        }
        let places =
            LossPlaces { total: 10, sender: Some(0), receiver: Some(0), in_doubt: 0, path: Some(10) };
        let drawn = LedgerDiagram::from_ledger(&ledger, &ledger.find_imbalances(), &places)
            .draw_figure()
            .into_string();
        assert_eq!(drawn.matches("does not add up").count(), 2, "{drawn}");
    }

    #[test]
    fn losses_are_drawn_at_their_station() {
        let flow = flow();
        let path = &flow.stations[3].exits[0];
        assert_eq!((path.name, path.frames), ("lost on the path", Some(10)));
        assert_eq!(flow.joined.len(), 1);
        assert_eq!(flow.describe_share(Some(10)), "10 (1\u{202f}%)");
    }
}
