//! The tiering daemon on the machine: its time, the core that it works on, and what it takes of the
//! program's.

use super::World;
use crate::costs::{nanos, EngineInput};
use terrace_model::PS;
use terrace_types::{Nanos, Tick};

/// How much more than of the least used core the daemon may take of one.
const UNEVEN: Nanos = Nanos::millis(1);

/// The daemon.
#[derive(Debug, Default)]
pub(crate) struct DaemonState {
    /// Its time, picoseconds.
    pub(super) time: u64,
    /// The CPU time that it has used.
    cpu: Nanos,
    /// It is working, on its core.
    pub(super) working: bool,
    /// The core that it works on.
    pub(crate) core: usize,
    /// What it has taken of each core that the program had work for.
    taken: Vec<Nanos>,
    /// What the engine was shown since it was last charged for what it does with that.
    pub(crate) work: EngineInput,
    /// What the last call that had the program's address space to itself took a page, picoseconds.
    pub(crate) alone_ps: u64,
}

impl World {
    /// From now on the daemon manages the program, from another core than its first, and takes
    /// memory of that core's node: first of what nobody else has, `spare` base pages by node.
    pub fn start_daemon(&mut self, spare: &[u64]) {
        let (core, own) = (self.cores() - 1, u64::from(self.costs.daemon.own_pages));
        let node = self.cores.get(core).map(|core| core.home);
        if let Some(pool) = node.and_then(|node| self.memory.pools.get_mut(node)) {
            let spare = node.and_then(|node| spare.get(node)).copied().unwrap_or(0);
            pool.start_daemon(core, own, spare);
        }
    }

    /// The daemon's time. The program may be up to a quantum ahead of it, or as far as it waits
    /// for a page.
    #[must_use]
    pub fn now(&self) -> Tick {
        Tick(self.daemon.time / PS)
    }

    /// The same, picoseconds.
    pub(crate) const fn time_ps(&self) -> u64 {
        self.daemon.time
    }

    /// The engine was shown something.
    pub(crate) fn show(&mut self, work: EngineInput) {
        self.daemon.work = self.daemon.work.and(work);
    }

    /// CPU time that the daemon has used.
    #[must_use]
    pub fn daemon_cpu(&self) -> Nanos {
        self.daemon.cpu
    }

    /// The daemon sleeps for `span`; it wakes a little later.
    pub fn sleep(&mut self, span: Nanos) {
        if span > Nanos::ZERO {
            self.pass(span + nanos(self.costs.kernel.timer_slack));
            self.wakes();
        }
    }

    /// The daemon works for `span` on a core, which the program has for the rest of the time that
    /// this takes.
    pub fn charge(&mut self, span: Nanos) {
        self.daemon.cpu += span;
        if self.ended() {
            return;
        }
        if self.busy(self.daemon.core) {
            self.daemon.taken.resize(self.cores.len(), Nanos::ZERO);
            self.daemon.taken[self.daemon.core] += span;
        }
        let takes = self.shared(self.daemon.core, span);
        self.engine.units[self.daemon.core].core.time += span.get() * PS;
        self.daemon.working = true;
        self.pass(takes);
        self.daemon.working = false;
    }

    /// The daemon wakes on a core that nobody uses, or where it was (`select_idle_sibling` in the
    /// kernel's `kernel/sched/fair.c`). There it goes on, whoever else waits meanwhile.
    fn wakes(&mut self) {
        if let Some(core) = (0..self.cores.len()).find(|c| !self.busy(*c)) {
            self.daemon.core = core;
        }
    }

    /// Whether the program wants all cores.
    pub(crate) fn wants_all_cores(&self) -> bool {
        let cores = self.cores.len();
        (0..cores).map(|core| self.runnable(core)).sum::<u64>() >= cores as u64
    }

    /// A good moment for the daemon to change cores: to the one that it has taken least of, once
    /// that is a millisecond less (`take_turn` in `crates/sys/src/cpu_turns.rs`); none where a core
    /// is idle.
    pub(crate) fn take_turn(&mut self) {
        let cores = self.cores.len();
        if !self.wants_all_cores() {
            return;
        }
        let taken = |core: usize| self.daemon.taken.get(core).copied().unwrap_or_default();
        let least = (0..cores).min_by_key(|core| taken(*core)).unwrap_or(0);
        if taken(self.daemon.core) >= taken(least) + UNEVEN {
            self.daemon.core = least;
        }
    }

    /// `bytes` are copied from one frame to another on the core that is charged next: how long the
    /// buses and caches keep it.
    pub fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Nanos {
        Nanos(self.engine.copy(self.daemon.core, from << 12, to << 12, bytes).div_ceil(PS))
    }

    /// `bytes` of the frame `to` are filled with zeros, on the same core.
    pub fn zero(&mut self, to: u64, bytes: u64) -> Nanos {
        Nanos(self.engine.zero(self.daemon.core, to << 12, bytes).div_ceil(PS))
    }
}
