use super::*;
use packetrig_report::ClockRelationSource;
use packetrig_stats::probe::{CapacityRange, MeasuredCapacity, ProbeLineEndReason, ProbeTimes};
use packetrig_units::Nanos;

fn times(p50_ns: i64) -> ProbeTimes {
    ProbeTimes {
        samples: 10,
        min_ns: p50_ns - 900,
        p50_ns,
        p95_ns: Some(p50_ns + 2_000),
        p99_ns: Some(p50_ns + 12_345),
        max_ns: p50_ns + 20_000,
        bound_ns: 4_100,
    }
}

/// A report in which all probes were answered; only the counts are known.
fn answered() -> ProbeFindings {
    ProbeFindings {
        end: ProbeLineEndReason::Done,
        counts: ProbeCounts { planned: 10, sent: 10, answered: 10, ..ProbeCounts::default() },
        far_end_reported: true,
        lost_there: None,
        lost_back: None,
        clocks: None,
        delay_there: None,
        delay_back: None,
        variation_there: None,
        variation_back: None,
        round_trip: None,
        path: None,
        capacity: None,
        release_error: None,
        mechanism: "spin".to_owned(),
        why: "the default".to_owned(),
    }
}

fn one_way(p50_ns: i64, lost_there: u64) -> ProbeFindings {
    ProbeFindings {
        counts: ProbeCounts {
            planned: 10,
            sent: 10,
            answered: 10 - lost_there,
            lost: lost_there,
            ..ProbeCounts::default()
        },
        lost_there: Some(lost_there),
        lost_back: Some(0),
        clocks: Some(ClockRelationSource::Fleet),
        delay_there: Some(times(p50_ns)),
        delay_back: Some(times(p50_ns + 7_000)),
        variation_there: Some(times(1_000)),
        variation_back: Some(times(1_000)),
        round_trip: Some(times(2 * p50_ns)),
        release_error: Some(times(1_500)),
        ..answered()
    }
}

fn line(from: &str, to: &str, found: Option<ProbeFindings>) -> ProbeLineReport {
    ProbeLineReport {
        from: from.to_owned(),
        from_node: from.to_owned(),
        to: to.to_owned(),
        to_node: Some(to.to_owned()),
        target: "198.18.0.1:18620".to_owned(),
        missing: found.is_none().then(|| format!("node {from} did not report")),
        found,
    }
}

fn report(method: &str, lines: Vec<ProbeLineReport>) -> ProbesReport {
    ProbesReport { method: method.to_owned(), count: 10, interval: Nanos::new(100_000_000), size: 102, lines }
}

/// `s1` lacks its result about `r1`, and the plan has no line from `r1` to `s2`.
fn mesh() -> ProbesReport {
    let lines = vec![
        line("s1", "s2", Some(one_way(41_234, 0))),
        line("s1", "r1", None),
        line("s2", "r1", Some(one_way(30_100_000, 2))),
        line("s2", "s1", Some(one_way(-2_000, 0))),
        line("r1", "s1", Some(ProbeFindings { lost_there: None, ..one_way(52_000, 0) })),
    ];
    report("oneway", lines)
}

/// The section, with a visible sign in place of the narrow space.
fn page_of(probes: &ProbesReport) -> String {
    section_of(probes).replace('\u{202f}', "~")
}

fn section_of(probes: &ProbesReport) -> String {
    let mut page = Markup::new();
    write_probes_section(&mut page, probes);
    page.into_string()
}

/// The texts of a table's cells, without tags.
fn cells_of(page: &str, id: &str) -> Vec<Vec<String>> {
    let table = page.split(&format!("<table id=\"{id}\"")).nth(1).expect("the table is there");
    let table = table.split("</table>").next().unwrap();
    table
        .split("<tr>")
        .skip(1)
        .map(|row| row.split("</t").map(text_of).collect::<Vec<_>>())
        .map(trim_row)
        .collect()
}

fn trim_row(row: Vec<String>) -> Vec<String> {
    let ends = row.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
    row.into_iter().take(ends).collect()
}

