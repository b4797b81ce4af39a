//! The simulated machine with one program on it, and the time that both share with whoever manages
//! them.
//!
//! Cores run in the lock-step quanta of `terrace-model`: each runs the same few microseconds, one
//! after the other. What the daemon (tracking, deciding, moving) uses of a core is taken from the
//! program where no core is idle.

mod daemon;
mod gate;
mod outlook;
mod shootdown;
mod threads;
mod waits;

pub use gate::WindowGate;
pub use shootdown::{ShootdownCount, ShootdownMode, Shootdowns};

use daemon::DaemonState;
use gate::TimedGate;
use outlook::MissOutlook;
use waits::FarSide;

use crate::batch::Batch;
use crate::costs::CostTable;
use crate::feed::{Feed, ThreadSupply};
use crate::memory::ProgramMemory;
use crate::mmu::Mmu;
use crate::pool::FramePool;
use crate::sampler::{AccessSampler, SamplingTotals};
use std::collections::VecDeque;
use terrace_model::channel::BusDemand;
use terrace_model::{Counters, MemorySystem, TranslationUnit, PS};
use terrace_types::Nanos;

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

/// A core: what it keeps of translations, and whose turn it is.
#[derive(Debug)]
pub(crate) struct SimCore {
    pub(crate) mmu: Mmu,
    /// Index of the node that it is at home on.
    pub(crate) home: usize,
    pub(crate) outlook: MissOutlook,
    queue: CoreQueue,
}

/// The program: where its accesses come from, and its threads.
#[derive(Debug)]
pub(crate) struct Program {
    feed: Box<dyn Feed>,
    pub(crate) threads: Vec<SimThread>,
    pub(crate) accesses: u64,
    /// First page behind its heap that was never mapped.
    heap_mapped: u64,
}

impl Program {
    /// Its first thread runs.
    fn new(feed: Box<dyn Feed>) -> Self {
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
        Self { feed, threads, accesses: 0, heap_mapped: 0 }
    }
}

/// Whether the program goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgramState {
    Runs,
    /// Until [`World::proceed`].
    Stopped,
    /// For good.
    Halted,
}

/// Where the program stops until [`World::proceed`].
#[derive(Debug)]
pub struct ProgramStops {
    /// At the begin of the phase that counts.
    pub at_begin: bool,
    /// Within a quantum, when it has made so many accesses.
    pub after_accesses: u64,
    state: ProgramState,
}

