//! The variants of a kernel that are measured: one placement changed at a time, and sensible
//! combinations.

use crate::placement::{check_placement, ArrayPlacement, PlacementLimits};
use crate::source::{KernelSignature, PlacedArray};
use std::fmt;

/// Placements of a kernel's arrays, in the order of its arrays.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelVariant {
    /// One placement for each array.
    pub placements: Vec<ArrayPlacement>,
}

impl KernelVariant {
    /// All arrays in global memory.
    #[must_use]
    pub fn global(arrays: usize) -> Self {
        Self { placements: vec![ArrayPlacement::Global; arrays] }
    }

    /// The same with one array placed elsewhere.
    #[must_use]
    pub fn with(&self, array: usize, placement: ArrayPlacement) -> Self {
        let mut placements = self.placements.clone();
        if let Some(place) = placements.get_mut(array) {
            *place = placement;
        }
        Self { placements }
    }

    /// Arrays that are not in global memory.
    pub fn moved(&self) -> impl Iterator<Item = (usize, ArrayPlacement)> + '_ {
        self.placements
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, placement)| *placement != ArrayPlacement::Global)
    }

    /// The arrays with their lengths, as the rewriter takes them.
    #[must_use]
    pub fn placed(&self, kernel: &KernelSignature, elements: &[u64]) -> Vec<PlacedArray> {
        self.moved()
            .filter_map(|(at, placement)| {
                let array = kernel.arrays.get(at)?;
                let elements = elements.get(at).copied().unwrap_or(0);
                Some(PlacedArray { name: array.name.clone(), elements, placement })
            })
            .collect()
    }
}

/// `global`, or `a=shared+b=constant` by the arrays' positions.
impl fmt::Display for KernelVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut any = false;
        for (at, placement) in self.moved() {
            let gap = if any { "+" } else { "" };
            write!(f, "{gap}{at}={}", placement.name())?;
            any = true;
        }
        if any {
            return Ok(());
        }
        f.write_str("global")
    }
}

/// The variants of a kernel whose arrays have so many elements, the global one first: each array
/// in each legal placement, all tiles, all tiles with small arrays in constant memory, and all
/// arrays that are only read behind the read-only path or textures.
#[must_use]
pub fn list_variants(
    kernel: &KernelSignature,
    elements: &[u64],
    limits: &PlacementLimits,
) -> Vec<KernelVariant> {
    let global = KernelVariant::global(kernel.arrays.len());
    let legal = |at: usize, placement| {
        let len = elements.get(at).copied().unwrap_or(0);
        check_placement(&kernel.arrays[at], len, placement, limits).is_ok()
    };
    let mut variants = vec![global.clone()];
    for at in 0..kernel.arrays.len() {
        let placements = ArrayPlacement::ALL.into_iter().skip(1).filter(|p| legal(at, *p));
        variants.extend(placements.map(|p| global.with(at, p)));
    }
    let all = |choose: &dyn Fn(usize) -> Option<ArrayPlacement>| {
        let arrays = 0..kernel.arrays.len();
        let placements = arrays.map(|at| choose(at).unwrap_or(ArrayPlacement::Global));
        KernelVariant { placements: placements.collect() }
    };
    let tile = |at: usize| kernel.arrays[at].has_tile.then_some(ArrayPlacement::Shared);
    let if_legal = |at, placement| Some(placement).filter(|p| legal(at, *p));
    variants.push(all(&tile));
    // Small: what constant memory is made for, parameters rather than data.
    let small = |at: usize| {
        if_legal(at, ArrayPlacement::Constant)
            .filter(|_| elements.get(at).is_some_and(|n| *n < 1024))
    };
    variants.push(all(&|at| tile(at).or_else(|| small(at))));
    variants.push(all(&|at| if_legal(at, ArrayPlacement::ReadOnly)));
    variants.push(all(&|at| if_legal(at, ArrayPlacement::Texture)));
    let mut seen = std::collections::BTreeSet::new();
    variants.retain(|variant| seen.insert(variant.clone()));
    // Constant memory is one for all arrays; the same holds of shared memory.
    variants.retain(|variant| {
        let sum = |placement| -> u64 {
            variant
                .moved()
                .filter(|(at, p)| *p == placement && tile(*at) != Some(placement))
                .map(|(at, _)| {
                    elements.get(at).copied().unwrap_or(0) * kernel.arrays[at].element_bytes
                })
                .sum()
        };
        sum(ArrayPlacement::Constant) <= limits.constant.get()
            && sum(ArrayPlacement::Shared) <= limits.shared_per_block.get()
    });
    variants
}
