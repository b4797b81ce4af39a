//! What became of a host: traffic, latencies, shootdowns, swapping.

use crate::spread::LatencySpread;
use serde::Serialize;
use terrace_sim::SimRun;

/// What a host did with one pool, or with its local memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PoolTraffic {
    /// Frames that it got.
    pub frames: u64,
    /// Misses of its last-level cache that went there.
    pub accesses: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Pages of files that it touched there; others have them mapped, too.
    pub shared_frames: u64,
    /// Mean time that a miss waited in the queues of fabric and pool, nanoseconds.
    pub mean_wait_ns: f64,
    /// How long misses took there, waits included and walks of a translation unit not.
    pub latency_ns: LatencySpread,
}

/// Translations that a host dropped because pages moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ShootdownTotals {
    /// Times that its cores were interrupted together.
    pub rounds: u64,
    /// Interrupts of cores.
    pub interrupts: u64,
    /// Pages.
    pub pages: u64,
}

/// Pages of a host that went to its swap device and came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SwapTotals {
    /// Written.
    pub written_pages: u64,
    /// Read.
    pub read_pages: u64,
}

/// What a host's translation unit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TranslationTotals {
    /// Lines that passed.
    pub lookups: u64,
    /// Walks of the system's page table.
    pub walks: u64,
}

/// What became of a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostOutcome {
    /// Its name.
    pub host: String,
    /// Instructions of the phase that counts.
    pub instructions: u64,
    /// Instructions a cycle, by core that the program uses.
    pub ipc: f64,
    /// Local memory, then each pool.
    pub pools: Vec<PoolTraffic>,
    /// The policy that moved pages, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<&'static str>,
    /// Pages of its page tables, all of them in local memory.
    pub page_table_pages: u64,
    /// Requests for frames that it made to the manager.
    pub manager_requests: u64,
    /// Translations dropped because pages moved.
    pub shootdowns: ShootdownTotals,
    /// Pages that went to its swap device, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapTotals>,
    /// Its translation unit, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub translation: Option<TranslationTotals>,
    /// What `terrace sim` shows of a machine.
    #[serde(flatten)]
    pub run: SimRun,
}