impl ProgramStops {
    fn stop(&mut self) {
        if self.state == ProgramState::Runs {
            self.state = ProgramState::Stopped;
        }
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
    pub(crate) cores: Vec<SimCore>,
    pub(crate) program: Program,
    /// The phase that counts.
    pub measured: RoiMeasurement,
    /// Where the program stops.
    pub stops: ProgramStops,
    /// Hardware sampling of accesses, where somebody asked for it.
    pub sampler: Option<AccessSampler>,
    /// What sampling came to when it was last turned off.
    pub sampling: SamplingTotals,
    pub(crate) daemon: DaemonState,
    far: FarSide,
    /// When the kernel next looks after its lists of free pages.
    refreshed_at: u64,
    gate: Option<TimedGate>,
    /// Translations of pages that move.
    pub shootdowns: Shootdowns,
}

const PAGE: u64 = 4096;
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
        let mut cores: Vec<SimCore> = mmus
            .into_iter()
            .zip(homes)
            .map(|(mmu, home)| SimCore {
                mmu,
                home,
                outlook: MissOutlook::default(),
                queue: CoreQueue::default(),
            })
            .collect();
        cores[0].queue.threads.push(MAIN);
        let count = cores.len();
        for worker in 0..feed.threads() {
            cores[worker % count].queue.threads.push(worker + 1);
        }
        let stops =
            ProgramStops { at_begin: false, after_accesses: u64::MAX, state: ProgramState::Runs };
        Self {
            engine,
            memory,
            costs,
            cores,
            program: Program::new(feed),
            measured: RoiMeasurement::default(),
            stops,
            sampler: None,
            sampling: SamplingTotals::default(),
            daemon: DaemonState::default(),
            far: FarSide::default(),
            refreshed_at: REFRESHED,
            gate: None,
            shootdowns: Shootdowns::default(),
        }
    }

    /// Whether the program has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.measured.end.is_some()
    }

    /// Whether the program waits at the begin of its phase (see [`World::stop_at_begin`]).
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stops.state != ProgramState::Runs
    }

    /// Goes on after a stop that took `span`.
    pub fn proceed(&mut self, span: Nanos) {
        if self.stops.state == ProgramState::Stopped {
            self.stops.state = ProgramState::Runs;
        }
        for unit in &mut self.engine.units {
            unit.core.time += span.get() * PS;
        }
    }

    /// Accesses of the program so far.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.program.accesses
    }

    /// Threads of the program that can run at a time.
    #[must_use]
    pub fn running(&self) -> u64 {
        let alive =
            |t: &&SimThread| !matches!(t.doing, ThreadActivity::Unborn | ThreadActivity::Ended);
        self.program.threads.iter().filter(alive).count().clamp(1, self.cores()) as u64
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
        self.cores.len()
    }

    /// Checks the program's results; its own count of accesses.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn finish(&mut self) -> Result<u64, String> {
        self.program.feed.finish()
    }

    /// What a reader of the results must know of the source, once the program has ended.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.program.feed.notes()
    }

    /// The host had no memory for the program's data, or for the account of its pages.
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        self.program.feed.lacks_memory() || self.memory.unaccounted > 0
    }

    /// Lets `span` pass, or less if the program ends or stops.
    pub fn pass(&mut self, span: Nanos) {
        self.daemon.time = self.daemon.time.saturating_add(span.get().saturating_mul(PS));
        while self.engine.lockstep().start() < self.daemon.time && !self.ended() && !self.stopped()
        {
            self.pass_gate();
            if self.stopped() {
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
            for core in 0..self.cores.len() {
                self.run_core(core, end);
            }
            if self.program.accesses >= self.stops.after_accesses {
                self.stops.stop();
                break;
            }
            // A bit a core, of which there are 64 at most.
            let idle =
                (0..self.cores.len()).fold(0u64, |bits, c| bits | u64::from(!self.busy(c)) << c);
            let advanced = self.engine.advance(|core| idle >> core & 1 == 1);
            let all_idle = idle.count_ones() as usize == self.cores.len();
            if !advanced && all_idle && !self.wait_for_far() {
                break;
            }
            for (core, unit) in self.cores.iter_mut().zip(&self.engine.units) {
                core.mmu.pass(unit.core.time);
            }
        }
    }

    /// A core that has nobody takes a thread from one where somebody waits
    /// (`sched_balance_newidle`, kernel/sched/fair.c). So threads that wait for pages that move
    /// leave no core idle while the daemon has another's.
    fn balance(&mut self) {
        let cores = self.cores.len();
        let managed = |world: &Self, core: usize| {
            u64::from(world.daemon.working && core == world.daemon.core)
        };
        let waits = |world: &Self, core: usize| match world.runnable(core) {
            0 => false,
            threads => threads + managed(world, core) > 1,
        };
        // Mostly nobody waits.
        while let Some(other) = (0..cores).find(|core| waits(self, *core)) {
            let is_idle = |core: &usize| !self.busy(*core) && managed(self, *core) == 0;
            let Some(core) = (0..cores).find(is_idle) else { return };
            let queue = &mut self.cores[other].queue;
            let runs = |t: &usize| self.program.threads[*t].doing == ThreadActivity::Running;
            let Some(at) = queue.threads.iter().rposition(runs) else { return };
            let thread = queue.threads.remove(at);
            queue.current = queue.current.min(queue.threads.len().saturating_sub(1));
            self.cores[core].queue.threads.push(thread);
            let since = self.engine.lockstep().start();
            let time = &mut self.engine.units[core].core.time;
            *time = since.max(*time);
        }
    }

    /// Translations of the page `vpn` (and of those that move with it) are dropped on all cores.
    pub fn shoot_down(&mut self, vpn: u64) {
        let Some(index) = self.memory.index(vpn, &mut 0) else { return };
        let (head, span) = (self.memory.head(index), self.memory.span(index));
        for core in &mut self.cores {
            core.mmu.forget(vpn - (index - head) as u64, head, span);
        }
    }

    /// All translations are dropped on all cores.
    pub fn flush_translations(&mut self) {
        self.cores.iter_mut().for_each(|core| core.mmu.flush());
    }

    /// The program's first instruction comes so much later.
    pub(crate) fn start_late(&mut self, span: Nanos) {
        self.engine.units.iter_mut().for_each(|unit| unit.core.time += span.get() * PS);
    }

    /// Takes `span` from every core that runs the program: an interrupt. How many cores that were.
    pub fn interrupt(&mut self, span: Nanos) -> u64 {
        let mut interrupted = 0;
        for core in 0..self.cores.len() {
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
            self.forget_base_page(vpn);
        }
    }

    fn forget_base_page(&mut self, vpn: u64) {
        if let Some(index) = self.memory.index(vpn, &mut 0) {
            self.cores.iter_mut().for_each(|core| core.mmu.forget(vpn, index, 1));
        }
    }

    /// From now on nodes behind it are reached through a unit that translates once more.
    pub fn set_translation_unit(&mut self, unit: TranslationUnit) {
        self.engine.set_translation_unit(unit);
    }

    fn busy(&self, core: usize) -> bool {
        self.runnable(core) > 0
    }

    /// Threads of the program that want the core.
    pub(crate) fn runnable(&self, core: usize) -> u64 {
        self.cores[core]
            .queue
            .threads
            .iter()
            .filter(|t| self.program.threads[**t].doing == ThreadActivity::Running)
            .count() as u64
    }

    /// The thread that has the core now: the next one where a slice is over or a thread has nothing
    /// to do.
    fn scheduled(&mut self, core: usize) -> Option<usize> {
        let time = self.engine.units[core].core.time;
        let queue = &mut self.cores[core].queue;
        let runs = |t: &usize| self.program.threads[*t].doing == ThreadActivity::Running;
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
        while self.engine.units[core].core.time < end && !self.ended() && !self.stopped() {
            let Some(thread) = self.scheduled(core) else { return };
            if self.program.threads[thread].at < self.program.threads[thread].events.len() {
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
        (0..self.cores.len())
            .fold(Counters::new(nodes), |sum, core| sum.plus(&self.engine.counters(core)))
    }
}
