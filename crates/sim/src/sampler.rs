//! Sampling by the processor, as Intel's PEBS does it: of certain accesses, every so-manieth is
//! written to a buffer.
//!
//! Two events: loads that the last level did not serve (`MEM_LOAD_RETIRED.L3_MISS`) and all stores
//! (`MEM_INST_RETIRED.ALL_STORES`), the pair that MEMTIS (Lee et al., SOSP 2023) samples. Each core
//! counts for itself and has a buffer of its own. A record costs the core that made it some time;
//! when a core's buffer is filled up to its threshold an interrupt takes what is in it to where the
//! daemon reads it; when there is no free space left there, records are lost until somebody drains
//! it.

use terrace_types::Nanos;

/// One sampled access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Page.
    pub vpn: u64,
    /// A store.
    pub store: bool,
    /// Core that made it.
    pub core: u32,
    /// Thread that made it.
    pub thread: u32,
}

/// What a core has counted.
#[derive(Debug, Clone, Copy)]
struct CoreSampling {
    /// Loads and stores until the next sample.
    until: (u64, u64),
    /// Records in the core's buffer.
    buffered: usize,
    /// Number of the draining thread's visit that these came after.
    visit: u64,
}

/// The sampling of all cores.
#[derive(Debug)]
pub struct AccessSampler {
    periods: (u64, u64),
    /// The core that runs now: what it counts, and who runs on it.
    current: CoreSampling,
    core: u32,
    thread: u32,
    /// What other cores have counted.
    cores: Vec<CoreSampling>,
    samples: Vec<Sample>,
    figures: SamplingParams,
    lost: u64,
    totals: SamplingTotals,
    /// Core and time of the first interrupts, picoseconds.
    interrupted: Vec<(u32, u64)>,
}

/// Interrupts whose time is kept.
const MAX_INTERRUPTS: usize = 1 << 20;

/// Who takes records out of the buffers of the cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BufferDrain {
    /// An interrupt on the core whose buffer is filled to its threshold.
    #[default]
    Interrupt,
    /// A hardware thread of its own that visits each buffer once a period, which the PEBS paper
    /// (MCHPC'18, section 6) names as future work. A record that finds its buffer full is lost, and
    /// takes the core as long as one that is kept.
    Thread {
        /// From one visit to the next.
        period: Nanos,
    },
}

/// What sampling is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingParams {
    /// Who empties the buffers.
    pub drain: BufferDrain,
    /// Records between two interrupts; those that fit where a thread drains.
    pub buffer: usize,
    /// Records that wait for the daemon at most.
    pub capacity: usize,
    /// Time of a record, picoseconds.
    pub record: u64,
    /// Time of an interrupt, picoseconds.
    pub interrupt: u64,
}

/// What sampling came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SamplingTotals {
    /// Records written.
    pub records: u64,
    /// Interrupts that emptied a buffer.
    pub interrupts: u64,
    /// Time that both took of the program's cores, picoseconds.
    pub time: u64,
}

impl AccessSampler {
    /// One load that misses in `loads`, one store in `stores`, on each of `cores`.
    #[must_use]
    pub fn new(loads: u64, stores: u64, figures: SamplingParams, cores: usize) -> Self {
        let periods = (loads.max(1), stores.max(1));
        let fresh = CoreSampling { until: periods, buffered: 0, visit: 0 };
        Self {
            periods,
            current: fresh,
            core: 0,
            thread: 0,
            cores: vec![fresh; cores.max(1)],
            samples: Vec::new(),
            figures,
            lost: 0,
            totals: SamplingTotals::default(),
            interrupted: Vec::new(),
        }
    }

    /// From now on `thread` runs on `core`, and nothing else does.
    #[inline]
    pub fn turn_to(&mut self, core: usize, thread: usize) {
        self.thread = thread as u32;
        let before = self.core as usize;
        if core != before && core < self.cores.len() {
            self.cores[before] = self.current;
            self.current = self.cores[core];
            self.core = core as u32;
        }
    }

    /// Another period for loads from each core's next record on.
    pub fn set_load_period(&mut self, loads: u64) {
        self.periods.0 = loads.max(1);
        for core in self.cores.iter_mut().chain([&mut self.current]) {
            core.until.0 = core.until.0.min(self.periods.0);
        }
    }

    /// What has been written since the last time, and how many were lost.
    pub fn drain(&mut self) -> (Vec<Sample>, u64) {
        (std::mem::take(&mut self.samples), std::mem::take(&mut self.lost))
    }

    /// Records, interrupts and their time so far.
    #[must_use]
    pub const fn totals(&self) -> SamplingTotals {
        self.totals
    }

    /// Core and time, picoseconds, of the first million interrupts.
    #[must_use]
    pub fn interrupted(&self) -> &[(u32, u64)] {
        &self.interrupted
    }

