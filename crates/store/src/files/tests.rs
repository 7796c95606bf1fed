use super::*;
use crate::sample::report;
use packetrig_report::columns::TableDescription;
use packetrig_report::{NodeReport, RunVerdict};
use std::fs;

/// Fields of a line without quotes inside.
fn fields(line: &str) -> Vec<&str> {
    line.split(',').collect()
}

fn value<'a>(csv: &'a str, line: usize, column: &str) -> &'a str {
    let at = fields(csv.lines().next().unwrap()).iter().position(|name| *name == column).expect("a column");
    fields(csv.lines().nth(line).unwrap())[at]
}

#[test]
fn json_holds_the_whole_report() {
    let report = report("r1");
    assert_eq!(serde_json::from_str::<RunReport>(&report_json(&report)).unwrap(), report);
    assert!(report_json(&report).contains("\"schema_version\": 1"));
}

#[test]
fn no_text_of_a_table_is_a_formula() {
    for formula in ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\n=1", "＝1+1", "＠SUM(A1)"]
    {
        let shown = csv_field(formula);
        let first = formula.chars().next().unwrap();
        assert!(shown.starts_with(['\'', '"']) && shown.contains(&format!("'{first}")), "{shown}");
    }
    for harmless in ["-3", "+1.5", "-1e9", "eth0", "a=b", ""] {
        assert_eq!(csv_field(harmless), harmless);
    }
    assert_eq!(csv_field(r#"{"a":1,"b":2}"#), r#""{""a"":1,""b"":2}""#);
}

#[test]
fn a_stream_line_tells_absent_from_zero() {
    let csv = table_csv::<StreamTable>(&report("r1"));
    assert_eq!(csv.lines().count(), 3);
    assert!(csv.contains("\r\n\"voice, \"\"gold\"\" <1>\",tx,rx,10,10,0,1,640,"), "{csv}");
    assert_eq!(value(&csv, 2, "stream"), "plain");
    assert_eq!(value(&csv, 2, "rate_error_ppm"), "-3");
    assert_eq!(value(&csv, 2, "lost"), "", "nothing is known of a stream without metrics");
    let width = fields(csv.lines().next().unwrap()).len();
    assert_eq!(fields(csv.lines().nth(2).unwrap()).len(), width);
}

#[test]
fn the_measured_figures_are_in_their_columns() {
    let mut report = report("r1");
    report.streams[0].name = "simple".into();
    let csv = table_csv::<StreamTable>(&report);
    let wanted = [
        ("received", "8"),
        ("unique", "8"),
        ("expected", "10"),
        ("lost", "2"),
        ("lost_percent", "20.000000"),
        ("longest_burst", "2"),
        ("loss_seconds", "1"),
        ("duplicates", "0"),
        ("latency_min_ns", "1"),
        ("latency_p9999_ns", "9"),
        ("latency_error_p99_ns", "11"),
        ("jitter_rfc3550_ns", ""),
        ("first_rx_ns", "7"),
    ];
    for (column, expected) in wanted {
        assert_eq!(value(&csv, 1, column), expected, "{column}");
    }
}

#[test]
fn ports_and_series_are_tables_too() {
    let csv = table_csv::<PortTable>(&report("r1"));
    for (column, expected) in [
        ("back_end", "packet"),
        ("rx_stamp", "software"),
        ("tx_on_wire", "20"),
        ("tx_dropped", ""),
        ("tx_bytes", "1280"),
    ] {
        assert_eq!(value(&csv, 1, column), expected, "{column}");
    }
    let csv = table_csv::<SeriesTable>(&report("r1"));
    assert!(csv.contains("stream,plain,tx,1,4,256,\r\n"), "{csv}");
    assert!(csv.contains("port,tx,tx,0,6,384,local\r\n"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 3 * 2 + 2);
}

#[test]
fn nodes_are_a_table_when_there_are_several() {
    let mut several = report("r1");
    let node = |name: &str, reported: bool| NodeReport {
        node: name.into(),
        reported,
        ports: usize::from(reported),
        sent: reported.then_some(7),
        received: reported.then_some(0),
        clock: None,
        start: None,
        machine: None,
    };
    several.nodes = vec![node("a", true), node("b", false)];
    let csv = table_csv::<NodeTable>(&several);
    assert_eq!((value(&csv, 1, "ports"), value(&csv, 1, "received")), ("1", "0"));
    assert_eq!((value(&csv, 2, "reported"), value(&csv, 2, "sent")), ("false", ""));
    let directory = tempfile::tempdir().unwrap();
    write_run_files(directory.path(), &several, "flows: []", PageChoice::Write).unwrap();
    assert_eq!(fs::read_to_string(directory.path().join("nodes.csv")).unwrap(), csv);
}

#[test]
fn junit_counts_what_it_holds() {
    let mut report = report("r1");
    let xml = report_junit(&report);
    assert!(
        xml.contains(
            "name=\"a &amp; b\" tests=\"3\" failures=\"2\" errors=\"0\" skipped=\"1\" time=\"1.500\""
        ),
        "{xml}"
    );
    assert!(xml.contains("name=\"voice, &quot;gold&quot; &lt;1&gt;\""), "{xml}");
    assert_eq!(xml.matches("<testcase").count(), 3);
    assert_eq!(xml.matches("<failure").count(), 2);
    assert_eq!(xml.matches("<skipped").count(), 1);

    report.verdict = RunVerdict::Inconclusive(vec!["who knows".into()]);
    let xml = report_junit(&report);
    assert!(xml.contains("errors=\"1\"") && xml.contains("<error message=\"who knows\">"), "{xml}");

    report.streams.clear();
    report.verdict = RunVerdict::Pass;
    assert!(report_junit(&report).contains("tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"0\""));
}

#[test]
fn tags_of_junit_are_balanced() {
    let xml = report_junit(&report("r1"));
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1).filter(|tag| !tag.starts_with('?')) {
        let inner = tag.split('>').next().unwrap();
        let name = inner.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match (inner.starts_with('/'), inner.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, true) => {}
            (false, false) => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn omitted_page_stays_omitted_later() {
    let directory = tempfile::tempdir().unwrap();
    write_run_files(directory.path(), &report("r1"), "flows: []", PageChoice::LeaveOut).unwrap();
    assert!(directory.path().join(REPORT_FILE_NAME).exists() && !directory.path().join(PAGE).exists());
    assert_eq!(PageChoice::from_existing_files(directory.path()), PageChoice::LeaveOut);
}

#[test]
fn all_files_are_written_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    write_run_files(directory.path(), &report("r1"), "flows: []", PageChoice::Write).unwrap();
    let mut names: Vec<String> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let wanted = [
        "csv-metadata.json",
        "junit.xml",
        "outages.csv",
        "plan.yaml",
        "ports.csv",
        "quality.csv",
        "receivers.csv",
        "report.html",
        "report.json",
        "series.csv",
        "streams.csv",
    ];
    assert_eq!(names, wanted);
    assert_eq!(fs::read_to_string(directory.path().join("plan.yaml")).unwrap(), "flows: []");
    let nowhere = write_run_files(&directory.path().join("nowhere"), &report("r1"), "", PageChoice::Write);
    assert!(nowhere.unwrap_err().to_string().contains("nowhere/streams.csv"));
}

#[test]
fn csv_metadata_describes_every_table_and_column() {
    let directory = tempfile::tempdir().unwrap();
    write_run_files(directory.path(), &report("r1"), "", PageChoice::Write).unwrap();
    let metadata = fs::read(directory.path().join("csv-metadata.json")).unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&metadata).unwrap();
    let tables = metadata["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 6, "a run on one node has no table of nodes");
    for table in tables {
        let csv = fs::read_to_string(directory.path().join(table["url"].as_str().unwrap())).unwrap();
        let columns = table["tableSchema"]["columns"].as_array().unwrap();
        let names: Vec<&str> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        assert_eq!(fields(csv.lines().next().unwrap()), names);
    }
}

/// The reference of the book, which is made of the columns: `UPDATE_GOLDEN=1` writes it.
#[test]
fn the_book_describes_every_column() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/result-columns.md");
    let mut text = "# Columns of the result tables\n\nA run writes its tables as CSV files. `csv-metadata.json` beside them describes every column for programs\n([CSV on the Web](https://www.w3.org/TR/tabular-data-primer/)). An empty cell means *not known*, which is not zero.\nTables on a terminal and on the report page have some of the columns, with shorter headings.\n".to_owned();
    for table in TableDescription::all_tables() {
        text.extend([
            "\n## ",
            table.file,
            "\n\n",
            table.about,
            "\n\n| Column | Unit | Meaning | Terminal | Report page |\n|---|---|---|---|---|\n",
        ]);
        for column in &table.columns {
            let unit = column.kind.unit().unwrap_or("");
            let shown = [column.terminal, column.page].map(Option::unwrap_or_default).join(" | ");
            text.extend(["| `", column.name, "` | ", unit, " | ", column.meaning, " | ", &shown, " |\n"]);
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&page, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&page).unwrap(), text, "UPDATE_GOLDEN=1 writes it");
}
