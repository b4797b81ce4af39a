//! Which pages moved lately, in little memory: a table of time stamps by hash of the page. Two
//! pages may share a slot; the second then needs the margin once more, no worse.

use serde::{Deserialize, Serialize};
use terrace_types::{Nanos, Pid, Tick, Vpn};

/// A stamp is a sixteenth of a second, nearly; it wraps after more than an hour.
const STAMP_SHIFT: u32 = 26;

/// Recent moves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Recent {
    slots: Vec<u16>,
    last: Option<Tick>,
}

impl Recent {
    /// Makes the table fit a target of this many pages: half a byte a page.
    pub fn fit(&mut self, pages: u64) {
        let wanted = (pages / 4).clamp(1 << 10, 1 << 20).next_power_of_two() as usize;
        if wanted > self.slots.len() {
            self.slots = vec![0; wanted];
        }
    }

    fn slot(&self, pid: Pid, vpn: Vpn) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mixed = (vpn.0 ^ ((pid.0 as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some((mixed >> 32) as usize & mask)
    }

    fn stamp(now: Tick) -> u16 {
        ((now.0 >> STAMP_SHIFT) as u16).max(1)
    }

    /// Notes a move.
    pub fn note(&mut self, pid: Pid, vpn: Vpn, now: Tick) {
        if let Some(slot) = self.slot(pid, vpn) {
            self.last = Some(now);
            self.slots[slot] = Self::stamp(now);
        }
    }

    /// Whether anything moved within `span`.
    pub fn any_within(&self, span: Nanos, now: Tick) -> bool {
        // One stamp longer, for stamps are rounded.
        self.last.is_some_and(|last| now.since(last).get() <= span.get() + (1 << STAMP_SHIFT))
    }

    /// Whether the page (or one that shares its slot) moved within `span`.
    pub fn moved_within(&self, pid: Pid, vpn: Vpn, span: Nanos, now: Tick) -> bool {
        let Some(slot) = self.slot(pid, vpn) else {
            return false;
        };
        let stamp = self.slots[slot];
        stamp != 0 && u64::from(Self::stamp(now).wrapping_sub(stamp)) <= span.get() >> STAMP_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_remembered_for_its_time() {
        let mut recent = Recent::default();
        assert!(!recent.moved_within(Pid(1), Vpn(7), Nanos::secs(1), Tick(0)));
        recent.fit(1_000);
        recent.note(Pid(1), Vpn(7), Tick(5_000_000_000));
        let at = |s: u64, span| recent.moved_within(Pid(1), Vpn(7), Nanos::secs(span), Tick(s * 1_000_000_000));
        assert!(at(6, 4) && !at(10, 4));
        assert!(!recent.moved_within(Pid(1), Vpn(8), Nanos::secs(4), Tick(6_000_000_000)));
    }
}
