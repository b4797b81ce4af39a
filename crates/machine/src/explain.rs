//! What a machine's description says about why its tiers are as they are, for `terrace doctor`.
//! Pure: what works here and now (trackers, permissions) is found out elsewhere.

use crate::model::{Evidence, Machine, Node};
use crate::rank::{list, rank, Basis, RankAttribute, TierRanking};
use crate::survey::Surroundings;
use serde::Serialize;
use terrace_types::{Bytes, NodeId};

/// How far a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Note,
    /// Stands in the way of managing tiers, or makes it guess.
    Obstacle,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// Two tiers or more.
    Tiers,
    /// One tier: nothing to choose between.
    OneTier,
    /// All memory nodes in one tier of the kernel.
    OneKernelTier,
    /// The kernel's tiers tell the nodes apart.
    KernelTiers,
    /// No figures from firmware, measurement or file.
    NoFigures,
    /// Figures for some nodes only.
    SomeFigures,
    /// Bandwidth and latency order the tiers differently.
    OrdersDiffer,
    /// A DAX device that is not in use as memory.
    UnusedDax,
    /// CXL memory devices, and no node made of them.
    UnusedCxl,
    /// CPUs without memory of their own.
    CpusWithoutMemory,
    /// A node with neither.
    EmptyNode,
}

/// One finding, with the one command that would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub topic: Topic,
    /// How far it matters.
    pub severity: Severity,
    /// One or two sentences.
    pub text: String,
    /// The command, where one would help.
    pub command: Option<String>,
}

/// Findings from the machine alone.
#[must_use]
pub fn explain(machine: &Machine) -> Vec<Finding> {
    explain_with(machine, &Surroundings::default())
}

/// Findings from the machine and what surrounds it, most important first.
#[must_use]
pub fn explain_with(machine: &Machine, surroundings: &Surroundings) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Ok(ranking) = rank(machine, RankAttribute::Bandwidth, None) {
        tiers(machine, &ranking, &mut findings);
        figures(machine, &ranking, &mut findings);
    }
    kernel(machine, surroundings, &mut findings);
    devices(machine, surroundings, &mut findings);
    for node in &machine.nodes {
        odd_node(node, &mut findings);
    }
    // Stable: within one severity the order above, from the whole to the parts.
    findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
    findings
}

fn push(
    findings: &mut Vec<Finding>,
    topic: Topic,
    severity: Severity,
    text: String,
    command: Option<&str>,
) {
    findings.push(Finding { topic, severity, text, command: command.map(str::to_owned) });
}

const PROBE: &str = "terrace probe -o machine.toml";

fn tiers(machine: &Machine, ranking: &TierRanking, findings: &mut Vec<Finding>) {
    let order: Vec<String> = ranking.tiers.iter().map(|t| list(&t.nodes)).collect();
    let order = order.join(" > ");
    let unknown = ranking.tiers.iter().all(|t| t.basis == Basis::Nothing);
    if ranking.tiers.len() == 1 && unknown && ranking.tiers.iter().any(|t| t.nodes.len() > 1) {
        let text =
            format!("Nothing is known that tells nodes {order} apart: they are taken as one tier.");
        push(findings, Topic::OneTier, Severity::Obstacle, text, Some(PROBE));
        return;
    }
    if ranking.tiers.len() < 2 {
        let text = format!(
            "One tier only (nodes {order}): there is nothing to choose between, so programs run \
                unmanaged. The lab has \
             machines with more."
        );
        let command =
            "terrace lab compare --machine lab-cxl --policy first-touch,terrace --workload skew";
        push(findings, Topic::OneTier, Severity::Obstacle, text, Some(command));
        return;
    }
    let text = format!(
        "{} tiers by bandwidth from node {}: nodes {order}.",
        ranking.tiers.len(),
        ranking.initiator
    );
    push(findings, Topic::Tiers, Severity::Fine, text, None);
    let known = |r: &TierRanking| r.tiers.iter().all(|t| t.basis == Basis::Asked);
    if let Ok(latency) = rank(machine, RankAttribute::Latency, Some(ranking.initiator)) {
        let other: Vec<String> = latency.tiers.iter().map(|t| list(&t.nodes)).collect();
        let other = other.join(" > ");
        if other != order && known(ranking) && known(&latency) {
            let text = format!(
                "By latency the order is another: nodes {other}. Which one is right \
                    depends on the program."
            );
            let command = Some("terrace tiers --by latency");
            push(findings, Topic::OrdersDiffer, Severity::Note, text, command);
        }
    }
}

