//! Chooses the cold pages to demote for newly faulted pages.
//!
//! Newly faulted pages tend to be hot. TPP keeps headroom free for them all the time (Al Maruf et
//! al., ASPLOS 2023, abstract), which takes that space from other pages. Here the engine demotes
//! pages only while the target grows
//! (docs/adr/0372-demote-cold-pages-as-fast-as-memory-comes.md).

use super::hotness::value_of;
use super::{NearestNodes, Params};
use crate::place::runs::{free_pages, page_size, units, MoveUnit};
use crate::place::worth::AccessWorth;
use crate::place::PartialPlan;
use terrace_types::{
    Move, MoveReason, NodeId, PageFlags, PageStat, Pid, PolicyWork, Snapshot, Vpn,
};

/// Promotions of an undo for which space is made at once. No measured reason.
const UNDO_GROUP: usize = 8;

/// Demotions of huge pages, a move each, in the order in which the engine should make them. A newly
/// faulted page is taken to be worth the mean of the best tier's pages; a page is chosen if it is
/// worth clearly less. Whether its move is repaid is not asked: a page that is faulted in on the
/// best tier is zeroed and filled there too, and what that saves is not measured. The oldest pages
/// come first. Addresses tell age roughly: the kernel places a new mapping below earlier ones, and
/// programs fill a mapping from its start.
///
/// Base pages stay: they cost three times as much to move, and a heap that grows by base pages
/// gains no huge page by the space (docs/adr/0376-undo-headroom-unless-it-is-seen-to-pay.md).
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
    let mut moves = Vec::new();
    for area in snap.areas.iter().rev().filter(|_| most > 0.0) {
        for unit in units(area).filter(|unit| unit.pages > 1 && known(&unit.stat)) {
            let Some(to) = worse.of(unit.stat.node()).filter(|_| moves.len() < runs) else { break };
            if value_of(&unit.stat, worth) < most {
                moves.push(move_of(area.pid, area.start, &unit, (to, MoveReason::Cold)));
            }
        }
    }
    let (scanned_pages, rated_pages) = (snap.page_count(), 2 * snap.page_count());
    PartialPlan { moves, work: PolicyWork { scanned_pages, rated_pages, ..PolicyWork::default() } }
}

fn move_of(pid: Pid, area: Vpn, unit: &MoveUnit, (to, reason): (NodeId, MoveReason)) -> Move {
    let start = Vpn(area.0 + unit.index as u64);
    Move { pid, start, pages: unit.pages, from: unit.stat.node(), to, reason }
}

