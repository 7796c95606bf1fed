//! Evaluation of questions about flow records: the same ten million records as nfdump has them and as we have them, the same
//! questions to both in turn, the time of each, and whether the answers are the same. Run by `eval/run.sh flows`.

mod filters;

use anyhow::Context;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::process::children_seconds;
use packetrig_eval::{Effort, directory, median};
use packetrig_sys::clock;
use packetrig_tests::drawn_flows::give_to_both;
use packetrig_tests::program;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Records that are made; a multiple of a message's.
const DRAWN: u32 = 999_996;
const DRAWN_QUICK: u32 = 99_996;
/// So often they are there, as links to the same files.
const COPIES: u32 = 10;
const ROUNDS: usize = 5;
const SEED: u64 = 20_261_123;

/// A question to both.
struct Question {
    what: &'static str,
    nfdump: &'static [&'static str],
    ours: &'static [&'static str],
    /// Where in a line of CSV the packets and bytes of an answer are.
    nfdump_cells: [usize; 2],
    our_cells: [usize; 2],
}

const STATISTIC: [usize; 2] = [7, 9];

const QUESTIONS: [Question; 6] = [
    Question {
        what: "who sent most bytes",
        nfdump: &["-s", "srcip/bytes", "-n", "20", "-o", "csv"],
        ours: &["top", "--csv", "-n", "20"],
        nfdump_cells: STATISTIC,
        our_cells: [2, 3],
    },
    Question {
        what: "ports by packets",
        nfdump: &["-s", "dstport/packets", "-n", "20", "-o", "csv"],
        ours: &["top", "--csv", "-n", "20", "--by", "dst-port", "--order", "packets"],
        nfdump_cells: STATISTIC,
        our_cells: [2, 3],
    },
    Question {
        what: "one of eight hosts: its peers",
        nfdump: &["-s", "dstip/bytes", "-n", "20", "-o", "csv", "src ip 198.18.0.3"],
        ours: &["top", "--csv", "-n", "20", "--by", "dst-ip", "--filter", "src ip 198.18.0.3"],
        nfdump_cells: STATISTIC,
        our_cells: [2, 3],
    },
    Question {
        what: "a port out of 65 536",
        nfdump: &["-s", "srcip/bytes", "-n", "20", "-o", "csv", "dst port 40001"],
        ours: &["top", "--csv", "-n", "20", "--filter", "dst port 40001"],
        nfdump_cells: STATISTIC,
        our_cells: [2, 3],
    },
    Question {
        what: "many conditions",
        nfdump: &[
            "-s",
            "srcip/bytes",
            "-n",
            "20",
            "-o",
            "csv",
            "(net 198.18.0.0/16 and port in [53 80 443] or inet6) and packets > 100 and not flags AFRPU and bps > 10k",
        ],
        ours: &[
            "top",
            "--csv",
            "-n",
            "20",
            "--filter",
            "(net 198.18.0.0/16 and port in [53 80 443] or inet6) and packets > 100 and not flags AFRPU and bps > 10k",
        ],
        nfdump_cells: STATISTIC,
        our_cells: [2, 3],
    },
    Question {
        what: "half an hour",
        nfdump: &[
            "-s",
            "inif/bytes",
            "-n",
            "20",
            "-o",
            "csv",
            "-t",
            "2026/11/21.13:20:00-2026/11/21.13:50:00",
        ],
        // nfdump's window has flows that began and ended in it.
        ours: &[
            "top",
            "--csv",
            "-n",
            "20",
            "--by",
            "in-if",
            "--filter",
            "flowStartNanoseconds >= 1795267200000000000 and flowEndNanoseconds <= 1795269000000000000",
        ],
        nfdump_cells: STATISTIC,
        our_cells: [2, 3],
    },
];

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("flows", &directory("flows"), effort)?;
    let files = tempfile::tempdir()?;
    let drawn = if effort.quick { DRAWN_QUICK } else { DRAWN };
    give_to_both(files.path(), SEED, drawn)?;
    let places = [files.path().join("nf"), files.path().join("ours")];
    for place in &places {
        copy(place)?;
    }
    output.say(&format!(
        "## Questions\n\n{} records in {} MB of nfdump's files (uncompressed, as nfcapd writes them) and {} MB of ours; {ROUNDS} \
         rounds in turn, medians; wall clock and processor time.\n",
        drawn * COPIES,
        megabytes(&places[0])?,
        megabytes(&places[1])?,
    ))?;
    ask_all(&places, &mut output)?;
    ask_duckdb(&places[1], &mut output)?;
    filters::ask_nfdumps_filters(files.path(), &mut output)?;
    output.finish()
}

