//! What served an access: `union perf_mem_data_src`.

use serde::{Deserialize, Serialize};

/// What an access did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryOperation {
    /// The record does not say.
    Unknown,
    /// Load.
    Load,
    /// Store.
    Store,
    /// Prefetch, which is no access of the program.
    Prefetch,
    /// Fetch of an instruction.
    Fetch,
}

/// Where in the hierarchy an access was served.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLevel {
    /// First-level cache.
    L1,
    /// Line fill buffer: the line was on its way (miss-address buffer on AMD).
    LineFillBuffer,
    /// Second-level cache.
    L2,
    /// Third-level cache.
    L3,
    /// Fourth-level cache, or memory-side cache.
    L4,
    /// Another core's cache.
    PeerCache,
    /// DRAM.
    Ram,
    /// Persistent memory.
    PersistentMemory,
    /// Memory behind CXL.
    CxlMemory,
    /// A device, or memory that is not cached.
    Uncached,
    /// Missed the last level that the record names.
    Missed,
    /// The record does not say.
    #[default]
    Unknown,
}

impl MemoryLevel {
    /// All of them, nearest first.
    pub const ALL: [Self; 12] = [
        Self::L1,
        Self::LineFillBuffer,
        Self::L2,
        Self::L3,
        Self::L4,
        Self::PeerCache,
        Self::Ram,
        Self::PersistentMemory,
        Self::CxlMemory,
        Self::Uncached,
        Self::Missed,
        Self::Unknown,
    ];

    /// Short name, as perf has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::L1 => "L1",
            Self::LineFillBuffer => "LFB",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::L4 => "L4",
            Self::PeerCache => "peer cache",
            Self::Ram => "RAM",
            Self::PersistentMemory => "PMEM",
            Self::CxlMemory => "CXL",
            Self::Uncached => "uncached",
            Self::Missed => "miss",
            Self::Unknown => "unknown",
        }
    }

    /// Whether memory served it, not a cache.
    #[must_use]
    pub const fn is_memory(self) -> bool {
        matches!(self, Self::Ram | Self::PersistentMemory | Self::CxlMemory | Self::Missed)
    }
}

/// Whether what served an access belongs to the accessing CPU's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessLocality {
    /// Same node.
    Local,
    /// Another node.
    Remote,
}

/// The word as the kernel gives it; zero: not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DataSource(pub u64);

/// `PERF_MEM_LVL_*`, of the field's bits.
mod level {
    pub const HIT: u64 = 0x02;
    pub const MISS: u64 = 0x04;
    pub const L1: u64 = 0x08;
    pub const LFB: u64 = 0x10;
    pub const L2: u64 = 0x20;
    pub const L3: u64 = 0x40;
    pub const LOCAL_RAM: u64 = 0x80;
    pub const REMOTE_RAM: u64 = 0x100 | 0x200;
    pub const REMOTE_CACHE: u64 = 0x400 | 0x800;
    pub const UNCACHED: u64 = 0x1000 | 0x2000;
}

/// `PERF_MEM_LVLNUM_*`.
mod number {
    pub const L1: u64 = 1;
    pub const L2: u64 = 2;
    pub const L3: u64 = 3;
    pub const L4: u64 = 4;
    pub const L2_MHB: u64 = 5;
    pub const MEMORY_SIDE_CACHE: u64 = 6;
    pub const UNCACHED: u64 = 8;
    pub const CXL: u64 = 9;
    pub const IO: u64 = 10;
    pub const ANY_CACHE: u64 = 11;
    pub const LFB: u64 = 12;
    pub const RAM: u64 = 13;
    pub const PMEM: u64 = 14;
    pub const NOT_AVAILABLE: u64 = 15;
}

const LEVEL_SHIFT: u32 = 5;
const NUMBER_SHIFT: u32 = 33;
const REMOTE_SHIFT: u32 = 37;
const HOPS_SHIFT: u32 = 43;
/// `PERF_MEM_HOPS_0`: another core of this node.
const SAME_NODE: u64 = 1;

impl DataSource {
    const fn bits(self, shift: u32, width: u32) -> u64 {
        self.0 >> shift & ((1 << width) - 1)
    }

    /// Makes the word of an access that `level` served.
    #[must_use]
    pub const fn new(
        operation: MemoryOperation,
        served: MemoryLevel,
        locality: AccessLocality,
    ) -> Self {
        let operation = match operation {
            MemoryOperation::Load => 2,
            MemoryOperation::Store => 4,
            MemoryOperation::Prefetch => 8,
            MemoryOperation::Fetch => 16,
            MemoryOperation::Unknown => 1,
        };
        let remote = matches!(locality, AccessLocality::Remote);
        let (mask, number) = match served {
            MemoryLevel::L1 => (level::HIT | level::L1, number::L1),
            MemoryLevel::LineFillBuffer => (level::HIT | level::LFB, number::LFB),
            MemoryLevel::L2 => (level::HIT | level::L2, number::L2),
            MemoryLevel::L3 => (level::HIT | level::L3, number::L3),
            MemoryLevel::L4 => (level::HIT, number::L4),
            MemoryLevel::PeerCache => (level::HIT, number::ANY_CACHE),
            MemoryLevel::Ram if remote => (level::HIT | 0x100, number::RAM),
            MemoryLevel::Ram => (level::HIT | level::LOCAL_RAM, number::RAM),
            MemoryLevel::PersistentMemory => (level::HIT, number::PMEM),
            MemoryLevel::CxlMemory => (level::HIT, number::CXL),
            MemoryLevel::Uncached => (level::HIT | 0x2000, number::UNCACHED),
            MemoryLevel::Missed => (level::MISS | level::L3, number::NOT_AVAILABLE),
            MemoryLevel::Unknown => (1, number::NOT_AVAILABLE),
        };
        Self(
            operation
                | mask << LEVEL_SHIFT
                | number << NUMBER_SHIFT
                | (remote as u64) << REMOTE_SHIFT,
        )
    }