/// The texts between tags.
fn text_of(markup: &str) -> String {
    let mut texts = markup.split('<').map(|part| part.rsplit_once('>').map_or("", |(_, text)| text));
    // The rest of the tag that ended the previous cell comes before the first tag.
    let text: String = texts.by_ref().collect();
    text.trim().to_owned()
}

fn list_cell(page: &str, line: &str, heading: &str) -> String {
    let cells = cells_of(page, "probes-table");
    let column = cells[0].iter().position(|cell| cell == heading).expect("the column is there");
    let row = cells.iter().find(|row| row[0] == line).expect("the line is there");
    row[column].clone()
}

fn list_headings(probes: &ProbesReport) -> Vec<String> {
    cells_of(&page_of(probes), "probes-table").remove(0)
}

#[test]
fn each_pair_is_in_its_row_and_column() {
    let cells = cells_of(&page_of(&mesh()), "probes-grid");
    assert_eq!(cells[0], ["from / to", "s1", "s2", "r1"]);
    assert_eq!(cells[1], ["s1", "–not in the plan", "41.2~µs ± 4.1~µs", "?missing"]);
    assert_eq!(cells[2], ["s2", "−2~µs ± 4.1~µs", "–not in the plan", "30.1~ms ± 4.1~µs 20~% lost"]);
    assert_eq!(cells[3], ["r1", "52~µs ± 4.1~µs loss unknown", "–not in the plan", "–not in the plan"]);
}

#[test]
fn grid_headings_have_scope() {
    let page = page_of(&mesh());
    let grid = page.split("<table id=\"probes-grid\"").nth(1).unwrap().split("</table>").next().unwrap();
    assert_eq!((grid.matches("scope=\"col\"").count(), grid.matches("scope=\"row\"").count()), (4, 3));
}

#[test]
fn a_cell_shows_what_the_method_measures() {
    let cell = |method: &str, found: ProbeFindings| {
        let other = line("a", "c", None);
        let page = page_of(&report(method, vec![line("a", "b", Some(found)), other]));
        cells_of(&page, "probes-grid")[1][1].clone()
    };
    let lossy = ProbeFindings {
        counts: ProbeCounts {
            planned: 10,
            sent: 8,
            answered: 6,
            lost: 1,
            refused: 1,
            ..ProbeCounts::default()
        },
        ..one_way(41_000, 0)
    };
    assert_eq!(cell("ping", lossy.clone()), "82~µs 25~% lost");
    let list = page_of(&report("ping", vec![line("a", "b", Some(lossy.clone()))]));
    assert_eq!(list_cell(&list, "a → b", "loss"), "25~%", "as in the grid");
    assert_eq!(cell("send", lossy.clone()), "8 sent of 10");
    assert_eq!(
        cell("stamp", ProbeFindings { delay_there: None, lost_there: Some(0), ..lossy.clone() }),
        "?unknown"
    );
    assert_eq!(cell("capacity", capacity(Some(4_990_000))), "4.99~Mbit/s 4.98~Mbit/s to 5~Mbit/s");
    assert_eq!(cell("capacity", capacity(None)), "?no rate");
    let stopped = ProbeFindings { end: ProbeLineEndReason::Stopped, ..lossy };
    assert_eq!(cell("stamp", stopped), "41~µs ± 4.1~µs ended early");
}

fn capacity(bits_per_s: Option<u64>) -> ProbeFindings {
    let rate = bits_per_s.map(|bits_per_s| CapacityRange {
        bits_per_s,
        low: bits_per_s - 10_000,
        high: bits_per_s + 10_000,
        packet_bits_per_s: bits_per_s,
    });
    let why_not = rate.is_none().then(|| "the path did not spread 50 probes".to_owned());
    ProbeFindings { capacity: Some(MeasuredCapacity { rate, why_not, trains: 30, used: 12 }), ..answered() }
}

