//! Decisions paired with what became of them.

use crate::markup::{brief, count, escape, pages, put, time};
use std::collections::BTreeMap;
use terrace_engine::journal::{DecisionEntry, FailureCount, JournalEntry, OutcomeEntry};
use terrace_engine::MoveFailure;

/// Rows shown at most; the journal holds the rest.
const MAX_ROWS: usize = 250;
/// Different reasons in one row of decisions that follow each other, the last one's beside these.
const MAX_REASONS: usize = 3;

/// Decisions taken together, and the outcome that followed.
#[derive(Debug, Default)]
pub struct DecisionStep<'a> {
    /// One or more; empty only for an outcome that nothing announced.
    pub decisions: Vec<&'a DecisionEntry>,
    /// What became of the moves, if there were any.
    pub outcome: Option<&'a OutcomeEntry>,
    /// How many like it followed at once, without an outcome; the last is shown.
    pub repeats: u64,
    /// The ones before the last, each reason once.
    pub earlier: Vec<&'a DecisionEntry>,
    /// Time of the first.
    pub first_ns: u64,
}

/// Walks through a journal's entries in order.
pub fn steps(entries: &[JournalEntry]) -> Vec<DecisionStep<'_>> {
    let mut steps: Vec<DecisionStep<'_>> = Vec::new();
    let mut open = false;
    for entry in entries {
        match entry {
            JournalEntry::Decision(decision) => {
                let last = steps.last_mut().filter(|_| open);
                match last {
                    Some(step) if same_moment(step, decision) => step.decisions.push(decision),
                    Some(step) if same_again(step, decision) => {
                        step.repeats += 1;
                        let before = std::mem::replace(&mut step.decisions[0], decision);
                        step.earlier.retain(|earlier| earlier.why != before.why);
                        step.earlier.push(before);
                    }
                    _ => {
                        steps.push(DecisionStep {
                            decisions: vec![decision],
                            first_ns: decision.at_ns,
                            ..DecisionStep::default()
                        });
                        open = true;
                    }
                }
            }
            JournalEntry::Outcome(outcome) => {
                match steps.last_mut().filter(|_| open) {
                    Some(step) if step.repeats == 0 => step.outcome = Some(outcome),
                    Some(step) => {
                        // The last of the repeated ones led to this; it gets a row of its own.
                        step.repeats -= 1;
                        let decision = step.decisions[0];
                        step.decisions[0] = step.earlier.pop().unwrap_or(decision);
                        steps.push(DecisionStep {
                            decisions: vec![decision],
                            outcome: Some(outcome),
                            first_ns: decision.at_ns,
                            ..DecisionStep::default()
                        });
                    }
                    None => steps.push(DecisionStep {
                        outcome: Some(outcome),
                        first_ns: outcome.at_ns,
                        ..DecisionStep::default()
                    }),
                }
                open = false;
            }
            _ => {}
        }
    }
    steps
}

fn same_moment(step: &DecisionStep<'_>, decision: &DecisionEntry) -> bool {
    step.repeats == 0 && step.decisions.iter().all(|d| d.at_ns == decision.at_ns)
}

fn same_again(step: &DecisionStep<'_>, decision: &DecisionEntry) -> bool {
    let mut shown = step.earlier.iter().chain(&step.decisions);
    step.decisions.len() == 1
        && step.decisions[0].name == decision.name
        && (step.earlier.len() < MAX_REASONS || shown.any(|s| s.why == decision.why))
}

/// Adds up pages that did not move, by reason, most first.
pub fn failures<'a>(lists: impl Iterator<Item = &'a FailureCount>) -> Vec<(MoveFailure, u64)> {
    let mut sums: BTreeMap<MoveFailure, u64> = BTreeMap::new();
    for one in lists {
        let sum = sums.entry(one.reason).or_default();
        *sum = sum.saturating_add(one.pages);
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, n)| *n > 0).collect();
    sums.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    sums
}

/// Why pages did not move, for a person.
pub const fn reason(failure: MoveFailure) -> &'static str {
    match failure {
        MoveFailure::NotPresent => "not backed by memory any more",
        MoveFailure::AlreadyThere => "already there",
        MoveFailure::NodeFull => "the node was full",
        MoveFailure::Busy => "busy: locked, in write-back or pinned for I/O",
        MoveFailure::Shared => "shared between processes",
        MoveFailure::NotAllowed => "the kernel gives no leave",
        MoveFailure::Gone => "unmapped, or the process ended",
        MoveFailure::OutOfTime => "not tried: the time or rate allowed was used up",
        MoveFailure::Other => "refused by the kernel for another reason",
    }
}

