//! The stated list of what is measured: a TOML file with cases, columns of ratios, and claims.
//! Pure.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for the fastest of the list's peers where a policy is named in a ratio.
pub const BEST_PEER: &str = "best-peer";

/// Why a list cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaseListError {
    /// Not TOML, or not of this shape.
    #[error("the list of cases cannot be read: {0}")]
    Syntax(String),
    /// A name that stands for several policies and is not defined.
    #[error("case {case} names the set '{set}'; the sets are: {known}")]
    UnknownSet {
        /// The case.
        case: String,
        /// What it named.
        set: String,
        /// What there is.
        known: String,
    },
    /// Two cases of one name.
    #[error("two cases are called '{0}'")]
    Twice(String),
    /// A claim about cases that do not exist.
    #[error("claim '{claim}' is about '{pattern}', which no case is called")]
    NoSuchCase {
        /// The claim.
        claim: String,
        /// What it is about.
        pattern: String,
    },
}

/// One thing measured: a workload on a machine, under several policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Its name, unique in the list.
    pub name: String,
    /// Preset, or machine file relative to the list.
    pub machine: String,
    /// `NAME[,key=value...]`.
    pub workload: String,
    /// Policies to be measured, in the order asked.
    pub policies: Vec<String>,
    /// The list's peers that this case has, whether they are to be measured now or not.
    pub peers: Vec<String>,
}

/// Seconds of one policy by those of another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Ratio(pub String, pub String);

/// What is said of some cases, to be held against its worst.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// In words.
    pub name: String,
    /// Which ratio.
    pub ratio: Ratio,
    /// Names of cases; a star at the end stands for any rest.
    pub cases: Vec<String>,
    /// The ratio is to be at most this; without it the worst case is only shown.
    pub most: Option<f64>,
}

/// The list.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    /// Names of all cases, those that were not selected as well.
    pub names: Vec<String>,
    /// Columns of the table of ratios.
    pub columns: Vec<Ratio>,
    /// What is measured, in order.
    pub cases: Vec<Case>,
    /// What is claimed.
    pub claims: Vec<Claim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    peers: Vec<String>,
    columns: Vec<Ratio>,
    /// Accesses of every workload in a quick run.
    quick_accesses: String,
    #[serde(default)]
    sets: BTreeMap<String, Vec<String>>,
    case: Vec<Row>,
    #[serde(default)]
    claim: Vec<Claim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    machine: String,
    workload: String,
    policies: Vec<String>,
    quick_accesses: Option<String>,
}

impl List {
    /// Read a list; `quick` shortens every workload.
    pub fn parse(text: &str, quick: bool) -> Result<Self, CaseListError> {
        let file: File = toml::from_str(text)
            .map_err(|e| CaseListError::Syntax(e.to_string().replace('\n', " ")))?;
        let mut seen = BTreeSet::new();
        let mut cases = Vec::new();
        for row in &file.case {
            if !seen.insert(row.name.clone()) {
                return Err(CaseListError::Twice(row.name.clone()));
            }
            let accesses = row.quick_accesses.as_ref().unwrap_or(&file.quick_accesses);
            // The last of two values for one key is the one that counts.
            let shorter = if quick { format!(",accesses={accesses}") } else { String::new() };
            let policies = expand(row, &file.sets)?;
            cases.push(Case {
                name: row.name.clone(),
                machine: row.machine.clone(),
                workload: format!("{}{shorter}", row.workload),
                peers: file.peers.iter().filter(|p| policies.contains(p)).cloned().collect(),
                policies,
            });
        }
        let names = cases.iter().map(|c| c.name.clone()).collect();
        let list = List { names, columns: file.columns, cases, claims: file.claim };
        for claim in &list.claims {
            if let Some(pattern) =
                claim.cases.iter().find(|p| !list.names.iter().any(|name| matches(p, name)))
            {
                return Err(CaseListError::NoSuchCase {
                    claim: claim.name.clone(),
                    pattern: pattern.clone(),
                });
            }
        }
        Ok(list)
    }

    /// Leave only cases that one of `cases` is about and policies that one of `policies` is about;
    /// nothing given: all.
    pub fn select(&mut self, cases: &[String], policies: &[String]) {
        let wanted = |patterns: &[String], name: &str| {
            patterns.is_empty() || patterns.iter().any(|p| matches(p, name))
        };
        self.cases.retain(|c| wanted(cases, &c.name));
        for case in &mut self.cases {
            case.policies.retain(|p| wanted(policies, p));
        }
    }
}

