//! Chooses the cold pages to demote for newly faulted pages.
//!
//! Newly faulted pages tend to be hot. TPP keeps headroom free for them all the time (Al Maruf et
//! al., ASPLOS 2023, abstract), which takes that space from other pages. Here the engine demotes
//! pages only while the target grows
//! (docs/adr/0372-demote-cold-pages-as-fast-as-memory-comes.md).

use super::hotness::value_of;
use super::{NearestNodes, Params};
use crate::place::runs::{add, units};
use crate::place::worth::AccessWorth;
use crate::place::PartialPlan;
use terrace_types::{Move, MoveReason, PageFlags, PageStat, PolicyWork, Snapshot, Vpn};

/// Largest move of base pages: the engine makes whole moves, so this bounds how many too many.
const PIECE: u32 = 64;

/// Demotions in the order in which the engine should make them. A newly faulted page is taken to be
/// worth the mean of the best tier's pages; a page is chosen if it is worth clearly less. Whether
/// its move is repaid is not asked: a page that is faulted in on the best tier is zeroed and filled
/// there too, and what that saves is not measured. The oldest pages come first.
/// Addresses tell age roughly: the kernel places a new mapping below earlier ones, and programs
/// fill a mapping from its start. Each huge page is one move; base pages form moves of up to 64.
pub(super) fn headroom(p: &Params, snap: &Snapshot, worth: &AccessWorth) -> PartialPlan {
    let known = |page: &PageStat| {
        page.movable() && page.flags.has(PageFlags::KNOWN) && snap.rank_of(page.node()) == Some(0)
    };
    let (mut sum, mut pages) = (0.0, 0u64);
    for area in &snap.areas {
        for (page, count) in PageStat::runs(&area.pages).filter(|(page, _)| known(page)) {
            sum += value_of(page, worth) * count as f64;
            pages += count;
        }
    }
    let mean = sum / pages.max(1) as f64;
    let most = mean / p.tuning.headroom_colder;
    let runs = (snap.page_count() / p.tuning.pages_a_run).max(p.tuning.least_runs) as usize;
    let worse = NearestNodes::new(p, snap.tiers.get(1).map_or(&[], |tier| &tier.nodes));
    let mut moves: Vec<Move> = Vec::new();
    for area in snap.areas.iter().rev().filter(|_| most > 0.0) {
        let before = moves.len();
        for unit in units(area).filter(|unit| known(&unit.stat)) {
            let Some(to) = worse.of(unit.stat.node()).filter(|_| moves.len() < runs) else { break };
            if value_of(&unit.stat, worth) >= most {
                continue;
            }
            let start = Vpn(area.start.0 + unit.index as u64);
            let (from, pages, reason) = (unit.stat.node(), unit.pages, MoveReason::Cold);
            let next = Move { pid: area.pid, start, pages, from, to, reason };
            let joins = |last: &Move| last.pages + pages <= PIECE;
            match moves[before..].last().is_some_and(joins) {
                true => add(&mut moves, next),
                false => moves.push(next),
            }
        }
    }
    let (scanned_pages, rated_pages) = (snap.page_count(), 2 * snap.page_count());
    PartialPlan { moves, work: PolicyWork { scanned_pages, rated_pages, ..PolicyWork::default() } }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tier;
    use super::*;
    use crate::place::worth::AccessKnowledge;
    use terrace_types::{Area, Bytes, Heat, NodeId, Pid};

    /// Pages on both tiers, the upper half of them on the slow one; every fourth stretch of 16 is
    /// hot, and the first `unknown` were never sampled.
    fn snapshot(pages: u64, unknown: u64) -> Snapshot {
        let page = |i: u64| PageStat {
            reads: Heat::from_rate(if i / 16 % 4 == 0 { 20_000 } else { 10 }),
            node: u8::from(i >= pages / 2),
            flags: match i < unknown {
                true => PageFlags::PRESENT,
                false => PageFlags::PRESENT.with(PageFlags::KNOWN),
            },
            ..PageStat::default()
        };
        let half = pages / 2;
        let area = |start: u64, from: u64| Area {
            pid: Pid(1),
            start: Vpn(start),
            pages: (from..from + half / 2).map(page).collect(),
        };
        let starts = (0..4).map(|at| (0x1000 * (at + 1), at * half / 2));
        Snapshot {
            page_size: Bytes(4096),
            tiers: vec![tier(0, half, 0), tier(1, 100_000, 50_000)],
            areas: starts.map(|(start, from)| area(start, from)).collect(),
            ..Snapshot::default()
        }
    }

    fn of(snap: &Snapshot) -> Vec<Move> {
        let params = Params::for_machine(&terrace_machine::preset("lab-cxl").unwrap());
        let worth = params.worth_between(&[NodeId(0)], &[NodeId(1)], &AccessKnowledge::BUSY);
        headroom(&params, snap, &worth).moves
    }

    #[test]
    fn cold_pages_of_the_best_tier_go_down_in_pieces() {
        let mut snap = snapshot(4_000, 40);
        // A cold stretch in the second mapping, longer than a piece.
        for page in &mut snap.areas[1].pages[100..300] {
            page.reads = Heat::default();
        }
        let moves = of(&snap);
        let total: u64 = moves.iter().map(|m| u64::from(m.pages)).sum();
        let cold = |page: &&PageStat| {
            page.node == 0 && page.reads.rate() < 100 && page.flags.has(PageFlags::KNOWN)
        };
        let all = snap.areas.iter().flat_map(|area| &area.pages).filter(cold).count() as u64;
        assert!(all > 1_400 && total == all, "{total} of {all}");
        for m in &moves {
            assert_eq!((m.from, m.to, m.reason), (NodeId(0), NodeId(1), MoveReason::Cold));
            let page = |vpn: u64| snap.page(m.pid, Vpn(vpn)).unwrap();
            assert!((m.start.0..m.range().end.0).all(|vpn| page(vpn).reads.rate() < 100));
        }
        assert_eq!(moves.iter().map(|m| m.pages).max(), Some(PIECE));
        let place = |m: &Move| (std::cmp::Reverse(m.start.0 / 0x1000), m.start);
        assert!(moves.windows(2).all(|two| place(&two[0]) < place(&two[1])), "the oldest first");
    }

    #[test]
    fn where_all_are_alike_none_goes_down() {
        let mut snap = snapshot(4_000, 0);
        for page in snap.areas.iter_mut().flat_map(|area| &mut area.pages) {
            page.reads = Heat::from_rate(500);
        }
        assert!(of(&snap).is_empty());
        assert!(of(&snapshot(4_000, 4_000)).is_empty(), "nothing is known");
        assert!(of(&Snapshot::default()).is_empty());
    }

    #[test]
    fn a_huge_page_is_one_move() {
        let mut snap = snapshot(4_096, 0);
        let huge = &mut snap.areas[1].pages[100..612];
        for page in &mut *huge {
            page.reads = Heat::default();
            page.flags = page.flags.with(PageFlags::HUGE_TAIL);
        }
        huge[0].flags = PageFlags::PRESENT.with(PageFlags::KNOWN).with(PageFlags::HUGE_HEAD);
        assert_eq!(of(&snap).iter().filter(|m| m.pages == 512).count(), 1);
    }
}
