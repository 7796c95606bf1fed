//! Sixteen mixed streams through the reference device: found = injected, in every account of every stream.

use anyhow::ensure;
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_testkit::Lab;
use packetrig_testkit::device::{
    ExpectedCounts, FaultPlan, FaultRule, FrameClassifier, FrameFault, RulePositions,
};
use packetrig_tests::document::{Document, Flow, ethernet, ipv4, ipv6, tcp, udp, vlan};
use packetrig_tests::program::{Report, run};
use serde_json::{Value, json};

const STREAMS: u16 = 16;
const SEED: u64 = 20_26;
const ACCOUNTS: [&str; 11] = [
    "sent",
    "unique",
    "lost",
    "loss bursts",
    "longest burst",
    "duplicates",
    "reordered",
    "max extent",
    "corrupt",
    "altered",
    "unnumbered",
];

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let frames = if effort.quick { 2000 } else { 10_000 };
    let plan = FaultPlan {
        seed: SEED,
        classifier: FrameClassifier::SourceMac,
        rules: rules(frames),
        ..FaultPlan::without_faults()
    };
    let mut lab = Lab::with_device(2, plan)?;
    let flows = (1..=STREAMS).map(|key| flow(key, frames));
    let speed = json!([{"name": "layer 1", "port_names": ["port 0", "port 1"], "speed": "speed_1_gbps"}]);
    let finished =
        run(&Document::new(&[lab.location(0), lab.location(1)]).flows(flows).with("layer1", speed));
    let device = lab.stop_device()?;
    ensure!(device.own_losses == 0, "the reference device lost {} frames by itself", device.own_losses);
    let report = finished.report();
    let mut table = Table::new(&["stream", "account", "injected", "found"]);
    let mut equal = 0;
    for key in 1..=STREAMS {
        let truth = device.truth(0, key.into()).expected_counts();
        for ((account, injected), found) in
            ACCOUNTS.iter().zip(list(&truth, 0)).zip(found(&report, &name(key)))
        {
            equal += usize::from(injected == found);
            table.rows.push(vec![name(key), (*account).to_owned(), injected.to_string(), found.to_string()]);
        }
    }
    let all = usize::from(STREAMS) * ACCOUNTS.len();
    output.say(&format!("## Faults found\n\n{STREAMS} mixed streams of {frames} frames through the reference device (seed {SEED}).\n"))?;
    output.say(&summary(&table))?;
    output.save("faults.json", &report.0.to_string())?;
    save(output, &table)?;
    let balanced = report.0["imbalances"] == json!([]);
    let measured = format!(
        "{equal} of {all} accounts{}",
        if balanced { ", ledger balanced" } else { ", ledger not balanced" }
    );
    output.goal("faults_found", &measured, &format!("= {all}, balanced"), &(equal == all && balanced).into());
    Ok(())
}

/// Faults of every kind, spread over all streams; the last stream is left alone.
fn rules(frames: u64) -> Vec<FaultRule> {
    let mut rules = Vec::new();
    for key in 1..u32::from(STREAMS) {
        let some = |kind: u64, count| {
            RulePositions::draw_positions(SEED + kind * 100 + u64::from(key), count, 0..frames)
        };
        let burst = 100 + u64::from(key)..100 + u64::from(key) * 4;
        let faults = [
            (some(1, frames / 100), FrameFault::Drop),
            (RulePositions::Within(burst), FrameFault::Drop),
            (some(2, frames / 200), FrameFault::Duplicate { copies: 1 + key % 2 }),
            (some(3, frames / 200), FrameFault::HoldBack { frames: 1 + key }),
            (some(4, frames / 400), FrameFault::Corrupt { from_end: 18, mask: 1 << (key % 8) }),
        ];
        rules.extend(faults.map(|(select, fault)| FaultRule::new(select, fault).for_key(key)));
    }
    rules.push(
        FaultRule::new(
            RulePositions::All,
            FrameFault::Rewrite(packetrig_testkit::device::HeaderEdit::DecrementTtl),
        )
        .for_key(5),
    );
    rules
}

fn name(key: u16) -> String {
    format!("stream {key:02}")
}

/// Sizes, headers and rhythms in turn, so that every combination of neighbours differs.
fn flow(key: u16, frames: u64) -> Flow {
    let mix =
        json!({"choice": "weight_pairs", "weight_pairs": {"choice": "predefined", "predefined": "imix"}});
    let sizes: [Value; 4] = [
        json!({"choice": "fixed", "fixed": 128}),
        mix,
        json!({"choice": "increment", "increment": {"start": 90, "end": 1500, "step": 10}}),
        json!({"choice": "random", "random": {"min": 90, "max": 1518}}),
    ];
    let packets = [
        vec![ethernet(key), ipv4(), udp()],
        vec![ethernet(key), vlan(100 + key), ipv4(), udp()],
        vec![ethernet(key), ipv6(), udp()],
        vec![ethernet(key), ipv4(), tcp()],
        vec![ethernet(key), vlan(200 + key), ipv6(), udp()],
    ];
    let burst = json!({"choice": "burst", "burst": {"bursts": frames / 50, "packets": 50,
        "inter_burst_gap": {"choice": "microseconds", "microseconds": 20_000}}});
    let packet = packets[usize::from(key) % packets.len()].clone();
    // Behind a longer stack the smallest frames of the mix have no payload in front of the tag that could be damaged.
    let size = match (key % 5, key % 4) {
        (0, _) => &sizes[1],
        (_, 1) => &sizes[0],
        (_, other) => &sizes[usize::from(other)],
    };
    let flow = Flow::new(name(key), key).packet(packet).with("size", size.clone()).pps(1500).packets(frames);
    if key.is_multiple_of(3) { flow.with("duration", burst).pps(5000) } else { flow }
}

fn list(accounts: &ExpectedCounts, unnumbered: u64) -> [u64; 11] {
    let a = accounts;
    [
        a.sent,
        a.unique,
        a.lost,
        a.loss_bursts,
        a.longest_burst,
        a.duplicates,
        a.reordered,
        a.max_extent,
        a.corrupt,
        a.altered,
        unnumbered,
    ]
}

fn found(report: &Report, stream: &str) -> [u64; 11] {
    [
        "/sent/frames",
        "/received/sequence/unique",
        "/loss/lost",
        "/received/sequence/loss_bursts",
        "/received/sequence/longest_burst",
        "/received/sequence/duplicates",
        "/received/sequence/reordered",
        "/received/sequence/max_extent",
        "/received/corrupt",
        "/received/altered",
        "/received/unnumbered",
    ]
    .map(|path| report.number(stream, path))
}

/// One row per stream for the reader; the CSV has all.
fn summary(table: &Table) -> String {
    let mut text = format!("| stream | {} |\n|{}\n", ACCOUNTS.join(" | "), "---|".repeat(ACCOUNTS.len() + 1));
    for rows in table.rows.chunks(ACCOUNTS.len()) {
        let cell = |row: &Vec<String>| {
            if row[2] == row[3] { row[2].clone() } else { format!("**{} ≠ {}**", row[2], row[3]) }
        };
        let cells: Vec<String> = rows.iter().map(cell).collect();
        text.extend(["| ", &rows[0][0], " | ", &cells.join(" | "), " |\n"]);
    }
    text
}

fn save(output: &Output, table: &Table) -> anyhow::Result<()> {
    let lines: Vec<String> =
        std::iter::once(&table.head).chain(&table.rows).map(|row| row.join(",")).collect();
    output.save("faults.csv", &(lines.join("\n") + "\n"))
}