/// Policies of a row: names, and `@SET` for several.
fn expand(row: &Row, sets: &BTreeMap<String, Vec<String>>) -> Result<Vec<String>, CaseListError> {
    let mut out: Vec<String> = Vec::new();
    for word in &row.policies {
        let names = match word.strip_prefix('@') {
            None => std::slice::from_ref(word),
            Some(set) => {
                sets.get(set).map(Vec::as_slice).ok_or_else(|| CaseListError::UnknownSet {
                    case: row.name.clone(),
                    set: set.to_string(),
                    known: sets.keys().cloned().collect::<Vec<_>>().join(", "),
                })?
            }
        };
        for name in names {
            if !out.contains(name) {
                out.push(name.clone());
            }
        }
    }
    Ok(out)
}

/// Whether a name is meant: the same, or with a star at the pattern's end the same up to there.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(head) => name.starts_with(head),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        peers = ["first-touch", "kernel:damos"]
        columns = [["terrace", "best-peer"]]
        quick_accesses = "8M"
        [sets]
        main = ["first-touch", "kernel:damos"]
        [[case]]
        name = "skew"
        machine = "lab-cxl"
        workload = "skew,accesses=64M"
        policies = ["@main", "terrace", "first-touch"]
        [[case]]
        name = "stream"
        machine = "lab-cxl"
        workload = "stream"
        policies = ["terrace"]
        quick_accesses = "16M"
        [[claim]]
        name = "never much worse"
        ratio = ["terrace", "first-touch"]
        cases = ["s*"]
        most = 1.03
    "#;

    #[test]
    fn sets_are_expanded_once_and_quick_shortens() {
        let list = List::parse(TEXT, false).unwrap();
        assert_eq!(list.cases[0].policies, ["first-touch", "kernel:damos", "terrace"]);
        assert_eq!(list.cases[1].workload, "stream");
        let quick = List::parse(TEXT, true).unwrap();
        assert_eq!(quick.cases[0].workload, "skew,accesses=64M,accesses=8M");
        assert_eq!(quick.cases[1].workload, "stream,accesses=16M");
    }

    #[test]
    fn parts_can_be_chosen() {
        let mut list = List::parse(TEXT, false).unwrap();
        list.select(&["sk*".into()], &["kernel:*".into()]);
        assert_eq!(list.cases.len(), 1);
        assert_eq!(list.cases[0].policies, ["kernel:damos"]);
        assert_eq!(list.cases[0].peers, ["first-touch", "kernel:damos"]);
        assert_eq!(list.names, ["skew", "stream"]);
        let mut all = List::parse(TEXT, false).unwrap();
        all.select(&[], &[]);
        assert_eq!(all, List::parse(TEXT, false).unwrap());
    }

    #[test]
    fn mistakes_are_named() {
        let twice = TEXT.replace("\"stream\"\n        machine", "\"skew\"\n        machine");
        assert_eq!(List::parse(&twice, false), Err(CaseListError::Twice("skew".into())));
        let set = List::parse(&TEXT.replace("@main", "@none"), false).unwrap_err();
        assert_eq!(set.to_string(), "case skew names the set 'none'; the sets are: main");
        let about = List::parse(&TEXT.replace("s*", "x*"), false).unwrap_err();
        assert!(about.to_string().contains("'x*'"));
        assert!(matches!(List::parse("peers = 1", false), Err(CaseListError::Syntax(_))));
    }

    #[test]
    fn the_lists_of_the_project_are_whole() {
        for text in [
            include_str!("../../../../bench/claims.toml"),
            include_str!("../../../../bench/grids.toml"),
        ] {
            let list = List::parse(text, false).unwrap();
            for case in &list.cases {
                let machine =
                    super::super::run::machine(&case.machine, std::path::Path::new("../../bench"))
                        .unwrap();
                let shape = crate::shape::Shape::from_machine(&machine, None).unwrap();
                for policy in &case.policies {
                    assert!(
                        crate::policies::plan(policy, &shape).is_ok(),
                        "{}: {policy}",
                        case.name
                    );
                }
            }
        }
    }

    #[test]
    fn the_list_of_grids_is_the_grids() {
        let list = List::parse(include_str!("../../../../bench/grids.toml"), false).unwrap();
        let named: BTreeSet<String> = list.cases.iter().flat_map(|c| c.policies.clone()).collect();
        let grids =
            crate::policies::damos_grid().into_iter().chain(crate::policies::balancing_grid());
        for row in grids {
            assert!(named.contains(&row), "{row}");
        }
    }
}
