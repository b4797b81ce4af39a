//! The comparison as a table for people, at most 80 columns wide.

use crate::compare::CompareResult;
use std::fmt::Write;

/// Widest line.
pub const WIDTH: usize = 80;

/// The table; the ratio is to first touch where that was run, else to the first row.
#[must_use]
pub fn table(result: &CompareResult) -> String {
    let base = result.runs.iter().find(|r| r.policy == "first-touch").or(result.runs.first());
    let Some(base) = base else { return String::new() };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} on {}, {} vCPUs; guest time",
        clip(&result.input, 44),
        result.machine,
        result.vcpus
    );
    let _ = writeln!(
        out,
        "{:<28}{:>9}{:>8}{:>7}{:>9}{:>9}{:>9}",
        "policy", "seconds", "ratio", "fast", "promoted", "demoted", "overhead"
    );
    for run in &result.runs {
        let _ = writeln!(
            out,
            "{:<28}{:>9.3}{:>8.3}{:>7}{:>9}{:>9}{:>9}",
            clip(&run.policy, 27),
            run.seconds,
            run.seconds / base.seconds.max(1e-9),
            run.fast_access_share.map_or("-".into(), |s| format!("{:.1}%", s * 100.0)),
            run.promoted_pages.map_or("-".into(), |n| n.to_string()),
            run.demoted_pages.map_or("-".into(), |n| n.to_string()),
            run.overhead_seconds.map_or("-".into(), |s| format!("{s:.3} s")),
        );
    }
    let _ = writeln!(
        out,
        "ratio to {}; fast: share of cache misses served by the fast node;",
        base.policy
    );
    let _ = writeln!(
        out,
        "pages promoted and demoted; overhead: processor time of tracking and deciding."
    );
    let differs = result.runs.iter().any(|r| r.output_sum != base.output_sum);
    if differs {
        let _ = writeln!(out, "WARNING: the program's output differs between policies.");
    }
    for run in &result.runs {
        for warning in &run.warnings {
            let _ = writeln!(out, "{}", clip(&format!("{}: {warning}", run.policy), WIDTH));
        }
    }
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
    use crate::compare::Run;

    fn run(policy: &str, seconds: f64, sum: &str) -> Run {
        Run {
            policy: policy.into(),
            seconds,
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

    fn result(runs: Vec<Run>) -> CompareResult {
        CompareResult {
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
        assert_eq!(table(&result(vec![])), "");
    }

    #[test]
    fn different_output_is_shouted() {
        let text = table(&result(vec![run("first-touch", 1.0, "a"), run("terrace", 1.0, "b")]));
        assert!(text.contains("WARNING"));
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
