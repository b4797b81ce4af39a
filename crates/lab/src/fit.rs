//! From any machine file to one that a machine of the lab can be made from: what it must tell, and
//! what to do where it does not. Pure.

use crate::error::{LabError, Result};
use crate::shape::Shape;
use terrace_machine::Machine;
use terrace_model::{ModelError, ModelOptions, ModelParams};
use terrace_types::{Bytes, Nanos};

/// Most memory of all nodes: the guest's kernel writes a description of each page when it boots,
/// emulated.
const MAX_MEMORY: Bytes = Bytes::gib(64);
/// How long translations are kept where the file does not say. Files of real machines do not, and
/// `terrace probe` does not measure it: their processors lose translations by themselves. QEMU
/// keeps so many that accessed bits would be set once and then no more.
const FLUSH: Nanos = Nanos::micros(500);

/// What the guest takes of a node for itself: lab-cxl's first node of 192 MiB leaves 119.
const GUEST: Bytes = Bytes::mib(80);

/// Memory that CPUs sweep at least when bandwidth is calibrated, MiB: well within the smallest node
/// of the lab's own machines.
const SWEEP_MIB: u64 = 24;
/// Each CPU sweeps memory of its own, twice the last cache: the last to finish would otherwise find
/// all that is left in it.
const CACHES_A_CPU: u64 = 2;

/// The last cache.
pub(crate) fn last_cache(machine: &Machine) -> Bytes {
    machine.caches.iter().max_by_key(|cache| cache.level).map_or(Bytes::ZERO, |cache| cache.size)
}

/// MiB that `cpus` CPUs sweep together when bandwidth is calibrated, by the last cache's size.
pub(crate) fn sweep_mib(cpus: usize, last_cache: Bytes) -> u64 {
    SWEEP_MIB.max(CACHES_A_CPU * last_cache.get().div_ceil(1 << 20) * cpus as u64)
}

/// Bytes that calibrating takes of a node, and `None` where that is what it takes of the lab's own
/// machines, or less.
pub(crate) fn calibration_bytes(shape: &Shape, node: u32, last_cache: Bytes) -> Option<Bytes> {
    let initiator = shape.nodes.iter().find(|n| n.id == node)?.initiator;
    let cpus = shape.nodes.iter().find(|n| n.id == initiator)?.cpus.len();
    let own = |cache| sweep_mib(cpus, cache);
    (own(last_cache) > own(Bytes::mib(4))).then(|| Bytes::mib(own(last_cache)))
}

