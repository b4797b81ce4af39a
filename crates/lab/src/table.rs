//! The comparison as a table for people, at most 80 columns wide.

use crate::compare::{CompareResult, LabRun};
use std::fmt::Write;

/// Widest line.
pub const WIDTH: usize = 80;

/// The table; the ratio is to first touch where that was run, else to the first row with a time.
#[must_use]
pub fn table(result: &CompareResult) -> String {
    let timed = || result.runs.iter().filter_map(|r| Some((r, r.seconds?)));
    let base = timed().find(|(r, _)| r.policy == "first-touch").or(timed().next());
    let mut out = String::new();
    if result.runs.is_empty() {
        return out;
    }
    let _ = writeln!(
        out,
        "{} on {}, {} vCPUs; guest time",
        clip(&result.input, 44),
        result.machine,
        result.vcpus
    );
    let _ = writeln!(
        out,
        "{:<27}{:>9}{:>7}{:>7}{:>8}{:>8}{:>7}{:>7}",
        "policy", "seconds", "ratio", "fast", "up", "down", "track", "start"
    );
    let decimals = decimals(timed().map(|(_, seconds)| seconds));
    for run in &result.runs {
        match (run.seconds, base) {
            (Some(seconds), Some((_, base))) => {
                out.push_str(&timed_row(
                    run,
                    format!("{seconds:.decimals$}"),
                    seconds / base.max(1e-9),
                ));
            }
            _ => {
                let why = run.error.as_deref().unwrap_or("no time");
                let name = format!("{:<27}  ", clip(&run.policy, 27));
                out.push_str(&wrap(&name, &format!("no time: {why}")));
            }
        }
    }
    let Some((base, _)) = base else { return out };
    let legend = format!(
        "seconds: the program alone; ratio to {}; fast: share of cache misses that the fast node \
         served; up, down: pages promoted and demoted; track: processor time of tracking and \
         deciding; start: what the tool takes before the program begins.",
        base.policy
    );
    out.push_str(&wrap("", &legend));
    if timed().any(|(r, _)| r.output_sum != base.output_sum) {
        let _ = writeln!(out, "WARNING: the program's output differs between policies.");
    }
    for run in &result.runs {
        for warning in &run.warnings {
            out.push_str(&wrap("", &format!("{}: {warning}", run.policy)));
        }
    }
    out
}

/// Digits after the point that show three of the shortest time that is not zero; six at most, for
/// the guest's clock is not finer.
fn decimals(seconds: impl Iterator<Item = f64>) -> usize {
    let shortest = seconds.filter(|s| *s > 0.0).fold(f64::INFINITY, f64::min);
    (3..6).find(|digits| shortest * 10_f64.powi(*digits) >= 100.0).unwrap_or(6) as usize
}

fn timed_row(run: &LabRun, seconds: String, ratio: f64) -> String {
    let count = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
    format!(
        "{:<27}{seconds:>9}{ratio:>7.3}{:>7}{:>8}{:>8}{:>7}{:>7}\n",
        clip(&run.policy, 27),
        run.fast_access_share.map_or("-".into(), |s| format!("{:.1}%", s * 100.0)),
        count(run.promoted_pages),
        count(run.demoted_pages),
        run.overhead_seconds.map_or("-".into(), short_time),
        run.startup_seconds.map_or("-".into(), short_time),
    )
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

/// `head` as it is, then the text, broken between words; what follows the first line is indented.
fn wrap(head: &str, text: &str) -> String {
    let mut out = head.to_string();
    let mut length = head.chars().count();
    for word in text.split_whitespace() {
        let more = word.chars().count();
        let gap = usize::from(length > 0 && !out.ends_with(' '));
        if length > 2 && length + gap + more > WIDTH {
            out.push_str("\n  ");
            length = 2;
        } else if gap > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += more;
    }
    out.push('\n');
    out
}

/// At most `width` characters, the cut marked.
fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let head: String = text.chars().take(width - 2).collect();
    format!("{head}..")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = table(&r);
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("0.500") && text.contains("50.0%"), "{text}");
        assert!(!text.contains("WARNING"));
        assert!(text.contains("2.1ms"), "{text}");
        assert_eq!(table(&result(vec![])), "");
    }

    #[test]
    fn different_output_is_shouted() {
        let text = table(&result(vec![run("first-touch", 1.0, "a"), run("terrace", 1.0, "b")]));
        assert!(text.contains("WARNING"));
    }

    #[test]
    fn a_policy_without_a_time_says_why_and_the_others_have_theirs() {
        let why = "the workload exited with status 3: ".to_string() + &"words ".repeat(30);
        let failed = LabRun::without_time("first-touch", why);
        let text = table(&result(vec![failed, run("terrace", 1.0, "a")]));
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert!(
            text.contains("first-touch                  no time: the workload exited"),
            "{text}"
        );
        assert!(text.contains("ratio to terrace") && text.contains("1.000"), "{text}");
        let none = table(&result(vec![LabRun::without_time("terrace", "interrupted".into())]));
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
