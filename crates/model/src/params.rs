//! The machine file as integers: what the model needs to know, checked once.

use crate::layout::AddressLayout;
use crate::loaded::LoadedCurves;
use crate::{LINE, PS};
use terrace_machine::{rank, CacheLevel, Machine, Node, RankAttribute, RankError, Tier};
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// Instructions that a core looks ahead past an unfinished miss: the reorder buffer of a
/// present-day core.
const WINDOW: u64 = 256;
const MAX_VCPUS: u32 = 64;
/// A node has whole base pages; less than one at its end is not used.
const PAGE: u64 = 4096;
/// Most bytes of caches that are modelled, all of them together: a host keeps an eighth of it and
/// more. Servers have some 1.2 GiB.
const MAX_CACHES: u64 = 4 << 30;
/// Most bytes of memory: pages have 32-bit frame numbers.
const MAX_MEMORY: u64 = 1 << 44;
/// Most misses in flight that the model keeps account of.
pub const MAX_OUTSTANDING: usize = 64;

/// Why a machine file cannot be modelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelError {
    /// Something that the model needs is not in the machine file.
    Missing(String),
    /// A figure lies outside what the model can do.
    Unusable(String),
}

impl std::fmt::Display for ModelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "the machine file does not tell {what}"),
            Self::Unusable(what) => write!(f, "the machine file cannot be modelled: {what}"),
        }
    }
}

impl std::error::Error for ModelError {}

/// Choices that are not in the machine file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelOptions {
    /// vCPUs of the virtual machine.
    pub vcpus: u32,
    /// Time every node as the fastest.
    pub all_fast: bool,
    /// Each node of the best tier is a direct-mapped cache in front of the nodes nearest to it.
    pub memory_mode: bool,
    /// In place of the machine file's `outstanding_misses`.
    pub outstanding: Option<u32>,
}

/// Size, ways, and time of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheParams {
    /// Bytes.
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u32,
    /// Added time of a hit, picoseconds.
    pub hit_ps: u64,
}

/// One node as one vCPU sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkParams {
    /// Latency of a load, picoseconds.
    pub read_latency: u64,
    /// Latency of a store, picoseconds.
    pub write_latency: u64,
    /// Time that reading one block takes on the node's bus, picoseconds.
    pub read_block: u64,
    /// Time that writing one block takes on the node's bus, picoseconds.
    pub write_block: u64,
    /// Bytes of a block: what the medium reads and writes at once, at least a line.
    pub block: u64,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelParams {
    /// Latency under load of each node.
    pub loaded: Vec<LoadedCurves>,
    /// Time of an instruction, picoseconds.
    pub instruction: u64,
    /// Misses in flight at most, a core.
    pub outstanding: usize,
    /// Instructions that a core goes on past an unfinished miss.
    pub window: u64,
    /// First level, one a core.
    pub l1: CacheParams,
    /// Middle level, one a core; of several the one nearest the last level. A middle level that is
    /// shared is left out.
    pub l2: Option<CacheParams>,
    /// Last level, shared.
    pub llc: CacheParams,
    /// Bytes of each node, whole base pages.
    pub sizes: Vec<u64>,
    /// Which addresses belong to which node.
    pub layout: AddressLayout,
    /// Home node (index) of each vCPU.
    pub homes: Vec<usize>,
    /// By vCPU, then by node.
    pub links: Vec<Vec<LinkParams>>,
    /// Interval after which a vCPU's translations are dropped, picoseconds; zero: never.
    pub tlb_flush: u64,
    /// First node (index) of the best tier as vCPU 0 sees it, by the ranking that `terrace tiers`
    /// shows.
    pub fast: usize,
    /// Of the worst.
    pub slow: usize,
    /// The fast nodes cache the others.
    pub memory_mode: bool,
    /// Of each node, in memory mode: the fast node that caches it, and the node that its lines come
    /// from (itself, but for a fast node, which the kernel does not see then and which stands for a
    /// slow one here).
    pub cached_by: Vec<(usize, usize)>,
    /// Every node is timed as the fastest, and they share its bus.
    pub all_fast: bool,
}

impl ModelParams {
    /// Index of the bus that serves a node.
    #[inline]
    #[must_use]
    pub fn channel_of(&self, node: usize) -> usize {
        if self.all_fast {
            self.fast
        } else {
            node
        }
    }

