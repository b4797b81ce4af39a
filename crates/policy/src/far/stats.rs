//! What happened to a map so far.

/// Counts since the map was made; gauges say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FarCounts {
    /// Faults that the kernel reported.
    pub faults: u64,
    /// Of them, those that waited for the store.
    pub misses: u64,
    /// Of them, those served from what had been fetched ahead.
    pub soft_faults: u64,
    /// Of them, those that found their page on its way already.
    pub late_hits: u64,
    /// Of them, first writes to pages mapped clean.
    pub first_writes: u64,
    /// Of them, those that took back a page on its way out.
    pub rescues: u64,
    /// Times that pages of zeros were mapped.
    pub zero_fills: u64,
    /// Faults that had to wait for a frame, for space, or for their chunk.
    pub deferred: u64,
    /// Threads that went on at the CPU of the pager's thread.
    pub woken_here: u64,
    /// Chunks taken out of memory.
    pub evictions: u64,
    /// Bytes read from the store.
    pub read_bytes: u64,
    /// Bytes written to the store.
    pub written_bytes: u64,
    /// Clean bytes evicted without I/O.
    pub dropped_bytes: u64,
    /// Bytes found to be zeros when evicted, hence not stored.
    pub zero_bytes: u64,
    /// Bytes read ahead of need.
    pub prefetched_bytes: u64,
    /// Of them, bytes mapped at once because their access stream was trusted.
    pub mapped_ahead_bytes: u64,
    /// Of them, bytes held back until touched, and touched.
    pub hits_bytes: u64,
    /// Of them, bytes thrown away untouched.
    pub wasted_bytes: u64,
    /// Reads tried again.
    pub read_retries: u64,
    /// Reads given up.
    pub read_failures: u64,
    /// Writes that failed; their data stayed in memory.
    pub write_failures: u64,
    /// Victims of which some pages could not be taken, since a device was at work on them.
    pub held_back: u64,
    /// Frames handed out.
    pub frames_taken: u64,
    /// Gauge: bytes mapped or reserved now.
    pub mapped_bytes: u64,
    /// Gauge: bytes that may be mapped.
    pub budget_bytes: u64,
    /// Gauge: bytes lost.
    pub lost_bytes: u64,
}
