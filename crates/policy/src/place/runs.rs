//! Walking pages, and gathering single pages into runs.

use terrace_types::{
    run_length, Area, Bytes, Move, MoveReason, NodeId, PageFlags, PageStat, Pid, Snapshot, Vpn,
    VpnRange,
};

/// What moves as one: a base page, or a huge page whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoveUnit {
    /// Index of its first page in the area.
    pub index: usize,
    /// Base pages.
    pub pages: u32,
    /// Its first page; of a huge page, with the mean heat of all.
    pub stat: PageStat,
}

/// The units of an area in address order, those not present included.
pub(crate) fn units(area: &Area) -> impl Iterator<Item = MoveUnit> + '_ {
    units_from(area, 0)
}

/// The same from the unit that begins at `index`.
pub(crate) fn units_from(area: &Area, mut index: usize) -> impl Iterator<Item = MoveUnit> + '_ {
    std::iter::from_fn(move || {
        let stat = *area.pages.get(index)?;
        if !stat.flags.has(PageFlags::HUGE_HEAD) {
            let unit = MoveUnit { index, pages: 1, stat };
            index += 1;
            return Some(unit);
        }
        let rest = &area.pages[index + 1..];
        let rest = &rest[..rest.len().min(511)];
        let is_tail = |page: &&PageStat| page.flags.has(PageFlags::HUGE_TAIL);
        // Sampled by one bit, they are alike.
        let alike = rest.first().filter(is_tail).map_or(0, |_| run_length(rest));
        let tails = alike + rest[alike..].iter().take_while(is_tail).count();
        let unit = whole(&area.pages[index..=index + tails], alike == tails, index);
        index += tails + 1;
        Some(unit)
    })
}

/// A huge page: mean heat, pinned if any part is, known if all parts are. `alike`: those after the
/// first are.
fn whole(pages: &[PageStat], alike: bool, index: usize) -> MoveUnit {
    let n = pages.len() as u64;
    let tail = PageStat {
        flags: pages[0].flags.without(PageFlags::HUGE_HEAD).with(PageFlags::HUGE_TAIL),
        ..pages[0]
    };
    if alike && pages.get(1).is_none_or(|page| *page == tail) {
        return MoveUnit { index, pages: n as u32, stat: pages[0] };
    }
    let mean = |rate: fn(&PageStat) -> u64| {
        terrace_types::Heat::from_rate(pages.iter().map(rate).sum::<u64>() / n)
    };
    let mut stat = pages[0];
    stat.reads = mean(|p| p.reads.rate());
    stat.writes = mean(|p| p.writes.rate());
    for page in pages {
        for any in [PageFlags::PINNED, PageFlags::REFERENCED, PageFlags::DIRTY] {
            if page.flags.has(any) {
                stat.flags = stat.flags.with(any);
            }
        }
        if !page.flags.has(PageFlags::KNOWN) {
            stat.flags = stat.flags.without(PageFlags::KNOWN);
        }
    }
    MoveUnit { index, pages: n as u32, stat }
}

/// Gathers moves of neighbouring pages into runs.
#[derive(Debug, Default)]
pub(crate) struct MoveRuns {
    pub moves: Vec<Move>,
    pub pages: u64,
}

impl MoveRuns {
    /// Adds a unit; joins it to the last run where it continues it.
    pub fn push(
        &mut self,
        pid: Pid,
        area_start: Vpn,
        unit: &MoveUnit,
        to: NodeId,
        why: MoveReason,
    ) {
        self.pages += u64::from(unit.pages);
        let start = Vpn(area_start.0 + unit.index as u64);
        add(
            &mut self.moves,
            Move { pid, start, pages: unit.pages, from: unit.stat.node(), to, reason: why },
        );
    }

    /// Adds all of `other` after its own.
    pub fn append(&mut self, other: Self) {
        self.moves.extend(other.moves);
        self.pages += other.pages;
    }

    /// Keeps the first `pages`; gives back the ranges of the rest.
    pub fn split_off(&mut self, pages: u64) -> Vec<(Pid, VpnRange)> {
        let whole = self.moves.clone();
        self.truncate(pages);
        let kept = self.moves.len();
        let mut rest = Vec::new();
        if let (Some(last), Some(was)) =
            (self.moves.last(), kept.checked_sub(1).and_then(|i| whole.get(i)))
        {
            let range = VpnRange::new(last.range().end, was.range().end);
            if !range.is_empty() {
                rest.push((was.pid, range));
            }
        }
        rest.extend(whole.iter().skip(kept).map(|m| (m.pid, m.range())));
        rest
    }

