//! Tables from results: ratios by case, every policy by first touch, and each claim's worst case.
//! Pure; Markdown.

use super::cases::{matches, Case, Claim, List, Ratio, BEST_PEER};
use std::fmt::Write;

/// Guest seconds of one case by policy, as far as they were measured.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseSeconds {
    /// The case's name.
    pub case: String,
    /// Peers that the case has; the best is known when all of them were measured.
    pub peers: Vec<String>,
    /// Policy and seconds.
    pub seconds: Vec<(String, f64)>,
}

/// A ratio in one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value<'a> {
    /// The ratio.
    pub ratio: f64,
    /// What it is to.
    pub to: &'a str,
    /// Whether it is to the best of only some of the peers; the ratio to the best of all is then at
    /// least as large.
    pub partial: bool,
}

impl CaseSeconds {
    fn of(&self, policy: &str) -> Option<(&str, f64)> {
        self.seconds.iter().find(|(p, _)| p == policy).map(|(p, s)| (p.as_str(), *s))
    }

    /// The fastest peer of those measured.
    fn best_baseline(&self) -> Option<(&str, f64)> {
        self.peers.iter().filter_map(|p| self.of(p)).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The ratio, where both sides were measured.
    #[must_use]
    pub fn ratio(&self, ratio: &Ratio) -> Option<Value<'_>> {
        let side =
            |name: &str| if name == BEST_PEER { self.best_baseline() } else { self.of(name) };
        let ((_, above), (to, below)) = (side(&ratio.0)?, side(&ratio.1)?);
        let to_best = ratio.0 == BEST_PEER || ratio.1 == BEST_PEER;
        let partial = to_best && self.peers.iter().any(|p| self.of(p).is_none());
        (below > 0.0).then_some(Value { ratio: above / below, to, partial })
    }
}

/// All tables of a sweep.
#[must_use]
pub fn tables(list: &List, measured: &[CaseSeconds]) -> String {
    let mut out = String::from("## Ratios of guest seconds\n\n");
    columns(&mut out, list, measured);
    out.push_str("\n## Every policy, by first touch\n\n");
    by_first_touch(&mut out, list, measured);
    if !list.claims.is_empty() {
        out.push_str("\n## Worst case of each claim\n\n");
        claims(&mut out, list, measured);
    }
    out
}

/// One row a case; columns without any value are left out.
fn columns(out: &mut String, list: &List, measured: &[CaseSeconds]) {
    let known = |r: &&Ratio| measured.iter().any(|m| m.ratio(r).is_some());
    let columns: Vec<&Ratio> = list.columns.iter().filter(known).collect();
    let heads: Vec<String> =
        columns.iter().map(|r| format!("{} / {}", short(&r.0), short(&r.1))).collect();
    head(out, "case", &heads);
    for m in measured {
        let cells = columns.iter().map(|r| m.ratio(r).map_or("-".into(), |value| cell(r, value)));
        row(out, &m.case, cells);
    }
}

fn cell(ratio: &Ratio, value: Value<'_>) -> String {
    match (ratio.1 == BEST_PEER, value.partial) {
        (true, true) => format!(">= {:.3} ({})", value.ratio, short(value.to)),
        (true, false) => format!("{:.3} ({})", value.ratio, short(value.to)),
        (false, true) => format!("<= {:.3}", value.ratio),
        (false, false) => format!("{:.3}", value.ratio),
    }
}

fn by_first_touch(out: &mut String, list: &List, measured: &[CaseSeconds]) {
    let mut policies: Vec<&str> = Vec::new();
    for policy in list.cases.iter().flat_map(|c: &Case| &c.policies).map(String::as_str) {
        if !policies.contains(&policy)
            && measured.iter().any(|m| m.seconds.iter().any(|(p, _)| p == policy))
        {
            policies.push(policy);
        }
    }
    let heads: Vec<String> =
        policies
            .iter()
            .map(|p| {
                if *p == "first-touch" {
                    "first touch, s".to_string()
                } else {
                    short(p).to_string()
                }
            })
            .collect();
    head(out, "case", &heads);
    for m in measured {
        let base = m.of("first-touch").map(|(_, s)| s);
        let cells = policies.iter().map(|p| match (m.of(p), base) {
            (Some((_, seconds)), _) if *p == "first-touch" => format!("{seconds:.3}"),
            (Some((_, seconds)), Some(base)) => format!("{:.3}", seconds / base),
            (Some((_, seconds)), None) => format!("{seconds:.3} s"),
            (None, _) => "-".into(),
        });
        row(out, &m.case, cells);
    }
}

