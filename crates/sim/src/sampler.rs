//! Sampling by the processor, as Intel's PEBS does it: of certain accesses, every so-manieth is written to a buffer.
//!
//! Two events: loads that the last level did not serve (`MEM_LOAD_RETIRED.L3_MISS`) and all stores
//! (`MEM_INST_RETIRED.ALL_STORES`), the pair that MEMTIS (Lee et al., SOSP 2023, section 4.1.1) samples. A record costs
//! the core that made it some time; when the buffer is full, further records are lost until somebody drains it.

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
pub struct Sampler {
    periods: (u64, u64),
    until: (u64, u64),
    samples: Vec<Sample>,
    room: usize,
    lost: u64,
    record: u64,
}

impl Sampler {
    /// One load that misses in `loads`, one store in `stores`; `room` records; each costs `record` picoseconds.
    #[must_use]
    pub fn new(loads: u64, stores: u64, room: usize, record: u64) -> Self {
        let periods = (loads.max(1), stores.max(1));
        Self { periods, until: periods, samples: Vec::new(), room, lost: 0, record }
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
        if self.samples.len() < self.room {
            self.samples.push(sample);
        } else {
            self.lost += 1;
        }
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_period_is_kept_until_the_buffer_is_full() {
        let mut s = Sampler::new(3, 5, 4, 250);
        let took: u64 = (0..9).map(|i| s.missed_load(i)).sum();
        assert_eq!(took, 3 * 250);
        assert_eq!((0..10).map(|i| s.store(100 + i)).sum::<u64>(), 2 * 250);
        let (samples, lost) = s.drain();
        let pages: Vec<(u64, bool)> = samples.iter().map(|s| (s.vpn, s.store)).collect();
        assert_eq!((pages, lost), (vec![(2, false), (5, false), (8, false), (104, true)], 1));
        assert_eq!(s.drain(), (Vec::new(), 0));
        s.set_load_period(1);
        assert_eq!(s.missed_load(7), 250);
    }
}