/// The same files, the same questions, in turn with DuckDB.
fn ask_duckdb(place: &Path, output: &mut Output) -> anyhow::Result<()> {
    let Some(python) = std::env::var_os("EVAL_READERS") else {
        for (goal, wanted) in
            [("duckdb_answers", "all"), ("duckdb_time", "at most 1"), ("duckdb_worst", "at most 1.5")]
        {
            output.goal(goal, "nothing", wanted, &Goal::Unsupported("there is no DuckDB".into()));
        }
        return Ok(());
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../eval/flow_duck.py");
    let asked = Command::new(python)
        .arg(script)
        .arg(program::binary())
        .arg(place)
        .arg(ROUNDS.to_string())
        .output()?;
    anyhow::ensure!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let found: serde_json::Value = serde_json::from_slice(&asked.stdout)?;
    let version = found["version"].as_str().context("a version")?;
    output.say(&format!(
        "## Beside DuckDB {version}\n\nThe same files of ours, as many threads as processors.\n"
    ))?;
    let head = ["question", "DuckDB s", "ours s", "ratio", "DuckDB cpu s", "ours cpu s", "cpu ratio", "same"];
    let mut table = Table::new(&head);
    table.rows = serde_json::from_value(found["rows"].clone())?;
    output.table("duckdb", &table)?;
    let number = |name: &str| found[name].as_f64().context("a number");
    let [median, worst, same, of] = [number("median")?, number("worst")?, number("same")?, number("of")?];
    output.goal(
        "duckdb_answers",
        &format!("{same} of {of} the same as DuckDB's"),
        "all",
        &(same >= of).into(),
    );
    output.goal(
        "duckdb_time",
        &format!("{median:.2} of DuckDB's time (median)"),
        "at most 1",
        &(median <= 1.0).into(),
    );
    output.goal(
        "duckdb_worst",
        &format!("{worst:.2} of DuckDB's time (worst question)"),
        "at most 1.5",
        &(worst <= 1.5).into(),
    );
    Ok(())
}

/// Links every file of a place under further names.
fn copy(place: &Path) -> anyhow::Result<()> {
    for path in files_below(place)? {
        let name = path.file_name().and_then(|name| name.to_str()).context("a name")?;
        let (stem, ending) = name.rsplit_once('.').context("an ending")?;
        for copy in 1..COPIES {
            // nfdump reads names that begin with `nfcapd.`, we those that end with `.parquet`.
            let named =
                if ending == "parquet" { format!("{stem}-{copy}.parquet") } else { format!("{name}{copy}") };
            std::fs::hard_link(&path, path.with_file_name(named))?;
        }
    }
    Ok(())
}

fn files_below(place: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(place)? {
        let path = entry?.path();
        if path.is_dir() { files.extend(files_below(&path)?) } else { files.push(path) }
    }
    Ok(files)
}

fn megabytes(place: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for path in files_below(place)? {
        bytes += std::fs::metadata(path)?.len();
    }
    Ok(bytes / 1_000_000)
}

/// What an answer took, and its groups' packets and bytes.
struct Answer {
    seconds: f64,
    processor_seconds: f64,
    groups: BTreeSet<[u64; 2]>,
}

fn ask(command: &mut Command, cells: [usize; 2]) -> anyhow::Result<Answer> {
    let (began_ns, before) = (clock::monotonic_ns(), children_seconds()?);
    let output = command.output()?;
    let seconds = (clock::monotonic_ns() - began_ns) as f64 / 1e9;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let number = |line: &str, cell: usize| line.split(',').nth(cell)?.trim().parse::<u64>().ok();
    let groups = text.lines().filter_map(|line| {
        let [packets, bytes] = cells.map(|cell| number(line, cell));
        Some([packets?, bytes?])
    });
    Ok(Answer { seconds, processor_seconds: children_seconds()? - before, groups: groups.collect() })
}

/// What one question took and found.
struct Asked {
    row: Vec<String>,
    is_same: bool,
    /// Our time over that of nfdump.
    ratio: f64,
}

fn ask_both(question: &Question, places: &[PathBuf; 2]) -> anyhow::Result<Asked> {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut nfdump = Command::new("nfdump");
        nfdump.env("TZ", "UTC").args(["-C", "none", "-N", "-q", "-R"]).arg(&places[0]).args(question.nfdump);
        theirs.push(ask(&mut nfdump, question.nfdump_cells)?);
        let mut packetrig = Command::new(program::binary());
        packetrig.arg("flows").args(question.ours).arg(&places[1]);
        ours.push(ask(&mut packetrig, question.our_cells)?);
    }
    let [their_time, our_time] = [&theirs, &ours].map(|answers| middle(answers, |answer| answer.seconds));
    let [their_cpu, our_cpu] =
        [&theirs, &ours].map(|answers| middle(answers, |answer| answer.processor_seconds));
    let is_same = !theirs[0].groups.is_empty() && theirs[0].groups == ours[0].groups;
    let ratio = our_time / their_time;
    let row = vec![
        question.what.to_owned(),
        theirs[0].groups.len().to_string(),
        format!("{their_time:.2}"),
        format!("{our_time:.2}"),
        format!("{ratio:.2}"),
        format!("{their_cpu:.2}"),
        format!("{our_cpu:.2}"),
        if is_same { "yes" } else { "no" }.to_owned(),
    ];
    Ok(Asked { row, is_same, ratio })
}

fn middle(answers: &[Answer], of: fn(&Answer) -> f64) -> f64 {
    median(&answers.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0)
}

fn ask_all(places: &[PathBuf; 2], output: &mut Output) -> anyhow::Result<()> {
    let head = ["question", "groups", "nfdump s", "ours s", "ratio", "nfdump cpu s", "ours cpu s", "same"];
    let mut table = Table::new(&head);
    let asked: Vec<Asked> =
        QUESTIONS.iter().map(|question| ask_both(question, places)).collect::<anyhow::Result<_>>()?;
    table.rows.extend(asked.iter().map(|one| one.row.clone()));
    output.table("questions", &table)?;
    let ratios: Vec<f64> = asked.iter().map(|one| one.ratio).collect();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    let same = asked.iter().filter(|one| one.is_same).count();
    let middle = median(&ratios).unwrap_or(f64::INFINITY);
    output.goal(
        "answers",
        &format!("{same} of {} the same as nfdump's", asked.len()),
        "all",
        &(same == asked.len()).into(),
    );
    output.goal(
        "time",
        &format!("{middle:.2} of nfdump's time (median)"),
        "at most 1",
        &(middle <= 1.0).into(),
    );
    output.goal(
        "worst",
        &format!("{worst:.2} of nfdump's time (worst question)"),
        "at most 2",
        &(worst <= 2.0).into(),
    );
    Ok(())
}