fn claims(out: &mut String, list: &List, measured: &[CaseSeconds]) {
    let heads = ["ratio", "at most", "worst", "where", "measured of", ""].map(String::from);
    head(out, "claim", &heads);
    for claim in &list.claims {
        let about = |case: &str| claim.cases.iter().any(|p| matches(p, case));
        let all = list.names.iter().filter(|name| about(name)).count();
        let whole = |m: &CaseSeconds| m.ratio(&claim.ratio).filter(|v| !v.partial).map(|v| v.ratio);
        let here: Vec<(&str, f64)> = measured
            .iter()
            .filter(|m| about(&m.case))
            .filter_map(|m| Some((m.case.as_str(), whole(m)?)))
            .collect();
        let worst = here.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let cells = [
            format!("{} / {}", short(&claim.ratio.0), short(&claim.ratio.1)),
            claim.most.map_or("-".into(), |m| format!("{m:.2}")),
            worst.map_or("-".into(), |(_, v)| format!("{v:.3}")),
            worst.map_or("-".into(), |(c, _)| (*c).to_string()),
            format!("{} of {all}", here.len()),
            verdict(claim, worst.map(|w| w.1), here.len() == all).to_string(),
        ];
        row(out, &claim.name, cells.into_iter());
    }
}

/// What the worst case says; a claim with cases not measured can fail, but not hold.
fn verdict(claim: &Claim, worst: Option<f64>, whole: bool) -> &'static str {
    match (claim.most, worst) {
        (Some(most), Some(worst)) if worst > most => "missed",
        (Some(_), Some(_)) if whole => "held",
        (Some(_), _) => "open",
        (None, _) => "",
    }
}

fn head(out: &mut String, first: &str, heads: &[String]) {
    let _ = writeln!(out, "| {first} | {} |", heads.join(" | "));
    let _ = writeln!(out, "|---|{}", "---|".repeat(heads.len()));
}

fn row(out: &mut String, first: &str, cells: impl Iterator<Item = String>) {
    let _ = writeln!(out, "| {first} | {} |", cells.collect::<Vec<_>>().join(" | "));
}

/// Names without their kind, which the reader knows.
fn short(policy: &str) -> &str {
    match policy.strip_prefix("kernel:").or_else(|| policy.strip_prefix("bound:")) {
        Some(rest) => rest,
        None if policy == BEST_PEER => "best peer",
        None => policy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        let ratio = |a: &str, b: &str| Ratio(a.into(), b.into());
        let claim = |name: &str, cases: &[&str], most| Claim {
            name: name.into(),
            ratio: ratio("terrace", "first-touch"),
            cases: cases.iter().map(|c| c.to_string()).collect(),
            most,
        };
        let case = |name: &str| Case {
            name: name.into(),
            machine: "m".into(),
            workload: "skew".into(),
            policies: ["first-touch", "kernel:damos", "terrace"].map(String::from).to_vec(),
            peers: vec![],
        };
        List {
            names: ["a", "b", "c", "d"].map(String::from).to_vec(),
            columns: vec![
                ratio("terrace", "first-touch"),
                ratio("terrace", BEST_PEER),
                ratio("hyplacer", "terrace"),
            ],
            cases: vec![case("a"), case("b"), case("c")],
            claims: vec![
                claim("all", &["*"], Some(0.9)),
                claim("first", &["a"], Some(0.6)),
                claim("open", &["a", "c"], Some(0.9)),
                claim("unselected", &["a", "d"], Some(0.9)),
                claim("shown", &["a", "b"], None),
                Claim {
                    ratio: ratio("terrace", BEST_PEER),
                    ..claim("peers", &["a", "b"], Some(9.0))
                },
            ],
        }
    }

    fn measured() -> Vec<CaseSeconds> {
        let of = |case: &str, seconds: &[(&str, f64)]| CaseSeconds {
            case: case.into(),
            peers: vec!["first-touch".into(), "kernel:damos".into()],
            seconds: seconds.iter().map(|(p, s)| (p.to_string(), *s)).collect(),
        };
        vec![
            of("a", &[("first-touch", 4.0), ("kernel:damos", 1.0), ("terrace", 2.0)]),
            of("b", &[("first-touch", 2.0), ("terrace", 1.9)]),
            of("c", &[("first-touch", 2.0), ("kernel:damos", 3.0)]),
        ]
    }

    #[test]
    fn ratios_are_by_the_name_and_the_best_baseline_is_named() {
        let text = tables(&list(), &measured());
        assert!(text.contains("| a | 0.500 | 2.000 (damos) |"), "{text}");
        assert!(text.contains("| b | 0.950 | >= 0.950 (first-touch) |"), "{text}");
        assert!(text.contains("| c | - | - |"), "{text}");
        assert!(text.contains("| c | 2.000 | 1.500 | - |"), "{text}");
        assert!(!text.contains("hyplacer"), "a column without values: {text}");
    }

    #[test]
    fn a_claim_is_its_worst_case_and_holds_only_when_all_was_measured() {
        let text = tables(&list(), &measured());
        for line in [
            "| all | terrace / first-touch | 0.90 | 0.950 | b | 2 of 4 | missed |",
            "| first | terrace / first-touch | 0.60 | 0.500 | a | 1 of 1 | held |",
            "| open | terrace / first-touch | 0.90 | 0.500 | a | 1 of 2 | open |",
            "| unselected | terrace / first-touch | 0.90 | 0.500 | a | 1 of 2 | open |",
            "| shown | terrace / first-touch | - | 0.950 | b | 2 of 2 |  |",
            "| peers | terrace / best peer | 9.00 | 2.000 | a | 1 of 2 | open |",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
