//! What an arena holds and where it lies.

use super::error::ArenaError;
use super::moving::bytes_of;
use super::{registry, Arena};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;
use terrace_sys::PageStatus;
use terrace_types::{Bytes, NodeId, Vpn, VpnRange};

/// Counts of an arena at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArenaStats {
    /// Blocks that are allocated.
    pub blocks: u64,
    /// Bytes of those blocks.
    pub allocated: Bytes,
    /// Bytes of slices it holds: blocks, and free blocks beside them.
    pub reserved: Bytes,
    /// Most it ever held.
    pub peak: Bytes,
    /// What it may hold; `None`: anything.
    pub limit: Option<Bytes>,
    /// Pieces of addresses it has.
    pub segments: u64,
    /// Bytes of addresses it has.
    pub addresses: Bytes,
    /// Blocks freed twice that were noticed after the fact (by two threads at once); others are
    /// errors of `free`.
    pub freed_twice: u64,
}

/// Where an arena's memory is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Residency {
    /// Bytes by node.
    pub nodes: BTreeMap<NodeId, Bytes>,
    /// Bytes it holds that were never touched, so that they have no memory yet.
    pub untouched: Bytes,
}

impl Residency {
    /// Bytes by tier, given each tier's nodes; last: bytes on nodes of no tier.
    #[must_use]
    pub fn by_tier(&self, tiers: &[Vec<NodeId>]) -> Vec<Bytes> {
        let mut sums = vec![Bytes::ZERO; tiers.len() + 1];
        for (node, bytes) in &self.nodes {
            let tier = tiers.iter().position(|nodes| nodes.contains(node)).unwrap_or(tiers.len());
            sums[tier] += *bytes;
        }
        sums
    }
}

pub(crate) fn stats(arena: Arena) -> Result<ArenaStats, ArenaError> {
    let _locked = arena.inner().lock.hold();
    if !arena.is_alive() {
        return Err(ArenaError::Destroyed);
    }
    // SAFETY: the lock is held to the end of this function.
    let locked = unsafe { arena.inner().locked() };
    let mut stats = ArenaStats {
        reserved: bytes_of(locked.taken),
        peak: bytes_of(locked.peak),
        limit: (locked.limit < usize::MAX / super::sizes::SLICE).then(|| bytes_of(locked.limit)),
        freed_twice: locked.twice,
        ..ArenaStats::default()
    };
    let mut segment = locked.segments;
    while !segment.is_null() {
        // SAFETY: segments in the list are this arena's, and its lock is held.
        let this = unsafe { &*segment };
        stats.segments += 1;
        stats.addresses += bytes_of(this.slices);
        this.each_slab(|slab| {
            // SAFETY: the table leads to records of the pool, which live for ever.
            let slab = unsafe { &*slab };
            let large = slab.cache.load(Relaxed) == 0;
            let pending = if large { 0 } else { slab.pending() };
            let used = u64::from(slab.used().saturating_sub(pending));
            stats.blocks += used;
            stats.allocated += Bytes(used * slab.size.load(Relaxed) as u64);
        });
        segment = this.next;
    }
    let (blocks, bytes) = super::heap::Inner::on_stacks(locked);
    stats.blocks = stats.blocks.saturating_sub(blocks);
    stats.allocated = stats.allocated - Bytes(bytes);
    Ok(stats)
}

pub(crate) fn trim(arena: Arena) -> Bytes {
    let _locked = arena.inner().lock.hold();
    if !arena.is_alive() {
        return Bytes::ZERO;
    }
    // SAFETY: the lock is held to the end of this function.
    let locked = unsafe { arena.inner().locked() };
    bytes_of(super::heap::Inner::purge(locked))
}

pub(crate) fn residency(arena: Arena) -> Result<Residency, ArenaError> {
    let nodes = registry::with(arena, |d| d.nodes).ok_or(ArenaError::Destroyed)?;
    let mut ranges = Vec::new();
    {
        let _locked = arena.inner().lock.hold();
        if !arena.is_alive() {
            return Err(ArenaError::Destroyed);
        }
        // SAFETY: the lock is held to the end of this block.
        let mut segment = unsafe { arena.inner().locked() }.segments;
        while !segment.is_null() {
            // SAFETY: segments in the list are this arena's, and its lock is held.
            let this = unsafe { &*segment };
            this.used_ranges(&mut ranges);
            segment = this.next;
        }
    }
    let page = terrace_sys::page_size();
    let vpn = |at: usize| Vpn(at as u64 / page.get());
    let reserved: u64 = ranges.iter().map(|(start, end)| (end - start) as u64).sum();
    let mut found = Residency::default();
    let mut touched = 0;
    for (start, end) in ranges {
        for run in nodes.touched(VpnRange::new(vpn(start), vpn(end))) {
            let pages: Vec<Vpn> = (run.start.0..run.end.0).map(Vpn).collect();
            for batch in pages.chunks(1 << 16) {
                for status in nodes.locate(batch).map_err(ArenaError::Bind)? {
                    if let PageStatus::On(node) = status {
                        *found.nodes.entry(node).or_default() += page;
                        touched += page.get();
                    }
                }
            }
        }
    }
    found.untouched = Bytes(reserved.saturating_sub(touched));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_add_up_their_nodes() {
        let nodes =
            BTreeMap::from([(NodeId(0), Bytes(4)), (NodeId(1), Bytes(8)), (NodeId(9), Bytes(1))]);
        let residency = Residency { nodes, untouched: Bytes(5) };
        let tiers = [vec![NodeId(1)], vec![NodeId(0), NodeId(2)]];
        assert_eq!(residency.by_tier(&tiers), [Bytes(8), Bytes(4), Bytes(1)]);
    }
}
