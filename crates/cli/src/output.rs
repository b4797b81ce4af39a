//! What the command line prints, and how it ends.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A command that did not do what was asked: one line and an exit status.
#[derive(Debug)]
pub struct CommandFailure {
    /// 1 failed, 2 wrong usage, 3 the machine lacks what was asked.
    pub code: u8,
    /// What, on which target, why, what to try.
    pub line: String,
}

impl CommandFailure {
    /// The command failed.
    pub fn failed(line: impl ToString) -> Self {
        Self { code: 1, line: line.to_string() }
    }

    /// It was asked for wrongly.
    pub fn usage(line: impl ToString) -> Self {
        Self { code: 2, line: line.to_string() }
    }

    /// The machine lacks what was asked.
    pub fn lacking(line: impl ToString) -> Self {
        Self { code: 3, line: line.to_string() }
    }
}

/// Ends a command: an exit status, or why not.
pub type Ending = Result<u8, CommandFailure>;

/// One line on standard error, whatever the text holds.
pub fn complain(failure: &CommandFailure) {
    say(&failure.line);
}

/// One line of ours on standard error.
pub fn say(line: &str) {
    let line = line.replace(['\n', '\r'], " ");
    let _ = writeln!(std::io::stderr(), "terrace: {line}");
}

/// One line on a terminal that is written over and over; nothing elsewhere.
pub struct StatusLine(Option<ProgressBar>);

impl StatusLine {
    /// Nothing is shown yet. `quiet`: ever.
    pub fn new(quiet: bool) -> Self {
        Self((!quiet && std::io::stderr().is_terminal()).then(ProgressBar::new_spinner))
    }

    /// In place of what was there.
    pub fn show(&mut self, line: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(line.replace(['\n', '\r'], " "));
            bar.tick();
        }
    }

    /// Leaves nothing behind.
    pub fn clear(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

/// Prints to standard output; a closed pipe ends the command quietly.
pub fn print(text: &str) -> Ending {
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Ok(()) => Ok(0),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(e) => Err(CommandFailure::failed(format!("cannot write to standard output: {e}"))),
    }
}

/// Version of what `--json` prints: keys are added to it; one that is removed or changes its
/// meaning makes another.
const JSON_VERSION: u64 = 1;

/// A value as JSON, with the version of what is printed and, beside notes of its own, `notes`.
pub fn json_text<T: serde::Serialize>(
    value: &T,
    notes: &[String],
) -> Result<String, CommandFailure> {
    let failed = |e: serde_json::Error| CommandFailure::failed(format!("cannot write JSON: {e}"));
    let mut value = serde_json::to_value(value).map_err(failed)?;
    if let Some(object) = value.as_object_mut() {
        object.entry("version").or_insert(JSON_VERSION.into());
        if let Some(all) = object.entry("notes").or_insert_with(|| json!([])).as_array_mut() {
            all.extend(notes.iter().map(|note| json!(note)));
        }
    }
    Ok(serde_json::to_string_pretty(&value).map_err(failed)? + "\n")
}

/// Prints a value as JSON that has all its notes.
pub fn print_json<T: serde::Serialize>(value: &T) -> Ending {
    print_json_with(value, &[])
}

/// Prints what [`json_text`] gives.
pub fn print_json_with<T: serde::Serialize>(value: &T, notes: &[String]) -> Ending {
    print(&json_text(value, notes)?)
}

/// Columns of the terminal, or what the environment's `COLUMNS` says; elsewhere 80.
pub fn width() -> usize {
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    let shown = terminal_size::terminal_size_of(std::io::stdout());
    let columns = shown.map(|(columns, _)| usize::from(columns.0)).or_else(named);
    columns.unwrap_or(80).max(NARROWEST)
}

/// Text is not broken to less: words would stand alone in their lines.
const NARROWEST: usize = 40;

/// What is known beforehand of how long something takes.
#[derive(Debug, Clone, Copy)]
pub enum ExpectedWork {
    /// This long when it is done for the first time on a machine like those it was tried on.
    Usually(Duration),
    /// Its length is set along the way, by [`ProgressLines::left`].
    Estimated,
    /// So many runs, of which so many at a time; each says when it begins, and all but `unsaid`
    /// when it ends.
    Runs {
        /// All of them.
        all: u64,
        /// At a time.
        at_once: u64,
        /// Runs whose end is another's beginning.
        unsaid: u64,
    },
}