/// The table of decisions.
pub fn table(steps: &[DecisionStep<'_>]) -> String {
    if steps.is_empty() {
        return "<p class=\"small\">No decision was recorded.</p>\n".to_owned();
    }
    let mut html = "<div class=\"wide tall\"><table class=\"steps\"><thead><tr><th>time</th>\
         <th>decision</th><th>why</th><th>predicted</th><th>what became of \
         it</th></tr></thead><tbody>\n"
        .to_owned();
    for step in steps.iter().take(MAX_ROWS) {
        row(&mut html, step);
    }
    html.push_str("</tbody></table></div>\n");
    if steps.len() > MAX_ROWS {
        put!(
            &mut html,
            "<p class=\"small\">The first {MAX_ROWS} of {} rows; the journal holds all.</p>\n",
            count(steps.len() as u64)
        );
    }
    html
}

fn row(html: &mut String, step: &DecisionStep<'_>) {
    let last = step.decisions.last().map_or(step.first_ns, |d| d.at_ns);
    let when = if step.repeats > 0 {
        format!("{} to {}", time(step.first_ns), time(last))
    } else {
        time(step.first_ns)
    };
    put!(html, "<tr><td class=\"when\">{}</td><td>", escape(&when));
    for (i, decision) in step.decisions.iter().take(12).enumerate() {
        let line = if i > 0 { "<br>" } else { "" };
        put!(html, "{line}<b>{}</b>", brief(&decision.name, 40));
    }
    if step.decisions.is_empty() {
        html.push_str("<span class=\"dim\">not recorded</span>");
    }
    if step.repeats > 0 {
        put!(html, " <span class=\"times\">× {}</span>", count(step.repeats + 1));
    }
    html.push_str("</td><td>");
    let mut reasons: Vec<&str> = Vec::new();
    for decision in step.earlier.iter().chain(step.decisions.iter().take(12)) {
        if !reasons.contains(&decision.why.as_str()) {
            put!(html, "<div class=\"reason\">{}</div>", brief(&decision.why, 300));
            reasons.push(&decision.why);
        }
    }
    let gain: u64 = step.decisions.iter().fold(0, |sum, d| sum.saturating_add(d.gain_ns_per_s));
    let cost: u64 = step.decisions.iter().fold(0, |sum, d| sum.saturating_add(d.cost_ns));
    html.push_str("</td><td class=\"nowrap\">");
    if gain > 0 {
        put!(html, "saves {} a second<br>costs {} once", time(gain), time(cost));
    } else if cost > 0 {
        put!(html, "costs {} once", time(cost));
    } else {
        html.push_str("<span class=\"dim\">–</span>");
    }
    html.push_str("</td><td>");
    outcome(html, step.outcome);
    html.push_str("</td></tr>\n");
}

fn outcome(html: &mut String, outcome: Option<&OutcomeEntry>) {
    let Some(outcome) = outcome else {
        html.push_str("<span class=\"dim\">nothing to move</span>");
        return;
    };
    let mut parts = Vec::new();
    for (n, class, what) in [
        (outcome.promoted_pages, "up", "up"),
        (outcome.demoted_pages, "down", "down"),
        (outcome.sideways_pages, "side", "within its tier"),
    ] {
        if n > 0 {
            parts.push(format!("<span class=\"{class}\">{} {what}</span>", pages(n)));
        }
    }
    if parts.is_empty() {
        parts.push("none moved".to_owned());
    }
    let exchanged = if outcome.exchange { " (exchanged)" } else { "" };
    put!(
        html,
        "{}{exchanged} <span class=\"dim\">of {} asked, in {}</span>",
        parts.join(", "),
        count(outcome.planned_pages),
        time(outcome.cost_ns)
    );
    for (why, n) in failures(outcome.failed.iter()) {
        put!(html, "<br><span class=\"not\">{} not: {}</span>", count(n), reason(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(at_ns: u64, name: &str) -> JournalEntry {
        JournalEntry::Decision(DecisionEntry {
            at_ns,
            name: name.into(),
            ..DecisionEntry::default()
        })
    }

    fn outcome(at_ns: u64) -> JournalEntry {
        JournalEntry::Outcome(OutcomeEntry { at_ns, promoted_pages: 3, ..OutcomeEntry::default() })
    }

    #[test]
    fn an_outcome_belongs_to_the_decisions_just_before_it() {
        let entries = [
            decision(1, "hold"),
            decision(2, "hold"),
            decision(3, "hold"),
            decision(4, "promote"),
            decision(4, "demote"),
            outcome(5),
            outcome(6),
            decision(7, "hold"),
            decision(8, "hold"),
            outcome(9),
        ];
        let got: Vec<_> = steps(&entries)
            .iter()
            .map(|s| {
                let names: Vec<_> = s.decisions.iter().map(|d| d.name.as_str()).collect();
                (s.first_ns, names.join("+"), s.repeats, s.outcome.map(|o| o.at_ns))
            })
            .collect();
        let row = |t: u64, n: &str, r: u64, o: Option<u64>| (t, n.to_owned(), r, o);
        assert_eq!(
            got,
            [
                row(1, "hold", 2, None),
                row(4, "promote+demote", 0, Some(5)),
                row(6, "", 0, Some(6)),
                row(7, "hold", 0, None),
                row(8, "hold", 0, Some(9)),
            ]
        );
    }

    #[test]
    fn decisions_in_one_row_show_each_of_their_reasons() {
        let hold = |at_ns: u64, why: &str| {
            JournalEntry::Decision(DecisionEntry {
                at_ns,
                name: "hold".into(),
                why: why.into(),
                ..DecisionEntry::default()
            })
        };
        let reasons = ["a", "b", "a", "c", "d", "e", "e"];
        let entries: Vec<JournalEntry> =
            reasons.iter().zip(1..).map(|(why, at)| hold(at, why)).collect();
        let rows = steps(&entries);
        assert_eq!(rows.iter().map(|s| s.repeats + 1).collect::<Vec<_>>(), [5, 2]);
        let html = table(&rows);
        for why in ["a", "b", "c", "d", "e"] {
            let shown = format!("<div class=\"reason\">{why}</div>");
            assert_eq!(html.matches(&shown).count(), 1, "{why}: {html}");
        }
    }

    #[test]
    fn failures_add_up_most_first_and_never_overflow() {
        let one = |reason, pages| FailureCount { reason, pages };
        let list = [
            one(MoveFailure::Busy, 1),
            one(MoveFailure::NodeFull, u64::MAX),
            one(MoveFailure::NodeFull, 5),
            one(MoveFailure::Gone, 0),
        ];
        assert_eq!(
            failures(list.iter()),
            [(MoveFailure::NodeFull, u64::MAX), (MoveFailure::Busy, 1)]
        );
    }
}
