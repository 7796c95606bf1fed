//! A page as its reader uses it: commands to type, and lines that should then be on the screen.

use std::process::{Command, Stdio};

/// What stands between two fences.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Commands(Vec<TypedCommand>),
    Quoted(Vec<PageLine>),
}

/// A line of the page and its number, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageLine {
    pub(crate) number: usize,
    pub(crate) text: String,
}

/// A command with all its lines. A comment `# exit code N` at its end says how it ends; otherwise it is 0.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TypedCommand {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) exit_code: i32,
}

/// The `sh` and `text` blocks of a page, in order.
pub(crate) fn read_blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().zip(1..);
    while let Some((opening, _)) = lines.next() {
        let Some(language) = opening.strip_prefix("```") else { continue };
        let inside = lines.by_ref().take_while(|(line, _)| !line.starts_with("```"));
        let inside = inside.map(|(line, number)| PageLine { number, text: line.to_owned() }).collect();
        match language {
            "sh" => blocks.push(Block::Commands(read_commands(inside))),
            "text" => blocks.push(Block::Quoted(inside)),
            _ => {}
        }
    }
    blocks
}

fn read_commands(lines: Vec<PageLine>) -> Vec<TypedCommand> {
    let mut commands = Vec::new();
    let mut pending = Vec::<PageLine>::new();
    for line in lines {
        if pending.is_empty() && line.text.is_empty() {
            continue;
        }
        pending.push(line);
        let text = pending.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n");
        if is_complete(&text) {
            let exit_code = text.rsplit_once("# exit code ").map_or(0, |(_, code)| {
                code.trim().parse().expect("a number and nothing else follows `# exit code`")
            });
            commands.push(TypedCommand { line: pending[0].number, text, exit_code });
            pending.clear();
        }
    }
    assert!(pending.is_empty(), "the block ends within a command: {pending:?}");
    commands
}

/// Whether a shell would run this, rather than wait for more lines.
fn is_complete(text: &str) -> bool {
    let waits_for_end = text.contains("<<'END'") && !text.ends_with("\nEND");
    if text.ends_with('\\') || waits_for_end {
        return false;
    }
    let mut shell = Command::new("sh");
    let status = shell.args(["-n", "-c", text]).stderr(Stdio::null()).status();
    status.expect("there is a shell").success()
}

/// Quoted lines that are not in the output.
///
/// Numbers differ from run to run: of a line, the words before its first digit count, and so do those after each `…`.
pub(crate) fn missing_lines<'a>(quoted: &'a [PageLine], output: &str) -> Vec<&'a PageLine> {
    let output = output.lines().map(collapse_spaces).collect::<Vec<_>>();
    quoted.iter().filter(|line| !appears_in(&line.text, &output)).collect()
}

fn appears_in(quoted: &str, output: &[String]) -> bool {
    let parts: Vec<String> =
        quoted.split('…').map(words_before_digits).filter(|part| has_letters(part)).collect();
    parts.is_empty() || output.iter().any(|line| contains_in_order(line, &parts))
}

fn words_before_digits(part: &str) -> String {
    collapse_spaces(part.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default())
}

fn contains_in_order(line: &str, parts: &[String]) -> bool {
    let mut rest = line;
    parts.iter().all(|part| match rest.split_once(part.as_str()) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

fn collapse_spaces(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn has_letters(part: &str) -> bool {
    part.chars().filter(|c| c.is_alphabetic()).count() > 1
}

#[test]
fn commands_are_joined_and_have_exit_codes() {
    let page = "```sh\na \\\n  b # exit code 7\n\nfor x in y; do\n  z\ndone\ncat <<'END'\nx\nEND\n```\n```\nnot ours\n```\n";
    let command = |line, text: &str, exit_code| TypedCommand { line, text: text.to_owned(), exit_code };
    let commands = vec![
        command(2, "a \\\n  b # exit code 7", 7),
        command(5, "for x in y; do\n  z\ndone", 0),
        command(8, "cat <<'END'\nx\nEND", 0),
    ];
    assert_eq!(read_blocks(page), [Block::Commands(commands)]);
}

#[test]
fn quoted_lines_are_compared_without_numbers() {
    let quoted = |text: &str| [PageLine { number: 1, text: text.to_owned() }];
    let output = "  lost    12: in our sender 0, on the path 12\nVerdict: FAIL\n";
    for seen in
        ["Verdict: FAIL", "  lost  9 871: in our sender 3", "lost 1 … on the path 7", "…", "  … FAIL", "42"]
    {
        assert!(missing_lines(&quoted(seen), output).is_empty(), "{seen}");
    }
    for other in ["Verdict: PASS", "in our receiver 0", "on the … lost 1"] {
        assert_eq!(missing_lines(&quoted(other), output).len(), 1, "{other}");
    }
}
