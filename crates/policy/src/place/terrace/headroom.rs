//! Chooses the cold pages to demote for newly faulted pages.
//!
//! Newly faulted pages tend to be hot. TPP keeps headroom free for them all the time (Al Maruf et
//! al., ASPLOS 2023, abstract), which takes that space from other pages. Here the engine demotes
//! pages only while the target grows
//! (docs/adr/0372-demote-cold-pages-as-fast-as-memory-comes.md).

use super::hotness::value_of;
use super::{NearestNodes, Params};
use crate::place::runs::{add, free_pages, page_size, units, MoveUnit};
use crate::place::worth::AccessWorth;
use crate::place::PartialPlan;
use terrace_types::{
    Area, Move, MoveReason, NodeId, PageFlags, PageStat, Pid, PolicyWork, Snapshot, Vpn,
};

/// Base pages that an undo promotes into space made at once: eight huge pages. No measured reason.
const UNDO_GROUP: u64 = 4096;
/// Base pages that are demoted together where no huge pages are. No measured reason.
const RUN: u64 = 64;

/// Demotions of cold pages, in the order in which the engine should make them. A newly
/// faulted page is taken to be worth the mean of the best tier's pages; a page is chosen if it is
/// worth clearly less. Whether its move is repaid is not asked: a page that is faulted in on the
/// best tier is zeroed and filled there too, and what that saves is not measured. The oldest pages
/// come first. Addresses tell age roughly: the kernel places a new mapping below earlier ones, and
/// programs fill a mapping from its start.
///
/// Where the kernel gives huge pages, or the best tier holds some, only those are demoted, a move
/// each: base pages cost three times as much to move, and a heap that grows by base pages
/// nevertheless gains no huge page by the space
/// (docs/adr/0376-undo-headroom-unless-it-is-seen-to-pay.md). Elsewhere base pages are demoted in
/// runs that are cold as a whole
/// (docs/adr/0379-demote-base-pages-for-growth-where-there-are-no-huge-ones.md).
pub(super) fn headroom(p: &Params, snap: &Snapshot, worth: &AccessWorth) -> PartialPlan {
    let on_best = |page: &PageStat| page.movable() && snap.rank_of(page.node()) == Some(0);
    let known = |page: &PageStat| page.flags.has(PageFlags::KNOWN) && on_best(page);
    let (mut sum, mut pages, mut huge) = (0.0, 0u64, snap.gets_huge_pages);
    for area in &snap.areas {
        for (page, count) in PageStat::runs(&area.pages).filter(|(page, _)| on_best(page)) {
            huge |= page.flags.has(PageFlags::HUGE_HEAD);
            if known(page) {
                sum += value_of(page, worth) * count as f64;
                pages += count;
            }
        }
    }
    let mean = sum / pages.max(1) as f64;
    let most = mean / p.tuning.headroom_colder;
    let runs = (snap.page_count() / p.tuning.pages_a_run).max(p.tuning.least_runs) as usize;
    let worse = NearestNodes::new(p, snap.tiers.get(1).map_or(&[], |tier| &tier.nodes));
    let mut moves = Vec::new();
    for area in snap.areas.iter().rev().filter(|_| most > 0.0) {
        let units = match huge {
            true => units(area).filter(|unit| unit.pages > 1 && known(&unit.stat)).collect(),
            false => whole_runs(area, known),
        };
        for unit in units {
            let Some(to) = worse.of(unit.stat.node()).filter(|_| moves.len() < runs) else { break };
            let of_unit = &area.pages[unit.index..unit.index + unit.pages as usize];
            let value: f64 = match huge {
                true => value_of(&unit.stat, worth) * f64::from(unit.pages),
                false => of_unit.iter().map(|page| value_of(page, worth)).sum(),
            };
            if value < most * f64::from(unit.pages) {
                moves.push(move_of(area.pid, area.start, &unit, (to, MoveReason::Cold)));
            }
        }
    }
    let (scanned_pages, rated_pages) = (snap.page_count(), 2 * snap.page_count());
    PartialPlan { moves, work: PolicyWork { scanned_pages, rated_pages, ..PolicyWork::default() } }
}