impl ExpectedWork {
    /// What is left after `elapsed`, when `steps` beginnings and ends were reported, the last after
    /// `last`.
    fn left(self, elapsed: Duration, steps: u64, last: Duration) -> Option<Duration> {
        match self {
            Self::Usually(span) => Some(span.saturating_sub(elapsed)),
            Self::Estimated => None,
            Self::Runs { all, at_once, unsaid } => {
                // While `at_once` runs are under way, as many beginnings have no end.
                let reported = (steps + unsaid).saturating_sub(at_once.min(all)) / 2;
                let done = reported.min(all);
                let each = last.checked_div(u32::try_from(done).ok()?)?;
                let rest = each.checked_mul(u32::try_from(all - done).ok()?)?;
                Some(rest.saturating_sub(elapsed.saturating_sub(last)))
            }
        }
    }

    /// In words.
    fn text(self, left: Option<Duration>) -> String {
        // What was done before is not done again, so that the usual time is the most.
        let about = if matches!(self, Self::Usually(_)) { "up to" } else { "about" };
        match left.map(|l| l.as_secs()) {
            None if matches!(self, Self::Estimated) => "time left known soon".to_owned(),
            None => "time left known after the first run".to_owned(),
            Some(0) => "done any moment".to_owned(),
            Some(s @ 1..=90) => format!("{about} {s} s left"),
            Some(s) => format!("{about} {} min left", s.div_ceil(60)),
        }
    }
}

/// Lines of what is done, and below them one that says how long it has taken and what is left.
/// Draws on a terminal only.
pub struct ProgressLines {
    bar: ProgressBar,
    started: Instant,
    reported: Arc<Mutex<(u64, Duration)>>,
    ahead: Arc<Mutex<Option<Instant>>>,
}

impl ProgressLines {
    /// Begins.
    pub fn new(work: ExpectedWork) -> Self {
        let bar = ProgressBar::new_spinner();
        if !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let started = Instant::now();
        let reported = Arc::new(Mutex::new((0, Duration::ZERO)));
        let seen = reported.clone();
        let ahead = Arc::new(Mutex::new(None));
        let end = ahead.clone();
        let left = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            let (steps, last) = seen.lock().map_or((0, Duration::ZERO), |t| *t);
            let reported = end
                .lock()
                .ok()
                .and_then(|e| e.map(|at: Instant| at.saturating_duration_since(Instant::now())));
            let _ =
                out.write_str(&work.text(reported.or(work.left(started.elapsed(), steps, last))));
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}, {left}{msg}") {
            bar.set_style(style.with_key("left", left));
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, started, reported, ahead }
    }

    /// What is done now, in place of what was before, and the time left where it is known.
    pub fn left(&self, what: &str, left: Option<Duration>) {
        if let (Ok(mut ahead), Some(left)) = (self.ahead.lock(), left) {
            *ahead = Some(Instant::now() + left);
        }
        self.bar.set_message(format!(": {}", what.replace(['\n', '\r'], " ")));
    }

    /// Something was done, or begins.
    pub fn step(&self, what: &str) {
        if let Ok(mut reported) = self.reported.lock() {
            *reported = (reported.0 + 1, self.started.elapsed());
        }
        self.bar.println(format!("terrace: {}", what.replace(['\n', '\r'], " ")));
    }
}

impl Drop for ProgressLines {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_runs_that_ended() {
        let s = Duration::from_secs;
        let work = ExpectedWork::Runs { all: 4, at_once: 2, unsaid: 0 };
        assert_eq!(work.left(s(5), 2, s(0)), None, "two began, none ended");
        // One ended after 20 s and a third began: three more of 20 s, less what passed since.
        assert_eq!(work.left(s(26), 4, s(20)), Some(s(54)));
        assert_eq!(work.left(s(300), 4, s(20)), Some(s(0)));
        let work = ExpectedWork::Runs { all: 2, at_once: 1, unsaid: 1 };
        assert_eq!(work.left(s(9), 1, s(0)), None, "the profile runs");
        assert_eq!(work.left(s(9), 2, s(8)), Some(s(7)), "its end is the next one's beginning");
        assert_eq!(ExpectedWork::Runs { all: 0, at_once: 2, unsaid: 0 }.left(s(1), 9, s(1)), None);
        assert_eq!(ExpectedWork::Usually(s(75)).left(s(70), 1, s(0)), Some(s(5)));
        assert_eq!(work.text(Some(s(61))), "about 61 s left");
        assert_eq!(work.text(Some(s(181))), "about 4 min left");
        assert_eq!(ExpectedWork::Usually(s(75)).text(Some(s(74))), "up to 74 s left");
    }
}
