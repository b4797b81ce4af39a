//! Placements that know more than a policy can.

use crate::memory::{Misses, ProgramMemory, ABSENT};
use std::collections::HashMap;
use terrace_machine::MigrationCost;
use terrace_model::params::LinkParams;
use terrace_model::LINE;
use terrace_types::Nanos;

/// Pages of one call, as the lab's bound makes them.
const BATCH: u64 = 512;

/// Misses by page.
pub type MissProfile = [(u64, Misses)];

/// Pages, most worth having in the fast node first; pages that would gain nothing are left out.
///
/// A load saves the difference of latency and of its line's time on the bus, a store besides that
/// of the line written back: the ranking of the lab's `bound:ideal-move`.
#[must_use]
pub fn ranked(misses: &MissProfile, fast: &LinkParams, slow: &LinkParams) -> Vec<u64> {
    let line = |block_time: u64, l: &LinkParams| block_time as f64 * LINE as f64 / l.block as f64;
    let load = slow.read_latency as f64 - fast.read_latency as f64 + line(slow.read_block, slow)
        - line(fast.read_block, fast);
    let store = load + line(slow.write_block, slow) - line(fast.write_block, fast);
    let saved = |m: &Misses| f64::from(m.reads) * load + f64::from(m.writes) * store;
    let mut pages: Vec<(f64, u64)> =
        misses.iter().map(|(vpn, m)| (saved(m), *vpn)).filter(|(saved, _)| *saved > 0.0).collect();
    pages.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    pages.into_iter().map(|(_, vpn)| vpn).collect()
}

/// What was moved, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OracleMoves {
    /// Base pages brought to the fast node.
    pub promoted: u64,
    /// Base pages sent away from it.
    pub demoted: u64,
    /// Time of all calls.
    pub cost: Nanos,
}

/// Puts as many of the first pages of `ranking` on `fast` as it holds; others leave only as far as
/// space is needed, those never ranked first, then from the end of the ranking.
pub fn place(
    memory: &mut ProgramMemory,
    ranking: &[u64],
    fast: usize,
    slow: usize,
    cost: MigrationCost,
) -> OracleMoves {
    let there = |memory: &ProgramMemory, page: &usize| memory.pages[*page].node as usize == fast;
    let present: Vec<usize> = memory.present().map(|(_, index)| index).collect();
    let on_fast = present.iter().filter(|i| there(memory, i)).count();
    let free = memory.pools[fast].spare() as usize;
    let mut hint = 0;
    let index =
        |vpn: &u64| memory.index(*vpn, &mut hint).filter(|i| memory.pages[*i].frame != ABSENT);
    let wanted: Vec<usize> = ranking.iter().filter_map(index).collect();
    let mut place_of = vec![usize::MAX; memory.pages.len()];
    wanted.iter().enumerate().for_each(|(place, page)| place_of[*page] = place);
    let wanted = &wanted[..wanted.len().min(on_fast + free)];
    let promote: Vec<usize> = wanted.iter().copied().filter(|i| !there(memory, i)).collect();
    let mut leave: Vec<usize> = present
        .iter()
        .copied()
        .filter(|i| there(memory, i) && place_of[*i] >= wanted.len())
        .collect();
    leave.sort_by_key(|i| (std::cmp::Reverse(place_of[*i]), *i));
    leave.truncate(promote.len().saturating_sub(free));
    let move_all = |memory: &mut ProgramMemory, pages: &[usize], to: usize| {
        let heads =
            pages.iter().map(|i| memory.head(*i)).collect::<std::collections::BTreeSet<_>>();
        let span = |m: &ProgramMemory, head: usize| m.span(head) as u64;
        heads
            .into_iter()
            .map(|h| if memory.relocate(h, to, 0) { span(memory, h) } else { 0 })
            .sum::<u64>()
    };
    let demoted = move_all(memory, &leave, slow);
    let promoted = move_all(memory, &promote, fast);
    let pages = promoted + demoted;
    let calls = promoted.div_ceil(BATCH) + demoted.div_ceil(BATCH);
    OracleMoves {
        promoted,
        demoted,
        cost: Nanos(calls * cost.call.get() + pages * cost.page.get()),
    }
}