    /// The machine as `options.vcpus` vCPUs see it.
    pub fn from_machine(machine: &Machine, options: ModelOptions) -> Result<Self, ModelError> {
        if machine.nodes.is_empty() {
            return Err(ModelError::Missing("any node".into()));
        }
        let homes = deal_vcpus(machine, options.vcpus)?;
        let mut links = Vec::with_capacity(homes.len());
        for home in &homes {
            let row: Result<Vec<_>, _> =
                machine.nodes.iter().map(|node| link(machine, *home, node)).collect();
            links.push(row?);
        }
        let (fast, slow) = ends(machine, machine.nodes[homes[0]].id)?;
        let cached_by = cached_by(&links, fast, slow);
        if options.all_fast {
            for row in &mut links {
                let best = row[fast];
                row.fill(best);
            }
        }
        if options.memory_mode && fast == slow {
            return Err(ModelError::Unusable("memory mode needs two tiers".into()));
        }
        let first = machine.caches.iter().find(|c| c.level == 1);
        let last = machine.caches.iter().filter(|c| c.level > 1).max_by_key(|c| c.level);
        let between =
            |c: &&CacheLevel| c.level > 1 && !c.shared && last.is_some_and(|l| c.level < l.level);
        let middle = machine.caches.iter().filter(between).max_by_key(|c| c.level);
        let sizes: Vec<u64> =
            machine.nodes.iter().map(|n| n.capacity.get() / PAGE * PAGE).collect();
        let memory = sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size));
        if memory > MAX_MEMORY - (4 << 30) {
            return Err(ModelError::Unusable(format!("{} of memory", Bytes(memory))));
        }
        let own = [first, middle].into_iter().flatten().map(|c| c.size.get()).sum::<u64>();
        let caches = own.saturating_mul(u64::from(options.vcpus));
        let caches = caches.saturating_add(last.map_or(0, |c| c.size.get()));
        if caches > MAX_CACHES {
            return Err(ModelError::Unusable(format!(
                "{} of caches, those of {} cores together; {} work",
                Bytes(caches),
                options.vcpus,
                Bytes(MAX_CACHES)
            )));
        }
        let outstanding = options.outstanding.unwrap_or(machine.core.outstanding_misses) as usize;
        if outstanding == 0 || outstanding > MAX_OUTSTANDING {
            return Err(ModelError::Unusable(format!(
                "{outstanding} outstanding misses; 1 to {MAX_OUTSTANDING} work"
            )));
        }
        let loaded = |node: &Node| {
            LoadedCurves::new(machine.loaded.iter().filter(|curve| curve.node == node.id))
        };
        Ok(Self {
            loaded: machine.nodes.iter().map(loaded).collect(),
            instruction: picos(machine.core.ns_per_instruction)?,
            outstanding,
            window: WINDOW,
            l1: cache(first, "a level 1 cache")?,
            l2: middle.map(|level| cache(Some(level), "a middle cache")).transpose()?,
            llc: cache(last, "a last-level cache")?,
            layout: AddressLayout::q35(&sizes),
            sizes,
            homes,
            links,
            tlb_flush: machine.core.tlb_flush.get().saturating_mul(PS),
            fast,
            slow,
            memory_mode: options.memory_mode,
            cached_by,
            all_fast: options.all_fast,
        })
    }
}

/// Indexes of the first nodes of the best and of the worst tier.
fn ends(machine: &Machine, initiator: NodeId) -> Result<(usize, usize), ModelError> {
    let unusable = |e: RankError| ModelError::Unusable(e.to_string());
    let ranking = rank(machine, RankAttribute::Bandwidth, Some(initiator)).map_err(unusable)?;
    let index = |tier: Option<&Tier>| {
        let id = tier.and_then(|t| t.nodes.iter().min())?;
        machine.nodes.iter().position(|n| n.id == *id)
    };
    Ok((index(ranking.tiers.first()).unwrap_or(0), index(ranking.tiers.last()).unwrap_or(0)))
}

