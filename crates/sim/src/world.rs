//! The simulated machine with one program on it, and the time that both share with whoever manages
//! them.
//!
//! Cores run in the lock-step quanta of `terrace-model`: each runs the same few microseconds, one
//! after the other. What the manager (tracking, deciding, moving) uses of a core is taken from the
//! program where no core is idle.

mod gate;
mod shootdown;
mod threads;

pub use gate::WindowGate;
pub use shootdown::{ShootdownCount, ShootdownMode};

use gate::TimedGate;

use crate::costs::{nanos, CostTable};
use crate::event::Batch;
use crate::far::SimFarMemory;
use crate::feed::{Feed, ThreadSupply};
use crate::hot::MissOutlook;
use crate::memory::ProgramMemory;
use crate::mmu::Mmu;
use crate::pool::FramePool;
use crate::ports::EngineInput;
use crate::sampler::{AccessSampler, SamplingTotals};
use std::collections::VecDeque;
use terrace_model::channel::BusDemand;
use terrace_model::{Counters, MemorySystem, TranslationUnit, PS};
use terrace_types::{Nanos, Tick};

/// Time that a thread has a core before another that waits for it, picoseconds: the base slice of
/// Linux 6.12's scheduler on two cores (`kernel/sched/fair.c`, 0.7 ms times 1 + log2 of the cores,
/// rounded up by the tick of 250 Hz).
const SLICE: u64 = 4_000_000_000;

/// How often the kernel looks after its lists of free pages (`sysctl_stat_interval`,
/// `mm/vmstat.c`): a second, picoseconds.
const REFRESHED: u64 = 1_000_000_000_000;

/// What a thread of the program is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadActivity {
    /// It has not begun.
    Unborn,
    /// It runs, or would if it had a core.
    Running,
    /// It waits for the other threads.
    Meeting,
    /// It waits until the others have come to this time of the recording.
    Until(u64),
    /// It waits for a page that lies behind memory.
    Paging,
    /// It waits for the page of this index, which is moving.
    Moving(u32),
    /// It has ended.
    Ended,
}

/// One thread of the program.
#[derive(Debug)]
pub(crate) struct SimThread {
    doing: ThreadActivity,
    pub(crate) events: Batch,
    pub(crate) at: usize,
    /// The access there is made anew: its instructions have been executed.
    pub(crate) again: bool,
    waiting: VecDeque<Batch>,
    /// What comes after the accesses at hand.
    then: ThreadSupply,
    /// Time of the recording that it has come to.
    reached: u64,
}

/// The threads that share a core.
#[derive(Debug, Default)]
struct CoreQueue {
    threads: Vec<usize>,
    current: usize,
    slice_ends: u64,
}

/// The phase that counts: when it began and ended, picoseconds, and what had been counted then.
#[derive(Debug, Clone, Default)]
pub struct RoiMeasurement {
    /// Begin of the phase.
    pub begin: Option<(u64, Counters)>,
    /// End of the phase.
    pub end: Option<(u64, Counters)>,
}

impl RoiMeasurement {
    /// Length, and what was counted in it; `None` until it has ended.
    #[must_use]
    pub fn result(&self) -> Option<(Nanos, Counters)> {
        let ((begin, before), (end, after)) = (self.begin.as_ref()?, self.end.as_ref()?);
        Some((Nanos(end.saturating_sub(*begin) / PS), after.since(before)))
    }
}