/// Where each of `pages` (ascending) goes at its first touch so that the first of `ranking` are on
/// `fast`: a node's index by page.
#[must_use]
pub fn placed(
    pages: &[u64],
    ranking: &[u64],
    capacity: u64,
    fast: usize,
    slow: usize,
) -> HashMap<u64, u8> {
    let mut nodes: HashMap<u64, u8> = pages.iter().map(|vpn| (*vpn, slow as u8)).collect();
    nodes.extend(ranking.iter().take(capacity as usize).map(|vpn| (*vpn, fast as u8)));
    // What space is left is filled in address order.
    let left = (capacity as usize).saturating_sub(ranking.len());
    let rest: Vec<u64> = pages
        .iter()
        .copied()
        .filter(|vpn| nodes.get(vpn) == Some(&(slow as u8)))
        .take(left)
        .collect();
    nodes.extend(rest.into_iter().map(|vpn| (vpn, fast as u8)));
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FirstTouch;
    use crate::pool::FramePool;
    use terrace_model::layout::AddressLayout;
    use terrace_types::{Vpn, VpnRange};

    fn link(latency: u64, write_block: u64) -> LinkParams {
        LinkParams {
            read_latency: latency,
            write_latency: latency,
            read_block: 640,
            write_block,
            block: 64,
        }
    }

    #[test]
    fn the_hottest_come_first_and_stores_weigh_more_where_writing_is_slow() {
        let misses: Vec<(u64, Misses)> = [(5, 0), (0, 0), (50, 0), (0, 5)]
            .map(|(reads, writes)| Misses { reads, writes })
            .into_iter()
            .enumerate()
            .map(|(vpn, m)| (vpn as u64, m))
            .collect();
        assert_eq!(ranked(&misses, &link(80_000, 640), &link(300_000, 900_000)), [2, 3, 0]);
    }

    #[test]
    fn oracles_demote_only_for_space_they_need() {
        let layout = AddressLayout::q35(&[1 << 20, 1 << 20]);
        let pools = vec![FramePool::new(0, 4, layout.clone()), FramePool::new(1, 100, layout)];
        let mut m = ProgramMemory::new(pools, FirstTouch::Nearest(vec![vec![0, 1]]));
        m.map(VpnRange::new(Vpn(0), Vpn(8)));
        for i in 0..7 {
            m.walk(i, i as u64, true, 0, 0);
        }
        // Fast: 0 to 3. Ranked: 6, 0, 5; 1 to 3 were never ranked, two of them leave.
        let cost = MigrationCost { call: Nanos(100), page: Nanos(1), ..MigrationCost::default() };
        let moved = place(&mut m, &[6, 0, 5, 7], 0, 1, cost);
        assert_eq!(moved, OracleMoves { promoted: 2, demoted: 2, cost: Nanos(204) });
        let fast: Vec<usize> = (0..7).filter(|i| m.pages[*i].node == 0).collect();
        assert_eq!(fast, [0, 3, 5, 6]);
    }

    #[test]
    fn static_placement_fills_the_fast_node() {
        let nodes = |pages: &[u64], ranking: &[u64], capacity: u64| {
            let nodes = placed(pages, ranking, capacity, 0, 1);
            pages.iter().map(|vpn| nodes[vpn]).collect::<Vec<u8>>()
        };
        assert_eq!(nodes(&[10, 11, 12, 13, 14], &[14, 12], 3), [0, 1, 0, 1, 0]);
        assert_eq!(nodes(&[0, 1, 2], &[2, 1, 0], 1), [1, 1, 0]);
    }
}