/// Runs of [`RUN`] base pages, fewer at an area's ends, all of which are `known` and on one node.
fn whole_runs(area: &Area, known: impl Fn(&PageStat) -> bool) -> Vec<MoveUnit> {
    let (mut units, mut index) = (Vec::new(), 0);
    while index < area.pages.len() {
        let left = RUN - (area.start.0 + index as u64) % RUN;
        let end = (index + left as usize).min(area.pages.len());
        let run = &area.pages[index..end];
        if run.iter().all(|page| known(page) && page.node == run[0].node) {
            units.push(MoveUnit { index, pages: run.len() as u32, stat: run[0] });
        }
        index = end;
    }
    units
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
    let back: Vec<Move> = demoted.iter().flat_map(|m| still_there(snap, m)).collect();
    let mut moves = Vec::new();
    for group in groups_of(&back, UNDO_GROUP) {
        let wanted: u64 = group.iter().map(|m| u64::from(m.pages)).sum();
        while space < wanted {
            let Some(one) = down.next() else { break };
            space += u64::from(one.pages);
            add(&mut moves, one);
        }
        for m in group {
            let Some(left) = space.checked_sub(u64::from(m.pages)) else { break };
            space = left;
            add(&mut moves, Move { from: m.to, to: m.from, reason: MoveReason::Hot, ..*m });
        }
    }
    let work = PolicyWork { scanned_pages: 2 * snap.page_count(), ..PolicyWork::default() };
    PartialPlan { moves, work }
}

/// The parts of a demoted run that are where it was moved; a huge page is there whole.
fn still_there(snap: &Snapshot, m: &Move) -> Vec<Move> {
    let mut parts = Vec::new();
    for vpn in (m.start.0..m.range().end.0).map(Vpn) {
        let page = snap.page(m.pid, vpn);
        if page.is_some_and(|page| page.movable() && page.node() == m.to) {
            add(&mut parts, Move { start: vpn, pages: 1, ..*m });
        }
    }
    parts
}

/// Moves in their order, in groups of so many base pages, or up to one move more.
fn groups_of(moves: &[Move], pages: u64) -> impl Iterator<Item = &[Move]> {
    let mut rest = moves;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fewer = |m: &&Move| {
            let more = sum < pages;
            sum += u64::from(m.pages);
            more
        };
        let (group, after) = rest.split_at(rest.iter().take_while(fewer).count());
        rest = after;
        (!group.is_empty()).then_some(group)
    })
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
    fn where_the_kernel_gives_huge_pages_base_pages_stay() {
        let mut snap = snapshot(6);
        for page in snap.areas.iter_mut().flat_map(|area| &mut area.pages) {
            page.flags = PageFlags::PRESENT.with(PageFlags::KNOWN);
        }
        assert!(!of(&snap).is_empty());
        snap.gets_huge_pages = true;
        assert!(of(&snap).is_empty());
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
    fn where_there_are_no_huge_pages_cold_runs_of_base_pages_go_down() {
        let mut snap = snapshot(2);
        for page in snap.areas.iter_mut().flat_map(|area| &mut area.pages) {
            page.flags = PageFlags::PRESENT.with(PageFlags::KNOWN);
        }
        // One page of the first cold run is hot, one of the second is not known, and the area
        // begins within a run.
        let area = &mut snap.areas[1];
        (area.start, area.pages) = (Vpn(area.start.0 + 10), area.pages.split_off(10));
        area.pages[HUGE as usize].reads = Heat::from_rate(900_000);
        area.pages[HUGE as usize + 64].flags = PageFlags::PRESENT;
        area.pages[..502].iter_mut().for_each(|page| page.reads = Heat::from_rate(10));
        let moves: Vec<(u64, u32)> = of(&snap).iter().map(|m| (m.start.0, m.pages)).collect();
        let expected = |from: u64, to: u64| (from..to).step_by(64).map(|start| (start, 64));
        let mut wanted = vec![(0x20_000 + 10, 54)];
        wanted.extend(expected(0x20_040, 0x20_200).chain(expected(0x20_280, 0x20_400)));
        wanted.extend(expected(0x10_200, 0x10_400));
        assert_eq!(moves, wanted);
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
        let start = demoted[0].start;
        let joined = [(start, 3 * HUGE as u32)];
        let ranges = |moves: &[Move]| moves.iter().map(|m| (m.start, m.pages)).collect::<Vec<_>>();
        assert_eq!(ranges(&back), joined, "1,724 pages leave space for three");
        let huge_first = [(Vpn(0x4_000 + 700), 1_024), (Vpn(0x4_000), 700)];
        assert_eq!(ranges(&down), huge_first);
        let mut space = 0i64;
        for m in &moves {
            space += if m.to == NodeId(1) { i64::from(m.pages) } else { -i64::from(m.pages) };
            assert!(space >= 0, "no page comes back before there is space");
        }
        let gone = undo(&params(), &snapshot(6), &demoted, &is_newer).moves;
        assert!(gone.is_empty(), "they are on the best tier: {gone:?}");
    }
}