    /// A store at `now`; the time that sampling it took, both picoseconds.
    #[inline(always)]
    pub fn store(&mut self, vpn: u64, now: u64) -> u64 {
        self.current.until.1 -= 1;
        if self.current.until.1 > 0 {
            return 0;
        }
        self.current.until.1 = self.periods.1;
        self.write(vpn, true, now)
    }

    /// A load that missed the last level at `now`; the time that sampling it took, both
    /// picoseconds.
    #[inline]
    pub fn missed_load(&mut self, vpn: u64, now: u64) -> u64 {
        self.current.until.0 -= 1;
        if self.current.until.0 > 0 {
            return 0;
        }
        self.current.until.0 = self.periods.0;
        self.write(vpn, false, now)
    }

    #[inline(never)]
    fn write(&mut self, vpn: u64, store: bool, now: u64) -> u64 {
        if !self.has_space(now) {
            self.lost += 1;
            self.totals.time += self.figures.record;
            return self.figures.record;
        }
        let sample = Sample { vpn, store, core: self.core, thread: self.thread };
        if self.samples.len() < self.figures.capacity {
            self.samples.push(sample);
        } else {
            self.lost += 1;
        }
        self.totals.records += 1;
        self.current.buffered += 1;
        let mut took = self.figures.record;
        let interrupts = self.figures.drain == BufferDrain::Interrupt;
        if interrupts && self.current.buffered >= self.figures.buffer {
            self.current.buffered = 0;
            self.totals.interrupts += 1;
            took += self.figures.interrupt;
            if self.interrupted.len() < MAX_INTERRUPTS {
                self.interrupted.push((self.core, now));
            }
        }
        self.totals.time += took;
        took
    }

    /// Whether the core's buffer has space at `now`, picoseconds: with interrupts always.
    fn has_space(&mut self, now: u64) -> bool {
        let BufferDrain::Thread { period } = self.figures.drain else { return true };
        let visit = now / period.0.saturating_mul(1000).max(1);
        if visit != self.current.visit {
            self.current.visit = visit;
            self.current.buffered = 0;
        }
        self.current.buffered < self.figures.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: SamplingParams = SamplingParams {
        drain: BufferDrain::Interrupt,
        buffer: 2,
        capacity: 4,
        record: 250,
        interrupt: 1000,
    };

    #[test]
    fn one_in_a_period_is_kept_until_the_buffer_is_full() {
        let mut s = AccessSampler::new(3, 5, FIGURES, 1);
        let took: u64 = (0..9).map(|i| s.missed_load(i, 0)).sum();
        assert_eq!(took, 3 * 250 + 1000);
        assert_eq!((0..10).map(|i| s.store(100 + i, 0)).sum::<u64>(), 2 * 250 + 1000);
        let (samples, lost) = s.drain();
        let pages: Vec<(u64, bool)> = samples.iter().map(|s| (s.vpn, s.store)).collect();
        assert_eq!((pages, lost), (vec![(2, false), (5, false), (8, false), (104, true)], 1));
        assert_eq!(s.drain(), (Vec::new(), 0));
        s.set_load_period(1);
        assert_eq!(s.missed_load(7, 9), 250 + 1000);
        let totals = SamplingTotals { records: 6, interrupts: 3, time: 6 * 250 + 3000 };
        assert_eq!(s.totals(), totals);
    }

    #[test]
    fn each_core_counts_alone_and_samples_name_their_core() {
        let mut s = AccessSampler::new(2, 1, FIGURES, 2);
        for i in 0..3 {
            s.turn_to(0, 5);
            s.missed_load(i, 0);
            s.turn_to(1, 6 + i as usize);
            s.missed_load(100 + i, 0);
        }
        s.turn_to(0, 5);
        s.store(7, 3);
        let (samples, _) = s.drain();
        let reported: Vec<(u64, u32, u32)> =
            samples.iter().map(|s| (s.vpn, s.core, s.thread)).collect();
        assert_eq!(reported, [(1, 0, 5), (101, 1, 7), (7, 0, 5)]);
        // Core 0 has two records, core 1 one.
        assert_eq!((s.totals().interrupts, s.interrupted()), (1, &[(0, 3)][..]));
    }

    #[test]
    fn a_draining_thread_costs_no_interrupts_and_full_buffers_lose_records() {
        let drain = BufferDrain::Thread { period: Nanos(1) };
        let mut s = AccessSampler::new(1, 1, SamplingParams { drain, ..FIGURES }, 2);
        // Two of three fit between visits; the other core has a buffer of its own.
        let took: u64 = [10, 20, 30].into_iter().map(|now| s.missed_load(now, now)).sum();
        assert_eq!(took, 3 * 250);
        s.turn_to(1, 1);
        s.store(40, 40);
        s.turn_to(0, 0);
        s.missed_load(1001, 1001);
        let (samples, lost) = s.drain();
        assert_eq!((samples.iter().map(|s| s.vpn).collect(), lost), (vec![10, 20, 40, 1001], 1));
        assert_eq!(s.totals(), SamplingTotals { records: 4, interrupts: 0, time: 5 * 250 });
    }
}
