//! TLB shootdowns: cores are interrupted so that they drop translations of pages that move.

use super::World;
use crate::costs::nanos;
use terrace_model::PS;
use terrace_types::Nanos;

/// How translations of pages that move are dropped on the cores that may have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShootdownMode {
    /// One interrupt of every core for each group of pages, as Linux does for `move_pages`.
    #[default]
    Batched,
    /// One interrupt of every core for each page.
    PerPage,
    /// As batched; a core acknowledges when it has the interrupt and not when it has dropped its
    /// translations (N. Amit, A. Tai and M. Wei, "Don't shoot down TLB shootdowns!", EuroSys 2020).
    EarlyAcknowledge,
}

/// What became of translations that were dropped on cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShootdownCount {
    /// Times that cores were interrupted together.
    pub rounds: u64,
    /// Interrupts of cores that ran the program.
    pub interrupts: u64,
    /// Pages whose translations were dropped.
    pub pages: u64,
}

/// How translations of pages that move are dropped, and what became of that.
#[derive(Debug, Default)]
pub struct Shootdowns {
    /// How.
    pub mode: ShootdownMode,
    count: ShootdownCount,
}

impl World {
    /// Translations dropped so far because pages moved.
    #[must_use]
    pub fn shootdowns(&self) -> ShootdownCount {
        self.shootdowns.count
    }

    /// A page that other machines have mapped, too, moves to `node`, and its translations are
    /// dropped; who touches it in the next `span` waits. Where it was mapped, its frames before and
    /// after; the cores are to be interrupted ([`Self::shoot_down_pages`]).
    pub fn move_pinned(&mut self, vpn: u64, node: usize, span: Nanos) -> Option<(u64, u64)> {
        let ready = self.engine.lockstep().start() + span.get() * PS;
        let moved = self.memory.move_pinned(vpn, node, ready)?;
        self.shoot_down(vpn);
        Some(moved)
    }

    /// Interrupts cores so that they drop the translations of so many pages that moved, together or
    /// page by page as [`Shootdowns::mode`] says.
    pub fn shoot_down_pages(&mut self, pages: u64) {
        let (rounds, each) = match self.shootdowns.mode {
            ShootdownMode::PerPage => (pages, 1),
            ShootdownMode::Batched | ShootdownMode::EarlyAcknowledge => {
                (u64::from(pages > 0), pages)
            }
        };
        (0..rounds).for_each(|_| self.interrupt_for_shootdown(each));
    }

    /// A core of the program is the kernel's for `span`: work that the program waits for.
    pub fn occupy(&mut self, span: Nanos) {
        self.engine.units[self.daemon.core].core.time += span.get() * PS;
    }

    /// Interrupts cores so that they drop the translations of so many pages.
    pub(crate) fn interrupt_for_shootdown(&mut self, pages: u64) {
        let interrupts = self.interrupt(nanos(self.costs.kernel.tlb_shootdown));
        let sum = &mut self.shootdowns.count;
        (sum.rounds, sum.pages) = (sum.rounds + 1, sum.pages + pages);
        sum.interrupts += interrupts;
    }
}
