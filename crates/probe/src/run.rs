//! Goes through a plan: measures, says how far it is, stops when asked or when time is up.

use crate::plan::{Depth, ProbePlan};
use crate::stats::NOISY;
use crate::task::{Instrument, TaskRecord, Trouble};
use std::collections::BTreeMap;
use terrace_types::{Bytes, Nanos, Tick};

/// How far a run is.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeProgress {
    /// What begins.
    pub what: String,
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub all: usize,
    /// Time left, once it is known.
    pub left: Option<Nanos>,
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measurements {
    /// What was measured, in order.
    pub records: Vec<TaskRecord>,
    /// What was not and why, one sentence each.
    pub notes: Vec<String>,
    /// Why it ended before its plan did.
    pub partial: Option<String>,
    /// From first to last.
    pub took: Nanos,
    /// Last-level caches of a node's CPUs together; zero where they are not reported.
    pub caches: Bytes,
}

/// A quick run begins nothing after this.
const QUICK_LIMIT: Nanos = Nanos::secs(50);

/// Measures what the plan says. Whatever fails is a note and the rest goes on.
pub fn run(
    plan: &ProbePlan,
    depth: Depth,
    instrument: &mut dyn Instrument,
    reported: &mut dyn FnMut(&ProbeProgress),
) -> Measurements {
    let (began, others_before) = (instrument.now(), instrument.cpu_time_of_others());
    let mut result =
        Measurements { notes: plan.notes.clone(), caches: plan.caches, ..Measurements::default() };
    let mut failures: BTreeMap<String, (u32, String)> = BTreeMap::new();
    let mut expected_done = Nanos::ZERO;
    let expected: Nanos = plan.steps.iter().map(|s| s.expected).sum();
    for (index, step) in plan.steps.iter().enumerate() {
        let spent = instrument.now().since(began);
        reported(&ProbeProgress {
            what: step.task.to_string(),
            done: index,
            all: plan.steps.len(),
            left: left(spent, expected_done, expected),
        });
        if depth == Depth::Quick && spent >= QUICK_LIMIT {
            let rest = plan.steps.len() - index;
            result.notes.push(format!(
                "{rest} measurements are left out: this machine was too busy for a quick run."
            ));
            break;
        }
        match instrument.measure(&step.task) {
            Ok(outcome) => result.records.push(TaskRecord { task: step.task.clone(), outcome }),
            Err(Trouble::Interrupted) => {
                result.partial =
                    Some(format!("interrupted after {index} of {} measurements", plan.steps.len()));
                break;
            }
            Err(trouble) => {
                let entry =
                    failures.entry(trouble.to_string()).or_insert((0, step.task.to_string()));
                entry.0 += 1;
            }
        }
        expected_done += step.expected;
    }
    for (why, (times, first)) in failures {
        let more = if times > 1 { format!(" (and {} more)", times - 1) } else { String::new() };
        result.notes.push(format!("Not measured: {first}{more}: {why}."));
    }
    let noisy = result.records.iter().filter(|r| r.outcome.figure.noisy).count();
    if noisy > 0 {
        result.notes.push(format!(
            "{noisy} of {} figures are noisy: other work ran, or runs differed by more than 5%; \
                each is marked.",
            result.records.len()
        ));
    }
    let figures = result.records.iter().map(|r| r.outcome.figure);
    let (counted, disturbed) =
        figures.fold((0, 0), |(runs, left), f| (runs + f.runs, left + f.disturbed));
    if disturbed > 0 {
        let all = counted + disturbed;
        result
            .notes
            .push(format!("Other work ran during {disturbed} of {all} runs, which are left out."));
    }
    let end: Tick = instrument.now();
    result.took = end.since(began);
    if let (Some(before), Some(after)) = (others_before, instrument.cpu_time_of_others()) {
        let others = after.get().saturating_sub(before.get());
        let share = others as f64 / result.took.get().max(1) as f64;
        // Runs may be so short that none was interrupted, and yet they shared caches and memory.
        if share > NOISY {
            result.notes.push(format!("Other work had {:.0}% of the CPUs' time.", share * 100.0));
        }
    }
    result
}