/// [`ModelParams::cached_by`]. Nodes are as fast as `fast`, or as slow as `slow`, that are so for
/// their nearest vCPU; the two that are nearest to each other by way of some vCPU belong together,
/// as a cluster's two memories do on Knights Landing (SNC-4 in cache mode).
fn cached_by(links: &[Vec<LinkParams>], fast: usize, slow: usize) -> Vec<(usize, usize)> {
    let nodes = 0..links.first().map_or(0, Vec::len);
    let at_best = |n: usize| {
        links.iter().map(|row| (row[n].read_latency, row[n].read_block, row[n].block)).min()
    };
    let like =
        |one: usize| nodes.clone().filter(|n| at_best(*n) == at_best(one)).collect::<Vec<_>>();
    let (best, worst) = (like(fast), like(slow));
    let apart = |a: usize, b: usize| {
        links.iter().map(|row| row[a].read_latency + row[b].read_latency).min()
    };
    let nearest = |to: usize, among: &[usize]| {
        among.iter().copied().min_by_key(|n| apart(to, *n)).unwrap_or(to)
    };
    let pair =
        |n: usize| if best.contains(&n) { (n, nearest(n, &worst)) } else { (nearest(n, &best), n) };
    nodes.clone().map(pair).collect()
}

fn picos(ns: f64) -> Result<u64, ModelError> {
    let ps = (ns * PS as f64).round();
    if (1.0..=1e6).contains(&ps) {
        Ok(ps as u64)
    } else {
        Err(ModelError::Unusable(format!("{ns} ns an instruction; 0.001 to 1000 work")))
    }
}

fn cache(level: Option<&CacheLevel>, what: &str) -> Result<CacheParams, ModelError> {
    let level = level.ok_or_else(|| ModelError::Missing(what.into()))?;
    if level.line.get() != LINE {
        return Err(ModelError::Unusable(format!(
            "cache lines of {}; only {LINE} B work",
            level.line
        )));
    }
    Ok(CacheParams {
        bytes: level.size.get(),
        ways: level.ways,
        hit_ps: level.hit.get().saturating_mul(PS),
    })
}

/// Home node (index) of each vCPU: as the machine file says if the number agrees, else dealt out in
/// turn.
fn deal_vcpus(machine: &Machine, vcpus: u32) -> Result<Vec<usize>, ModelError> {
    if vcpus == 0 || vcpus > MAX_VCPUS {
        return Err(ModelError::Unusable(format!("{vcpus} vCPUs; 1 to {MAX_VCPUS} work")));
    }
    let holders: Vec<usize> =
        (0..machine.nodes.len()).filter(|n| !machine.nodes[*n].cpus.is_empty()).collect();
    let Some(&first) = holders.first() else {
        return Err(ModelError::Missing("any node with CPUs".into()));
    };
    let all: usize = machine.nodes.iter().map(|n| n.cpus.len()).sum();
    let wanted = vcpus as usize;
    let mut homes: Vec<usize> = if wanted == all {
        holders.iter().flat_map(|n| std::iter::repeat_n(*n, machine.nodes[*n].cpus.len())).collect()
    } else if wanted < holders.len() {
        vec![first; wanted]
    } else {
        (0..wanted).map(|i| holders[i % holders.len()]).collect()
    };
    homes.sort_unstable();
    Ok(homes)
}

fn link(machine: &Machine, home: usize, node: &Node) -> Result<LinkParams, ModelError> {
    let from: NodeId = machine.nodes[home].id;
    let missing = |what: &str| {
        ModelError::Missing(format!("the {what} from node {} to node {}", from.0, node.id.0))
    };
    let link = machine.link(from, node.id).ok_or_else(|| missing("figures"))?;
    let ps = |n: Nanos| n.get().saturating_mul(PS);
    let read_latency = ps(link.read_latency.ok_or_else(|| missing("read latency"))?.value);
    let read_rate = link.read_bandwidth.ok_or_else(|| missing("read bandwidth"))?.value;
    let write_rate = link.write_bandwidth.map_or(read_rate, |f| f.value);
    let block = node.block.get().max(LINE);
    if !block.is_power_of_two() || block > 4096 {
        return Err(ModelError::Unusable(format!(
            "blocks of {}; powers of two up to 4096 B work",
            node.block
        )));
    }
    Ok(LinkParams {
        read_latency,
        write_latency: link.write_latency.map_or(read_latency, |f| ps(f.value)),
        read_block: transfer(block, read_rate)?,
        write_block: transfer(block, write_rate)?,
        block,
    })
}

