//! A core's translations.

use crate::memory::Walked;
use terrace_model::PS;
use terrace_types::Nanos;

/// What a core remembers of the page tables.
///
/// On the lab's machines translations live until they are dropped all at once, every [`Nanos`] of the machine file's
/// `tlb_flush` (QEMU keeps as many as a program uses). An entry is `frame << 32 | writable << 16 | epoch`; entries of an
/// earlier epoch are stale.
#[derive(Debug, Clone)]
pub struct Mmu {
    entries: Vec<u64>,
    epoch: u64,
    flush_every: u64,
    next_flush: u64,
    /// The region of the last access.
    pub hint: usize,
}

const WRITABLE: u64 = 1 << 16;
const EPOCHS: u64 = 1 << 16;

impl Mmu {
    /// No translations; all dropped every `flush`, or never where that is zero.
    #[must_use]
    pub fn new(flush: Nanos) -> Self {
        let flush_every = flush.get().saturating_mul(PS);
        Self { entries: Vec::new(), epoch: 1, flush_every, next_flush: flush_every, hint: 0 }
    }

    /// The frame of a page (by its index), if a store (or load) may use it without a walk.
    #[inline(always)]
    pub fn translate(&mut self, page: usize, _vpn: u64, store: bool) -> Option<u32> {
        let entry = *self.entries.get(page)?;
        let usable = entry & (EPOCHS - 1) == self.epoch && (!store || entry & WRITABLE != 0);
        usable.then_some((entry >> 32) as u32)
    }

    /// Remembers what a walk found.
    pub fn learn(&mut self, page: usize, _vpn: u64, walked: Walked) {
        if page >= self.entries.len() {
            self.entries.resize(page + 1, 0);
        }
        let writable = if walked.writable { WRITABLE } else { 0 };
        self.entries[page] = u64::from(walked.frame) << 32 | writable | self.epoch;
    }

    /// Drops one page's translation.
    pub fn forget(&mut self, page: usize) {
        if let Some(entry) = self.entries.get_mut(page) {
            *entry = 0;
        }
    }

    /// Drops all.
    pub fn flush(&mut self) {
        self.epoch += 1;
        if self.epoch == EPOCHS {
            self.entries.fill(0);
            self.epoch = 1;
        }
    }

    /// The core's time is `now`, picoseconds: drops all where that is due.
    pub fn pass(&mut self, now: u64) {
        if self.flush_every > 0 && now >= self.next_flush {
            self.next_flush = now + self.flush_every;
            self.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translations_are_kept_until_dropped() {
        let mut mmu = Mmu::new(Nanos::micros(500));
        let walked = Walked { frame: 9, time: 0, writable: false };
        assert_eq!(mmu.translate(3, 3, false), None);
        mmu.learn(3, 3, walked);
        assert_eq!((mmu.translate(3, 3, false), mmu.translate(3, 3, true)), (Some(9), None));
        mmu.learn(3, 3, Walked { writable: true, ..walked });
        assert_eq!(mmu.translate(3, 3, true), Some(9));
        mmu.pass(499_999_999);
        assert_eq!(mmu.translate(3, 3, true), Some(9));
        mmu.pass(500_000_000);
        assert_eq!(mmu.translate(3, 3, true), None);
        mmu.learn(3, 3, walked);
        mmu.forget(3);
        assert_eq!(mmu.translate(3, 3, false), None);
    }

    #[test]
    fn epochs_wrap_without_reviving_stale_entries() {
        let mut mmu = Mmu::new(Nanos::ZERO);
        mmu.learn(0, 0, Walked { frame: 1, time: 0, writable: true });
        (0..2 * EPOCHS).for_each(|_| mmu.flush());
        assert_eq!(mmu.translate(0, 0, false), None);
    }
}
