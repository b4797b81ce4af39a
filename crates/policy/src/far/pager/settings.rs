//! How much memory a pager has, and in which pieces.

use terrace_types::Bytes;

/// Settings of a pager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagerSettings {
    /// Bytes that may be mapped; slots come on top.
    pub budget: Bytes,
    /// Slots that may be at work.
    pub slots: usize,
    /// Units that may be on trial before they go: each has one more slot, which counts as mapped.
    pub standby: usize,
    /// Longest window of prefetch in bytes; 0: none.
    pub window: Bytes,
    /// Times that a read is tried.
    pub tries: u8,
    /// Bytes from the first on that the store has at the start.
    pub stored: Bytes,
}

/// Units on trial at most: each has a slot, of addresses if not of memory.
const MOST_TRIALS: usize = 4096;

impl PagerSettings {
    /// Those of a map with `dram` of memory, slots included, and units of `unit`; the window of
    /// prefetch is 16 MiB.
    #[must_use]
    pub const fn new(dram: Bytes, unit: Bytes) -> Self {
        let slots = Self::slots_for(dram, unit);
        let trials = (dram.0 / unit.0) as usize / 8;
        Self {
            budget: Bytes(dram.0.saturating_sub(slots * unit.0)),
            slots: slots as usize,
            standby: if trials < MOST_TRIALS { trials } else { MOST_TRIALS },
            window: Bytes::mib(16),
            tries: 3,
            stored: Bytes::ZERO,
        }
    }

    /// The unit for so much memory: the largest from 64 to 256 KiB that leaves 32 slots within a
    /// 32nd of it.
    #[must_use]
    pub const fn unit_for(dram: Bytes) -> Bytes {
        match dram.0 >> 20 {
            0..=127 => Bytes(64 << 10),
            128..=255 => Bytes(128 << 10),
            _ => Bytes(256 << 10),
        }
    }

    /// The least memory that a map made with `dram` and units of `unit` can have.
    #[must_use]
    pub const fn least(dram: Bytes, unit: Bytes) -> Bytes {
        Bytes((Self::slots_for(dram, unit) + 16) * unit.0)
    }

    const fn slots_for(dram: Bytes, unit: Bytes) -> u64 {
        let part = dram.0 / 32 / unit.0;
        if part < 16 {
            16
        } else if part > 192 {
            192
        } else {
            part
        }
    }
}