    /// What the access did.
    #[must_use]
    pub const fn operation(self) -> MemoryOperation {
        match self.bits(0, 5) {
            op if op & 2 != 0 => MemoryOperation::Load,
            op if op & 4 != 0 => MemoryOperation::Store,
            op if op & 8 != 0 => MemoryOperation::Prefetch,
            op if op & 16 != 0 => MemoryOperation::Fetch,
            _ => MemoryOperation::Unknown,
        }
    }

    /// What served it. The newer field, a number, wins over the older one, a set of bits; where
    /// both are there they agree, but the number tells more.
    #[must_use]
    pub const fn level(self) -> MemoryLevel {
        let old = self.bits(LEVEL_SHIFT, 14);
        let missed = old & level::MISS != 0 && old & level::HIT == 0;
        match self.bits(NUMBER_SHIFT, 4) {
            _ if missed => return MemoryLevel::Missed,
            number::L1 => return MemoryLevel::L1,
            number::L2 | number::L2_MHB => return MemoryLevel::L2,
            number::L3 => return MemoryLevel::L3,
            number::L4 | number::MEMORY_SIDE_CACHE => return MemoryLevel::L4,
            number::LFB => return MemoryLevel::LineFillBuffer,
            number::RAM => return MemoryLevel::Ram,
            number::PMEM => return MemoryLevel::PersistentMemory,
            number::CXL => return MemoryLevel::CxlMemory,
            number::ANY_CACHE => return MemoryLevel::PeerCache,
            number::UNCACHED | number::IO => return MemoryLevel::Uncached,
            _ => {}
        }
        match old {
            old if old & level::LFB != 0 => MemoryLevel::LineFillBuffer,
            old if old & level::L1 != 0 => MemoryLevel::L1,
            old if old & level::L2 != 0 => MemoryLevel::L2,
            old if old & level::L3 != 0 => MemoryLevel::L3,
            old if old & (level::LOCAL_RAM | level::REMOTE_RAM) != 0 => MemoryLevel::Ram,
            old if old & level::REMOTE_CACHE != 0 => MemoryLevel::PeerCache,
            old if old & level::UNCACHED != 0 => MemoryLevel::Uncached,
            _ => MemoryLevel::Unknown,
        }
    }

    /// Whether it was served by the CPU's own node; `None` where the record does not say.
    #[must_use]
    pub const fn locality(self) -> Option<AccessLocality> {
        let old = self.bits(LEVEL_SHIFT, 14);
        let remote = self.bits(REMOTE_SHIFT, 1) != 0;
        if remote && self.bits(HOPS_SHIFT, 3) == SAME_NODE {
            return Some(AccessLocality::Local);
        }
        if remote || old & (level::REMOTE_RAM | level::REMOTE_CACHE) != 0 {
            return Some(AccessLocality::Remote);
        }
        match self.level() {
            MemoryLevel::Unknown | MemoryLevel::Missed => None,
            _ => Some(AccessLocality::Local),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_intel_processors_are_read() {
        // The first of a file of perf_data_converter: see tests/files.rs.
        let l1 = DataSource(0x102_6810_0142);
        assert_eq!((l1.operation(), l1.level()), (MemoryOperation::Load, MemoryLevel::L1));
        assert_eq!(l1.locality(), Some(AccessLocality::Local));
        // Old form: remote DRAM, one hop; L3 miss without more; nothing.
        let remote = DataSource(2 | (0x02 | 0x100) << 5);
        assert_eq!(
            (remote.level(), remote.locality()),
            (MemoryLevel::Ram, Some(AccessLocality::Remote))
        );
        let missed = DataSource(2 | (0x04 | 0x40) << 5);
        assert_eq!((missed.level(), missed.locality()), (MemoryLevel::Missed, None));
        let none = DataSource::default();
        assert_eq!(
            (none.operation(), none.level()),
            (MemoryOperation::Unknown, MemoryLevel::Unknown)
        );
        // Another core of the same node (hops 0).
        let peer = DataSource(2 | 11 << 33 | 1 << 37 | 1 << 43);
        assert_eq!(
            (peer.level(), peer.locality()),
            (MemoryLevel::PeerCache, Some(AccessLocality::Local))
        );
    }

    #[test]
    fn words_that_are_made_say_what_was_asked() {
        for level in MemoryLevel::ALL {
            for locality in [AccessLocality::Local, AccessLocality::Remote] {
                let made = DataSource::new(MemoryOperation::Store, level, locality);
                assert_eq!(made.operation(), MemoryOperation::Store);
                assert_eq!(made.level(), level, "{made:?}");
                let reported = made.locality();
                let expected = match level {
                    MemoryLevel::Unknown | MemoryLevel::Missed
                        if locality == AccessLocality::Local =>
                    {
                        None
                    }
                    _ => Some(locality),
                };
                assert_eq!(reported, expected, "{level:?}");
            }
        }
    }
}
