//! What a case is judged by: output and status, what the tool says, its summary, and conditions
//! waited for.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `Err` says what is wrong, or `skipped: ` and why.
pub type CaseVerdict = Result<(), String>;

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Result<Output, String> {
    command.stdin(Stdio::null()).output().map_err(|e| format!("cannot start {command:?}: {e}"))
}

/// Starts a command whose output is collected.
pub fn spawn(command: &mut Command) -> Result<Child, String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {command:?}: {e}"))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// Lines of the tool on standard error; the target may have lines there too.
pub fn said(out: &Output) -> Vec<String> {
    text(&out.stderr).lines().filter(|l| l.starts_with("terrace: ")).map(str::to_owned).collect()
}

/// The one line that contains `part`.
pub fn one_line(out: &Output, part: &str) -> Result<String, String> {
    let mut lines: Vec<String> = said(out).into_iter().filter(|l| l.contains(part)).collect();
    match (lines.pop(), lines.is_empty()) {
        (Some(line), true) => Ok(line),
        _ => Err(format!("not one line with {part:?}: {}", text(&out.stderr))),
    }
}

/// Both printed the same and ended alike, and the tool did not panic.
pub fn alike(plain: &Output, managed: &Output) -> CaseVerdict {
    let said = text(&managed.stderr);
    if plain.stdout.is_empty() {
        return Err(format!(
            "the unmanaged run printed nothing: {} {}",
            plain.status,
            text(&plain.stderr)
        ));
    }
    if plain.stdout != managed.stdout {
        let (plain, managed) = (text(&plain.stdout), text(&managed.stdout));
        return Err(format!("output differs: {plain:?} unmanaged, {managed:?} managed; {said}"));
    }
    if plain.status != managed.status {
        return Err(format!(
            "ended with {} unmanaged, {} managed; {said}",
            plain.status, managed.status
        ));
    }
    if said.contains("panicked") {
        return Err(format!("panicked: {said}"));
    }
    Ok(())
}

pub fn expect_code(out: &Output, code: i32) -> CaseVerdict {
    if out.status.code() == Some(code) {
        Ok(())
    } else {
        Err(format!("expected status {code}, got {}: {}", out.status, text(&out.stderr)))
    }
}

/// Waits until `done`, looking once a millisecond.
pub fn wait_for(what: &str, most: Duration, mut done: impl FnMut() -> bool) -> CaseVerdict {
    let until = Instant::now() + most;
    while !done() {
        if Instant::now() >= until {
            return Err(format!("{what}: not within {most:?}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What `--summary` wrote.
#[derive(Debug)]
pub struct SummaryFile(Value);

impl SummaryFile {
    pub fn read(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|e| format!("summary {}: {e}", path.display()))?;
        serde_json::from_str(&text)
            .map(Self)
            .map_err(|e| format!("summary {}: {e}", path.display()))
    }

    fn number(&self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap_or(0)
    }

    pub fn managed(&self) -> CaseVerdict {
        if self.0["managed"] == true && self.number("steps") > 0 && self.number("managed_bytes") > 0
        {
            Ok(())
        } else {
            Err(format!("ran unmanaged: {}", self.0))
        }
    }

    pub fn moved(&self) -> u64 {
        self.number("promoted_pages") + self.number("demoted_pages")
    }

    /// Pages that did not move for this reason.
    pub fn failed(&self, reason: &str) -> u64 {
        let all = self.0["failed"].as_array().into_iter().flatten();
        all.filter(|f| f["reason"] == reason).filter_map(|f| f["pages"].as_u64()).sum()
    }

    pub fn trackers(&self) -> Vec<&str> {
        self.0["trackers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Managed, pages were moved, and some that were to be moved were not, for one of `reasons` (if
    /// any is given).
    pub fn moved_but_for(&self, reasons: &[&str]) -> CaseVerdict {
        self.managed()?;
        let why = if self.moved() == 0 {
            "no page was moved".to_owned()
        } else if !reasons.is_empty() && reasons.iter().map(|r| self.failed(r)).sum::<u64>() == 0 {
            format!("no move met a page that was {}", reasons.join(" or "))
        } else {
            return Ok(());
        };
        Err(format!("{why}: {}", self.0))
    }

    pub fn shown(&self) -> String {
        format!("{} moved, not moved: {}", self.moved(), self.0["failed"])
    }
}
