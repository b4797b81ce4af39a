//! Features of an array and a placement, without counters: what the source, the launch and the
//! device's profile say.

use crate::analysis::{ArrayAccess, KernelAccess};
use crate::data::DeviceFigures;
use crate::placement::ArrayPlacement;
use crate::source::KernelArray;

/// Version of the list below; a model of another version is refused.
pub const FEATURE_VERSION: u32 = 1;

/// Names of the features, in the order of a vector.
pub const FEATURE_NAMES: [&str; 42] = [
    "log2_bytes",
    "log2_bytes_of_l2",
    "element_bytes",
    "loads",
    "stores",
    "atomics",
    "sectors",
    "uniform",
    "indirect",
    "sequential",
    "invariant",
    "sites",
    "depth",
    "divergent",
    "log2_reuse",
    "share_of_accesses",
    "share_of_sectors",
    "has_tile",
    "read_only",
    "operations_per_load",
    "log2_operations",
    "log2_iterations",
    "data_branches",
    "loads_after_stores",
    "kernel_loads",
    "kernel_stores",
    "kernel_atomics",
    "kernel_uniform",
    "arrays",
    "log2_block",
    "block_x",
    "log2_blocks",
    "waves",
    "log2_kernel_bytes_of_l2",
    "staging_per_load",
    "shared_bytes_share",
    "occupancy_if_shared",
    "log2_tile_traffic",
    "log2_tile_atomics",
    "log2_traffic",
    "log2_l2_bytes",
    "memory_bytes_per_ns",
];

/// What is known of a launch, for all of its arrays.
#[derive(Debug, Clone)]
pub struct LaunchFacts<'a> {
    /// Arrays of the kernel.
    pub arrays: &'a [KernelArray],
    /// Elements of each.
    pub elements: &'a [u64],
    /// The analysis.
    pub access: &'a KernelAccess,
    /// The analyses with a tile, by array.
    pub tiled: &'a [Option<KernelAccess>],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// The device's profile.
    pub device: &'a DeviceFigures,
}

fn log2(value: f64) -> f64 {
    value.max(1e-6).log2()
}

/// The features of one array of a launch.
#[must_use]
pub fn array_features(facts: &LaunchFacts<'_>, array: usize) -> Vec<f64> {
    let figure = |name: &str, otherwise: f64| facts.device.get(name).copied().unwrap_or(otherwise);
    let l2 = figure("l2_bytes", 50e6).max(1.0);
    let own = facts.access.arrays.get(array).copied().unwrap_or_default();
    let (element_bytes, has_tile, written) = facts
        .arrays
        .get(array)
        .map_or((4.0, false, false), |a| (a.element_bytes as f64, a.has_tile, a.written));
    let elements = facts.elements.get(array).copied().unwrap_or(0) as f64;
    let bytes = (elements * element_bytes).max(1.0);
    let sum = |value: &dyn Fn(&ArrayAccess) -> f64| -> f64 {
        facts.access.arrays.iter().map(value).sum()
    };
    let total = |a: &ArrayAccess| a.loads + a.stores + a.atomics;
    let (all, all_sectors) = (sum(&total).max(1e-6), sum(&|a| total(a) * a.sectors).max(1e-6));
    let kernel_bytes: f64 = facts
        .arrays
        .iter()
        .zip(facts.elements)
        .map(|(a, n)| a.element_bytes as f64 * *n as f64)
        .sum();
    let threads = f64::from(facts.block.iter().product::<u32>().max(1));
    let blocks: f64 = facts.grid.iter().map(|g| f64::from((*g).max(1))).product();
    let multiprocessors = figure("multiprocessors", 100.0).max(1.0);
    let resident =
        (figure("threads_per_multiprocessor", 2048.0) / threads).floor().clamp(1.0, 32.0);
    let shared = figure("shared_per_multiprocessor_bytes", 233_472.0);
    let resident_if_shared =
        if has_tile { resident } else { (shared / bytes).floor().min(resident) };
    let loads = own.loads.max(1e-6);
    let tile = facts.tiled.get(array).and_then(Option::as_ref);
    vec![
        log2(bytes),
        log2(bytes / l2),
        element_bytes,
        own.loads.min(1e4),
        own.stores.min(1e4),
        own.atomics.min(1e4),
        own.sectors,
        own.uniform,
        own.indirect,
        own.sequential,
        own.invariant,
        own.sites,
        own.depth,
        own.divergent,
        log2(total(&own) * threads * blocks / elements.max(1.0)),
        total(&own) / all,
        total(&own) * own.sectors / all_sectors,
        f64::from(u8::from(has_tile)),
        f64::from(u8::from(!written)),
        facts.access.operations / sum(&|a| a.loads).max(1.0),
        log2(facts.access.operations),
        log2(facts.access.iterations + 1.0),
        facts.access.data_branches,
        facts.access.loads_after_stores,
        sum(&|a| a.loads).min(1e4),
        sum(&|a| a.stores).min(1e4),
        sum(&|a| a.atomics).min(1e4),
        sum(&|a| total(a) * a.uniform) / all,
        facts.arrays.len() as f64,
        threads.log2(),
        f64::from(facts.block[0]),
        log2(blocks),
        (blocks / (resident * multiprocessors)).min(1e4),
        log2(kernel_bytes / l2),
        // A whole array is copied by each block: loads for it against loads that it saves.
        if has_tile { 0.0 } else { (elements / threads / loads).min(1e4) },
        (bytes / shared).min(10.0),
        resident_if_shared / resident,
        tile.map_or(0.0, |t| log2((t.traffic() + 0.1) / (facts.access.traffic() + 0.1))),
        tile.map_or(0.0, |t| log2((t.atomics() + 0.1) / (facts.access.atomics() + 0.1))),
        log2(facts.access.traffic()),
        log2(l2),
        figure("copy_67108864_global_bytes_per_ns", 2000.0),
    ]
}

/// Placements that a model chooses among; managed and pinned memory are no faster than global
/// memory in any measurement.
pub const LEARNED: [ArrayPlacement; 5] = [
    ArrayPlacement::ReadOnly,
    ArrayPlacement::Shared,
    ArrayPlacement::Constant,
    ArrayPlacement::Texture,
    ArrayPlacement::PersistingL2,
];
