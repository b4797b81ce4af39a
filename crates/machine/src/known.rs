//! Known machines whose firmware states no figures: there the distance table alone would take the
//! fastest memory for the slowest, since memory without CPUs is given large distances whatever it
//! is. Pure: who this is, the caller has found out.

use crate::model::{Link, Machine, MemoryKind, Node};
use crate::presets::preset;
use crate::rank::list;
use terrace_types::{Bytes, NodeId};

/// Which known machines the processors and drivers speak for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownModels {
    /// Intel Knights Landing or Knights Mill: memory without CPUs is its MCDRAM.
    pub knights_landing: bool,
    /// NVIDIA Grace with a GPU: memory without CPUs is the GPU's.
    pub grace_hopper: bool,
    /// POWER9 without a hypervisor, with NVIDIA GPUs: memory without CPUs is the GPUs'.
    pub power9_with_gpus: bool,
}

/// What is known of a model.
struct Known {
    model: &'static str,
    kind: MemoryKind,
    /// The preset whose figures hold, where there is one.
    preset: Option<&'static str>,
}

impl KnownModels {
    /// The model, for a machine with so many nodes without CPUs.
    fn known(self, nodes: usize) -> Option<Known> {
        let known = |model, kind, preset| Some(Known { model, kind, preset });
        if self.knights_landing {
            let preset = match nodes {
                1 => Some("knl-flat"),
                4 => Some("knl-snc4"),
                _ => None,
            };
            known("Knights Landing", MemoryKind::Hbm, preset)
        } else if self.grace_hopper {
            known("Grace Hopper", MemoryKind::Gpu, Some("grace-hopper"))
        } else if self.power9_with_gpus {
            known("POWER9 with GPUs", MemoryKind::Gpu, None)
        } else {
            None
        }
    }
}

/// Names the kind of nodes without CPUs on a known machine, and, where no figure of any node is
/// known and all distances are those of the preset, takes the preset's figures for them.
pub fn add_known_figures(machine: &mut Machine, models: KnownModels) {
    let is_special = |n: &Node| n.cpus.is_empty() && n.capacity > Bytes::ZERO;
    let special: Vec<NodeId> =
        machine.nodes.iter().filter(|n| is_special(n)).map(|n| n.id).collect();
    let Some(known) = models.known(special.len()).filter(|_| !special.is_empty()) else {
        return;
    };
    let mut named = Vec::new();
    for node in machine.nodes.iter_mut().filter(|n| is_special(n) && n.kind == MemoryKind::Unknown)
    {
        node.kind = known.kind;
        named.push(node.id);
    }
    let plural = |nodes: &[NodeId]| if nodes.len() == 1 { "" } else { "s" };
    if !named.is_empty() {
        machine.notes.push(format!(
            "Node{} {}: {} memory, as this machine is a {}.",
            plural(&named),
            list(&named),
            known.kind.name(),
            known.model
        ));
    }
    let Some((name, model)) = known.preset.and_then(|name| Some((name, preset(name)?))) else {
        return;
    };
    if machine.links.iter().any(Link::has_figures) {
        return;
    }
    let figures: Option<Vec<Link>> =
        machine.links.iter().map(|link| alike(link, machine, &model)).collect();
    if let Some(links) = figures.filter(|links| !links.is_empty()) {
        machine.links = links;
        machine.notes.push(format!(
            "Firmware states no figures: they are those of a {} (preset {name}).",
            known.model
        ));
    }
}

/// The link with the figures that the preset's has at the same distance, to memory of the same
/// kind.
fn alike(link: &Link, machine: &Machine, model: &Machine) -> Option<Link> {
    let kind = machine.node(link.target)?.kind;
    let like = model.links.iter().find(|l| {
        l.distance == link.distance && model.node(l.target).is_some_and(|n| n.kind == kind)
    })?;
    Some(Link { initiator: link.initiator, target: link.target, ..*like })
}
