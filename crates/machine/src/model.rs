//! The types of the machine model. Every attribute of memory is a [`Figure`]: value and evidence.

use crate::costs::{DaemonCosts, KernelCosts};
pub use crate::figure::{Evidence, Figure};
use crate::loaded::LoadLatencyCurve;
use crate::store::FarStore;
use serde::{Deserialize, Serialize};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

/// What a node's memory is made of, for people to read; nothing is ranked by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Ordinary DDR memory.
    Dram,
    /// High-bandwidth memory.
    Hbm,
    /// Memory behind a CXL link.
    Cxl,
    /// Persistent memory on the memory bus.
    Pmem,
    /// Memory of a GPU.
    Gpu,
    /// A DAX device in use as memory, nature not reported.
    Dax,
    /// Memory of another machine.
    Remote,
    /// Not reported.
    #[default]
    Unknown,
}

impl MemoryKind {
    const ALL: [Self; 8] = [
        Self::Dram,
        Self::Hbm,
        Self::Cxl,
        Self::Pmem,
        Self::Gpu,
        Self::Dax,
        Self::Remote,
        Self::Unknown,
    ];

    /// Its name in machine files and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Hbm => "hbm",
            Self::Cxl => "cxl",
            Self::Pmem => "pmem",
            Self::Gpu => "gpu",
            Self::Dax => "dax",
            Self::Remote => "remote",
            Self::Unknown => "unknown",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// One memory node; may have no CPUs, or no memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// OS index.
    pub id: NodeId,
    /// What it is made of.
    pub kind: MemoryKind,
    /// CPUs that are local to it, ascending; empty for memory-only nodes.
    pub cpus: Vec<CpuId>,
    /// Memory in all; zero for CPU-only nodes.
    pub capacity: Bytes,
    /// Of that, what no program gets: the kernel, its reserves and what firmware keeps. Zero where
    /// not reported: then no watermarks are known, and the simulator has no lists of free pages for
    /// each CPU on this node (ADR 0252).
    pub reserved: Bytes,
    /// Of `reserved`, what is in use by others than the program, so that whoever asks how full the
    /// node is finds it there.
    #[serde(default)]
    pub in_use: Bytes,
    /// Smallest unit the medium reads or writes (64 B; Optane: 256 B).
    pub block: Bytes,
    /// Socket, where known.
    pub package: Option<u32>,
    /// What it takes to use and to have; for accounts of energy only.
    pub energy: Energy,
}

/// Energy of a node's memory. `None` where not known, which is never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Energy {
    /// Picojoules for each byte read on the bus.
    pub read_pj_per_byte: Option<u32>,
    /// Picojoules for each byte written on the bus.
    pub write_pj_per_byte: Option<u32>,
    /// Milliwatts that the whole node takes at rest (refresh, standby).
    pub static_mw: Option<u32>,
}

/// Figures of memory `target` as seen from CPUs of `initiator`. `None` where not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Node whose CPUs access.
    pub initiator: NodeId,
    /// Node whose memory is accessed.
    pub target: NodeId,
    /// Idle load-to-use latency.
    pub read_latency: Option<Figure<Nanos>>,
    /// Idle store latency.
    pub write_latency: Option<Figure<Nanos>>,
    /// Peak read bandwidth, bytes on the bus, all CPUs together.
    pub read_bandwidth: Option<Figure<BytesPerSec>>,
    /// Peak write bandwidth, bytes on the bus, all CPUs together.
    pub write_bandwidth: Option<Figure<BytesPerSec>>,
    /// Entry of the ACPI distance table, 10 is local.
    pub distance: Option<u32>,
}

impl Link {
    /// Of which nothing is known yet.
    #[must_use]
    pub const fn unknown(initiator: NodeId, target: NodeId) -> Self {
        Self {
            initiator,
            target,
            read_latency: None,
            write_latency: None,
            read_bandwidth: None,
            write_bandwidth: None,
            distance: None,
        }
    }

    /// Whether a bandwidth or latency is known.
    #[must_use]
    pub const fn has_figures(&self) -> bool {
        self.read_latency.is_some()
            || self.write_latency.is_some()
            || self.read_bandwidth.is_some()
            || self.write_bandwidth.is_some()
    }
}

/// The processor core: an access costs max(compute, transfer).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CoreModel {
    /// Nanoseconds an instruction.
    pub ns_per_instruction: f64,
    /// Independent misses in flight at most.
    pub outstanding_misses: u32,
    /// Translations are dropped at least this often (the lab's TLB); zero: never.
    pub tlb_flush: Nanos,
}

impl Default for CoreModel {
    /// A core of four instructions a nanosecond with ten misses in flight (the line fill buffers of
    /// an Intel core: Optimization Reference Manual, "Line Fill Buffer"), whose translations live
    /// until evicted.
    fn default() -> Self {
        Self { ns_per_instruction: 0.25, outstanding_misses: 10, tlb_flush: Nanos::ZERO }
    }
}

