use super::*;
use crate::MethodVerdict;
use crate::bisection::{BisectionPlan, SearchResolution};
use crate::comparison::{ComparedLoad, ComparisonOptions};
use crate::convergence::ConvergenceOptions;
use crate::loss_share::LossShareOptions;
use crate::mlrsearch::{MlrOptions, SearchGoal};
use crate::rfc2544::{Rfc2544Options, Rfc2544Test};
use crate::sim::SimulatedDevice;
use crate::{BisectOptions, MethodOptions, MlrsearchOptions, TestMethod, TrialWaits};
use packetrig_units::BitRate;
use std::collections::BTreeSet;

fn device() -> SimulatedDevice {
    SimulatedDevice {
        latency: Some(Nanos::from_micros(20)),
        outage: Some(Nanos::from_secs(1)),
        ..SimulatedDevice::new(744_000.0, 500)
    }
}

fn report(options: &MethodOptions) -> MethodReport {
    let (mut method, mut device) = (options.start_method().unwrap(), device());
    while let Some(order) = method.next_trial_request() {
        method.on_result(&device.perform_trial(&order));
    }
    method.build_report(options)
}

/// Shows a table as Markdown.
fn show(table: &ResultTable) -> String {
    let heading = |column: &TableColumn| format!("{} {}", column.heading, column.unit).trim().to_owned();
    let head: Vec<String> = table.columns.iter().map(heading).collect();
    let rows = table.rows.iter().map(|row| row.join(" | "));
    [table.title.clone(), head.join(" | ")].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn all_methods() -> Vec<MethodOptions> {
    let load = Load::new(1e6);
    vec![
        MethodOptions::Rfc2544(Box::new(Rfc2544Options {
            tests: Rfc2544Test::ALL.into(),
            frame_sizes_bytes: vec![FrameSize::MIN, FrameSize::new(1518)],
            ..Rfc2544Options::quick(BitRate::new(1_000_000_000))
        })),
        MethodOptions::Convergence(ConvergenceOptions {
            frame_size_bytes: None,
            frames_per_second: Load::new(1000.0),
            trial_ns: Nanos::from_secs(10),
            event_at_ns: Nanos::from_secs(3),
            repetitions: 3,
            waits: TrialWaits::QUICK,
            maximum_convergence_ns: Some(Nanos::from_secs(2)),
        }),
        MethodOptions::Compare(ComparisonOptions {
            loads: vec![ComparedLoad {
                frame_size_bytes: None,
                frames_per_second: load,
                trial_ns: Nanos::from_secs(1),
            }],
            pairs: 5,
            seed: 1,
            waits: TrialWaits::QUICK,
            maximum_worsening: Vec::new(),
        }),
        MethodOptions::LossShare(LossShareOptions::new(vec![Load::new(1000.0), load])),
        MethodOptions::Mlrsearch(MlrsearchOptions {
            search: MlrOptions {
                goals: vec![SearchGoal::NDR, SearchGoal::PDR],
                min: Load::new(9000.0),
                max: Load::new(1_488_095.0),
                size: None,
                warmup: None,
                fail_fast: false,
            },
            waits: TrialWaits::QUICK,
            required_frames_per_second: Some(Load::new(7e5)),
        }),
        MethodOptions::Bisect(BisectOptions {
            search: BisectionPlan {
                min: Load::new(9000.0),
                max: Load::new(1_488_095.0),
                resolution: SearchResolution::ShareOfRange(0.001),
                tries: 2,
                accepted_loss: 0.0,
                hopeless_loss: 1.0,
                trial: Nanos::from_secs(1),
                size: None,
            },
            waits: TrialWaits::QUICK,
            required_frames_per_second: Some(Load::new(7e5)),
        }),
    ]
}

#[test]
fn sender_loads_are_shown_individually_and_summed() {
    let sender = |name: &str, share: f64| crate::LoadedSender { name: name.to_owned(), share };
    let senders = [sender("left", 0.25), sender("right", 0.75)];
    for options in all_methods() {
        let report = report(&options).with_senders(senders.to_vec());
        let tables = report.to_tables();
        let table =
            tables.iter().find(|table| table.name == "senders").unwrap_or_else(|| panic!("{options:?}"));
        let number = |cell: &str| cell.parse::<f64>().unwrap();
        for pair in table.rows.chunks(2) {
            let [left, right, sum] = [&pair[0][4], &pair[1][4], &pair[0][5]].map(|cell| number(cell));
            assert!(
                (left * 3.0 - right).abs() <= 2.0 && (left + right - sum).abs() <= 1.0,
                "{}",
                show(table)
            );
        }
        let alone = self::report(&options).with_senders(senders[..1].to_vec()).to_tables();
        assert!(alone.iter().all(|table| table.name != "senders"));
    }
}

#[test]
fn every_row_has_a_cell_for_each_column() {
    for options in all_methods() {
        let tables = report(&options).to_tables();
        assert!(!tables.is_empty());
        for table in tables {
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
        }
    }
}

#[test]
fn throughput_table_uses_rfc_2544_units() {
    let tables = report(&all_methods()[0]).to_tables();
    let names: Vec<_> = tables.iter().map(|table| table.name).collect();
    let wanted =
        ["throughput", "latency", "latency-samples", "frame-loss", "back-to-back", "recovery", "reset"];
    assert_eq!(names, wanted);
    let shown = show(&tables[0]);
    let head = "Throughput (RFC 2544, 26.1), not conformant\nFrame size B | Theoretical frames/s | \
                Throughput frames/s | Throughput Mbit/s | Of the line % | Loss at frames/s | Trials | Limited by\n64 | \
                1488095 | 744048 | 380.952 | 50.000 | 745501 | 12 | device";
    assert!(shown.starts_with(head), "{shown}");
    assert!(shown.contains("1518 | 81274 | 81274 | 986.996 | 100.000 |  | 2 | highest load"), "{shown}");
    assert_eq!(tables[2].rows.len(), 10);
    assert!(tables[4].notes[0].starts_with("1518 B: not applicable"), "{:?}", tables[4]);
}

#[test]
fn reports_are_read_back_from_their_json() {
    for options in all_methods() {
        let report = report(&options);
        let text = serde_json::to_string(&report).unwrap();
        assert!(
            text.starts_with(&format!(r#"{{"schema_version":1,"options":{{"method":"{}""#, options.name()))
        );
        assert_eq!(serde_json::from_str::<MethodReport>(&text).unwrap(), report);
    }
}

#[test]
fn trial_table_shows_outcome_of_each_trial() {
    let options = &all_methods()[3];
    let (mut method, mut device) = (options.start_method().unwrap(), device());
    let mut trials = Vec::new();
    while let Some(order) = method.next_trial_request() {
        let result = device.perform_trial(&order);
        method.on_result(&result);
        let number = u32::try_from(trials.len()).unwrap() + 1;
        trials.push(MethodJournalEntry { number, started_wall_ns: 0, order, result });
    }
    let table = tabulate_trials(&trials);
    assert_eq!(
        table.rows[0].join("|"),
        "1|repetition|0||1000|1000000 frames|1000000|1000000|0|0|0.0000|no loss"
    );
    assert_eq!(table.rows[19].last().unwrap(), "loss");
}

#[test]
fn options_without_possible_trials_are_refused() {
    let mut options = LossShareOptions::new(Vec::new());
    options.runs_per_rate = 0;
    let error = MethodOptions::LossShare(options).start_method().unwrap_err();
    assert_eq!(error.to_string(), "loss-share: rates_frames_per_second must name at least one rate");
}

#[test]
fn searches_are_judged_by_their_bounds() {
    let verdict = |options: &MethodOptions, least: f64| {
        let mut options = options.clone();
        match &mut options {
            MethodOptions::Mlrsearch(options) => options.required_frames_per_second = Some(Load::new(least)),
            MethodOptions::Bisect(options) => options.required_frames_per_second = Some(Load::new(least)),
            other => panic!("{other:?}"),
        }
        report(&options).judgement.verdict
    };
    for options in &all_methods()[4..] {
        assert_eq!(verdict(options, 7e5), Some(MethodVerdict::Pass), "{options:?}");
        assert_eq!(verdict(options, 8e5), Some(MethodVerdict::Fail), "{options:?}");
    }
}

#[test]
fn rig_limited_search_verdict_is_unknown() {
    for mut options in all_methods().split_off(4) {
        match &mut options {
            MethodOptions::Mlrsearch(options) => options.required_frames_per_second = Some(Load::new(1e6)),
            MethodOptions::Bisect(options) => options.required_frames_per_second = Some(Load::new(1e6)),
            other => panic!("{other:?}"),
        }
        let mut device = SimulatedDevice { rig_limit: 9e5, ..SimulatedDevice::new(1e9, 0) };
        let mut method = options.start_method().unwrap();
        while let Some(order) = method.next_trial_request() {
            method.on_result(&device.perform_trial(&order));
        }
        let judgement = method.judge_result();
        assert_eq!(judgement.verdict, Some(MethodVerdict::Unknown), "{judgement:?}");
        assert!(judgement.unknown[0].contains("the rig could not sustain"), "{judgement:?}");
    }
}

#[test]
fn a_plan_lists_equal_trials_once() {
    let options = &all_methods()[0];
    let orders = options.rehearse_trials(&options.half_load_device().unwrap()).unwrap();
    let table = tabulate_plan(options, &orders);
    let of = |purpose: &str| table.rows.iter().filter(|row| row[1] == purpose).cloned().collect::<Vec<_>>();
    assert_eq!(of("latency").iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["5", "5"]);
    assert_eq!(of("latency")[0][6..], ["1.000", "0.200"]);
    assert!(table.notes[0].starts_with(&format!("{} trials: ", orders.len())), "{:?}", table.notes);
}

/// The path of each field, as `result.sizes[].latency.samples[].sent_frames`.
fn list_fields(path: &str, value: &serde_json::Value, fields: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            object.iter().for_each(|(name, value)| list_fields(&join(name), value, fields));
        }
        serde_json::Value::Array(values) => {
            for value in values {
                list_fields(&format!("{path}[]"), value, fields);
            }
        }
        _ => {
            fields.insert(path.to_owned());
        }
    }
}

#[test]
fn report_fields_match_the_published_list() {
    let mut text = String::new();
    for options in all_methods() {
        let mut fields = BTreeSet::new();
        list_fields("", &serde_json::to_value(report(&options)).unwrap(), &mut fields);
        text.extend([options.name(), "\n"]);
        text.extend(fields.iter().flat_map(|field| ["  ", field.as_str(), "\n"]));
    }
    let published = include_str!("report_fields.txt");
    assert!(
        text == published,
        "a field was added, renamed or dropped; add a new one to report_fields.txt:\n{text}"
    );
}
