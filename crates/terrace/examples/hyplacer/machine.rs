//! HyPlacer's machine, scaled down so that hours become seconds and what the figures compare stays
//! in proportion.
//!
//! With `size` = S, memory has one S-th of its bytes, and everything is S times slower: latencies,
//! transfer times, instructions, the cost of moving a page. What a policy can see and do in one of
//! its periods then stands as on the real machine: sweeps of the fast tier, pages moved of all
//! pages, accesses to a page. Policies, heat map and engine keep their spans. Limits in pages, and
//! those in bytes a second, are divided by S. Seconds are the real machine's.
//!
//! With `clock` = C above 1 those spans are C times shorter and memory is only D = S / C times
//! slower. It is there to show that this does worse: the engine's shortest looks are no shorter
//! then, and tell hot pages apart no more.
//!
//! Not in proportion: the kernel's costs of tracking and of faults, which are times of the real
//! machine (D times too cheap; the figures say nothing of tracking's cost); the page, S times as
//! large a part of memory as it was; and the caches. What the last level holds of these kernels are
//! planes and vectors, not volumes, so it is divided by S to the power 2/3; the first level here is
//! the real second one, likewise.
//!
//! One simulated core stands for two of the 16 real ones, with their instructions and their miss
//! registers; a real core's two hardware threads share both. With sixteen the model's buses carry a
//! third more than their bandwidth when all of them ask for as much as they can
//! (`terrace_model::channel` rounds shares down to a 1024th and gives what is left to each); with
//! eight, a few per cent.

use terrace_machine::{preset, KernelMemoryModel, Machine};
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// How the machine is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// S: by how much memory is smaller.
    pub size: u64,
    /// C: by how much time is shorter.
    pub clock: u64,
    /// Hundredths of one core that tracking and deciding may use.
    pub budget: u64,
}

impl Default for Scale {
    fn default() -> Self {
        Self { size: 8192, clock: 1, budget: 3 }
    }
}

/// Simulated cores; each stands for two of the 16 of a socket.
pub const CORES: u32 = 8;
pub const OF_EACH: u32 = 2;

impl Scale {
    /// D: by how much memory is slower.
    pub fn slower(self) -> f64 {
        self.size as f64 / self.clock as f64
    }

    /// A span of the paper's.
    pub fn span(self, span: Nanos) -> Nanos {
        Nanos((span.get() / self.clock).max(1))
    }

    /// Pages of the paper's.
    pub fn pages(self, pages: u64) -> u64 {
        (pages / self.size).max(1)
    }

    /// Bytes a second of the paper's.
    pub fn rate(self, rate: BytesPerSec) -> BytesPerSec {
        BytesPerSec(((rate.get() as f64 / self.slower()) as u64).max(1))
    }

    /// Long against a transfer, short against the shortest wait.
    pub fn quantum(self) -> Nanos {
        Nanos(Nanos::millis(10).get() / self.clock)
    }

    /// The machine.
    pub fn machine(self) -> Result<Machine, String> {
        let mut machine = preset("dram-dcpmm").ok_or("no preset dram-dcpmm")?;
        let times = |n: Nanos| Nanos((n.get() as f64 * self.slower()) as u64);
        machine.name = format!("dram-dcpmm, 1/{}", self.size);
        machine.core.ns_per_instruction *= self.slower() / f64::from(OF_EACH);
        machine.core.outstanding_misses *= OF_EACH;
        for node in &mut machine.nodes {
            node.capacity = Bytes((node.capacity.get() / self.size).max(1 << 20));
        }
        for link in &mut machine.links {
            for latency in [&mut link.read_latency, &mut link.write_latency].into_iter().flatten() {
                latency.value = times(latency.value);
            }
            for rate in [&mut link.read_bandwidth, &mut link.write_bandwidth].into_iter().flatten()
            {
                rate.value = self.rate(rate.value);
            }
        }
        let areas = (self.size as f64).powf(2.0 / 3.0);
        machine.caches.retain(|c| c.level > 1);
        for cache in &mut machine.caches {
            cache.level -= 1;
            cache.hit = times(cache.hit);
            let sets =
                cache.size.get() as f64 / areas / (cache.line.get() * u64::from(cache.ways)) as f64;
            let sets = 1 << (sets.max(1.0).log2().round() as u32);
            cache.size = Bytes(sets * cache.line.get() * u64::from(cache.ways));
        }
        machine.caches.iter_mut().filter(|c| c.level == 1).for_each(|c| c.hit = Nanos::ZERO);
        // Pages go one by one here, as many to a call there: a page bears its part of a call.
        machine.migration.page = times(machine.migration.page);
        machine.migration.call = times(Nanos(machine.migration.call.get() / 512));
        machine.kernel.memory = KernelMemoryModel::Fixed;
        Ok(machine)
    }
}
