//! What an event is and which fields its records have: `struct perf_event_attr`.

use crate::bytes::ByteCursor;

/// Bits of `perf_event_attr::sample_type` (`enum perf_event_sample_format`).
pub mod sample_type {
    /// Instruction's address.
    pub const IP: u64 = 1;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time.
    pub const TIME: u64 = 1 << 2;
    /// Data address.
    pub const ADDR: u64 = 1 << 3;
    /// Counter values.
    pub const READ: u64 = 1 << 4;
    /// Call chain.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// The event's number.
    pub const ID: u64 = 1 << 6;
    /// CPU.
    pub const CPU: u64 = 1 << 7;
    /// Events since the sample before.
    pub const PERIOD: u64 = 1 << 8;
    /// The number of the inherited event.
    pub const STREAM_ID: u64 = 1 << 9;
    /// The event's own bytes.
    pub const RAW: u64 = 1 << 10;
    /// Last branches.
    pub const BRANCH_STACK: u64 = 1 << 11;
    /// Registers in user mode.
    pub const REGS_USER: u64 = 1 << 12;
    /// Stack in user mode.
    pub const STACK_USER: u64 = 1 << 13;
    /// Latency as one word.
    pub const WEIGHT: u64 = 1 << 14;
    /// What served the access.
    pub const DATA_SRC: u64 = 1 << 15;
    /// The event's number, first in the record.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// Transactional memory.
    pub const TRANSACTION: u64 = 1 << 17;
    /// Registers at the interrupt.
    pub const REGS_INTR: u64 = 1 << 18;
    /// Physical address.
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// Bytes of an auxiliary buffer.
    pub const AUX: u64 = 1 << 20;
    /// Control group.
    pub const CGROUP: u64 = 1 << 21;
    /// Page size of the data address.
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    /// Page size of the instruction's address.
    pub const CODE_PAGE_SIZE: u64 = 1 << 23;
    /// Latency in three parts.
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
}

const FLAG_FREQUENCY: u64 = 1 << 10;
const FLAG_PRECISE_SHIFT: u32 = 15;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
/// Bytes of the first version of the structure (`PERF_ATTR_SIZE_VER0`).
const LEAST_BYTES: usize = 64;

/// How exactly a sample names the instruction that made the access (`precise_ip`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SamplePrecision {
    /// By the interrupt: some instructions later.
    #[default]
    Arbitrary,
    /// By the processor's record, with a constant offset.
    Constant,
    /// Without an offset, if possible.
    Requested,
    /// Without an offset.
    Exact,
}

/// The parts of `struct perf_event_attr` that say what was sampled and how records lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventAttributes {
    /// Number of the counter device (`PERF_TYPE_*`, or sysfs).
    pub device: u32,
    /// Event.
    pub config: u64,
    /// More of the event; latency threshold on Intel.
    pub config1: u64,
    /// More of the event.
    pub config2: u64,
    /// Events between two samples, or samples a second: see [`EventAttributes::is_frequency`].
    pub period: u64,
    /// Fields of a sample: bits of [`sample_type`].
    pub sample_type: u64,
    /// Fields of counter values (`enum perf_event_read_format`).
    pub read_format: u64,
    /// One bit each, from `disabled` on.
    pub flags: u64,
    /// Fields of branch records (`enum perf_branch_sample_type`).
    pub branch_sample_type: u64,
    /// Registers in a sample, a bit each.
    pub user_registers: u64,
    /// Registers at the interrupt in a sample, a bit each.
    pub interrupt_registers: u64,
}

impl EventAttributes {
    /// Reads the structure; `None` if it is shorter than its first version. What an older kernel
    /// wrote is shorter: the missing fields are zero.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < LEAST_BYTES {
            return None;
        }
        let word =
            |at: usize| bytes.get(at..at + 8).and_then(|b| ByteCursor(b).u64()).unwrap_or_default();
        Some(Self {
            device: word(0) as u32,
            config: word(8),
            period: word(16),
            sample_type: word(24),
            read_format: word(32),
            flags: word(40),
            config1: word(56),
            config2: word(64),
            branch_sample_type: word(72),
            user_registers: word(80),
            interrupt_registers: word(96),
        })
    }

    /// Whether samples have this field.
    #[must_use]
    pub const fn has(&self, field: u64) -> bool {
        self.sample_type & field != 0
    }

    /// Whether [`EventAttributes::period`] is a number of samples a second.
    #[must_use]
    pub const fn is_frequency(&self) -> bool {
        self.flags & FLAG_FREQUENCY != 0
    }

    /// See [`SamplePrecision`].
    #[must_use]
    pub const fn precision(&self) -> SamplePrecision {
        match self.flags >> FLAG_PRECISE_SHIFT & 3 {
            0 => SamplePrecision::Arbitrary,
            1 => SamplePrecision::Constant,
            2 => SamplePrecision::Requested,
            _ => SamplePrecision::Exact,
        }
    }

    /// Whether records other than samples end with who they are of.
    #[must_use]
    pub const fn identifies_all(&self) -> bool {
        self.flags & FLAG_SAMPLE_ID_ALL != 0
    }
}
