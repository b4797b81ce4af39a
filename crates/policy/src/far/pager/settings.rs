//! How much memory a pager has, and in which pieces.

use super::PagerTuning;
use terrace_types::Bytes;

/// Settings of a pager.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PagerSettings {
    /// Bytes that may be mapped; frames come on top.
    pub budget: Bytes,
    /// Frames that may be at work.
    pub frames: usize,
    /// Chunks that may be on trial before they go: each has one more frame, which counts as mapped.
    pub standby: usize,
    /// Longest window of prefetch in bytes; 0: none.
    pub window: Bytes,
    /// Times that a read is tried.
    pub tries: u8,
    /// Bytes from the first on that the store has at the start.
    pub stored: Bytes,
    /// What steers it.
    pub tuning: PagerTuning,
}

/// Chunks on trial at most: each has a frame, of addresses if not of memory.
const MAX_TRIALS: usize = 4096;

impl PagerSettings {
    /// Those of a map with `dram` of memory, frames included, and chunks of `chunk`; the window of
    /// prefetch is 16 MiB.
    #[must_use]
    pub const fn new(dram: Bytes, chunk: Bytes) -> Self {
        let frames = Self::frames_for(dram, chunk);
        let trials = (dram.0 / chunk.0) as usize / 8;
        Self {
            budget: Bytes(dram.0.saturating_sub(frames * chunk.0)),
            frames: frames as usize,
            standby: if trials < MAX_TRIALS { trials } else { MAX_TRIALS },
            window: Bytes::mib(16),
            tries: 3,
            stored: Bytes::ZERO,
            tuning: PagerTuning::USUAL,
        }
    }

    /// The chunk for so much memory: the largest from 64 to 256 KiB that leaves 32 frames within a
    /// 32nd of it.
    #[must_use]
    pub const fn chunk_for(dram: Bytes) -> Bytes {
        match dram.0 >> 20 {
            0..=127 => Bytes(64 << 10),
            128..=255 => Bytes(128 << 10),
            _ => Bytes(256 << 10),
        }
    }

    /// The least memory that a map made with `dram` and chunks of `chunk` can have.
    #[must_use]
    pub const fn least(dram: Bytes, chunk: Bytes) -> Bytes {
        Bytes((Self::frames_for(dram, chunk) + 16) * chunk.0)
    }

    const fn frames_for(dram: Bytes, chunk: Bytes) -> u64 {
        let part = dram.0 / 32 / chunk.0;
        if part < 16 {
            16
        } else if part > 192 {
            192
        } else {
            part
        }
    }
}
