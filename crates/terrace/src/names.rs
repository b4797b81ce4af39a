//! Lists what commands take by name: policies, workloads and their parameters, machines, trackers.
//!
//! `terrace list`, shell completion and manual pages read these lists, so that they cannot differ.

use serde::Serialize;
use terrace_lab::policies as lab;
use terrace_machine::{preset, preset_names};
use terrace_policy::place::Placement;
use terrace_sim::{TrackerKind, BEHIND, BOUNDS};
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

/// What each policy and baseline does. `far:` stands for all stores.
const POLICIES: [(&str, &str); 27] = [
    ("terrace", "the default: moves pages while the predicted gain exceeds the cost"),
    ("hyplacer", "fills the fast tier with written pages, then with read ones"),
    ("access-count", "each page to the node whose CPUs access it most"),
    ("first-touch", "moves nothing: pages stay where the kernel put them"),
    ("terrace-write-blind", "terrace without the knowledge of what is written"),
    ("hyplacer-write-blind", "hyplacer without the knowledge of what is written"),
    ("nimble", "hotter pages to the fast tier, by hotness alone (Nimble)"),
    ("autonuma", "Linux's NUMA balancing extended to tiers (tiering-0.8)"),
    ("memos", "bandwidth balance that knows writes, every four seconds (Memos)"),
    ("partitioned", "written pages fast, pages mostly read slow (CLOCK-DWF)"),
    ("bandwidth-balance", "hot pages over both tiers in proportion to bandwidth (BATMAN)"),
    ("histogram", "the threshold at which hot pages just fit the fast tier (MEMTIS)"),
    ("latency-balance", "hot pages fast only while that tier is faster under load (Colloid)"),
    ("kernel:numa-balancing", "the kernel's tiering mode with demotion, stock settings"),
    ("kernel:numa-balancing-tuned", "the same, scanning more often"),
    ("kernel:damos", "DAMON schemes migrate_hot and migrate_cold"),
    ("kernel:damos-tuned", "the same with the best settings of a grid"),
    ("kernel:weighted-interleave", "pages in turn over all nodes, weighted by bandwidth"),
    ("kernel:reclaim", "proactive reclaim demotes, NUMA balancing promotes"),
    ("hardware:memory-mode", "the fast node is a direct-mapped cache of the slow one"),
    ("bound:ideal-move", "oracle: the best static placement, moved once, cost included"),
    ("bound:static", "oracle: the best static placement from the start"),
    ("bound:clairvoyant", "oracle: knows which pages will be accessed next"),
    ("bound:all-fast", "bound: every access at the fast node's figures"),
    ("far:file", "the rest of memory in a store on a disk, as run --far"),
    ("far:compressed", "the rest of memory compressed, as run --far"),
    ("far:NAME", "a [[far]] store of the machine file"),
];

/// Policies and what they are compared with.
#[must_use]
pub fn policies() -> Vec<Named> {
    let all = POLICIES.into_iter();
    all.map(|(name, summary)| Named { commands: takers(name), ..Named::new(name, summary) })
        .collect()
}

/// Commands that take a policy or baseline of this name.
fn takers(name: &str) -> Vec<&'static str> {
    let ours = Placement::NAMES.contains(&name);
    let simulated = ours || BOUNDS.contains(&name) || name.starts_with(BEHIND);
    let in_lab = lab::OURS.contains(&name) || lab::OTHERS.contains(&name);
    [(ours, "run"), (ours, "attach"), (simulated, "sim"), (in_lab, "lab compare")]
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
    const LIVE: [&str; 2] = ["run", "attach"];
    let live = [
        ("auto", "all that work here and that the policy can use"),
        ("page-table", "accessed and dirty bits, page by page (sim: with soft-dirty)"),
        ("soft-dirty", "writes page by page, by soft-dirty bits"),
        ("damon", "reads and writes by region, by the kernel's DAMON"),
        ("damon-page", "the same in regions of one page"),
        ("perf", "samples of loads and stores by the processor, with who made them"),
    ];
    let simulated = |name: &str| TrackerKind::NAMED.iter().any(|(known, _)| *known == name);
    let both = live.into_iter().map(|(name, summary)| Named {
        commands: LIVE.into_iter().chain(simulated(name).then_some("sim")).collect(),
        ..Named::new(name, summary)
    });
    let sampled = Named {
        commands: vec!["sim"],
        ..Named::new("pebs", "samples of accesses, as the processor's hardware takes them")
    };
    both.chain([sampled]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_that_a_command_takes_is_listed_and_no_other() {
        let listed = policies();
        let known = Placement::NAMES.iter().chain(&BOUNDS).chain(&lab::OURS).chain(&lab::OTHERS);
        for name in known {
            assert!(listed.iter().any(|p| p.name == *name), "{name} is not listed");
        }
        for policy in &listed {
            assert!(!policy.commands.is_empty(), "{} is taken by no command", policy.name);
        }
        let machine = preset("lab-cxl").expect("a preset");
        for policy in listed.iter().filter(|p| p.commands.contains(&"run")) {
            assert!(Placement::named(&policy.name, &machine).is_ok(), "{}", policy.name);
        }
    }

    #[test]
    fn trackers_of_the_simulator_are_listed() {
        let listed = trackers();
        for (name, _) in TrackerKind::NAMED {
            let found = listed.iter().find(|t| t.name == name).expect(name);
            assert!(found.commands.contains(&"sim"));
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