#[test]
fn unanswered_probe_lines_show_words_not_zeros() {
    let silent = |sent| ProbeFindings {
        counts: ProbeCounts { planned: 10, sent, lost: sent, ..ProbeCounts::default() },
        end: if sent == 0 {
            ProbeLineEndReason::Failed("no route".to_owned())
        } else {
            ProbeLineEndReason::Done
        },
        ..answered()
    };
    let lines = vec![line("a", "b", Some(silent(10))), line("a", "c", Some(silent(0)))];
    let page = page_of(&report("ping", lines));
    assert_eq!(cells_of(&page, "probes-grid")[1], ["a", "✗no answer 100~% lost", "?not sent"]);
    assert_eq!(list_cell(&page, "a → c", "lost probes"), "–not measured");
    assert_eq!(list_cell(&page, "a → c", "loss"), "–not measured");
    assert_eq!(list_cell(&page, "a → c", "outcome"), "no route");
    assert_eq!(list_cell(&page, "a → b", "loss"), "100~%");
    assert_eq!(list_cell(&page, "a → b", "outcome"), "no answer");
}

#[test]
fn missing_probe_line_shows_reason_without_numbers() {
    let page = page_of(&mesh());
    let row = cells_of(&page, "probes-table").into_iter().find(|row| row[0] == "s1 → r1").unwrap();
    assert_eq!(row[1..3], ["?INCONCLUSIVE", "missing: node s1 did not report"]);
    let rest = &row[3..row.len() - 3];
    assert!(rest.len() > 10 && rest.iter().all(|cell| cell == "–not measured"), "{rest:?}");
}

#[test]
fn unknown_probe_value_is_dash_not_zero() {
    let page = page_of(&mesh());
    assert_eq!(list_cell(&page, "r1 → s1", "lost there probes"), "–not measured");
    assert_eq!(list_cell(&page, "s1 → s2", "lost there probes"), "0");
    assert_eq!(list_cell(&page, "s2 → s1", "delay there p50"), "−2~µs");
    assert_eq!(list_cell(&page, "s2 → r1", "delay there p99"), "30.112~ms");
    assert_eq!(list_cell(&page, "s2 → r1", "delay there bound"), "± 4.1~µs");
    assert!(page.contains("data-value=\"-2000\""), "times sort by their exact value");
}

#[test]
fn columns_without_values_are_omitted() {
    let only_counts = report("ping", vec![line("a", "b", Some(answered()))]);
    let expected = [
        "pair",
        "result",
        "outcome",
        "sent probes",
        "answered probes",
        "lost probes",
        "loss",
        "mechanism",
        "from",
        "to",
        "target",
    ];
    assert_eq!(list_headings(&only_counts), expected);
    let sent_only = report("send", vec![line("a", "b", Some(answered()))]);
    let expected = ["pair", "result", "outcome", "sent probes", "mechanism", "from", "to", "target"];
    assert_eq!(list_headings(&sent_only), expected);
    let reordered = ProbeFindings { counts: ProbeCounts { reordered: 1, ..answered().counts }, ..answered() };
    let headings = list_headings(&report("ping", vec![line("a", "b", Some(reordered))]));
    assert!(headings.contains(&"reordered probes".to_owned()), "{headings:?}");
    assert!(!headings.contains(&"duplicates probes".to_owned()), "{headings:?}");
}

#[test]
fn older_probe_report_still_renders_its_section() {
    let json = serde_json::json!({
        "method": "stamp", "count": 10, "interval": 100_000_000, "size": 102,
        "lines": [{
            "from": "a", "from_node": "a", "to": "192.0.2.9", "target": "192.0.2.9:862",
            "found": {
                "end": {"why": "done"}, "counts": {
                    "planned": 10, "sent": 10, "answered": 9, "lost": 1, "refused": 0, "duplicates": 0,
                    "reordered": 0, "corrupted": 0, "doubtful": 0
                },
                "far_end_reported": false, "mechanism": "spin", "why": "the default"
            }
        }]
    });
    let page = page_of(&serde_json::from_value(json).unwrap());
    assert_eq!(list_cell(&page, "a → 192.0.2.9", "loss"), "10~%");
    assert!(!page.contains("probes-grid"), "a single line needs no grid");
}

