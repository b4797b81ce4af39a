//! What a trace holds.

use serde::{Deserialize, Serialize};
use terrace_sampling::DataSource;

/// What a tick of a trace's time is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum TraceClock {
    /// One instruction executed by the thread. Threads' clocks are comparable: a thread that waited
    /// for others goes on at the time of the one that is furthest.
    #[default]
    Instructions,
    /// A nanosecond of real time.
    Nanoseconds,
}

/// What a trace says of itself. JSON within the file: fields may be added, never change their
/// meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceHeader {
    /// What was recorded: `full`, `lackey`, `perf`, `damo`, ...
    pub source: String,
    /// The command line, one word an item.
    pub command: Vec<String>,
    /// What time counts.
    pub clock: TraceClock,
    /// Nanoseconds of a tick; for instructions a nominal figure (four a nanosecond), since how long
    /// they take is for a machine model to say.
    pub ns_per_tick: f64,
    /// One access in so many was kept; 1 keeps all. Where it is larger, `gap` counts from the
    /// access kept before. Of samples ([`TraceHeader::sampled`]): the mean number of the sampler's
    /// events between two of them, 0 where it is not known.
    pub period: u64,
    /// The accesses are samples, as hardware or DAMON takes them: which accesses are missing is
    /// not known, and counts are counts of samples.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sampled: bool,
    /// Bytes of a base page on the machine that recorded.
    pub page_size_bytes: u64,
    /// Blocks may carry program counters.
    pub pcs: bool,
    /// Blocks may carry the values stored.
    pub values: bool,
    /// Blocks may carry what a sampler knows of each access: see [`SampleDetail`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub details: bool,
    /// Whether `dependence` was looked for; where it was not, none is marked.
    pub dependence: bool,
    /// Filters that were applied and other remarks, one sentence each.
    pub notes: Vec<String>,
}

impl Default for TraceHeader {
    fn default() -> Self {
        Self {
            source: String::new(),
            command: Vec::new(),
            clock: TraceClock::Instructions,
            ns_per_tick: 0.25,
            period: 1,
            sampled: false,
            page_size_bytes: 4096,
            pcs: false,
            values: false,
            details: false,
            dependence: false,
            notes: Vec::new(),
        }
    }
}

impl TraceHeader {
    /// What is missing by design, as a sentence's end ("samples, one for about 10009 events");
    /// `None` where all accesses were kept. Times of the rest cannot be simulated.
    #[must_use]
    pub fn describe_missing(&self) -> Option<String> {
        match (self.sampled || self.period == 0, self.period) {
            (false, 1) => None,
            (false, n) => Some(format!("one access in {n}")),
            (true, 0) => Some("samples, at a rate that is not known".to_owned()),
            (true, 1) => Some("samples, one for each event that was counted".to_owned()),
            (true, n) => Some(format!("samples, one for about {n} events")),
        }
    }
}

/// Size, direction and dependence of an access in one byte: bits 0 to 2 the power of two of its
/// bytes (7: another size, see [`Block::size`](crate::Block::size)), bit 3 set for a store, bits 4
/// to 7 the dependence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct AccessDescriptor(pub u8);

impl AccessDescriptor {
    /// The code of sizes that are no power of two up to 64.
    pub const ODD: u8 = 7;
    /// The largest dependence that can be written.
    pub const FARTHEST: u8 = 15;

    /// From its parts; `depends` above 15 becomes 15.
    #[inline]
    #[must_use]
    pub fn new(size: u32, store: bool, depends: u8) -> Self {
        let code = if size.is_power_of_two() && size <= 64 {
            size.trailing_zeros() as u8
        } else {
            Self::ODD
        };
        Self(code | u8::from(store) << 3 | depends.min(Self::FARTHEST) << 4)
    }

    /// Whether it wrote.
    #[inline(always)]
    #[must_use]
    pub const fn is_store(self) -> bool {
        self.0 & 8 != 0
    }

    /// Bytes, where they are a power of two up to 64.
    #[inline(always)]
    #[must_use]
    pub const fn size(self) -> Option<u32> {
        if self.0 & 7 == Self::ODD {
            None
        } else {
            Some(1 << (self.0 & 7))
        }
    }

    /// How many loads ago the value was loaded that this address was computed from: 1 is the load
    /// just before, 15 is 15 or more, 0 means none of the recent loads (or not known).
    #[inline(always)]
    #[must_use]
    pub const fn depends(self) -> u8 {
        self.0 >> 4
    }
}

/// One access, as the writer takes it. Readers get columns instead: see [`Block`](crate::Block).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Bytes; at most `u32::MAX`.
    pub size: u32,
    /// Whether it wrote.
    pub store: bool,
    /// See [`AccessDescriptor::depends`].
    pub depends: u8,
    /// Instructions the thread has executed since its last access, the one that makes this access
    /// included.
    pub gap: u32,
    /// Address of the instruction; also helps to predict the address, so give it where known, even
    /// if the header says that program counters are not kept. Zero: not known.
    pub pc: u64,
}

