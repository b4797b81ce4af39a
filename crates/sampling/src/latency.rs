//! Latencies of samples by what served them.

use crate::source::{AccessLocality, DataSource, MemoryLevel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Samples that one level served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelLatency {
    /// What served them.
    pub level: MemoryLevel,
    /// Whether that was on the accessing CPU's node; `None`: not known.
    pub locality: Option<AccessLocality>,
    /// Samples.
    pub samples: u64,
    /// Samples with a latency, which the other figures are of.
    pub with_latency: u64,
    /// Shortest, in the sampler's unit, core cycles on x86; zero without any.
    pub least_cycles: u32,
    /// Mean.
    pub mean_cycles: u32,
    /// Longest.
    pub most_cycles: u32,
}

/// Sums up latencies.
#[derive(Debug, Clone, Default)]
pub struct LatencyByLevel {
    levels: BTreeMap<(MemoryLevel, Option<AccessLocality>), LatencySums>,
}

#[derive(Debug, Clone, Copy, Default)]
struct LatencySums {
    samples: u64,
    with_latency: u64,
    least: u32,
    most: u32,
    sum: u128,
}

impl LatencyByLevel {
    /// Adds a sample; a latency of zero is not known.
    pub fn add(&mut self, source: DataSource, latency_cycles: u32) {
        let sums = self.levels.entry((source.level(), source.locality())).or_default();
        sums.samples += 1;
        if latency_cycles > 0 {
            let first = sums.with_latency == 0;
            sums.least = if first { latency_cycles } else { sums.least.min(latency_cycles) };
            sums.most = sums.most.max(latency_cycles);
            sums.sum += u128::from(latency_cycles);
            sums.with_latency += 1;
        }
    }

    /// Levels that served any, nearest first.
    #[must_use]
    pub fn levels(&self) -> Vec<LevelLatency> {
        let level = |((level, locality), sums): (&(MemoryLevel, _), &LatencySums)| LevelLatency {
            level: *level,
            locality: *locality,
            samples: sums.samples,
            with_latency: sums.with_latency,
            least_cycles: sums.least,
            mean_cycles: (sums.sum / u128::from(sums.with_latency.max(1))) as u32,
            most_cycles: sums.most,
        };
        self.levels.iter().map(level).collect()
    }

    /// Whether no sample says anything: neither a level nor a latency.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.levels
            .iter()
            .all(|((level, _), sums)| *level == MemoryLevel::Unknown && sums.with_latency == 0)
    }
}

impl LevelLatency {
    /// Name of level and locality, for people.
    #[must_use]
    pub fn name(&self) -> String {
        match self.locality {
            Some(AccessLocality::Remote) => format!("remote {}", self.level.name()),
            Some(AccessLocality::Local) if self.level.is_memory() => {
                format!("local {}", self.level.name())
            }
            _ => self.level.name().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryOperation;

    #[test]
    fn figures_are_of_samples_with_a_latency() {
        let of = |level| DataSource::new(MemoryOperation::Load, level, AccessLocality::Local);
        let mut sums = LatencyByLevel::default();
        assert!(sums.is_silent());
        [
            (MemoryLevel::Ram, 300),
            (MemoryLevel::L1, 4),
            (MemoryLevel::Ram, 0),
            (MemoryLevel::Ram, 501),
        ]
        .into_iter()
        .for_each(|(level, cycles)| sums.add(of(level), cycles));
        let levels = sums.levels();
        assert_eq!(levels.iter().map(LevelLatency::name).collect::<Vec<_>>(), ["L1", "local RAM"]);
        let ram = levels[1];
        assert_eq!((ram.samples, ram.with_latency), (3, 2));
        assert_eq!((ram.least_cycles, ram.mean_cycles, ram.most_cycles), (300, 400, 501));
        assert!(!sums.is_silent());
    }
}
