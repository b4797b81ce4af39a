//! What a run counts.

/// Counts of one nodelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeletCounters {
    /// Threads that began here.
    pub threads_created: u64,
    /// Spawns by threads here that made a thread.
    pub spawns: u64,
    /// Spawns by threads here that became calls.
    pub calls: u64,
    /// Threads that ended here.
    pub threads_ended: u64,
    /// Migrations from here, by the nodelet that they go to.
    pub migrations_to: Vec<u64>,
    /// Updates sent from here to other nodelets.
    pub remote_out: u64,
    /// Updates that arrived here from other nodelets.
    pub remote_in: u64,
    /// Instructions issued.
    pub instructions: u64,
    /// Words loaded and stored.
    pub memory_words: u64,
    /// Contexts that arrived at a full queue and were written to memory.
    pub spills: u64,
    /// Departures that waited because the queue out was full.
    pub departure_waits: u64,
    /// Longest queue of contexts that came and found no slot.
    pub longest_arrivals: u64,
    /// Longest queue of contexts that wait for the migration engine.
    pub longest_departures: u64,
    /// Longest queue of updates that wait for the memory channel.
    pub longest_updates: u64,
}

impl NodeletCounters {
    pub(crate) fn new(nodelets: u32) -> Self {
        Self { migrations_to: vec![0; nodelets as usize], ..Self::default() }
    }

    /// Migrations from here.
    #[must_use]
    pub fn migrations(&self) -> u64 {
        self.migrations_to.iter().sum()
    }
}

/// Threads and queues of a nodelet over an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeletSample {
    /// Threads in slots, mean.
    pub threads: f64,
    /// Threads in slots that could run, mean at the ends of windows.
    pub runnable: f64,
    /// Contexts that wait for a slot, mean.
    pub arrivals: f64,
    /// Contexts that wait for the migration engine, mean.
    pub departures: f64,
}

/// Counts of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MigratoryCounters {
    /// Simulated picoseconds.
    pub elapsed_ps: u64,
    /// By nodelet.
    pub nodelets: Vec<NodeletCounters>,
    /// Migrations by the instruction that caused them.
    pub migrations_at: Vec<u64>,
    /// Remote updates by instruction.
    pub remote_at: Vec<u64>,
    /// Picoseconds of each sample.
    pub sample_ps: u64,
    /// By time, then nodelet.
    pub samples: Vec<Vec<NodeletSample>>,
}

impl MigratoryCounters {
    /// Migrations of all nodelets.
    #[must_use]
    pub fn migrations(&self) -> u64 {
        self.nodelets.iter().map(NodeletCounters::migrations).sum()
    }

    /// Remote updates of all nodelets.
    #[must_use]
    pub fn remote_updates(&self) -> u64 {
        self.sum(|n| n.remote_out)
    }

    /// One count of all nodelets.
    #[must_use]
    pub fn sum(&self, count: impl Fn(&NodeletCounters) -> u64) -> u64 {
        self.nodelets.iter().map(count).sum()
    }

    /// The most that one nodelet has of a count.
    #[must_use]
    pub fn most(&self, count: impl Fn(&NodeletCounters) -> u64) -> u64 {
        self.nodelets.iter().map(count).max().unwrap_or(0)
    }

    /// Simulated seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.elapsed_ps as f64 / 1e12
    }
}