/// The machine and the program.
#[derive(Debug)]
pub struct World {
    pub(crate) engine: MemorySystem,
    /// The program's memory.
    pub memory: ProgramMemory,
    /// What kernel and daemon cost.
    pub(crate) costs: CostTable,
    pub(crate) mmus: Vec<Mmu>,
    pub(crate) homes: Vec<usize>,
    pub(crate) outlooks: Vec<MissOutlook>,
    feed: Box<dyn Feed>,
    pub(crate) threads: Vec<SimThread>,
    queues: Vec<CoreQueue>,
    /// The phase that counts.
    pub measured: RoiMeasurement,
    /// The program stops at the begin of the phase that counts until [`World::proceed`].
    pub stop_at_begin: bool,
    stopped: bool,
    /// The program stops (within a quantum) when it has made so many accesses, until
    /// [`World::proceed`].
    pub stop_after: u64,
    /// Hardware sampling of accesses, where somebody asked for it.
    pub sampler: Option<AccessSampler>,
    /// What sampling came to when it was last turned off.
    pub sampling: SamplingTotals,
    /// What the engine was shown since it was last charged for what it does with that.
    pub(crate) work: EngineInput,
    /// The manager is working, on its core.
    working: bool,
    /// The manager's time, picoseconds, and the CPU time it used.
    time: u64,
    manager: Nanos,
    /// The core that it works on, and what it has taken of each that the program had work for.
    pub(crate) manager_core: usize,
    taken: Vec<Nanos>,
    pub(crate) accesses: u64,
    /// What lies behind memory, if anything does.
    far: Option<Box<SimFarMemory>>,
    /// Threads that have their pages, and when they go on, picoseconds.
    paged_in: Vec<(usize, u64)>,
    /// First page behind the program's heap that was never mapped.
    heap_mapped: u64,
    /// When the kernel next looks after its lists of free pages.
    refreshed_at: u64,
    /// What the last call that had the program's address space to itself took a page, picoseconds.
    pub(crate) alone_ps: u64,
    gate: Option<TimedGate>,
    halted: bool,
    /// How translations of pages that move are dropped.
    pub shootdown_mode: ShootdownMode,
    pub(crate) shootdowns: ShootdownCount,
}

const PAGE: u64 = 4096;
/// How much more than of the least used core the manager may take of one.
const UNEVEN: Nanos = Nanos::millis(1);

/// The thread that prepares; threads of the measured phase follow.
const MAIN: usize = 0;

impl World {
    /// A machine at time zero, its cores at home on the nodes `homes` (indexes), and the program of
    /// `feed` on it.
    #[must_use]
    pub(crate) fn new(
        engine: MemorySystem,
        memory: ProgramMemory,
        mmus: Vec<Mmu>,
        homes: Vec<usize>,
        costs: CostTable,
        feed: Box<dyn Feed>,
    ) -> Self {
        let cores = engine.units.len();
        let thread = || SimThread {
            doing: ThreadActivity::Unborn,
            events: Batch::default(),
            at: 0,
            again: false,
            waiting: VecDeque::new(),
            then: ThreadSupply::Continue,
            reached: 0,
        };
        let mut threads: Vec<SimThread> = (0..=feed.threads()).map(|_| thread()).collect();
        threads[MAIN].doing = ThreadActivity::Running;
        let mut queues: Vec<CoreQueue> = (0..cores).map(|_| CoreQueue::default()).collect();
        queues[0].threads.push(MAIN);
        for worker in 0..feed.threads() {
            queues[worker % cores].threads.push(worker + 1);
        }
        Self {
            engine,
            memory,
            costs,
            mmus,
            homes,
            outlooks: vec![MissOutlook::default(); cores],
            feed,
            threads,
            queues,
            measured: RoiMeasurement::default(),
            stop_at_begin: false,
            stopped: false,
            stop_after: u64::MAX,
            sampler: None,
            sampling: SamplingTotals::default(),
            work: EngineInput::default(),
            working: false,
            time: 0,
            manager: Nanos::ZERO,
            manager_core: 0,
            taken: Vec::new(),
            accesses: 0,
            far: None,
            paged_in: Vec::new(),
            heap_mapped: 0,
            refreshed_at: REFRESHED,
            alone_ps: 0,
            gate: None,
            halted: false,
            shootdown_mode: ShootdownMode::default(),
            shootdowns: ShootdownCount::default(),
        }
    }

    /// From now on the daemon manages the program, from another core than its first, and takes
    /// memory of that core's node: first of what nobody else has, `spare` base pages by node.
    pub fn start_daemon(&mut self, spare: &[u64]) {
        let (core, own) = (self.cores() - 1, u64::from(self.costs.daemon.own_pages));
        let node = self.homes.get(core).copied();
        if let Some(pool) = node.and_then(|node| self.memory.pools.get_mut(node)) {
            let spare = node.and_then(|node| spare.get(node)).copied().unwrap_or(0);
            pool.start_daemon(core, own, spare);
        }
    }

    /// Puts a store behind memory, before anything runs.
    pub fn put_behind(&mut self, far: SimFarMemory) {
        self.memory.paged = true;
        self.far = Some(Box::new(far));
    }

    /// What lies behind memory.
    #[must_use]
    pub fn far(&self) -> Option<&SimFarMemory> {
        self.far.as_deref()
    }

    /// The manager's time. The program may be up to a quantum ahead of it, or as far as it waits
    /// for a page.
    #[must_use]
    pub fn now(&self) -> Tick {
        Tick(self.time / PS)
    }