#[test]
fn probe_names_are_escaped() {
    let lines = vec![line("<b>", "c", None), line("<b>", "\"><script>", Some(one_way(41_000, 0)))];
    let page = page_of(&report("oneway", lines));
    assert!(!page.contains("<b>") && !page.contains("<script>"), "{page}");
    assert!(page.contains("<th scope=\"row\">&lt;b&gt;</th>"), "{page}");
}

#[test]
fn large_mesh_lists_lines_without_grid() {
    let star = |leaves: usize| {
        let lines = (0..leaves).map(|leaf| line("hub", &format!("n{leaf}"), Some(one_way(41_000, 0))));
        page_of(&report("oneway", lines.collect()))
    };
    assert!(star(39).contains("<table id=\"probes-grid\""));
    let page = star(40);
    assert!(!page.contains("<table id=\"probes-grid\"") && page.contains("have 41 different ends"), "{page}");
    assert_eq!(cells_of(&page, "probes-table").len(), 41);
}

#[test]
fn targets_of_one_host_share_grid_cell() {
    let to_host = |target: &str| ProbeLineReport {
        target: target.to_owned(),
        to_node: None,
        ..line("a", "192.0.2.9", Some(one_way(41_000, 0)))
    };
    let page = page_of(&report("stamp", vec![to_host("192.0.2.9:862"), to_host("192.0.2.9:863")]));
    let cell = &cells_of(&page, "probes-grid")[1][1];
    assert!(cell.contains("192.0.2.9:862 41~µs") && cell.contains("192.0.2.9:863 41~µs"), "{cell}");
}

/// Lines between all pairs of so many nodes.
fn full_mesh(nodes: usize) -> ProbesReport {
    let name = |node: usize| format!("node-{node:02}");
    let pairs =
        (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let lines = pairs.map(|(from, to)| {
        let p50 = 1_000 * i64::try_from(from * 7_919 + to * 104_729 + 12_345).unwrap() % 40_000_017 + 20_000;
        line(&name(from), &name(to), Some(one_way(p50, u64::from(to % 7 == 0))))
    });
    report("oneway", lines.collect())
}

#[test]
fn mesh_section_with_380_lines_stays_small() {
    let page = section_of(&full_mesh(20));
    assert_eq!(cells_of(&page, "probes-table").len(), 381);
    println!("380 lines: {} bytes", page.len());
    assert!(page.len() < 600_000, "{} bytes", page.len());
}

#[test]
fn very_large_mesh_lists_only_worst_lines() {
    let mut probes = full_mesh(40);
    probes.lines[777].found = None;
    let page = page_of(&probes);
    let cells = cells_of(&page, "probes-table");
    assert_eq!(cells.len(), 201);
    assert_eq!(cells[1][0], line_name(&probes.lines[777]), "a line without a result comes first");
    assert!(page.contains("The 200 worst of 1~560 pairs") && page.contains("href=\"probes.csv\""));
    assert!(page.len() < 600_000, "{} bytes", page.len());
}

#[test]
fn negative_time_is_counted_but_not_drawn() {
    let page = page_of(&mesh());
    // One of four one-way delays has a median of -2 µs.
    let figure =
        page.split("<h4>One-way delay there</h4>").nth(1).unwrap().split("</figure>").next().unwrap();
    assert_eq!(figure.matches("class=\"range-median\"").count(), 3, "{figure}");
    assert!(figure.contains("Not drawn: 1 pair with a time at or below zero"), "{figure}");
}

#[test]
fn probe_figures_are_sums_or_absent() {
    let texts: Vec<Option<String>> =
        list_probe_figures(&mesh()).into_iter().map(|figure| figure.text).collect();
    let shown = |text: &str| Some(text.to_owned());
    assert_eq!(
        texts,
        [shown("5"), shown("40 probes"), shown("38 probes"), shown("2 probes"), shown("60.212\u{202f}ms")]
    );
    let nothing = list_probe_figures(&report("ping", vec![line("a", "b", None)]));
    assert!(nothing[1..].iter().all(|figure| figure.text.is_none()), "{nothing:?}");
}