/// What a sampler knows of an access besides its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleDetail {
    /// Latency in the sampler's unit, core cycles on x86; zero: not known.
    pub latency_cycles: u32,
    /// What served it; zero: not known.
    pub source: DataSource,
    /// CPU that made it; `u32::MAX`: not known.
    pub cpu: u32,
}

impl SampleDetail {
    /// In place of a CPU: not known.
    pub const UNKNOWN_CPU: u32 = u32::MAX;
}

/// Something other than an access, at a time on a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// Time in the trace's ticks.
    pub time: u64,
    /// Process it happened in; processes are numbered from 0 in the order they appear.
    pub process: u32,
    /// Thread it happened on; threads are numbered from 0 through all processes.
    pub thread: u32,
    /// What happened.
    pub what: EventKind,
}

/// An instruction of a call path, where it lies in its file: so that it can be named when the
/// process is gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallFrame {
    /// Path of the file; empty: the instruction lay in no file.
    pub file: String,
    /// Its byte in the file; without a file its address. Of callers it is the last byte of the
    /// call, not the first behind it, which may belong to another line.
    pub offset: u64,
}

impl std::fmt::Display for CallFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.file.rsplit('/').next() {
            Some(name) if !name.is_empty() => write!(f, "{name}+{:#x}", self.offset),
            _ => write!(f, "{:#x}", self.offset),
        }
    }
}

/// An instruction, or a call that stands for one, that acts on caches or on the order of stores
/// (Intel's manual, volume 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheOperation {
    /// CLWB: the line is written back and may stay.
    WriteBack,
    /// CLFLUSH: the line is written back and leaves; ordered among stores.
    Flush,
    /// CLFLUSHOPT: the same, ordered by fences only.
    FlushWeak,
    /// SFENCE.
    StoreFence,
    /// MFENCE, a locked instruction, or an exchange with memory.
    Fence,
    /// The store just before bypasses the caches.
    NonTemporal,
    /// WBINVD: all lines are written back and leave.
    WriteBackAll,
}

impl CacheOperation {
    const ALL: [Self; 7] = [
        Self::WriteBack,
        Self::Flush,
        Self::FlushWeak,
        Self::StoreFence,
        Self::Fence,
        Self::NonTemporal,
        Self::WriteBackAll,
    ];

    /// Its number in recorders' words and in files.
    #[must_use]
    pub fn code(self) -> u64 {
        Self::ALL.iter().position(|o| *o == self).map_or(0, |i| i as u64 + 1)
    }

    /// The operation of this number.
    #[must_use]
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|o| o.code() == code)
    }

    /// Its name, in the instruction's letters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteBack => "clwb",
            Self::Flush => "clflush",
            Self::FlushWeak => "clflushopt",
            Self::StoreFence => "sfence",
            Self::Fence => "mfence",
            Self::NonTemporal => "non-temporal",
            Self::WriteBackAll => "wbinvd",
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Memory was mapped. `name` is the file's, or empty for anonymous memory.
    Map {
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
        /// `PROT_*` bits.
        protection: u32,
        /// `MAP_*` bits.
        flags: u32,
        /// File mapped.
        name: String,
    },
    /// Memory was unmapped.
    Unmap {
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
    },
    /// Memory was moved and perhaps resized.
    Remap {
        /// First byte before.
        from: u64,
        /// Bytes before.
        old_length: u64,
        /// First byte after.
        to: u64,
        /// Bytes after.
        length: u64,
    },
    /// The heap's end.
    Break {
        /// First byte after the heap.
        end: u64,
    },
    /// A thread begins. The first of a process makes the process known.
    ThreadStart {
        /// As the kernel numbers the process.
        pid: i32,
        /// As the kernel numbers the thread.
        tid: i32,
    },
    /// A thread ends.
    ThreadExit,
    /// This process is a copy of another, mappings included.
    Fork {
        /// The process copied.
        parent: u32,
    },
    /// This process begins anew with another program: all its mappings are gone.
    Exec {
        /// The program.
        name: String,
    },
    /// A range has a name: an allocation, an array, a file's section. An empty name takes it away.
    Object {
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
        /// The name.
        name: String,
    },
    /// The program marked a point: 1 is the begin of its measured phase, 2 the end, others are its
    /// own.
    Mark {
        /// Which.
        id: u32,
    },
    /// The program acted on caches or on the order of its stores.
    Cache {
        /// How.
        operation: CacheOperation,
        /// An address in the line, zero for operations on no line.
        address: u64,
        /// The instruction.
        pc: u64,
    },
    /// Accesses that could not be kept, as a recorder that samples loses them.
    Lost {
        /// How many.
        accesses: u64,
    },
    /// A sampler's buffer was emptied by an interrupt, on this thread.
    SampleInterrupt {
        /// Samples that were in it.
        samples: u32,
    },
    /// So many samples of this process came by the same callers.
    CallPath {
        /// Samples.
        samples: u64,
        /// Where the access was made, then its caller, and so on.
        frames: Vec<CallFrame>,
    },
    /// The CPU belongs to the node: known before the first sample that it made.
    CpuNode {
        /// CPU.
        cpu: u32,
        /// Node.
        node: u32,
    },
}
