//! Cuts moves into what the kernel moves at once: a base page, or a huge page as a whole.

use terrace_types::{Move, Vpn, VpnRange};

/// Base pages of a huge page that one table entry maps, with 4 KiB pages.
pub const HUGE_PAGES: u64 = 512;

/// One page, base or huge, of one move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Index of the move it belongs to.
    pub(crate) of: u32,
    /// First page asked for.
    pub(crate) start: Vpn,
    /// Base pages asked for: 1, or those of a huge page.
    pub(crate) pages: u32,
}

/// Units of one move, in address order. `huge` holds runs of huge pages in order.
pub(crate) fn cut(of: u32, range: VpnRange, huge: &[VpnRange], into: &mut Vec<Unit>) {
    let mut at = range.start.0;
    while at < range.end.0 {
        let after = huge.partition_point(|run| run.end.0 <= at);
        let in_huge = huge.get(after).is_some_and(|run| run.contains(Vpn(at)));
        let end = if in_huge { (at / HUGE_PAGES + 1) * HUGE_PAGES } else { at + 1 };
        let end = end.min(range.end.0);
        into.push(Unit { of, start: Vpn(at), pages: (end - at) as u32 });
        at = end;
    }
}

/// Joins pages that did move into runs, as moves.
pub(crate) fn join(moves: &[Move], units: &[Unit], moved: impl Fn(usize) -> bool) -> Vec<Move> {
    let mut runs: Vec<(u32, Move)> = Vec::new();
    for unit in units.iter().enumerate().filter(|(at, _)| moved(*at)).map(|(_, unit)| unit) {
        match runs.last_mut() {
            Some((of, run)) if *of == unit.of && run.range().end == unit.start => {
                run.pages += unit.pages;
            }
            _ => {
                let whole = moves[unit.of as usize];
                runs.push((unit.of, Move { start: unit.start, pages: unit.pages, ..whole }));
            }
        }
    }
    runs.into_iter().map(|(_, run)| run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> VpnRange {
        VpnRange::new(Vpn(start), Vpn(end))
    }

    #[test]
    fn huge_pages_are_one_unit_each() {
        let mut units = Vec::new();
        cut(3, range(1022, 2052), &[range(1024, 2048)], &mut units);
        let pages: Vec<u32> = units.iter().map(|u| u.pages).collect();
        assert_eq!(pages, [1, 1, 512, 512, 1, 1, 1, 1]);
        units.clear();
        cut(0, range(1030, 1100), &[range(1024, 1536)], &mut units);
        assert_eq!((units.len(), units[0].pages), (1, 70));
    }
}
