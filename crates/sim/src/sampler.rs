//! Sampling by the processor, as Intel's PEBS does it: of certain accesses, every so-manieth is
//! written to a buffer.
//!
//! Two events: loads that the last level did not serve (`MEM_LOAD_RETIRED.L3_MISS`) and all stores
//! (`MEM_INST_RETIRED.ALL_STORES`), the pair that MEMTIS (Lee et al., SOSP 2023) samples. A record
//! costs the core that made it some time; each time the core's own buffer is full an interrupt
//! takes what is in it to where the manager reads it; when there is no room left there, records are
//! lost until somebody drains it.

/// One sampled access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Page.
    pub vpn: u64,
    /// A store.
    pub store: bool,
}

/// The sampling of all cores: they share one count, so that the total rate is what the period says.
#[derive(Debug)]
pub struct AccessSampler {
    periods: (u64, u64),
    until: (u64, u64),
    samples: Vec<Sample>,
    figures: SamplingParams,
    /// Records in the processor's buffer.
    buffered: usize,
    lost: u64,
}

/// What sampling is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingParams {
    /// Records between two interrupts.
    pub buffer: usize,
    /// Records that wait for the manager at most.
    pub room: usize,
    /// Time of a record, picoseconds.
    pub record: u64,
    /// Time of an interrupt, picoseconds.
    pub interrupt: u64,
}

impl AccessSampler {
    /// One load that misses in `loads`, one store in `stores`.
    #[must_use]
    pub fn new(loads: u64, stores: u64, figures: SamplingParams) -> Self {
        let periods = (loads.max(1), stores.max(1));
        Self { periods, until: periods, samples: Vec::new(), figures, buffered: 0, lost: 0 }
    }

    /// Another period for loads from the next record on.
    pub fn set_load_period(&mut self, loads: u64) {
        self.periods.0 = loads.max(1);
        self.until.0 = self.until.0.min(self.periods.0);
    }

    /// What has been written since the last time, and how many were lost.
    pub fn drain(&mut self) -> (Vec<Sample>, u64) {
        (std::mem::take(&mut self.samples), std::mem::take(&mut self.lost))
    }

    /// A store; the time that sampling it took, picoseconds.
    #[inline(always)]
    pub fn store(&mut self, vpn: u64) -> u64 {
        self.until.1 -= 1;
        if self.until.1 > 0 {
            return 0;
        }
        self.until.1 = self.periods.1;
        self.write(Sample { vpn, store: true })
    }

    /// A load that missed the last level; the time that sampling it took, picoseconds.
    #[inline]
    pub fn missed_load(&mut self, vpn: u64) -> u64 {
        self.until.0 -= 1;
        if self.until.0 > 0 {
            return 0;
        }
        self.until.0 = self.periods.0;
        self.write(Sample { vpn, store: false })
    }

    #[inline(never)]
    fn write(&mut self, sample: Sample) -> u64 {
        if self.samples.len() < self.figures.room {
            self.samples.push(sample);
        } else {
            self.lost += 1;
        }
        self.buffered += 1;
        if self.buffered < self.figures.buffer {
            return self.figures.record;
        }
        self.buffered = 0;
        self.figures.record + self.figures.interrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_period_is_kept_until_the_buffer_is_full() {
        let mut s = AccessSampler::new(
            3,
            5,
            SamplingParams { buffer: 2, room: 4, record: 250, interrupt: 1000 },
        );
        let took: u64 = (0..9).map(|i| s.missed_load(i)).sum();
        assert_eq!(took, 3 * 250 + 1000);
        assert_eq!((0..10).map(|i| s.store(100 + i)).sum::<u64>(), 2 * 250 + 1000);
        let (samples, lost) = s.drain();
        let pages: Vec<(u64, bool)> = samples.iter().map(|s| (s.vpn, s.store)).collect();
        assert_eq!((pages, lost), (vec![(2, false), (5, false), (8, false), (104, true)], 1));
        assert_eq!(s.drain(), (Vec::new(), 0));
        s.set_load_period(1);
        assert_eq!(s.missed_load(7), 250 + 1000);
    }
}
