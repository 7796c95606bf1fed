//! Tables, plots and goals, on standard output and in files.

use super::Effort;
use anyhow::Context;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Where results go.
#[derive(Debug)]
pub struct Output {
    name: &'static str,
    directory: PathBuf,
    page: String,
    goals: Vec<String>,
}

/// A goal's end.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// Reached.
    Met,
    /// Not reached.
    Missed,
    /// It could not be measured here, and why.
    Unsupported(String),
}

impl From<bool> for Goal {
    fn from(met: bool) -> Self {
        if met { Self::Met } else { Self::Missed }
    }
}

/// A table to be shown as Markdown and saved as CSV.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Column titles.
    pub head: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|&h| h.to_owned()).collect(), rows: Vec::new() }
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = line(&vec!["---".to_owned(); self.head.len()]);
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}{rule}{rows}", line(&self.head))
    }

    fn csv(&self) -> String {
        let line = |cells: &Vec<String>| {
            format!("{}\n", cells.iter().map(|c| c.replace(',', ";")).collect::<Vec<_>>().join(","))
        };
        std::iter::once(&self.head).chain(&self.rows).map(line).collect()
    }
}

impl Output {
    /// Begins the page.
    pub fn new(name: &'static str, directory: &Path, effort: Effort) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let mut output =
            Self { name, directory: directory.to_owned(), page: String::new(), goals: Vec::new() };
        let cpus = packetrig_sys::sched::read_allowed_cpus().map_or(0, |cpus| cpus.len());
        let length = if effort.quick { "quick" } else { "full" };
        output.say(&format!(
            "# Evaluation: {name}\n\n{}, kernel {}, {cpus} processors, {length} run.\n",
            std::env::var("EVAL_OF").unwrap_or_else(|_| "Unknown code".to_owned()),
            packetrig_sys::kernel::kernel_release_name()
        ))?;
        Ok(output)
    }

    /// Text on the page.
    pub fn say(&mut self, text: &str) -> anyhow::Result<()> {
        writeln!(self.page, "{text}")?;
        writeln!(std::io::stdout(), "{text}").context("standard output")
    }

    /// A table on the page, and its file.
    pub fn table(&mut self, name: &str, table: &Table) -> anyhow::Result<()> {
        self.save(&format!("{name}.csv"), &table.csv())?;
        self.say(&table.markdown())
    }

    /// A file beside the page.
    pub fn save(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// A plot beside the page.
    pub fn plot(&mut self, name: &str, title: &str, svg: &str) -> anyhow::Result<()> {
        self.save(&format!("{name}.svg"), svg)?;
        writeln!(self.page, "![{title}]({name}.svg)\n")?;
        Ok(())
    }

    /// A goal's line, shown at the end.
    pub fn goal(&mut self, what: &str, measured: &str, wanted: &str, goal: &Goal) {
        let verdict = match goal {
            Goal::Met => "met".to_owned(),
            Goal::Missed => "missed".to_owned(),
            Goal::Unsupported(why) => format!("unsupported: {why}"),
        };
        self.goals
            .push(format!("goal {}.{what}: measured {measured}, wanted {wanted}: {verdict}", self.name));
    }

    /// The goals, and the page as a file.
    pub fn finish(mut self) -> anyhow::Result<()> {
        for goal in std::mem::take(&mut self.goals) {
            self.say(&goal)?;
        }
        self.save("report.md", &self.page)
    }
}
