//! Which pages moved lately, in little memory: two bits a page that count down, in a table by
//! address. Pages that lie together never share a place in it; two that lie far apart may, and the
//! second then needs the margin once more, no worse.

use serde::{Deserialize, Serialize};
use terrace_types::{Nanos, Pid, Tick, Vpn};

/// What a page's two bits begin with. They count down twice in the time for which a move matters,
/// so that it is remembered for that time and at most half as long again.
const FRESH: u8 = 3;
/// Pages a byte.
const A_BYTE: u64 = 4;
/// The lower bit of each pair.
const LOWER: u8 = 0x55;
/// Pages of one such block keep their order in the table.
const BLOCK_BITS: u32 = 20;

/// Recent moves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecentMoves {
    table: Vec<u8>,
    last: Option<Tick>,
    aged: Tick,
}

impl RecentMoves {
    /// Makes the table fit a target of this many pages: a quarter of a byte to half a byte a page.
    pub fn fit(&mut self, pages: u64) {
        let wanted = (pages.clamp(1 << 12, 1 << 24).next_power_of_two() / A_BYTE) as usize;
        if wanted > self.table.len() {
            self.table = vec![0; wanted];
        }
    }

    /// Lets time pass: a move is forgotten `span` later, or up to half as much again.
    pub fn age(&mut self, span: Nanos, now: Tick) {
        let half = (span.get() / 2).max(1);
        let times = (now.0 / half).saturating_sub(self.aged.0 / half).min(u64::from(FRESH));
        self.aged = now;
        if !self.any(span, now) {
            return;
        }
        for _ in 0..times {
            for pairs in &mut self.table {
                *pairs -= (*pairs | *pairs >> 1) & LOWER;
            }
        }
    }

    /// The byte, and how far its pair is to be shifted.
    fn place(&self, pid: Pid, vpn: Vpn) -> Option<(usize, u32)> {
        let mask = (self.table.len() as u64 * A_BYTE).checked_sub(1)?;
        let block =
            (vpn.0 >> BLOCK_BITS ^ (pid.0 as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let at = vpn.0.wrapping_add(block) & mask;
        Some(((at / A_BYTE) as usize, (at % A_BYTE) as u32 * 2))
    }

    /// Notes a move.
    pub fn note(&mut self, pid: Pid, vpn: Vpn, now: Tick) {
        if let Some((at, shift)) = self.place(pid, vpn) {
            if self.last.is_none() {
                self.aged = now;
            }
            self.last = Some(now);
            self.table[at] |= FRESH << shift;
        }
    }

    /// Whether anything ever moved.
    #[must_use]
    pub fn ever(&self) -> bool {
        self.last.is_some()
    }

    /// Whether anything moved within `span`, or half as much again.
    #[must_use]
    pub fn any(&self, span: Nanos, now: Tick) -> bool {
        self.last.is_some_and(|last| now.since(last).get() <= span.get() + span.get() / 2)
    }

    /// Whether the page (or one that shares its place) moved lately.
    #[must_use]
    pub fn moved(&self, pid: Pid, vpn: Vpn) -> bool {
        self.place(pid, vpn).is_some_and(|(at, shift)| self.table[at] >> shift & FRESH != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Nanos = Nanos::secs(4);

    fn tick(s: u64) -> Tick {
        Tick(s * 1_000_000_000)
    }

    #[test]
    fn a_move_is_remembered_for_its_time() {
        assert!(!RecentMoves::default().moved(Pid(1), Vpn(7)));
        for from in [tick(5), Tick(5_999_999_999), tick(6)] {
            let mut recent = RecentMoves::default();
            recent.fit(1_000);
            recent.note(Pid(1), Vpn(7), from);
            for after in [1, 3, 4] {
                recent.age(SPAN, from.after(Nanos::secs(after)));
                assert!(recent.moved(Pid(1), Vpn(7)), "after {after} s");
            }
            recent.age(SPAN, from.after(Nanos::secs(6)));
            assert!(!recent.moved(Pid(1), Vpn(7)));
            assert!(
                recent.any(SPAN, from.after(SPAN)) && !recent.any(SPAN, from.after(Nanos::secs(7)))
            );
        }
    }

    #[test]
    fn pages_that_lie_together_do_not_share() {
        let mut recent = RecentMoves::default();
        recent.fit(60_000);
        for vpn in (0..60_000).filter(|vpn| vpn % 4 != 0) {
            recent.note(Pid(9), Vpn(0x7f1_2345_0000 + vpn), tick(1));
        }
        let moved = |vpn: &u64| recent.moved(Pid(9), Vpn(0x7f1_2345_0000 + vpn));
        assert_eq!((0..60_000).filter(moved).count(), 45_000);
    }
}