/// A core's data translations, and what it costs to be without one. Least recently used entries
/// leave first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlbSpec {
    /// Entries of the first level for base pages; zero: as many as a program uses.
    pub entries: u32,
    /// Ways of a set of those.
    pub ways: u32,
    /// Entries of the first level for huge pages (2 MiB).
    pub large_entries: u32,
    /// Ways of a set of those.
    pub large_ways: u32,
    /// Entries of the second level, for pages of both sizes; zero: no second level.
    pub l2_entries: u32,
    /// Ways of a set of those.
    pub l2_ways: u32,
    /// Time that a hit in the second level adds.
    pub l2_hit: Nanos,
    /// Time that a walk of the page tables adds.
    pub walk: Nanos,
}

impl TlbSpec {
    /// As many translations as a program uses, and walks for nothing: an emulator's.
    pub const UNLIMITED: Self = Self {
        entries: 0,
        ways: 1,
        large_entries: 0,
        large_ways: 1,
        l2_entries: 0,
        l2_ways: 1,
        l2_hit: Nanos::ZERO,
        walk: Nanos::ZERO,
    };
}

impl Default for TlbSpec {
    /// Entries and ways of Intel's Skylake server cores (Optimization Reference Manual 248966-045,
    /// table 2-15: data 64 for 4 KiB in 4 ways, 32 for 2 MiB in 4 ways; shared second level 1536 in
    /// 12 ways). The times are estimates: 2 ns for the second level (7 to 8 cycles beyond the first
    /// are measured on these cores), 10 ns for a walk whose tables lie in caches (published strides
    /// of a page over 256 MiB: about 10 ns more than strides of 512 bytes).
    fn default() -> Self {
        Self {
            entries: 64,
            ways: 4,
            large_entries: 32,
            large_ways: 4,
            l2_entries: 1536,
            l2_ways: 12,
            l2_hit: Nanos(2),
            walk: Nanos(10),
        }
    }
}

/// One cache level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLevel {
    /// 1 is nearest the core.
    pub level: u8,
    /// Bytes it holds.
    pub size: Bytes,
    /// Bytes a line.
    pub line: Bytes,
    /// Ways a set.
    pub ways: u32,
    /// Shared by all cores, else one each.
    pub shared: bool,
    /// Added time of a hit at this level.
    pub hit: Nanos,
}

/// What moving pages costs on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationCost {
    /// Fixed cost of a call.
    pub call: Nanos,
    /// Cost of a base page by one thread, copy included.
    pub page: Nanos,
    /// Per cent of a page's cost that threads cannot have beside each other (Amdahl's law).
    #[serde(default = "MigrationCost::usual_serial_percent")]
    pub serial_percent: u8,
}

impl MigrationCost {
    /// As measured in the lab on Linux 6.12 (docs/results/migration.md): twelve threads move 7.8
    /// times what one does.
    #[must_use]
    pub const fn usual_serial_percent() -> u8 {
        5
    }

    /// One base page with its part of a call of 512, nanoseconds; the lab's where the machine tells
    /// none.
    #[must_use]
    pub fn page_of_a_call(self) -> f64 {
        let known = if self.page == Nanos::ZERO { Self::default() } else { self };
        known.page.get() as f64 + known.call.get() as f64 / 512.0
    }
}

impl Default for MigrationCost {
    /// As measured in the lab on Linux 6.12 (docs/results/migration.md): `move_pages` costs about 8
    /// us a call and 2.3 us a page.
    fn default() -> Self {
        Self {
            call: Nanos::micros(8),
            page: Nanos(2_300),
            serial_percent: Self::usual_serial_percent(),
        }
    }
}

/// The whole machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name: preset name, host name or file stem.
    pub name: String,
    /// Bytes of a base page.
    pub page_size: Bytes,
    /// Core model.
    pub core: CoreModel,
    /// A core's translations.
    pub tlb: TlbSpec,
    /// Caches, level 1 first.
    pub caches: Vec<CacheLevel>,
    /// Nodes by ascending id.
    pub nodes: Vec<Node>,
    /// Links by (initiator, target); at most one each.
    pub links: Vec<Link>,
    /// Cost of moving pages.
    pub migration: MigrationCost,
    /// What the kernel costs.
    #[serde(skip)]
    pub kernel: KernelCosts,
    /// What the tiering daemon costs.
    #[serde(skip)]
    pub daemon: DaemonCosts,
    /// Latency under load, by node and share of reads; empty: nobody has said, and misses take
    /// their idle latency.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loaded: Vec<LoadLatencyCurve>,
    /// What lies behind memory; empty: nobody has said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub far: Vec<FarStore>,
    /// What was missing, tied or repaired when it was read; one sentence each.
    pub notes: Vec<String>,
}

impl Machine {
    /// The node with this id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// A store behind memory by its name; one of the usual ones ([`FarStore::usual`]) where none is
    /// named at all.
    #[must_use]
    pub fn far_store(&self, name: &str) -> Option<FarStore> {
        self.far_stores().into_iter().find(|store| store.name == name)
    }

    /// Stores behind memory, or the usual ones.
    #[must_use]
    pub fn far_stores(&self) -> Vec<FarStore> {
        if self.far.is_empty() {
            return FarStore::usual().into();
        }
        self.far.clone()
    }

    /// The link from `initiator` to `target`.
    #[must_use]
    pub fn link(&self, initiator: NodeId, target: NodeId) -> Option<&Link> {
        self.links.iter().find(|l| l.initiator == initiator && l.target == target)
    }
}