fn figures(machine: &Machine, ranking: &TierRanking, findings: &mut Vec<Finding>) {
    // One tier of many nodes, nothing known: said already.
    if ranking.tiers.len() < 2 {
        return;
    }
    let guessed: Vec<NodeId> = ranking
        .tiers
        .iter()
        .filter(|t| matches!(t.basis, Basis::Distance | Basis::Nothing))
        .flat_map(|t| t.nodes.clone())
        .collect();
    let hmat = machine.links.iter().any(|l| {
        let evidence = [
            l.read_bandwidth.map(|f| f.evidence),
            l.write_bandwidth.map(|f| f.evidence),
            l.read_latency.map(|f| f.evidence),
            l.write_latency.map(|f| f.evidence),
        ];
        evidence.into_iter().flatten().any(|e| e != Evidence::Unknown)
    });
    if !hmat {
        let mut text =
            "No bandwidth or latency is known of any node (the firmware states no HMAT): tiers \
                rest on the distance \
                    table, which is an order at best."
                .to_owned();
        if !ranking.unordered.is_empty() {
            text += &format!(
                " Memory without CPUs (nodes {}) may as well be the fastest.",
                list(&ranking.unordered)
            );
        }
        push(findings, Topic::NoFigures, Severity::Obstacle, text, Some(PROBE));
    } else if !guessed.is_empty() {
        let text = format!(
            "Neither bandwidth nor latency of nodes {} is known as node {} sees them: they are \
                ranked after the others.",
            list(&guessed),
            ranking.initiator
        );
        push(findings, Topic::SomeFigures, Severity::Note, text, Some(PROBE));
    }
}

fn kernel(machine: &Machine, surroundings: &Surroundings, findings: &mut Vec<Finding>) {
    let Some(tiers) = &surroundings.kernel_tiers else {
        return;
    };
    let memory = machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO).count();
    if memory < 2 {
        return;
    }
    let shown: Vec<String> =
        tiers.iter().map(|t| format!("memory_tier{} ({})", t.number, list(&t.nodes))).collect();
    if tiers.len() < 2 {
        let text = format!(
            "The kernel has all nodes in one tier, {}: it will not demote by itself, and its own \
                NUMA balancing promotes \
             nothing. Terrace does not need the kernel's tiers.",
            shown.join(", ")
        );
        push(findings, Topic::OneKernelTier, Severity::Note, text, Some(PROBE));
    } else {
        let text = format!("The kernel has {} tiers: nodes {}.", tiers.len(), shown.join(" > "));
        push(findings, Topic::KernelTiers, Severity::Fine, text, None);
    }
}

fn devices(machine: &Machine, surroundings: &Surroundings, findings: &mut Vec<Finding>) {
    for device in surroundings.dax.iter().filter(|d| d.system_ram == Some(false)) {
        let text = format!(
            "{device} is not in use as memory. As memory it would be a node, and perhaps a tier."
        );
        let command = format!("daxctl reconfigure-device --mode=system-ram {}", device.name);
        push(findings, Topic::UnusedDax, Severity::Note, text, Some(&command));
    }
    let in_use = machine.nodes.iter().any(|n| n.kind == crate::model::MemoryKind::Cxl)
        || surroundings.dax.iter().any(|d| d.nature.as_deref() == Some("CXL"));
    if !surroundings.cxl.is_empty() && !in_use {
        let names: Vec<String> = surroundings.cxl.iter().map(ToString::to_string).collect();
        let text = format!("{}; no node is known to be made of it.", names.join("; "));
        push(findings, Topic::UnusedCxl, Severity::Note, text, Some("cxl list -M -D -R"));
    }
}

fn odd_node(node: &Node, findings: &mut Vec<Finding>) {
    if node.capacity > Bytes::ZERO {
        return;
    }
    let id = node.id;
    if node.cpus.is_empty() {
        let text = format!(
            "Node {id} has neither CPUs nor memory: a device that accesses memory, or \
                memory that is offline."
        );
        push(findings, Topic::EmptyNode, Severity::Note, text, Some("lsmem -o +NODE"));
    } else {
        let text = format!("Node {id} has CPUs and no memory of its own.");
        push(findings, Topic::CpusWithoutMemory, Severity::Note, text, Some("lsmem -o +NODE"));
    }
}
