//! All output of a command: results on standard output, remarks on standard error. A closed pipe (`packetrig … | head`)
//! ends the output, but not the work of the command. A full disk is reported at the end.

use crate::safe_text::colour_text;
use crate::wrap::wrap_text;
use crate::{UnwrittenResult, escape_unsafe_text, event_log};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

/// Standard output and standard error of a command.
#[derive(Debug)]
pub struct CommandOutput<W: Write = io::Stdout> {
    results: W,
    closed: bool,
    failed: Option<io::Error>,
    style: TextStyle,
}

impl CommandOutput {
    pub fn to_standard_output() -> Self {
        Self::new(io::stdout(), TextStyle::from_stream(&io::stdout()))
    }
}

impl<W: Write> CommandOutput<W> {
    fn new(results: W, style: TextStyle) -> Self {
        Self { results, closed: false, failed: None, style }
    }

    /// Returns the style of results: colours and width.
    pub fn style(&self) -> TextStyle {
        self.style
    }

    /// Returns the style of tables. If `wide`, lines may have any length.
    pub fn style_for_tables(&self, wide: bool) -> TextStyle {
        if wide { self.style.with_width(None) } else { self.style }
    }

    /// Returns true after a failed write, for example to a pipe that the reader has closed. Later output is dropped.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes a text. Characters that are unsafe for a terminal are escaped by [`escape_unsafe_text`].
    pub fn write_text(&mut self, text: impl Display) {
        if self.closed {
            return;
        }
        let text = text.to_string();
        let written = self.results.write_all(escape_unsafe_text(&text).as_bytes());
        // Flushed each time: the standard library ignores errors of the flush when the process exits.
        if let Err(error) = written.and_then(|()| self.results.flush()) {
            self.closed = true;
            // `packetrig … | head`: the reader has seen enough, which is no failure.
            self.failed = Some(error).filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
        }
    }

    /// Writes a text and a line end.
    pub fn write_line(&mut self, text: impl Display) {
        self.write_text(format_args!("{text}\n"));
    }

    /// Writes a value as JSON, indented.
    pub fn write_json(&mut self, value: &impl serde::Serialize) -> Result<(), UnwrittenResult> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| UnwrittenResult { what: "JSON", source: error.into() })?;
        self.write_line(text);
        Ok(())
    }

    /// Returns the error that kept results from being written, if there was one.
    pub fn into_result(self) -> io::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

/// Writes a warning of a command that continues.
pub fn print_warning(command: &str, text: impl Display) {
    print_remark(format_args!("{command}: warning: {text}"));
}

/// Writes an error of a command that continues. For an error that decides the exit code, use [`print_deciding_error`].
pub fn print_error_and_continue(command: &str, text: impl Display) {
    if event_log::is_event_log_enabled() {
        return tracing::error!(target: "packetrig", "{command}: {text}");
    }
    print_remark(format_args!("{command}: error: {text}"));
}

/// Writes a line of progress to standard error, or to the event log at level debug if the log is on.
pub fn print_progress(text: impl Display) {
    if event_log::is_event_log_enabled() {
        return tracing::debug!(target: "packetrig", "{text}");
    }
    print_remark(text);
}

/// Logs a remark: as a warning if it begins with `warning:` or with `COMMAND: warning:`, otherwise at level info.
fn log_remark(line: &str) {
    match line.split_once("warning: ") {
        Some((command, warning)) if command.is_empty() || command.ends_with(": ") => {
            tracing::warn!(target: "packetrig", "{command}{warning}");
        }
        _ => tracing::info!(target: "packetrig", "{line}"),
    }
}

/// Writes an error that decides the exit code of a command. A command may write several such errors.
pub fn print_deciding_error(text: impl Display) {
    if event_log::is_event_log_enabled() {
        return tracing::error!(target: "packetrig", "{text}");
    }
    print_remark(format_args!("{} {text}", TextStyle::for_remarks().bad("error:")));
}