/// Plans moves that promote demoted pages again and demote newer pages (`is_newer`) in their place,
/// which is where first touch would have put both. Newer huge pages are demoted first, because they
/// leave space for huge pages. The heat of the pages does not matter.
pub(super) fn undo(
    p: &Params,
    snap: &Snapshot,
    demoted: &[Move],
    is_newer: &dyn Fn(Pid, Vpn) -> bool,
) -> PartialPlan {
    let worse = NearestNodes::new(p, snap.tiers.get(1).map_or(&[], |tier| &tier.nodes));
    let newer = |huge: bool| {
        let all = snap.areas.iter().flat_map(|area| units(area).map(move |unit| (area, unit)));
        let worse = &worse;
        all.filter_map(move |(area, unit)| {
            let on_best = unit.stat.movable() && snap.rank_of(unit.stat.node()) == Some(0);
            let to = worse.of(unit.stat.node()).filter(|_| on_best && (unit.pages > 1) == huge)?;
            let down = move_of(area.pid, area.start, &unit, (to, MoveReason::Cold));
            is_newer(down.pid, down.start).then_some(down)
        })
    };
    let mut down = newer(true).chain(newer(false));
    let capacity = snap.tiers.first().map_or(0, |tier| tier.capacity.pages(page_size(snap)));
    let reserve = (capacity as f64 * p.reserve) as u64;
    let mut space = free_pages(snap, 0).saturating_sub(reserve);
    let is_there = |m: &&Move| {
        snap.page(m.pid, m.start).is_some_and(|page| page.movable() && page.node() == m.to)
    };
    let back: Vec<Move> = demoted.iter().filter(is_there).copied().collect();
    let mut moves = Vec::new();
    for group in back.chunks(UNDO_GROUP) {
        let wanted: u64 = group.iter().map(|m| u64::from(m.pages)).sum();
        while space < wanted {
            let Some(one) = down.next() else { break };
            space += u64::from(one.pages);
            moves.push(one);
        }
        for m in group {
            let Some(left) = space.checked_sub(u64::from(m.pages)) else { break };
            space = left;
            moves.push(Move { from: m.to, to: m.from, reason: MoveReason::Hot, ..*m });
        }
    }
    let work = PolicyWork { scanned_pages: 2 * snap.page_count(), ..PolicyWork::default() };
    PartialPlan { moves, work }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tier;
    use super::*;
    use crate::place::worth::AccessKnowledge;
    use terrace_types::{Area, Bytes, Heat};

    const HUGE: u64 = 512;

    /// Four mappings of so many huge pages each, of which every fourth is hot; the two above are on
    /// the slow tier.
    fn snapshot(each: u64) -> Snapshot {
        let page = |of: u64, i: u64| PageStat {
            reads: Heat::from_rate(if i / HUGE % 4 == 0 { 20_000 } else { 10 }),
            node: u8::from(of >= 2),
            flags: PageFlags::PRESENT.with(PageFlags::KNOWN).with(match i % HUGE {
                0 => PageFlags::HUGE_HEAD,
                _ => PageFlags::HUGE_TAIL,
            }),
            ..PageStat::default()
        };
        let area = |of: u64| Area {
            pid: Pid(1),
            start: Vpn(0x10_000 * (of + 1)),
            pages: (0..each * HUGE).map(|i| page(of, i)).collect(),
        };
        Snapshot {
            page_size: Bytes(4096),
            tiers: vec![tier(0, 2 * each * HUGE, 0), tier(1, 100_000, 50_000)],
            areas: (0..4).map(area).collect(),
            ..Snapshot::default()
        }
    }

    fn params() -> Params {
        Params::for_machine(&terrace_machine::preset("lab-cxl").unwrap())
    }

    fn of(snap: &Snapshot) -> Vec<Move> {
        let worth = params().worth_between(&[NodeId(0)], &[NodeId(1)], &AccessKnowledge::BUSY);
        headroom(&params(), snap, &worth).moves
    }

    fn starts(moves: &[Move]) -> Vec<(u64, u64)> {
        moves.iter().map(|m| (m.start.0 / 0x10_000, m.start.0 % 0x10_000 / HUGE)).collect()
    }

    #[test]
    fn cold_huge_pages_of_the_best_tier_go_down_the_oldest_first() {
        let mut snap = snapshot(6);
        // Not known yet.
        for page in &mut snap.areas[0].pages[..2 * HUGE as usize] {
            page.flags = page.flags.without(PageFlags::KNOWN);
        }
        let moves = of(&snap);
        let expected = [(2, 1), (2, 2), (2, 3), (2, 5), (1, 2), (1, 3), (1, 5)];
        assert_eq!(starts(&moves), expected);
        let whole = |m: &Move| (m.pages, m.from, m.to, m.reason);
        let same = (HUGE as u32, NodeId(0), NodeId(1), MoveReason::Cold);
        assert!(moves.iter().all(|m| whole(m) == same), "{moves:?}");
    }

    #[test]
    fn base_pages_stay_and_where_all_are_alike_none_goes_down() {
        let mut snap = snapshot(6);
        for page in &mut snap.areas[0].pages {
            page.flags = PageFlags::PRESENT.with(PageFlags::KNOWN);
        }
        assert_eq!(starts(&of(&snap)), [(2, 1), (2, 2), (2, 3), (2, 5)]);
        for page in snap.areas.iter_mut().flat_map(|area| &mut area.pages) {
            page.reads = Heat::from_rate(500);
        }
        assert!(of(&snap).is_empty());
        assert!(of(&Snapshot::default()).is_empty());
    }

    #[test]
    fn demoted_pages_come_back_and_those_that_came_since_leave() {
        let mut snap = snapshot(6);
        let mut demoted = of(&snap);
        demoted.truncate(5);
        for m in &demoted {
            let area = snap.areas.iter_mut().find(|area| area.range().contains(m.start)).unwrap();
            let at = (m.start.0 - area.start.0) as usize;
            area.pages[at..at + HUGE as usize].iter_mut().for_each(|page| page.node = 1);
        }
        // Those that came in their place: base pages and two huge pages.
        let mut came = vec![PageStat { flags: PageFlags::PRESENT, ..PageStat::default() }; 1_724];
        for (at, page) in came[700..].iter_mut().enumerate() {
            page.flags = page.flags.with(match at as u64 % HUGE {
                0 => PageFlags::HUGE_HEAD,
                _ => PageFlags::HUGE_TAIL,
            });
        }
        snap.areas.insert(0, Area { pid: Pid(1), start: Vpn(0x4_000), pages: came });
        let is_newer = |pid: Pid, page: Vpn| pid == Pid(1) && page.0 < 0x10_000;
        let moves = undo(&params(), &snap, &demoted, &is_newer).moves;
        let (back, down): (Vec<Move>, Vec<Move>) = moves.iter().partition(|m| m.to == NodeId(0));
        assert_eq!(starts(&back), starts(&demoted)[..3], "1,724 pages leave space for three");
        let pages: Vec<u32> = down.iter().map(|m| m.pages).collect();
        assert_eq!(pages[..2], [512; 2], "huge pages first");
        assert_eq!(pages[2..], [1; 700]);
        let mut space = 0i64;
        for m in &moves {
            space += if m.to == NodeId(1) { i64::from(m.pages) } else { -i64::from(m.pages) };
            assert!(space >= 0, "no page comes back before there is space");
        }
        let gone = undo(&params(), &snapshot(6), &demoted, &is_newer).moves;
        assert!(gone.is_empty(), "they are on the best tier: {gone:?}");
    }
}