    /// The same, picoseconds.
    pub(crate) const fn time_ps(&self) -> u64 {
        self.time
    }

    /// Whether the program has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.measured.end.is_some()
    }

    /// Whether the program waits at the begin of its phase (see [`World::stop_at_begin`]).
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Goes on after a stop that took `span`.
    pub fn proceed(&mut self, span: Nanos) {
        self.stopped = self.halted;
        for unit in &mut self.engine.units {
            unit.core.time += span.get() * PS;
        }
    }

    /// Accesses of the program so far.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// The engine was shown something.
    pub(crate) fn show(&mut self, work: EngineInput) {
        self.work = self.work.and(work);
    }

    /// Threads of the program that can run at a time.
    #[must_use]
    pub fn running(&self) -> u64 {
        let alive =
            |t: &&SimThread| !matches!(t.doing, ThreadActivity::Unborn | ThreadActivity::Ended);
        self.threads.iter().filter(alive).count().clamp(1, self.cores()) as u64
    }

    /// CPU time that the manager has used.
    #[must_use]
    pub fn manager_cpu(&self) -> Nanos {
        self.manager
    }

    /// The machine's timing model.
    #[must_use]
    pub fn engine(&self) -> &MemorySystem {
        &self.engine
    }

    /// From now on the bus of the node of this index is shared with cores of other machines that
    /// want this much of it.
    pub fn set_bus_rivals(&mut self, node: usize, rivals: BusDemand) {
        self.engine.set_bus_rivals(node, rivals);
    }

    /// From now on the machine takes so many 1024ths of a node's bus at most.
    pub fn set_bus_limit(&mut self, node: usize, parts: u64) {
        self.engine.set_bus_limit(node, parts);
    }

    /// From now on each miss to a node waits so much longer, picoseconds.
    pub fn set_queue_delay(&mut self, node: usize, delay: u64) {
        self.engine.set_queue_delay(node, delay);
    }

    /// Cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.queues.len()
    }

    /// Checks the program's results; its own count of accesses.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn finish(&mut self) -> Result<u64, String> {
        self.feed.finish()
    }

    /// What a reader of the results must know of the source, once the program has ended.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.feed.notes()
    }

    /// The host had no memory for the program's data, or for the account of its pages.
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        self.feed.lacks_memory() || self.memory.unaccounted > 0
    }

    /// Lets `span` pass, or less if the program ends or stops.
    pub fn pass(&mut self, span: Nanos) {
        self.time = self.time.saturating_add(span.get().saturating_mul(PS));
        while self.engine.lockstep().start() < self.time && !self.ended() && !self.stopped {
            self.pass_gate();
            if self.stopped {
                break;
            }
            let end = self.engine.lockstep().end();
            self.pass_far(end);
            self.forget_reclaimed();
            if end >= self.refreshed_at {
                self.refreshed_at += REFRESHED;
                self.memory.pools.iter_mut().for_each(FramePool::refresh);
            }
            self.balance();
            for core in 0..self.queues.len() {
                self.run_core(core, end);
            }
            if self.accesses >= self.stop_after {
                self.stopped = true;
                break;
            }
            // A bit a core, of which there are 64 at most.
            let idle =
                (0..self.queues.len()).fold(0u64, |bits, c| bits | u64::from(!self.busy(c)) << c);
            let advanced = self.engine.advance(|core| idle >> core & 1 == 1);
            let all_idle = idle.count_ones() as usize == self.queues.len();
            if !advanced && all_idle && !self.wait_for_far() {
                break;
            }
            for (mmu, unit) in self.mmus.iter_mut().zip(&self.engine.units) {
                mmu.pass(unit.core.time);
            }
        }
    }

    /// The manager sleeps for `span`; it wakes a little later.
    pub fn sleep(&mut self, span: Nanos) {
        if span > Nanos::ZERO {
            self.pass(span + nanos(self.costs.kernel.timer_slack));
            self.wakes();
        }
    }

    /// The manager works for `span` on a core, which the program has for the rest of the time that
    /// this takes.
    pub fn charge(&mut self, span: Nanos) {
        self.manager += span;
        if self.ended() {
            return;
        }
        if self.busy(self.manager_core) {
            self.taken.resize(self.queues.len(), Nanos::ZERO);
            self.taken[self.manager_core] += span;
        }
        let takes = self.shared(self.manager_core, span);
        self.engine.units[self.manager_core].core.time += span.get() * PS;
        self.working = true;
        self.pass(takes);
        self.working = false;
    }

    /// A core that has nobody takes a thread from one where somebody waits
    /// (`sched_balance_newidle`, kernel/sched/fair.c). So threads that wait for pages that move
    /// leave no core idle while the manager has another's.
    fn balance(&mut self) {
        let cores = self.queues.len();
        let managed =
            |world: &Self, core: usize| u64::from(world.working && core == world.manager_core);
        let waits = |world: &Self, core: usize| match world.runnable(core) {
            0 => false,
            threads => threads + managed(world, core) > 1,
        };
        // Mostly nobody waits.
        while let Some(other) = (0..cores).find(|core| waits(self, *core)) {
            let is_idle = |core: &usize| !self.busy(*core) && managed(self, *core) == 0;
            let Some(core) = (0..cores).find(is_idle) else { return };
            let queue = &mut self.queues[other];
            let runs = |t: &usize| self.threads[*t].doing == ThreadActivity::Running;
            let Some(at) = queue.threads.iter().rposition(runs) else { return };
            let thread = queue.threads.remove(at);
            queue.current = queue.current.min(queue.threads.len().saturating_sub(1));
            self.queues[core].threads.push(thread);
            let since = self.engine.lockstep().start();
            let time = &mut self.engine.units[core].core.time;
            *time = since.max(*time);
        }
    }

    /// The manager wakes on a core that nobody uses, or where it was (`select_idle_sibling` in the
    /// kernel's `kernel/sched/fair.c`). There it goes on, whoever else waits meanwhile.
    fn wakes(&mut self) {
        if let Some(core) = (0..self.queues.len()).find(|c| !self.busy(*c)) {
            self.manager_core = core;
        }
    }

    /// Whether the program wants all cores.
    pub(crate) fn wants_all_cores(&self) -> bool {
        let cores = self.queues.len();
        (0..cores).map(|core| self.runnable(core)).sum::<u64>() >= cores as u64
    }

    /// A good moment for the manager to change cores: to the one that it has taken least of, once
    /// that is a millisecond less (`take_turn` in `crates/sys/src/cpu_turns.rs`); none where a core
    /// is idle.
    pub(crate) fn take_turn(&mut self) {
        let cores = self.queues.len();
        if !self.wants_all_cores() {
            return;
        }
        let taken = |core: usize| self.taken.get(core).copied().unwrap_or_default();
        let least = (0..cores).min_by_key(|core| taken(*core)).unwrap_or(0);
        if taken(self.manager_core) >= taken(least) + UNEVEN {
            self.manager_core = least;
        }
    }

    /// `bytes` are copied from one frame to another on the core that is charged next: how long the
    /// buses and caches keep it.
    pub fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Nanos {
        Nanos(self.engine.copy(self.manager_core, from << 12, to << 12, bytes).div_ceil(PS))
    }

    /// `bytes` of the frame `to` are filled with zeros, on the same core.
    pub fn zero(&mut self, to: u64, bytes: u64) -> Nanos {
        Nanos(self.engine.zero(self.manager_core, to << 12, bytes).div_ceil(PS))
    }

    /// Translations of the page `vpn` (and of those that move with it) are dropped on all cores.
    pub fn shoot_down(&mut self, vpn: u64) {
        let Some(index) = self.memory.index(vpn, &mut 0) else { return };
        let (head, span) = (self.memory.head(index), self.memory.span(index));
        for mmu in &mut self.mmus {
            mmu.forget(vpn - (index - head) as u64, head, span);
        }
    }

    /// All translations are dropped on all cores.
    pub fn flush_translations(&mut self) {
        self.mmus.iter_mut().for_each(Mmu::flush);
    }

    /// The program's first instruction comes so much later.
    pub(crate) fn start_late(&mut self, span: Nanos) {
        self.engine.units.iter_mut().for_each(|unit| unit.core.time += span.get() * PS);
    }

    /// Takes `span` from every core that runs the program: an interrupt. How many cores that were.
    pub fn interrupt(&mut self, span: Nanos) -> u64 {
        let mut interrupted = 0;
        for core in 0..self.queues.len() {
            if self.busy(core) {
                self.engine.units[core].core.time += span.get() * PS;
                interrupted += 1;
            }
        }
        interrupted
    }

    /// Cores drop translations of pages that went to the swap device: within a quantum, not at
    /// once.
    fn forget_reclaimed(&mut self) {
        for vpn in self.memory.take_reclaimed() {
            if let Some(index) = self.memory.index(vpn, &mut 0) {
                self.mmus.iter_mut().for_each(|mmu| mmu.forget(vpn, index, 1));
            }
        }
    }

    /// From now on nodes behind it are reached through a unit that translates once more.
    pub fn set_translation_unit(&mut self, unit: TranslationUnit) {
        self.engine.set_translation_unit(unit);
    }

    /// A thread waits for a page from `time` (picoseconds) on.
    pub(crate) fn page_in(&mut self, thread: usize, vpn: u64, write: bool, time: u64) {
        if let Some(head) = self.memory.waited_for.take() {
            self.threads[thread].doing = ThreadActivity::Moving(head);
        } else if let Some(far) = &mut self.far {
            self.threads[thread].doing = ThreadActivity::Paging;
            far.touch(thread, vpn, write, time);
        }
    }

    /// The page at `head` has moved: who waits for it goes on now.
    pub(crate) fn has_moved(&mut self, head: usize) {
        self.memory.has_moved(head, self.time);
        for thread in 0..self.threads.len() {
            if self.threads[thread].doing != ThreadActivity::Moving(head as u32) {
                continue;
            }
            if let Some(core) = self.queues.iter().position(|queue| queue.threads.contains(&thread))
            {
                if !self.busy(core) {
                    let time = &mut self.engine.units[core].core.time;
                    *time = self.time.max(*time);
                }
            }
            self.threads[thread].doing = ThreadActivity::Running;
        }
    }

    /// Lets happen behind memory what does before `end`, picoseconds.
    fn pass_far(&mut self, end: u64) {
        let Some(far) = &mut self.far else { return };
        far.pass(&mut self.memory, end);
        for vpn in far.stale() {
            if let Some(index) = self.memory.index(vpn, &mut 0) {
                self.mmus.iter_mut().for_each(|mmu| mmu.forget(vpn, index, 1));
            }
        }
        self.paged_in.extend(far.woken());
        for (thread, time) in std::mem::take(&mut self.paged_in) {
            let Some(core) = self.queues.iter().position(|queue| queue.threads.contains(&thread))
            else {
                continue;
            };
            let at = self.engine.units[core].core.time;
            if self.busy(core) && at < time {
                // Another thread has the core until then.
                self.paged_in.push((thread, time));
                continue;
            }
            self.engine.units[core].core.time = at.max(time);
            self.threads[thread].doing = ThreadActivity::Running;
        }
    }

    /// All threads wait: time passes until one of them has its page. `false`: none waits for one.
    fn wait_for_far(&mut self) -> bool {
        while let Some(next) = self.far.as_ref().and_then(|far| far.next()) {
            self.pass_far(next + 1);
            if (0..self.queues.len()).any(|core| self.busy(core)) {
                self.engine.restart();
                return true;
            }
        }
        false
    }

    fn busy(&self, core: usize) -> bool {
        self.runnable(core) > 0
    }

    /// Threads of the program that want the core.
    pub(crate) fn runnable(&self, core: usize) -> u64 {
        self.queues[core]
            .threads
            .iter()
            .filter(|t| self.threads[**t].doing == ThreadActivity::Running)
            .count() as u64
    }

    /// The thread that has the core now: the next one where a slice is over or a thread has nothing
    /// to do.
    fn scheduled(&mut self, core: usize) -> Option<usize> {
        let time = self.engine.units[core].core.time;
        let queue = &mut self.queues[core];
        let runs = |t: &usize| self.threads[*t].doing == ThreadActivity::Running;
        let current = queue.threads.get(queue.current).copied().filter(runs);
        if current.is_some() && (time < queue.slice_ends || queue.threads.len() == 1) {
            return current;
        }
        let count = queue.threads.len();
        let next =
            (1..=count).map(|i| (queue.current + i) % count).find(|i| runs(&queue.threads[*i]))?;
        queue.current = next;
        queue.slice_ends = time + SLICE;
        Some(queue.threads[next])
    }

    fn run_core(&mut self, core: usize, end: u64) {
        while self.engine.units[core].core.time < end && !self.ended() && !self.stopped {
            let Some(thread) = self.scheduled(core) else { return };
            if self.threads[thread].at < self.threads[thread].events.len() {
                self.run_events(core, thread, end);
            } else {
                self.refill(core, thread);
            }
        }
    }

    /// What all cores did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let nodes = self.engine.params().sizes.len();
        (0..self.queues.len())
            .fold(Counters::new(nodes), |sum, core| sum.plus(&self.engine.counters(core)))
    }
}
