//! Arguments of `packetrig report`.

use super::SinceArgs;
use super::StoreArgs;
use super::moments::parse_moment;
use super::quantities::{parse_days, parse_figure_limit};
use clap::{ArgGroup, Args, Subcommand};
use packetrig_stats::figure::FigureLimit;
use std::path::PathBuf;

// `report` alone lists runs and methods. With a subcommand, `--store` belongs to the subcommand.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReportArgs {
    #[command(subcommand)]
    pub(crate) action: Option<ReportAction>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReportAction {
    /// List past runs and test methods, newest first
    #[command(after_help = "Example:\n  packetrig report list --most 10")]
    List(ListResults),
    /// Show the report of a past run, or the result of a test method
    #[command(after_help = "Example:\n  packetrig report show last --csv")]
    Show {
        /// Id of a run or method, or the beginning of one; `last` is the newest
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        form: OutputFormat,
        /// Show all columns, even if they do not fit the terminal
        #[arg(long)]
        wide: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Write report.html, the web page of a past run or test method
    #[command(after_help = "Examples:\n  \
        packetrig report html last --open\n  \
        packetrig report html 20261126-0800 --file monday.html")]
    Html {
        /// Id of a run or method, or the beginning of one; `last` is the newest
        #[arg(value_name = "ID")]
        id: String,
        /// Write the page to this file [default: report.html in the directory of the result]
        #[arg(long, short = 'o', value_name = "FILE")]
        file: Option<PathBuf>,
        /// Open the page in a browser
        #[arg(long)]
        open: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Compare the figures of two results; the exit code says whether the second is worse than allowed
    #[command(after_help = "Examples:\n  \
        packetrig report diff 20261126-0800 last\n  \
        packetrig report diff baseline.json last --max-worse throughput=2%,latency-p99=20us")]
    Diff(DiffArgs),
    /// Show how the figures of all results with one name have changed over time
    #[command(after_help = "Examples:\n  \
        packetrig report trend nightly\n  \
        packetrig report trend nightly --since 2026-11-01 --max-worse 5%")]
    Trend(TrendArgs),
    /// Remove old results with all their files, captures too
    #[command(after_help = "Examples:\n  \
        packetrig report prune --newest 20 --dry-run\n  \
        packetrig report prune --older 90 --name nightly")]
    Prune(PruneArgs),
    /// Keep a result from being removed by `report prune`
    #[command(after_help = "Example:\n  packetrig report pin last")]
    Pin {
        /// Id of a run or method, or the beginning of one; `last` is the newest
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Let `report prune` remove a result again
    #[command(after_help = "Example:\n  packetrig report unpin 20261123-093559")]
    Unpin {
        /// Id of a run or method, or the beginning of one; `last` is the newest
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// List runs without a report and methods that can be resumed: still running, stopped or killed
    #[command(after_help = "Example:\n  packetrig report unfinished")]
    Unfinished(ListUnfinishedArgs),
    /// Delete the files of a run without a report, or of an unfinished method; one in progress is refused
    #[command(after_help = "Example:\n  packetrig report discard 20261123-093559")]
    Discard {
        /// Id of a run or method, or the beginning of one
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// List results of a fleet that its nodes delivered when no run waited for them
    #[command(after_help = "Example:\n  packetrig report late")]
    Late {
        #[command(flatten)]
        store: StoreArgs,
        /// Delete late results of unknown runs, which makes room for new ones
        #[arg(long)]
        discard: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the directory with the files of a run or method, even if it has no result
    #[command(after_help = "Example:\n  packetrig report path last")]
    Path {
        /// Id of a run or method, or the beginning of one; `last` is the newest
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        store: StoreArgs,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ListResults {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Show at most this many runs, and as many methods
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) most: usize,
    #[command(flatten)]
    pub(crate) since: SinceArgs,
    /// List test methods only
    #[arg(long)]
    pub(crate) methods: bool,
    /// Print the result as JSON: the runs, or with --methods the methods
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ListUnfinishedArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// List test methods only
    #[arg(long)]
    pub(crate) methods: bool,
    /// Print the result as JSON: the runs, or with --methods the methods
    #[arg(long)]
    pub(crate) json: bool,
}

/// Output format; without a flag, tables.
// The output is one document, so only one of these options is allowed.
#[derive(Args, Debug)]
#[group(multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "flags as typed, of which the group takes one")]
pub(crate) struct OutputFormat {
    /// Print the whole report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print CSV: one row per stream, or the table of a test method
    #[arg(long)]
    pub(crate) csv: bool,
    /// Print JUnit XML: one test case per stream, or one per criterion of a test method
    #[arg(long)]
    pub(crate) junit: bool,
    /// Print Markdown, for pages of build servers and merge requests
    #[arg(long)]
    pub(crate) markdown: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The earlier result: an id, the beginning of one, `last`, or a file (report.json, result.json)
    #[arg(value_name = "BEFORE")]
    pub(crate) before: String,
    /// The later result, which is judged
    #[arg(value_name = "AFTER")]
    pub(crate) after: String,
    #[command(flatten)]
    pub(crate) limits: FigureLimitFlags,
    /// Compare results even if their plans or options differ
    // Without this flag the comparison is refused, because figures of different plans are usually not comparable.
    #[arg(long)]
    pub(crate) anyway: bool,
    #[command(flatten)]
    pub(crate) form: ComparisonFormat,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Args, Debug)]
pub(crate) struct FigureLimitFlags {
    /// How much worse figures may be: 5% for all, throughput=2% for one; also latency-p99=20us, loss=0.1 (in the unit
    /// of the figure) and latency-max=any [default: nothing is judged]
    #[arg(long, value_name = "LIMIT,…", value_delimiter = ',', value_parser = parse_figure_limit)]
    pub(crate) max_worse: Vec<FigureLimit>,
    /// Show and judge only these figures, such as throughput,loss [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) figure: Vec<String>,
}

/// Output format; without a flag, a table.
#[derive(Args, Debug)]
#[group(multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "flags as typed, of which the group takes one")]
pub(crate) struct ComparisonFormat {
    /// Print the comparison as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print CSV, one row per figure
    #[arg(long)]
    pub(crate) csv: bool,
    /// Print JUnit XML, one test case per figure that is judged
    #[arg(long)]
    pub(crate) junit: bool,
    /// Print Markdown, for pages of build servers and merge requests
    #[arg(long)]
    pub(crate) markdown: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TrendArgs {
    /// Name of the runs or of the method
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Use at most this many results, the newest ones
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = super::quantities::parse_positive_number::<usize>)]
    pub(crate) most: usize,
    #[command(flatten)]
    pub(crate) since: SinceArgs,
    // `diff` has the same flags, so users write limits for `trend` and `diff` in the same way.
    #[command(flatten)]
    pub(crate) limits: FigureLimitFlags,
    #[command(flatten)]
    pub(crate) form: TrendFormat,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Output format; without a flag, tables.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct TrendFormat {
    /// Print results and trends as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print CSV, one row for each figure of each result
    #[arg(long)]
    pub(crate) csv: bool,
    /// Print Markdown, for pages of build servers and merge requests
    #[arg(long)]
    pub(crate) markdown: bool,
}

// In `packetrig log`, `--keep` is the total size of all files, and an option name must have one meaning.
fn refuse_renamed_keep_option(number: &str) -> Result<String, String> {
    Err(format!("the option --keep of `report prune` is now called --newest; write --newest {number}"))
}

// At least one of these options is required: `prune` alone must not remove everything.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("criterion").args(["newest", "older", "before"]).required(true).multiple(true))]
pub(crate) struct PruneArgs {
    /// Keep the newest results of each name: this many runs, and this many results of each method
    #[arg(long, value_name = "N")]
    pub(crate) newest: Option<usize>,
    /// Former name of `--newest`; refused, because `--keep` means a size in other commands
    #[arg(long, hide = true, value_name = "N", value_parser = refuse_renamed_keep_option)]
    pub(crate) keep: Option<String>,
    /// Remove only results that are older than this many days
    // `--older` and `--before` set the same limit, as an age and as a date.
    #[arg(long, value_name = "DAYS", value_parser = parse_days, conflicts_with = "before")]
    pub(crate) older: Option<u64>,
    /// Remove only results from before this time: 2026-11-21, 2026-11-21T13:00, or yesterday; in UTC without an
    /// offset such as +01:00
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) before: Option<u64>,
    /// Remove only results with this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
