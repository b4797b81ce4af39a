//! Finds the commands in a Markdown document and in a help text. Pure.
//!
//! A command is a line of a fenced block without a language, or of `sh`, `text` or `console`, whose
//! first word is a program that documents call. In a block with lines that begin with `$ `, those
//! lines alone are commands and the others are their output. A line may go on after a backslash. A
//! comment begins with ` #`; in blocks without a language also after two spaces, as in a table.
//!
//! A marker on the lines before a block says what a test cannot run, and why:
//!
//! ```text
//! <!-- not run: all: why -->
//! <!-- not run: terrace attach: why -->      commands that begin so
//! ```

/// First words of commands. Anything else in a block is output, a plan, or a program's text.
const PROGRAMS: [&str; 12] = [
    "terrace", "make", "cargo", "cc", "export", "mpirun", "pip", "sudo", "scripts/", "capture/",
    "bench/", "lab/",
];

/// A command in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentedCommand {
    /// Number of its line, from 1.
    pub line: usize,
    /// What a shell is given.
    pub text: String,
    /// Why it is not run, where a marker says so.
    pub not_run: Option<String>,
}

/// A marker: commands that begin so are not run.
#[derive(Debug)]
struct Marker {
    line: usize,
    start: String,
    why: String,
    used: bool,
}

/// The commands of a document, in order.
///
/// # Errors
/// A marker that cannot be read, or that no command needs.
pub fn commands_in(document: &str) -> Result<Vec<DocumentedCommand>, String> {
    let mut found = Vec::new();
    let mut markers: Vec<Marker> = Vec::new();
    let mut lines = document.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(text) = line.strip_prefix("<!-- not run: ") {
            markers.push(marker(index + 1, text)?);
            continue;
        }
        let Some(language) = line.strip_prefix("```") else {
            if let Some(unused) = markers.iter().find(|m| !line.is_empty() && !m.used) {
                return Err(format!("line {}: no block follows this marker", unused.line));
            }
            continue;
        };
        let mut block = Vec::new();
        for (index, line) in lines.by_ref() {
            if line.starts_with("```") {
                break;
            }
            block.push((index + 1, line));
        }
        if ["", "sh", "text", "console"].contains(&language) {
            let commands = in_block(&block, language.is_empty());
            found.extend(commands.into_iter().map(|mut command| {
                let begins =
                    |m: &&mut Marker| m.start == "all" || command.text.starts_with(&m.start);
                if let Some(marker) = markers.iter_mut().find(begins) {
                    marker.used = true;
                    command.not_run = Some(marker.why.clone());
                }
                command
            }));
        }
        if let Some(unused) = markers.iter().find(|m| !m.used) {
            return Err(format!("line {}: no command begins with {:?}", unused.line, unused.start));
        }
        markers.clear();
    }
    Ok(found)
}

fn marker(line: usize, text: &str) -> Result<Marker, String> {
    let text = text.trim_end().strip_suffix("-->").map(str::trim_end);
    let parts = text.and_then(|t| t.split_once(": ")).filter(|(_, why)| !why.is_empty());
    let (start, why) =
        parts.ok_or(format!("line {line}: write <!-- not run: COMMAND: why -->, or all: why"))?;
    Ok(Marker { line, start: start.to_owned(), why: why.to_owned(), used: false })
}

fn in_block(block: &[(usize, &str)], table: bool) -> Vec<DocumentedCommand> {
    let prompted = block.iter().any(|(_, line)| line.starts_with("$ "));
    let mut found: Vec<DocumentedCommand> = Vec::new();
    let mut goes_on = false;
    for (number, line) in block {
        let text = match (goes_on, prompted, line.strip_prefix("$ ")) {
            (true, _, _) => line.trim_start(),
            (false, true, Some(text)) => text,
            (false, true, None) => continue,
            (false, false, _) if is_command(line) => line,
            (false, false, _) => continue,
        };
        let text = without_comment(text, table && !prompted);
        let (text, more) = match text.strip_suffix('\\') {
            Some(text) => (text.trim_end(), true),
            None => (text, false),
        };
        match found.last_mut().filter(|_| goes_on) {
            Some(last) => last.text.push_str(&format!(" {text}")),
            None => found.push(DocumentedCommand {
                line: *number,
                text: text.to_owned(),
                not_run: None,
            }),
        }
        goes_on = more;
    }
    found
}

fn is_command(line: &str) -> bool {
    let word = line.split(' ').next().unwrap_or_default();
    PROGRAMS.iter().any(|p| word == *p || p.ends_with('/') && word.starts_with(p))
}

fn without_comment(text: &str, table: bool) -> &str {
    let end = text.find(" #").unwrap_or(text.len());
    let end = if table { text.find("  ").unwrap_or(end).min(end) } else { end };
    text[..end].trim_end()
}

/// The examples of a help text.
pub fn examples_in(help: &str) -> Vec<String> {
    let lines = help.lines().filter_map(|line| line.trim().strip_prefix("Example: "));
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(document: &str) -> Vec<String> {
        commands_in(document).unwrap().into_iter().map(|c| c.text).collect()
    }

    #[test]
    fn commands_are_distinguished_from_comments_output_and_other_blocks() {
        let table = "```\nterrace tiers      what it does\n   more of that\nterrace x --a \\\n    \
            --b\n```\n";
        assert_eq!(texts(table), ["terrace tiers", "terrace x --a --b"]);
        let shell = "```sh\nterrace a  b # why\nmake x\nelse\n```\n```c\nmake y\n```\n";
        assert_eq!(texts(shell), ["terrace a  b", "make x"]);
        let prompt = "```\n$ terrace a -- b < c\nterrace: output\n$ ls\n```\n";
        assert_eq!(texts(prompt), ["terrace a -- b < c", "ls"]);
        assert_eq!(commands_in(table).unwrap()[1].line, 4);
    }

    #[test]
    fn markers_have_a_reason_and_are_needed() {
        let block = "```sh\nterrace a\nterrace b c\n```\n";
        let with = |markers: &str| commands_in(&format!("{markers}{block}"));
        let reasons = |markers: &str| -> Vec<Option<String>> {
            with(markers).unwrap().into_iter().map(|c| c.not_run).collect()
        };
        assert_eq!(
            reasons("<!-- not run: terrace b: it is slow -->\n"),
            [None, Some("it is slow".to_owned())]
        );
        assert!(reasons("<!-- not run: all: no -->\n").iter().all(Option::is_some));
        assert!(with("<!-- not run: terrace b -->\n").is_err(), "no reason");
        assert!(with("<!-- not run: terrace z: why -->\n").is_err(), "not needed");
        assert!(with("<!-- not run: all: why -->\ntext\n").is_err(), "no block");
    }

    #[test]
    fn examples_of_help_are_commands() {
        let help = "Usage: x\n\nExample: terrace a && terrace b\n";
        assert_eq!(examples_in(help), ["terrace a && terrace b"]);
    }
}
