//! Lists what commands take by name: policies, workloads and their parameters, machines, trackers.
//!
//! `terrace list`, shell completion and manual pages read these lists, so that they cannot differ.

use crate::tracker_id::TrackerId;
use serde::Serialize;
use terrace_lab::policies::runs_in_lab;
use terrace_machine::{preset, preset_names};
use terrace_sim::is_simulated;
use terrace_types::{BaselineId, Contender, PolicyId};
use terrace_workload::{WorkloadName, WorkloadParameter};

/// A name that commands understand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Named {
    /// The name.
    pub name: String,
    /// What it stands for, in one line.
    pub summary: String,
    /// Commands that take it; empty where all do that have the option.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<&'static str>,
}

impl Named {
    fn new(name: impl Into<String>, summary: impl Into<String>) -> Self {
        Self { name: name.into(), summary: summary.into(), commands: Vec::new() }
    }
}

/// Stores that lie behind the best tier's memory.
const FAR_STORES: [(&str, &str); 3] = [
    ("file", "the rest of memory in a store on a disk, as run --far"),
    ("compressed", "the rest of memory compressed, as run --far"),
    ("NAME", "a [[far]] store of the machine file"),
];

/// Policies and what they are compared with.
#[must_use]
pub fn policies() -> Vec<Named> {
    let policies = PolicyId::ALL.iter().map(|id| (Contender::from(*id), id.summary()));
    let baselines = BaselineId::ALL.iter().map(|id| (Contender::from(*id), id.summary()));
    let stores =
        FAR_STORES.iter().map(|(name, text)| (Contender::FarStore((*name).to_owned()), *text));
    let named = |(contender, summary): (Contender, &str)| Named {
        commands: takers(&contender),
        ..Named::new(contender.to_string(), summary)
    };
    let observed = Named {
        commands: vec!["run", "attach"],
        ..Named::new("none", "moves nothing, and tells how much memory was idle for how long")
    };
    policies.chain(baselines).chain(stores).map(named).chain([observed]).collect()
}

/// Commands that take it.
fn takers(contender: &Contender) -> Vec<&'static str> {
    let live = matches!(contender, Contender::Policy(_));
    let (simulated, in_lab) = (is_simulated(contender), runs_in_lab(contender));
    [(live, "run"), (live, "attach"), (simulated, "sim"), (in_lab, "lab compare")]
        .into_iter()
        .filter_map(|(takes, command)| takes.then_some(command))
        .collect()
}

/// The workloads.
#[must_use]
pub fn workloads() -> Vec<Named> {
    WorkloadName::ALL.into_iter().map(|name| Named::new(name.as_str(), name.summary())).collect()
}

/// Parameters of workloads: `NAME,key=value`.
#[must_use]
pub fn workload_parameters() -> Vec<Named> {
    WorkloadParameter::ALL
        .into_iter()
        .map(|p| Named::new(p.key, format!("{}; {}", p.summary, p.values)))
        .collect()
}

/// Machine presets, each with its nodes.
#[must_use]
pub fn machines() -> Vec<Named> {
    let describe = |name: &str| {
        let nodes = preset(name).map(|machine| machine.nodes).unwrap_or_default();
        let memory = nodes.iter().filter(|node| node.capacity.get() > 0);
        let kinds: Vec<String> =
            memory.map(|node| format!("{} {}", node.capacity, node.kind.name())).collect();
        summed(&kinds)
    };
    preset_names().map(|name| Named::new(name, describe(name))).collect()
}

/// `["1 MiB dram", "1 MiB dram", "2 GiB cxl"]` as `2 x 1 MiB dram, 2 GiB cxl`.
fn summed(kinds: &[String]) -> String {
    let mut counted: Vec<(&String, usize)> = Vec::new();
    for kind in kinds {
        match counted.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => counted.push((kind, 1)),
        }
    }
    let text = |(kind, count): &(&String, usize)| match count {
        1 => (*kind).clone(),
        n => format!("{n} x {kind}"),
    };
    counted.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// How policies see accesses, live and simulated.
#[must_use]
pub fn trackers() -> Vec<Named> {
    let named = |id: &TrackerId| {
        let live: &[&str] = if id.live().is_some() { &["run", "attach"] } else { &[] };
        let commands = live.iter().copied().chain(id.simulated().map(|_| "sim")).collect();
        Named { commands, ..Named::new(id.name(), id.summary()) }
    };
    TrackerId::ALL.iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::FAR_STORE_PREFIX;

    #[test]
    fn each_policy_that_a_command_takes_is_listed_and_no_other() {
        let listed = policies();
        for contender in Contender::all() {
            let name = contender.to_string();
            assert!(listed.iter().any(|p| p.name == name), "{name} is not listed");
        }
        for policy in &listed {
            assert!(!policy.commands.is_empty(), "{} is taken by no command", policy.name);
            assert!(
                policy.name == "none" && policy.commands == ["run", "attach"]
                    || policy.name.starts_with(FAR_STORE_PREFIX)
                    || policy.name.parse::<Contender>().is_ok()
            );
        }
    }

    #[test]
    fn each_tracker_is_taken_by_a_command_and_found_by_its_name() {
        for (id, listed) in TrackerId::ALL.iter().zip(trackers()) {
            assert_eq!(TrackerId::from_name(&listed.name), Some(*id));
            assert!(!listed.commands.is_empty(), "{}", listed.name);
        }
    }

    #[test]
    fn machines_say_what_memory_they_have() {
        let all = machines();
        assert_eq!(all.len(), preset_names().len());
        assert!(all.iter().all(|m| !m.summary.is_empty()), "{all:?}");
        let of = |text: &[&str]| summed(&text.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["1 GiB dram", "1 GiB dram", "2 GiB cxl"]), "2 x 1 GiB dram, 2 GiB cxl");
    }
}
