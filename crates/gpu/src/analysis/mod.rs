//! How a kernel accesses its arrays, found by evaluating its index expressions for one warp.
//!
//! Each lane walks the body with the launch's numbers. What is loaded from memory is not known;
//! it keeps the place it was loaded from as its name, so that equal and neighbouring addresses
//! are recognised. Loops run twice and weigh as much as all their iterations.

mod expression;
mod walk;

use crate::source::{preprocess, Definitions, KernelSignature};
use std::collections::BTreeMap;
use walk::{Access, LaneWalk};

/// Lanes of a warp.
const WARP: u32 = 32;
/// Bytes of a sector, what a cache line is fetched in.
const SECTOR: i64 = 32;

/// The numbers of a launch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LaunchNumbers {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Values of the scalars by name; those that are missing are unknown.
    pub scalars: BTreeMap<String, i64>,
    /// Definitions of the source.
    pub defines: Definitions,
}

/// How one array is accessed by a thread or a warp.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ArrayAccess {
    /// Loads of a thread.
    pub loads: f64,
    /// Stores of a thread.
    pub stores: f64,
    /// Atomic updates of a thread.
    pub atomics: f64,
    /// Sectors of 32 bytes that a warp's access touches, in the mean; 32 where data decides.
    pub sectors: f64,
    /// Share of accesses at one address for all lanes.
    pub uniform: f64,
    /// Share of accesses whose address was loaded from memory.
    pub indirect: f64,
    /// Share of accesses that move by one element an iteration of the innermost loop.
    pub sequential: f64,
    /// Share of accesses at an address that does not move in the innermost loop.
    pub invariant: f64,
    /// Places in the source that access it.
    pub sites: f64,
    /// Nested loops around its accesses, in the mean.
    pub depth: f64,
    /// Share of accesses by some lanes only.
    pub divergent: f64,
}

/// How a kernel behaves as a whole.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KernelAccess {
    /// By array, in the kernel's order.
    pub arrays: Vec<ArrayAccess>,
    /// Arithmetic operations of a thread.
    pub operations: f64,
    /// Iterations of all loops of a thread.
    pub iterations: f64,
    /// Share of branches that data decides.
    pub data_branches: f64,
    /// Loads of a thread that come after a store, so that the compiler may not reorder them.
    pub loads_after_stores: f64,
}

impl KernelAccess {
    /// Sectors of 32 bytes that a thread's loads, stores and updates of global memory touch.
    #[must_use]
    pub fn traffic(&self) -> f64 {
        let own = |a: &ArrayAccess| (a.loads + a.stores + a.atomics) * a.sectors;
        self.arrays.iter().map(own).sum()
    }

    /// Atomic updates of global memory by a thread.
    #[must_use]
    pub fn atomics(&self) -> f64 {
        self.arrays.iter().map(|a| a.atomics).sum()
    }
}

/// Analyses the kernel once more for each array with a tile, with that tile.
#[must_use]
pub fn analyze_tiles(
    source: &str,
    kernel: &KernelSignature,
    launch: &LaunchNumbers,
) -> Vec<Option<KernelAccess>> {
    let tiled = |array: &crate::source::KernelArray| {
        array.has_tile.then(|| {
            let mut launch = launch.clone();
            launch.defines.insert(format!("TILE_{}", array.name), 1);
            analyze_kernel(source, kernel, &launch)
        })
    };
    kernel.arrays.iter().map(tiled).collect()
}

/// Analyses a kernel of `source` under a launch. What it cannot follow weighs as data-dependent.
#[must_use]
pub fn analyze_kernel(
    source: &str,
    kernel: &KernelSignature,
    launch: &LaunchNumbers,
) -> KernelAccess {
    let mut defines = launch.defines.clone();
    let [bx, by, _] = launch.block;
    defines.entry("BLOCK_X".to_owned()).or_insert(i64::from(bx));
    defines.entry("BLOCK_Y".to_owned()).or_insert(i64::from(by));
    let (text, defines) = preprocess(source, &defines);
    // The positions of the original do not hold in the preprocessed text.
    let found = crate::source::find_kernels(&text).unwrap_or_default();
    let Some(plain) = found.iter().find(|k| k.name == kernel.name) else {
        return KernelAccess {
            arrays: vec![ArrayAccess::default(); kernel.arrays.len()],
            ..KernelAccess::default()
        };
    };
    let threads: u32 = launch.block.iter().product();
    let lanes = WARP.min(threads.max(1));
    let walks: Vec<LaneWalk> =
        (0..lanes).map(|lane| LaneWalk::run(&text, plain, launch, &defines, lane)).collect();
    summarize(kernel, &walks, lanes)
}

fn summarize(kernel: &KernelSignature, walks: &[LaneWalk], lanes: u32) -> KernelAccess {
    let share = 1.0 / f64::from(lanes);
    let mean = |value: &dyn Fn(&LaneWalk) -> f64| walks.iter().map(value).sum::<f64>() * share;
    // Accesses of the lanes that belong together: the same place in the source and iteration.
    let mut groups: BTreeMap<(usize, usize, u64), Vec<&Access>> = BTreeMap::new();
    for access in walks.iter().flat_map(|walk| &walk.accesses) {
        groups.entry((access.array, access.site, access.path)).or_default().push(access);
    }
    let mut arrays = vec![ArrayAccess::default(); kernel.arrays.len()];
    let mut weights = vec![0.0; kernel.arrays.len()];
    let mut sites = vec![std::collections::BTreeSet::new(); kernel.arrays.len()];
    for ((array, site, _), group) in &groups {
        let (Some(out), Some(kernel_array)) = (arrays.get_mut(*array), kernel.arrays.get(*array))
        else {
            continue;
        };
        let weight: f64 = group.iter().map(|a| a.weight).sum::<f64>() * share;
        weights[*array] += weight;
        sites[*array].insert(*site);
        match (group[0].write, group[0].atomic) {
            (_, true) => out.atomics += weight,
            (true, _) => out.stores += weight,
            _ => out.loads += weight,
        }
        let bytes = kernel_array.element_bytes as i64;
        let names: std::collections::BTreeSet<(u64, i64)> = group
            .iter()
            .map(|a| (a.index.name, a.index.offset.saturating_mul(bytes).div_euclid(SECTOR)))
            .collect();
        let one = group.iter().all(|a| a.index == group[0].index);
        out.sectors += weight * names.len() as f64;
        out.uniform += if one { weight } else { 0.0 };
        out.indirect += if group.iter().any(|a| a.index.name != 0) { weight } else { 0.0 };
        out.divergent += if group.len() < lanes as usize { weight } else { 0.0 };
        out.depth += weight * f64::from(group[0].depth);
        match group[0].loop_step {
            Some(1) => out.sequential += weight,
            Some(0) => out.invariant += weight,
            _ => {}
        }
    }
    for ((out, weight), sites) in arrays.iter_mut().zip(&weights).zip(&sites) {
        out.sites = sites.len() as f64;
        if *weight > 0.0 {
            let parts = [
                &mut out.sectors,
                &mut out.uniform,
                &mut out.indirect,
                &mut out.divergent,
                &mut out.depth,
                &mut out.sequential,
                &mut out.invariant,
            ];
            parts.into_iter().for_each(|part| *part /= weight);
        }
    }
    KernelAccess {
        arrays,
        operations: mean(&|w| w.operations),
        iterations: mean(&|w| w.iterations),
        data_branches: mean(&|w| w.data_branches / w.branches.max(1.0)),
        loads_after_stores: mean(&|w| w.loads_after_stores),
    }
}