    /// Cuts off what goes beyond `pages`. Whole runs at the end first, then the last run; a huge
    /// page may then be asked for in part, and the kernel moves it whole or not at all.
    pub fn truncate(&mut self, pages: u64) {
        while self.pages > pages {
            let over = self.pages - pages;
            let Some(last) = self.moves.last_mut() else {
                return;
            };
            if u64::from(last.pages) > over {
                last.pages -= over as u32;
                self.pages = pages;
            } else {
                self.pages -= u64::from(last.pages);
                self.moves.pop();
            }
        }
    }
}

/// Adds a move; joins it to the last where it continues it.
pub(crate) fn add(moves: &mut Vec<Move>, next: Move) {
    if let Some(last) = moves.last_mut() {
        let continues = last.pid == next.pid
            && last.range().end == next.start
            && (last.from, last.to, last.reason) == (next.from, next.to, next.reason);
        if let (true, Some(pages)) = (continues, last.pages.checked_add(next.pages)) {
            last.pages = pages;
            return;
        }
    }
    moves.push(next);
}

/// Orders demotions and promotions so that space is made just before it is used: at no point are
/// more pages on the fast tier than there is `space` for, and none waits longer than a `chunk`.
pub(crate) fn interleave(out: Vec<Move>, into: Vec<Move>, space: u64, chunk: u64) -> Vec<Move> {
    let mut plan = Vec::with_capacity(out.len() + into.len());
    let (mut out, mut into) = (Pieces::new(out), Pieces::new(into));
    let mut space = space;
    while !into.is_done() {
        if space == 0 {
            space = out.take(chunk.min(into.left), &mut plan);
        }
        let taken = into.take(space, &mut plan);
        space -= taken;
        if taken == 0 {
            break;
        }
    }
    out.take(u64::MAX, &mut plan);
    plan
}

struct Pieces {
    moves: std::vec::IntoIter<Move>,
    rest: Option<Move>,
    left: u64,
}

impl Pieces {
    fn new(moves: Vec<Move>) -> Self {
        let left = moves.iter().map(|m| u64::from(m.pages)).sum();
        Self { moves: moves.into_iter(), rest: None, left }
    }

    fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Hands over up to `pages` pages, splitting a run where needed.
    fn take(&mut self, pages: u64, plan: &mut Vec<Move>) -> u64 {
        let mut taken = 0;
        while taken < pages {
            let Some(mut next) = self.rest.take().or_else(|| self.moves.next()) else {
                break;
            };
            let fits = (pages - taken).min(u64::from(next.pages)) as u32;
            if fits < next.pages {
                let rest = Move {
                    start: Vpn(next.start.0 + u64::from(fits)),
                    pages: next.pages - fits,
                    ..next
                };
                self.rest = Some(rest);
                next.pages = fits;
            }
            taken += u64::from(fits);
            plan.push(next);
        }
        self.left -= taken.min(self.left);
        taken
    }
}

/// Base pages that the first tier can still take.
pub(crate) fn free_pages(snapshot: &Snapshot, rank: usize) -> u64 {
    snapshot.tiers.get(rank).map_or(0, |t| t.free.pages(page_size(snapshot)))
}

/// Bytes of a base page; 4 KiB where the snapshot says none.
pub(crate) fn page_size(snapshot: &Snapshot) -> Bytes {
    if snapshot.page_size == Bytes::ZERO {
        Bytes(4096)
    } else {
        snapshot.page_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, pages: u32, to: u16) -> Move {
        let (from, to) = (NodeId(1 - to), NodeId(to));
        Move { pid: Pid(1), start: Vpn(start), pages, from, to, reason: MoveReason::Hot }
    }

    #[test]
    fn space_is_freed_before_it_is_used_and_no_page_is_lost() {
        let plan = interleave(vec![run(0, 100, 1)], vec![run(500, 130, 0)], 30, 32);
        let (mut space, mut moved) = (30i64, 0);
        for m in &plan {
            space += if m.to == NodeId(1) { i64::from(m.pages) } else { -i64::from(m.pages) };
            moved += m.pages;
            assert!(space >= 0, "{plan:?}");
        }
        assert_eq!(moved, 230);
        assert!(plan.len() >= 6, "{plan:?}");
    }

    #[test]
    fn huge_pages_are_one_unit() {
        let mut pages = vec![PageStat::default(); 515];
        pages[1].flags = PageFlags::HUGE_HEAD;
        for page in &mut pages[2..513] {
            page.flags = PageFlags::HUGE_TAIL;
        }
        let area = Area { pid: Pid(1), start: Vpn(0), pages };
        let sizes: Vec<_> = units(&area).map(|u| u.pages).collect();
        assert_eq!(sizes, [1, 512, 1, 1]);
    }
}