/// Writes a line to standard error. Characters that are unsafe for a terminal are escaped by [`escape_unsafe_text`],
/// and long lines are wrapped to the width of the terminal. If the event log is on, the remark is an event instead.
pub fn print_remark(text: impl Display) {
    if event_log::is_event_log_enabled() {
        // An event is one line of the log, so a remark of several lines becomes several events.
        return text.to_string().lines().for_each(log_remark);
    }
    let wrapped = wrap_text(&escape_unsafe_text(&text.to_string()), TextStyle::for_remarks().width());
    // If standard error is closed, the remark is lost, and the command continues.
    drop(writeln!(io::stderr(), "{wrapped}"));
}

/// Whether text is coloured, and its width. A file or pipe gets no colours and any width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    coloured: bool,
    /// Maximum number of characters in a line; `None` if lines may have any length.
    width: Option<usize>,
}

impl TextStyle {
    pub const PLAIN: Self = Self { coloured: false, width: None };

    fn from_stream(stream: &(impl IsTerminal + AsFd)) -> Self {
        // https://no-color.org: any value that is not empty counts.
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let is_terminal = stream.is_terminal();
        let width = if is_terminal { terminal_width(stream) } else { None };
        Self { coloured: is_terminal && !unwanted, width }
    }

    /// Returns the maximum number of characters in a line; `None` if lines may have any length.
    pub const fn width(self) -> Option<usize> {
        self.width
    }

    /// Returns the same style with another width.
    #[must_use]
    pub const fn with_width(self, width: Option<usize>) -> Self {
        Self { width, ..self }
    }

    /// Returns the style of standard error.
    pub fn for_remarks() -> Self {
        // Lines of the log have no colours.
        if event_log::is_event_log_enabled() { Self::PLAIN } else { Self::from_stream(&io::stderr()) }
    }

    /// Returns true if colours are used.
    pub const fn is_coloured(self) -> bool {
        self.coloured
    }

    pub fn bold(self, text: &str) -> String {
        self.paint_text(text, "1")
    }

    pub fn good(self, text: &str) -> String {
        self.paint_text(text, "1;32")
    }

    pub fn bad(self, text: &str) -> String {
        self.paint_text(text, "1;31")
    }

    pub fn doubtful(self, text: &str) -> String {
        self.paint_text(text, "1;33")
    }

    fn paint_text(self, text: &str, code: &str) -> String {
        if self.coloured { colour_text(text, code) } else { text.to_owned() }
    }
}

/// Returns the width of a terminal: the variable `COLUMNS`, or the width that the terminal reports.
fn terminal_width(terminal: &impl AsFd) -> Option<usize> {
    // POSIX: COLUMNS is the width that the user prefers, so it takes precedence over the terminal's width.
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    named
        .filter(|columns| *columns > 0)
        .or_else(|| packetrig_sys::terminal::terminal_column_count(terminal).map(usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct BrokenPipe(io::ErrorKind);

    impl Write for BrokenPipe {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let mut output = CommandOutput::new(BrokenPipe(io::ErrorKind::BrokenPipe), TextStyle::PLAIN);
        output.write_line("one");
        output.write_line("two");
        assert!(output.into_result().is_ok());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut output = CommandOutput::new(BrokenPipe(io::ErrorKind::StorageFull), TextStyle::PLAIN);
        output.write_line("one");
        assert_eq!(output.into_result().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn command_output_writes_text_unchanged() {
        let mut written = Vec::new();
        let mut output = CommandOutput::new(&mut written, TextStyle::PLAIN);
        output.write_text("a");
        output.write_line("b");
        output.into_result().unwrap();
        assert_eq!(written, b"ab\n");
    }

    #[test]
    fn a_plain_style_adds_nothing() {
        assert_eq!(TextStyle::PLAIN.bad("FAIL"), "FAIL");
        let style = TextStyle { coloured: true, width: None };
        assert_eq!(escape_unsafe_text(&style.bad("FAIL")), "\u{1b}[1;31mFAIL\u{1b}[0m");
    }
}
