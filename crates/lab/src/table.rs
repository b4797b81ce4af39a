//! The comparison as a table for people, as wide as their terminal.

use crate::compare::CompareResult;
use std::fmt::Write;
use terrace_types::text::{clip, fold, TextTable};

/// The table for a terminal of so many columns; the ratio is to first touch where that was run,
/// else to the first row with a time.
#[must_use]
pub fn table(result: &CompareResult, columns: usize) -> String {
    let timed = || result.runs.iter().filter_map(|r| Some((r, r.seconds?)));
    let base = timed().find(|(r, _)| r.policy == "first-touch").or(timed().next());
    if result.runs.is_empty() {
        return String::new();
    }
    let where_run = format!(" on {}, {} vCPUs; guest time", result.machine, result.vcpus);
    let mut out = clip(&result.input, columns.saturating_sub(where_run.chars().count()).max(12));
    out.push_str(&where_run);
    out.push('\n');
    let decimals = decimals(timed().map(|(_, seconds)| seconds));
    let heads = ["policy", "seconds", "ratio", "fast", "up", "down", "track", "start"];
    let mut table = TextTable::new(1, &heads);
    for run in &result.runs {
        let (Some(seconds), Some((_, base))) = (run.seconds, base) else {
            table.row([run.policy.clone()]);
            table.remark(&format!("no time: {}", run.error.as_deref().unwrap_or("no time")));
            continue;
        };
        let count = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
        table.row([
            run.policy.clone(),
            format!("{seconds:.decimals$}"),
            format!("{:.3}", seconds / base.max(1e-9)),
            run.fast_access_share.map_or("-".into(), |s| format!("{:.1}%", s * 100.0)),
            count(run.promoted_pages),
            count(run.demoted_pages),
            run.overhead_seconds.map_or("-".into(), short_time),
            run.startup_seconds.map_or("-".into(), short_time),
        ]);
    }
    out.push_str(&table.text(columns));
    let Some((base, _)) = base else { return out };
    let legend = format!(
        "seconds: the program alone; ratio to {}; fast: share of cache misses that the fast node \
         served; up, down: pages promoted and demoted; track: processor time of tracking and \
         deciding; start: what the tool takes before the program begins.",
        base.policy
    );
    let mut paragraph = |text: &str| {
        let _ = writeln!(out, "{}", fold(text, columns));
    };
    paragraph(&legend);
    if timed().any(|(r, _)| r.output_sum != base.output_sum) {
        paragraph("WARNING: the program's output differs between policies.");
    }
    for run in &result.runs {
        run.warnings.iter().for_each(|w| paragraph(&format!("{}: {w}", run.policy)));
    }
    out
}

/// Digits after the point that show three of the shortest time that is not zero; six at most, for
/// the guest's clock is not finer.
fn decimals(seconds: impl Iterator<Item = f64>) -> usize {
    let shortest = seconds.filter(|s| *s > 0.0).fold(f64::INFINITY, f64::min);
    (3..6).find(|digits| shortest * 10_f64.powi(*digits) >= 100.0).unwrap_or(6) as usize
}

/// A time in at most six characters.
fn short_time(seconds: f64) -> String {
    if seconds <= 0.0 {
        "0".into()
    } else if seconds < 0.1 {
        format!("{:.1}ms", seconds * 1e3)
    } else if seconds < 100.0 {
        format!("{seconds:.2}s")
    } else {
        format!("{seconds:.0}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::LabRun;

    fn run(policy: &str, seconds: f64, sum: &str) -> LabRun {
        LabRun {
            policy: policy.into(),
            seconds: Some(seconds),
            startup_seconds: Some(0.0021),
            error: None,
            seconds_spread: 0.0,
            fast_access_share: Some(0.5),
            promoted_pages: Some(123_456),
            demoted_pages: None,
            migrated_bytes: None,
            overhead_seconds: Some(0.1234),
            energy_joules: None,
            settings: Default::default(),
            output_sum: sum.into(),
            wall_seconds: 1.0,
            warnings: vec!["a rather long warning ".repeat(10)],
            journal: None,
        }
    }

    fn result(runs: Vec<LabRun>) -> CompareResult {
        CompareResult {
            version: 1,
            machine: "lab-cxl".into(),
            input: "workload:skew,threads=2,accesses=128000000,layout=scattered,hot=read".into(),
            accesses: None,
            wall_seconds: 1.0,
            vcpus: 2,
            calibration: vec![],
            runs,
        }
    }

    #[test]
    fn it_fits_a_terminal_and_has_ratios() {
        let r = result(vec![
            run("kernel:numa-balancing-tuned", 5.0, "a"),
            run("first-touch", 10.0, "a"),
        ]);
        let text = table(&r, 80);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.contains("0.500") && text.contains("50.0%"), "{text}");
        assert!(!text.contains("WARNING"));
        assert!(text.contains("2.1ms"), "{text}");
        assert_eq!(table(&result(vec![]), 80), "");
    }

    #[test]
    fn different_output_is_shouted() {
        let text = table(&result(vec![run("first-touch", 1.0, "a"), run("terrace", 1.0, "b")]), 80);
        assert!(text.contains("WARNING"));
    }

    #[test]
    fn a_policy_without_a_time_says_why_and_the_others_have_theirs() {
        let why = "the workload exited with status 3: ".to_string() + &"words ".repeat(30);
        let failed = LabRun::without_time("first-touch", why);
        let text = table(&result(vec![failed, run("terrace", 1.0, "a")]), 80);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.contains("first-touch\n    no time: the workload exited"), "{text}");
        assert!(text.contains("ratio to terrace") && text.contains("1.000"), "{text}");
        let none = table(&result(vec![LabRun::without_time("terrace", "interrupted".into())]), 80);
        assert!(none.contains("no time: interrupted"), "{none}");
    }

    #[test]
    fn times_are_short() {
        let shown = |all: &[f64]| decimals(all.iter().copied());
        assert_eq!((shown(&[3.1, 2.0]), shown(&[3.1, 0.02])), (3, 4));
        assert_eq!((shown(&[0.00031]), shown(&[0.0]), shown(&[])), (6, 3, 3));
        for (seconds, text) in
            [(0.0, "0"), (0.0021, "2.1ms"), (0.12, "0.12s"), (99.9, "99.90s"), (12_345.6, "12346s")]
        {
            assert_eq!(short_time(seconds), text);
        }
    }

    #[test]
    fn json_has_the_keys_of_the_contract() {
        let json = serde_json::to_value(result(vec![run("first-touch", 1.0, "a")])).unwrap();
        for key in ["machine", "input", "accesses", "wall_seconds", "runs"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        for key in [
            "policy",
            "seconds",
            "fast_access_share",
            "promoted_pages",
            "demoted_pages",
            "migrated_bytes",
            "overhead_seconds",
            "energy_joules",
            "settings",
        ] {
            assert!(json["runs"][0].get(key).is_some(), "{key}");
        }
    }
}