/// What is left when `done` of `all` expected time took `spent`; nothing is said in the first
/// twentieth.
fn left(spent: Nanos, done: Nanos, all: Nanos) -> Option<Nanos> {
    if done.get() < all.get() / 20 || done == Nanos::ZERO {
        return None;
    }
    let rate = spent.get() as f64 / done.get() as f64;
    Some(Nanos(((all - done).get() as f64 * rate) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::plan::tests::situation;
    use crate::stats::MeasuredFigure;
    use crate::task::{Task, TaskOutcome};
    use terrace_sys::SysError;

    /// Takes what is expected times `slow`; fails bandwidths; is interrupted at a number.
    struct Fake {
        now: Tick,
        each: Nanos,
        asked: usize,
        stop_at: usize,
        fails: bool,
        disturbed: u32,
        /// What others had of the CPUs.
        others: Option<f64>,
    }

    impl Instrument for Fake {
        fn measure(&mut self, task: &Task) -> Result<TaskOutcome, Trouble> {
            self.now = self.now.after(self.each);
            self.asked += 1;
            if self.asked > self.stop_at {
                return Err(Trouble::Interrupted);
            }
            if self.fails && matches!(task, Task::Stream { .. }) {
                return Err(Trouble::Sys(SysError::from_errno(
                    "mbind",
                    "node 0",
                    1,
                    "be somebody else",
                )));
            }
            let figure = MeasuredFigure {
                value: 1.0,
                spread: 0.0,
                runs: 3,
                disturbed: self.disturbed,
                noisy: false,
            };
            Ok(TaskOutcome::new(figure, None, ""))
        }

        fn now(&mut self) -> Tick {
            self.now
        }

        fn cpu_time_of_others(&mut self) -> Option<Nanos> {
            // They had something before, too.
            let had = |share| 3e9 + share * self.now.get() as f64;
            self.others.map(|share| Nanos(had(share) as u64))
        }
    }

    fn fake() -> Fake {
        Fake {
            now: Tick(5),
            each: Nanos::millis(10),
            asked: 0,
            stop_at: usize::MAX,
            fails: false,
            disturbed: 0,
            others: None,
        }
    }

    #[test]
    fn time_left_is_shown_and_falls() {
        let plan = plan(&situation(&[(2, 24_000, 18_000)]), Depth::Full);
        let mut reported = Vec::new();
        let result = run(&plan, Depth::Full, &mut fake(), &mut |p| reported.push(p.clone()));
        assert_eq!(result.records.len(), plan.steps.len());
        assert_eq!(reported.len(), plan.steps.len());
        assert!(reported[0].left.is_none());
        assert!(
            reported[reported.len() - 1].left.unwrap() < reported[reported.len() / 2].left.unwrap()
        );
        assert_eq!(result.partial, None);
    }

    #[test]
    fn an_interrupted_run_is_partial_and_keeps_what_it_has() {
        let plan = plan(&situation(&[(2, 24_000, 18_000)]), Depth::Full);
        let result = run(&plan, Depth::Full, &mut Fake { stop_at: 7, ..fake() }, &mut |_| {});
        assert_eq!(result.records.len(), 7);
        assert!(result.partial.unwrap().starts_with("interrupted after 7 of"));
    }

    #[test]
    fn a_quick_run_on_a_slow_machine_ends_in_time_and_says_so() {
        let plan = plan(&situation(&[(2, 24_000, 18_000)]), Depth::Quick);
        let mut slow = Fake { each: Nanos::secs(2), ..fake() };
        let result = run(&plan, Depth::Quick, &mut slow, &mut |_| {});
        assert!(result.took <= Nanos::secs(52), "{}", result.took);
        assert!(result.notes.iter().any(|n| n.contains("too busy")), "{:?}", result.notes);
    }

    #[test]
    fn a_failure_is_reported_once_and_the_rest_goes_on() {
        let plan = plan(&situation(&[(2, 24_000, 18_000)]), Depth::Quick);
        let result = run(&plan, Depth::Quick, &mut Fake { fails: true, ..fake() }, &mut |_| {});
        let reported: Vec<&String> =
            result.notes.iter().filter(|n| n.contains("be somebody else")).collect();
        assert_eq!(reported.len(), 1, "{:?}", result.notes);
        assert!(reported[0].contains("more)") && result.records.len() > 20);
    }

    #[test]
    fn runs_during_other_work_are_reported_though_the_figures_are_good() {
        let plan = plan(&situation(&[(2, 24_000, 18_000)]), Depth::Quick);
        let reported = |disturbed| {
            run(&plan, Depth::Quick, &mut Fake { disturbed, ..fake() }, &mut |_| {}).notes
        };
        let all = plan.steps.len();
        let note =
            format!("Other work ran during {} of {} runs, which are left out.", 2 * all, 5 * all);
        assert!(reported(2).contains(&note), "{:?}", reported(2));
        assert!(!reported(0).iter().any(|n| n.contains("Other work")), "{:?}", reported(0));
    }

    #[test]
    fn what_other_work_had_is_reported_where_it_is_more_than_noise() {
        let plan = plan(&situation(&[(2, 24_000, 18_000)]), Depth::Quick);
        let reported = |others| {
            let notes = run(&plan, Depth::Quick, &mut Fake { others, ..fake() }, &mut |_| {}).notes;
            notes.into_iter().find(|n| n.contains("Other work"))
        };
        assert_eq!(reported(Some(0.62)).as_deref(), Some("Other work had 62% of the CPUs' time."));
        assert_eq!((reported(Some(0.04)), reported(None)), (None, None));
    }
}
