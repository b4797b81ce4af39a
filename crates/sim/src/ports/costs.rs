//! What tracking, locating and deciding cost, in CPU time of the manager. Each from a measurement that is named; none
//! from the results that the simulator is compared with.

use crate::kernel::{Touch, Visit};
use terrace_types::Nanos;

/// Clearing accessed bits (`clear_refs` = 1): 0.86 ms for 40,960 pages in the lab, measured by itself
/// (`crates/track/examples/livecheck.rs`, as are the next two). It changes the entry and the flags of the frame's record
/// (`clear_refs_pte_range`, fs/proc/task_mmu.c). Where memory is waited for it takes longer: 3.6 ms beside two threads that write to
/// the slow node of `lab-dcpmm`, on which a quarter of the pages are.
pub const CLEARING: Visit = Visit { work: 21_000, entry: Touch::Write, record: Touch::Write, own: 0 };

/// Reading accessed bits from the page tables: 0.24 ms for the same pages. Two bytes are kept of each.
pub const READING: Visit = Visit { work: 6_000, entry: Touch::Read, record: Touch::No, own: 2 };

/// The same, when only the accessed pages are counted.
pub const COUNTING: Visit = Visit { own: 0, ..READING };

/// Taking the translation of one huge page away (`MADV_COLD`), one a call: 1.2 us on an AMD EPYC virtual machine as in the
/// lab, 0.5 to 1.1 by eight.
pub const COOLING: Nanos = Nanos(1_200);

/// Reading the entries of huge pages back, at most: [`READING`] of a table of 512. Live, a word is read for each.
pub const READING_A_TABLE: Nanos = Nanos(3_000);

/// Finding a process's page tables for the first time, by the kernel's own pointers (ADR 0044).
pub const FINDING_TABLES: Nanos = Nanos::micros(11);

/// Clearing soft-dirty bits (`clear_refs` = 4). With [`SCANNING`] 30 ns a page: 7 ms for 900 MiB in
/// `docs/results/tracking.md`.
pub const CLEARING_SOFT_DIRTY: Visit = Visit { work: 12_000, entry: Touch::Write, record: Touch::No, own: 0 };

/// Asking which pages were written (`PAGEMAP_SCAN`).
pub const SCANNING: Visit = Visit { work: 18_000, entry: Touch::Read, record: Touch::No, own: 0 };

/// Looking up frame numbers in `/proc/PID/pagemap`: 1.4 ms for 40,960 pages. The kernel looks at each frame's record.
pub const LOOKING_UP: Visit = Visit { work: 34_000, entry: Touch::Read, record: Touch::Read, own: 0 };

/// Finding which of those pages are huge, and noting where they are: 1.1 ms for as many.
pub const NOTING: Visit = Visit { work: 27_000, entry: Touch::Read, record: Touch::No, own: HEAT };

/// Asking `move_pages` where pages are, as the mover does before it moves: 0.15 us a page measured; the record says.
pub const QUERYING: Visit = Visit { work: 150_000, entry: Touch::Read, record: Touch::Read, own: 0 };

/// Bytes of the heat map a page (`docs/results/tracking.md`).
const HEAT: u64 = 10;

/// Merging what was seen into the heat map, deciding, journalling: 5.7 ms a step of `terrace` for 40,974 pages in the
/// lab, locating in every other step included; what is left without that.
pub const DECIDING: Visit = Visit { work: 108_000, entry: Touch::No, record: Touch::No, own: HEAT };

/// Comparing a glance with what the heat map foresees: look and comparison are a fifth of a full look (eight looks) and
/// decision (ADR 0055), and the look is [`CLEARING`] and [`READING`].
pub const FORESEEING: Visit = Visit { work: 38_000, entry: Touch::No, record: Touch::No, own: HEAT };

/// An interrupt for dropping translations on a core that runs the program (an estimate; published figures for x86 lie
/// between 0.5 and 4 us with the wait of the sender).
pub const SHOOT_DOWN: Nanos = Nanos::micros(1);

/// What one record of the processor's sampling costs the core that makes it: an estimate, in the order of what is
/// published for x86.
pub const SAMPLING: Nanos = Nanos(250);

/// An interrupt that empties the processor's buffer: about 20,000 cycles on a Xeon Phi of 1.4 GHz (the paper on sampling
/// with PEBS under McKernel in the proceedings of MCHPC'18, section on interrupts).
pub const SAMPLES_INTERRUPT: Nanos = Nanos::micros(14);

/// Reading so many samples and counting them by page: an estimate, a cache miss or two each.
pub const fn draining(samples: u64) -> Nanos {
    Nanos(2_000 + samples * 200)
}

/// One sampling of so many DAMON regions, bit asked for and next bit cleared: 1,000 regions every 5 ms took 9% to 19% of a
/// core in the lab's guest, 0.45 to 0.95 us each; the middle.
pub const fn sampling_regions(regions: u64) -> Nanos {
    Nanos(regions * 700)
}
