//! A node made slower: threads near it run a 3-point stencil over a region of it and so take of its
//! bandwidth, as in section III.B of Perarnau et al., "Exploring Data Migration for Future
//! Deep-Memory Many-Core Systems". Their number, the additions between two steps and the region are
//! found by [`LoadSearch`], which is pure; [`Loader`] is the load itself.

mod control;
mod loader;
mod sampler;
mod search;

pub use control::{LoadController, LoadReading, LoadSummary, LoadTally, WINDOW};
pub use loader::{addition, Loader};
pub use sampler::ThreadSampler;
pub use search::{Knobs, LoadSearch, SearchAction};

use crate::plan::Situation;
use terrace_machine::Machine;
use terrace_types::{Bytes, BytesPerSec, CpuId, NodeId};

/// Why a node cannot be degraded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DegradeError {
    /// There is no such node with memory.
    #[error("node {0} has no memory that can be used here; see terrace tiers")]
    NoSuchNode(NodeId),
    /// One CPU cannot both load the node and run the command.
    #[error("one CPU may be used here; degrading takes one for the load and one for the command")]
    OneCpu,
    /// A CPU that the load was to have.
    #[error("CPU {0} cannot be used here; give the load CPUs of taskset -p $$")]
    NoSuchCpu(CpuId),
    /// No free space for the load's region.
    #[error("node {node} has {space} to spare, and the load takes {wanted}; free memory there")]
    NoSpace {
        /// Node.
        node: NodeId,
        /// What it has.
        space: Bytes,
        /// What is needed.
        wanted: Bytes,
    },
    /// The command has less than that anyway.
    #[error(
        "node {node} gives the command's CPUs {free} without any load; --to must be below that"
    )]
    AboveFree {
        /// Node.
        node: NodeId,
        /// What it gives.
        free: BytesPerSec,
    },
    /// All loading CPUs together do not take that much.
    #[error(
        "node {node} cannot be degraded below {least} with {cpus} CPUs for the load and \
        {region} of the node; it gives {free} without; give a larger --to, or more CPUs to the \
        load (--load-cpus)"
    )]
    OutOfReach {
        /// Node.
        node: NodeId,
        /// What is left under full load.
        least: BytesPerSec,
        /// What it gives without load.
        free: BytesPerSec,
        /// CPUs that load.
        cpus: u32,
        /// The largest region they went over.
        region: Bytes,
    },
    /// Other work changes what the node gives faster than knobs can be found.
    #[error(
        "node {node} gave {last} in the end, not {wanted} within 10%: other work loads it \
        too; try again"
    )]
    Unsteady {
        /// Node.
        node: NodeId,
        /// What was wanted.
        wanted: BytesPerSec,
        /// What was measured last.
        last: BytesPerSec,
    },
    /// A measurement failed.
    #[error(transparent)]
    Trouble(#[from] crate::task::Trouble),
}

/// Whose CPUs are whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuDivision {
    /// CPUs that load the node.
    pub loader: Vec<CpuId>,
    /// CPUs of the command.
    pub program: Vec<CpuId>,
}

/// Divides the CPUs that may be used: those of the node load it where others remain for the
/// command; else, and for a node without CPUs, half of those nearest to it. `load` are the load's
/// where somebody chose them.
///
/// # Errors
/// [`DegradeError::NoSuchNode`], [`DegradeError::OneCpu`], [`DegradeError::NoSuchCpu`].
pub fn divide(
    situation: &Situation,
    node: NodeId,
    load: Option<&[CpuId]>,
) -> Result<CpuDivision, DegradeError> {
    let machine = &situation.machine;
    let known = machine.node(node).is_some_and(|n| n.capacity > Bytes::ZERO)
        && situation.nodes.contains(&node);
    if !known {
        return Err(DegradeError::NoSuchNode(node));
    }
    if situation.cpus.len() < 2 {
        return Err(DegradeError::OneCpu);
    }
    let own = situation.cpus_of(node);
    if let Some(cpu) = load.unwrap_or_default().iter().find(|cpu| !situation.cpus.contains(cpu)) {
        return Err(DegradeError::NoSuchCpu(*cpu));
    }
    let loader = if let Some(chosen) = load {
        chosen.to_vec()
    } else if !own.is_empty() && own.len() < situation.cpus.len() {
        own
    } else {
        let mut cells = situation.initiators();
        cells.sort_by_key(|cell| (distance(machine, *cell, node), *cell));
        let near: Vec<CpuId> = cells.iter().flat_map(|cell| situation.cpus_of(*cell)).collect();
        let half = (near.len() / 2).max(1);
        // The last ones of the nearest node, so that the command keeps the first, where programs
        // expect to be.
        let nearest = cells.first().map_or(near.len(), |cell| situation.cpus_of(*cell).len());
        let from = nearest.saturating_sub(half);
        near[from..nearest].to_vec()
    };
    let program: Vec<CpuId> =
        situation.cpus.iter().copied().filter(|cpu| !loader.contains(cpu)).collect();
    if program.is_empty() || loader.is_empty() {
        return Err(DegradeError::OneCpu);
    }
    Ok(CpuDivision { loader, program })
}

