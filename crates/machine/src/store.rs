//! What lies behind memory: a disk, or memory that holds data compressed.

use crate::figure::Evidence;
use serde::{Deserialize, Serialize};
use terrace_types::{BytesPerSec, Nanos};

/// A store of far memory and what reaching it costs.
///
/// A request to a device keeps it busy for `operation` and for its bytes at the bandwidth, reads
/// and writes alike, and is done a latency after that. Compressed memory is no device: the pager's
/// own CPU is busy for all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarStore {
    /// Its name, after `far:`.
    pub name: String,
    /// From a touch to the pager and back to whoever touched: a fault told and a thread woken,
    /// without what the pager does.
    pub fault: Nanos,
    /// To map a page or take it out, data included.
    pub page: Nanos,
    /// Time of a read beyond what keeps the store busy.
    pub read_latency: Nanos,
    /// The same of a write.
    pub write_latency: Nanos,
    /// What a request keeps the store busy beside its bytes.
    pub operation: Nanos,
    /// Bytes read.
    pub read_bandwidth: BytesPerSec,
    /// Bytes written.
    pub write_bandwidth: BytesPerSec,
    /// The pager's CPU does the reading and writing.
    pub on_cpu: bool,
    /// Where the figures come from.
    pub evidence: Evidence,
}

impl FarStore {
    /// A disk and compressed memory, for machines whose file names none. Measured in November 2026
    /// on a virtual machine of two CPUs (AMD EPYC, Linux 6.18) with a virtio disk.
    ///
    /// Disk, by `terrace probe --disk`: random 4 KiB read in 66.8 us and written in 57.0 one at a
    /// time, 64,800 and 78,200 a second 32 at a time, 1.1 GB/s read in order; what it writes faster
    /// is the host's memory. A fault that maps zeros is 15 us. A page in or out is 1.1 us of the
    /// pager's CPU in a sweep that reads (256 MiB in 128 MiB, `far-bench`). Compressed memory: lz4
    /// of pages that compress to half, 1.5 us a page to read, and to write what such a sweep takes
    /// longer when it writes.
    #[must_use]
    pub fn usual() -> [Self; 2] {
        let of = |name: &str, on_cpu| Self {
            name: name.to_owned(),
            fault: Nanos::micros(14),
            page: Nanos(1_100),
            read_latency: Nanos::micros(51),
            write_latency: Nanos::micros(44),
            operation: Nanos::micros(12),
            read_bandwidth: BytesPerSec(1_100_000_000),
            write_bandwidth: BytesPerSec(1_100_000_000),
            on_cpu,
            evidence: Evidence::Preset,
        };
        let compressed = Self {
            read_latency: Nanos::ZERO,
            write_latency: Nanos::ZERO,
            operation: Nanos(300),
            read_bandwidth: BytesPerSec(2_500_000_000),
            write_bandwidth: BytesPerSec(1_350_000_000),
            ..of("compressed", true)
        };
        [of("file", false), compressed]
    }
}
