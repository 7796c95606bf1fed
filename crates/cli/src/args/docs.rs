//! Arguments of `packetrig docs`.

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig docs\n  \
    packetrig docs install\n  \
    packetrig docs --search 'exit code'\n  \
    packetrig docs --all > packetrig.md")]
pub(crate) struct DocsArgs {
    /// Page to print, by its name or the beginning of it; without one the pages are listed
    #[arg(value_name = "PAGE", conflicts_with_all = ["search", "all"])]
    pub(crate) page: Option<String>,
    /// List the lines that have all these words, in upper or lower case
    #[arg(long, value_name = "WORDS", conflicts_with = "all")]
    pub(crate) search: Option<String>,
    /// Print all pages as one document, for programs that read it
    #[arg(long)]
    pub(crate) all: bool,
}