/// How far memory is: its latency where known, else its distance.
fn distance(machine: &Machine, from: NodeId, to: NodeId) -> u64 {
    let link = machine.link(from, to);
    let latency = link.and_then(|l| l.read_latency).map(|f| f.value.get());
    latency.or_else(|| link.and_then(|l| l.distance).map(u64::from)).unwrap_or(u64::MAX)
}

/// The load's regions, the smallest and the largest: two and sixteen times the caches, of which
/// half and next to all comes from memory, within what the node has to spare.
///
/// # Errors
/// [`DegradeError::NoSpace`].
pub fn regions(situation: &Situation, node: NodeId) -> Result<(Bytes, Bytes), DegradeError> {
    let space = situation.space(node);
    let least = Bytes(situation.last_cache.get().max(8 << 20) * 2);
    if space < least {
        return Err(DegradeError::NoSpace { node, space, wanted: least });
    }
    Ok((least, Bytes(least.get().saturating_mul(8)).min(space)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::situation;

    /// One test loads at a time: they count threads.
    pub(super) static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn numbers(cpus: &[CpuId]) -> Vec<u32> {
        cpus.iter().map(|c| c.0).collect()
    }

    #[test]
    fn the_nodes_own_cpus_load_it_where_others_remain() {
        let two = situation(&[(4, 8_000, 4_000), (4, 8_000, 4_000)]);
        let division = divide(&two, NodeId(1), None).unwrap();
        assert_eq!(
            (numbers(&division.loader), numbers(&division.program)),
            (vec![4, 5, 6, 7], vec![0, 1, 2, 3])
        );
        let one = situation(&[(4, 8_000, 4_000)]);
        let division = divide(&one, NodeId(0), None).unwrap();
        assert_eq!(
            (numbers(&division.loader), numbers(&division.program)),
            (vec![2, 3], vec![0, 1])
        );
        let without = situation(&[(3, 8_000, 4_000), (0, 8_000, 4_000)]);
        let division = divide(&without, NodeId(1), None).unwrap();
        assert_eq!((numbers(&division.loader), numbers(&division.program)), (vec![2], vec![0, 1]));
    }

    #[test]
    fn the_loads_cpus_may_be_chosen() {
        let one = situation(&[(4, 8_000, 4_000)]);
        let division = divide(&one, NodeId(0), Some(&[CpuId(1), CpuId(2), CpuId(3)])).unwrap();
        assert_eq!(
            (numbers(&division.loader), numbers(&division.program)),
            (vec![1, 2, 3], vec![0])
        );
        let all: Vec<CpuId> = (0..4).map(CpuId).collect();
        assert_eq!(
            divide(&one, NodeId(0), Some(&all)),
            Err(DegradeError::OneCpu),
            "none is left for the command"
        );
        assert_eq!(divide(&one, NodeId(0), Some(&[])), Err(DegradeError::OneCpu));
        assert_eq!(
            divide(&one, NodeId(0), Some(&[CpuId(4)])),
            Err(DegradeError::NoSuchCpu(CpuId(4)))
        );
    }

    #[test]
    fn what_cannot_be_divided_is_an_error() {
        assert_eq!(
            divide(&situation(&[(1, 8_000, 4_000)]), NodeId(0), None),
            Err(DegradeError::OneCpu)
        );
        assert_eq!(
            divide(&situation(&[(2, 8_000, 4_000)]), NodeId(3), None),
            Err(DegradeError::NoSuchNode(NodeId(3)))
        );
        assert_eq!(
            divide(&situation(&[(2, 8, 4), (2, 0, 0)]), NodeId(1), None),
            Err(DegradeError::NoSuchNode(NodeId(1)))
        );
        let full = regions(&situation(&[(2, 8_000, 40)]), NodeId(0));
        assert!(matches!(full, Err(DegradeError::NoSpace { .. })), "{full:?}");
        assert_eq!(
            regions(&situation(&[(2, 8_000, 4_000)]), NodeId(0)),
            Ok((Bytes::mib(64), Bytes::mib(512)))
        );
        let (least, most) = regions(&situation(&[(2, 8_000, 300)]), NodeId(0)).unwrap();
        assert_eq!((least, most), (Bytes::mib(64), situation(&[(2, 8_000, 300)]).space(NodeId(0))));
    }
}