/// The shape of the virtual machine, and the machine file as the timing plugin is told it.
///
/// # Errors
/// [`LabError::Machine`], with what to do.
pub fn fit(machine: &Machine, vcpus: Option<u32>) -> Result<(Shape, Machine)> {
    let bad = |why: String| LabError::Machine { name: machine.name.clone(), why };
    let shape = Shape::from_machine(machine, vcpus)?;
    let total = Bytes(shape.total_bytes());
    if total > MAX_MEMORY {
        let why = format!(
            "its nodes have {total}, and the lab emulates {MAX_MEMORY} at most; lower `capacity` \
                of its nodes in a copy of the file, the \
             figures stay"
        );
        return Err(bad(why));
    }
    for node in &shape.nodes {
        // What was enough for lab machines is not asked about.
        let Some(wanted) = calibration_bytes(&shape, node.id, last_cache(machine)) else {
            continue;
        };
        if Bytes(node.bytes) - GUEST < wanted {
            let why = format!(
                "node {} has {}, and to see past a last cache of {} takes {wanted} of it beside \
                    the {GUEST} of the guest; lower the cache's `size` \
                 or raise the node's `capacity` in a copy of the file",
                node.id,
                Bytes(node.bytes),
                last_cache(machine)
            );
            return Err(bad(why));
        }
    }
    let mut machine = machine.clone();
    if machine.core.tlb_flush == Nanos::ZERO {
        machine.core.tlb_flush = FLUSH;
    }
    let options =
        ModelOptions { vcpus: shape.vcpus, all_fast: false, memory_mode: false, outstanding: None };
    // The plugin would find out as well, when the machine boots, and nobody would hear why.
    ModelParams::from_machine(&machine, options).map_err(|error| {
        let remedy = match &error {
            ModelError::Missing(_) => "add it to a copy of the file",
            ModelError::Unusable(_) => "change it in a copy of the file",
        };
        bad(format!("{error}; {remedy} (crates/machine/presets/lab-cxl.toml shows how)"))
    })?;
    Ok((shape, machine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset;

    fn refused(change: impl FnOnce(&mut Machine)) -> String {
        let mut machine = preset("lab-cxl").unwrap();
        change(&mut machine);
        let text = fit(&machine, None).map(|_| ()).unwrap_err().to_string();
        assert!(!text.contains('\n'), "one line: {text}");
        text
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let one_node = refused(|m| {
            m.nodes.pop();
            m.links.pop();
        });
        assert!(
            one_node.contains("has memory on one node") && one_node.contains("[[node]]"),
            "{one_node}"
        );
        let no_figure = refused(|m| m.links[1].read_latency = None);
        assert!(
            no_figure.contains("read latency from node 0 to node 1")
                && no_figure.contains("terrace probe"),
            "{no_figure}"
        );
        let no_link = refused(|m| {
            m.links.pop();
        });
        assert!(
            no_link.contains("no figures from node 0 to node 1")
                && no_link.contains("terrace probe"),
            "{no_link}"
        );
        let no_cache = refused(|m| m.caches.truncate(1));
        assert!(
            no_cache.contains("a last-level cache") && no_cache.contains("lab-cxl.toml"),
            "{no_cache}"
        );
        let lines = refused(|m| m.caches[1].line = Bytes(128));
        assert!(lines.contains("cache lines of 128 B"), "{lines}");
        let large = refused(|m| m.nodes[1].capacity = Bytes::gib(256));
        assert!(large.contains("256") && large.contains("lower `capacity`"), "{large}");
        let small = refused(|m| m.nodes[1].capacity = Bytes::mib(20));
        assert!(small.contains("20 MiB") && small.contains("raise"), "{small}");
        let cached = refused(|m| m.caches[1].size = Bytes::mib(32));
        assert!(
            cached.contains("node 0 has 192 MiB") && cached.contains("128 MiB of it"),
            "{cached}"
        );
        let numbers = refused(|m| m.nodes[1].id = terrace_types::NodeId(4));
        assert!(numbers.contains("found node 4") && numbers.contains("renumber"), "{numbers}");
    }

    #[test]
    fn translations_are_lost_now_and_then_whatever_the_file_says() {
        let lab = preset("lab-cxl").unwrap();
        assert_eq!(fit(&lab, None).unwrap().1, lab, "a lab machine is left as it is");
        let mut silent = lab.clone();
        silent.core.tlb_flush = Nanos::ZERO;
        assert_eq!(fit(&silent, None).unwrap().1, lab);
    }

    /// Probed in a machine of the lab, by `terrace lab run --machine lab-cxl -- terrace probe
    /// --brief -o FILE`.
    #[test]
    fn a_probed_file_is_a_machine_of_the_lab() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/machines/probed-in-the-lab.toml");
        let machine =
            Machine::from_toml(&std::fs::read_to_string(path).unwrap(), "probed").unwrap();
        let (shape, fitted) = fit(&machine, None).unwrap();
        let (made_from, _) = fit(&preset("lab-cxl").unwrap(), None).unwrap();
        assert_eq!(
            (shape.vcpus, shape.fast, shape.slow),
            (made_from.vcpus, made_from.fast, made_from.slow)
        );
        assert_eq!(
            shape.nodes.iter().map(|n| n.cpus.clone()).collect::<Vec<_>>(),
            [vec![0, 1], vec![]]
        );
        assert!(
            shape
                .nodes
                .iter()
                .zip(&made_from.nodes)
                .all(|(p, m)| p.bytes <= m.bytes && p.bytes > m.bytes / 2),
            "{shape:?}"
        );
        for (probed, made) in shape.links.iter().zip(&made_from.links) {
            let off = |a: u64, b: u64| (a as f64 / b as f64 - 1.0).abs();
            assert!(
                off(probed.read_latency_ns, made.read_latency_ns) < 0.05,
                "{probed:?} {made:?}"
            );
            assert!(off(probed.read_bandwidth, made.read_bandwidth) < 0.10, "{probed:?} {made:?}");
        }
        // What the plugin reads is what was fitted.
        let text = fitted.to_toml();
        assert_eq!(Machine::from_toml(&text, "fitted").unwrap().to_toml(), text);
    }
}
