//! The machine's costs in the simulator's units: what each operation of kernel and daemon touches,
//! and what it takes of the daemon's core.
//!
//! The figures and their sources are in the machine file ([`terrace_machine::KernelCosts`],
//! [`terrace_machine::DaemonCosts`]).

use terrace_machine::{DaemonCosts, KernelCosts, KernelMemoryModel, Machine, Picos};
use terrace_types::{Nanos, PolicyWork};

/// What is done to a line of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Touch {
    /// Nothing.
    #[default]
    No,
    /// It is read.
    Read,
    /// It is changed.
    Write,
}

/// What is done for each page gone over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Visit {
    /// Work of the processor a page, picoseconds, as measured where no memory is waited for.
    pub work: u64,
    /// Its entry in the page table.
    pub entry: Touch,
    /// Its frame's `struct page`.
    pub record: Touch,
    /// Bytes that the daemon keeps of it, which are changed.
    pub own: u64,
}

impl Visit {
    /// What `pages` take where no memory is waited for.
    pub(crate) const fn worked(self, pages: u64) -> Nanos {
        Nanos(pages.saturating_mul(self.work) / 1000)
    }
}

/// What kernel and daemon cost on one machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CostTable {
    pub kernel: KernelCosts,
    pub daemon: DaemonCosts,
    ns_per_instruction: f64,
}

impl CostTable {
    pub fn new(machine: &Machine) -> Self {
        Self {
            kernel: machine.kernel,
            daemon: machine.daemon,
            ns_per_instruction: machine.core.ns_per_instruction,
        }
    }

    /// Whether the kernel's own memory goes through caches and buses.
    pub fn models_kernel_memory(&self) -> bool {
        self.kernel.memory == KernelMemoryModel::Modelled
    }

    /// What so many instructions of the daemon take, picoseconds.
    fn work(&self, instructions: u32) -> u64 {
        (f64::from(instructions) * self.ns_per_instruction * 1000.0).round() as u64
    }

    fn own(&self) -> u64 {
        u64::from(self.daemon.heat_bytes)
    }

    /// Clearing accessed bits. Where memory is waited for it takes longer: 3.6 ms for 40,960 pages
    /// beside two threads that write to the slow node of `lab-dcpmm`, on which a quarter of them
    /// are.
    pub fn clear_accessed(&self) -> Visit {
        let work = self.kernel.clear_accessed.0;
        Visit { work, entry: Touch::Write, record: Touch::Write, own: 0 }
    }

    /// Reading accessed bits, keeping what was found of each page.
    pub fn read_accessed(&self) -> Visit {
        Visit { own: u64::from(self.daemon.observation_bytes), ..self.count_accessed() }
    }

    /// The same, when only the accessed pages are counted.
    pub fn count_accessed(&self) -> Visit {
        Visit { work: self.kernel.read_accessed.0, entry: Touch::Read, ..Visit::default() }
    }

    /// Clearing soft-dirty bits.
    pub fn clear_soft_dirty(&self) -> Visit {
        Visit { work: self.kernel.clear_soft_dirty.0, entry: Touch::Write, ..Visit::default() }
    }

    /// Asking which pages were written.
    pub fn scan_written(&self) -> Visit {
        Visit { work: self.kernel.scan_written.0, entry: Touch::Read, ..Visit::default() }
    }

    /// Looking up frame numbers.
    pub fn look_up_frames(&self) -> Visit {
        let work = self.kernel.look_up_frame.0;
        Visit { work, entry: Touch::Read, record: Touch::Read, own: 0 }
    }

    /// Noting where pages are.
    pub fn note_frames(&self) -> Visit {
        let work = self.kernel.note_frame.0;
        Visit { work, entry: Touch::Read, own: self.own(), ..Visit::default() }
    }

    /// Asking `move_pages` where pages are.
    pub fn query_pages(&self) -> Visit {
        let work = self.kernel.query_page.0;
        Visit { work, entry: Touch::Read, record: Touch::Read, own: 0 }
    }

    /// What the engine does with all pages for a decision after it merged observations of accesses
    /// or writes.
    pub fn decide(&self, accesses: bool, writes: bool) -> Visit {
        let merged = [(accesses, self.daemon.merge_page), (writes, self.daemon.merge_written)];
        let merged = merged.iter().filter(|(is, _)| *is).map(|(_, n)| self.work(*n)).sum::<u64>();
        let work = merged + self.work(self.daemon.account_page);
        Visit { work, own: self.own(), ..Visit::default() }
    }

    /// Comparing a quick scan of all pages with the heat map's forecast.
    pub fn compare_forecast(&self) -> Visit {
        let work = self.work(self.daemon.compare_page);
        Visit { work, own: self.own(), ..Visit::default() }
    }

    /// What a policy's work takes.
    pub fn policy(&self, work: &PolicyWork) -> Nanos {
        let d = &self.daemon;
        let each = [
            (work.scanned_pages, d.scan_page),
            (work.rated_pages, d.rate_page),
            (work.walked_pages, d.walk_page),
            (work.compared_items, d.compare_items),
        ];
        Nanos(each.iter().map(|(n, cost)| n.saturating_mul(self.work(*cost))).sum::<u64>() / 1000)
    }

    /// Accounts of mover and engine for so many pages that are to move.
    pub fn move_accounts(&self, pages: u64) -> Nanos {
        Nanos(pages.saturating_mul(self.work(self.daemon.move_page)) / 1000)
    }

    /// How long a call of `move_pages` that took so much CPU time is blocked for that.
    pub fn move_wait(&self, worked: Nanos) -> Nanos {
        Nanos(worked.get().saturating_mul(self.kernel.move_wait_per_us.0) / 1_000_000)
    }

    /// Reading so many samples and counting them by page.
    pub fn drain_samples(&self, samples: u64) -> Nanos {
        nanos(self.kernel.drain_samples) + times(self.kernel.drain_sample, samples)
    }
}

/// What trackers and target delivered since the engine's CPU time was last charged. All false: it
/// did no more than double an idle interval or wait for free memory to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EngineInput {
    /// A quick scan was compared with what the heat map foresees.
    pub foreseen: bool,
    /// Samples of accesses were merged into the heat map, and a decision followed.
    pub samples: bool,
    /// The same of samples of writes.
    pub writes: bool,
    /// Pages were located, and a decision followed.
    pub located: bool,
}

impl EngineInput {
    /// Everything that either one contains.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            foreseen: self.foreseen || other.foreseen,
            samples: self.samples || other.samples,
            writes: self.writes || other.writes,
            located: self.located || other.located,
        }
    }

    /// Whether a decision followed.
    const fn decides(self) -> bool {
        self.samples || self.writes || self.located
    }

    /// What it takes of each page.
    pub fn visit(self, costs: &CostTable) -> Option<Visit> {
        if !self.decides() {
            return self.foreseen.then(|| costs.compare_forecast());
        }
        Some(costs.decide(self.samples, self.writes))
    }
}

/// A single cost in nanoseconds.
pub(crate) const fn nanos(cost: Picos) -> Nanos {
    Nanos(cost.0 / 1000)
}

/// So many of them.
pub(crate) const fn times(cost: Picos, count: u64) -> Nanos {
    Nanos(cost.0.saturating_mul(count) / 1000)
}