/// Picoseconds that `bytes` take at `rate`.
fn transfer(bytes: u64, rate: BytesPerSec) -> Result<u64, ModelError> {
    let ps = u128::from(bytes) * 1_000_000_000_000 / u128::from(rate.get().max(1));
    match u64::try_from(ps) {
        Ok(ps) if (1..1_000_000_000).contains(&ps) => Ok(ps),
        _ => Err(ModelError::Unusable(format!("a bandwidth of {} bytes a second", rate.get()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(preset: &str, options: ModelOptions) -> Result<ModelParams, ModelError> {
        ModelParams::from_machine(&terrace_machine::preset(preset).unwrap(), options)
    }

    const TWO: ModelOptions =
        ModelOptions { vcpus: 2, all_fast: false, memory_mode: false, outstanding: None };

    #[test]
    fn lab_cxl_in_picoseconds() {
        let p = of("lab-cxl", TWO).unwrap();
        assert_eq!((p.instruction, p.fast, p.slow), (250, 0, 1));
        let file = terrace_machine::preset("lab-cxl").unwrap();
        assert_eq!(p.outstanding, file.core.outstanding_misses as usize);
        assert_eq!(
            of("lab-cxl", ModelOptions { outstanding: Some(10), ..TWO }).unwrap().outstanding,
            10
        );
        assert_eq!((p.links[1][0].read_latency, p.links[1][0].read_block), (80_000, 640));
        assert_eq!((p.links[0][1].read_latency, p.links[0][1].read_block), (300_000, 3200));
        assert_eq!((p.llc.hit_ps, p.tlb_flush), (15_000, 500_000_000));
        let fast = of("lab-cxl", ModelOptions { all_fast: true, ..TWO }).unwrap();
        assert_eq!(fast.links[0][1], p.links[0][0]);
    }

    #[test]
    fn where_latency_ties_bandwidth_decides_which_tier_is_fast() {
        let plain = of("lab-hbm", TWO).unwrap();
        assert_eq!((plain.fast, plain.slow), (1, 0));
        assert_eq!(plain.links[0][0].read_latency, plain.links[0][1].read_latency);
        let fast = of("lab-hbm", ModelOptions { all_fast: true, ..TWO }).unwrap();
        assert_eq!(fast.links[0][0], plain.links[0][1]);
        assert_eq!(fast.channel_of(0), 1);
        assert!(of("lab-hbm", ModelOptions { memory_mode: true, ..TWO }).is_ok());
    }

    #[test]
    fn a_private_level_between_is_modelled() {
        assert_eq!(of("lab-cxl", TWO).unwrap().l2, None);
        let p = of("dram-dcpmm", TWO).unwrap();
        assert_eq!((p.l2.unwrap().bytes, p.llc.bytes), (1 << 20, 22 << 20));
    }

    #[test]
    fn dcpmm_is_asymmetric_and_coarse() {
        let p = of("lab-dcpmm", TWO).unwrap();
        let slow = p.links[0][1];
        assert_eq!((slow.block, slow.read_block, slow.write_block), (256, 19_692, 55_652));
    }

    #[test]
    fn every_lab_preset_can_be_modelled() {
        for name in terrace_machine::preset_names().filter(|n| n.starts_with("lab-")) {
            assert!(of(name, TWO).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_node_of_less_than_a_mebibyte_keeps_its_whole_pages() {
        let mut machine = terrace_machine::preset("lab-cxl").unwrap();
        machine.nodes[0].capacity = Bytes(400 << 10);
        machine.nodes[1].capacity = Bytes((3 << 20) + 4095);
        let p = ModelParams::from_machine(&machine, TWO).unwrap();
        assert_eq!(p.sizes, [400 << 10, 3 << 20]);
        assert_eq!(p.layout.node_of((400 << 10) - 1), Some(0));
        assert_eq!(p.layout.node_of(400 << 10), Some(1));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(of("lab-cxl", ModelOptions { vcpus: 0, ..TWO }).is_err());
        assert!(of("lab-cxl", ModelOptions { outstanding: Some(0), ..TWO }).is_err());
        let mut m = terrace_machine::preset("lab-cxl").unwrap();
        m.caches[1].size = terrace_types::Bytes::gib(5);
        let said = ModelParams::from_machine(&m, TWO).unwrap_err().to_string();
        assert!(said.contains("of caches"), "{said}");
        let mut vast = terrace_machine::preset("lab-cxl").unwrap();
        vast.nodes[1].capacity = terrace_types::Bytes(1 << 50);
        let said = ModelParams::from_machine(&vast, TWO).unwrap_err().to_string();
        assert!(said.contains("of memory"), "{said}");
        m.caches.clear();
        assert!(matches!(ModelParams::from_machine(&m, TWO), Err(ModelError::Missing(_))));
    }
}
