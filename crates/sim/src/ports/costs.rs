//! What tracking, locating and deciding cost, in CPU time of the manager. Each from a measurement
//! that is named; none from the results that the simulator is compared with.

use crate::kernel::{RecordUse, RecordVisit};
use terrace_types::Nanos;

/// Clearing accessed bits (`clear_refs` = 1): 0.86 ms for 40,960 pages in the lab, measured by
/// itself (`crates/track/examples/livecheck.rs`, as are the next two). It changes the entry and the
/// flags of the frame's record (`clear_refs_pte_range`, fs/proc/task_mmu.c). Where memory is waited
/// for it takes longer: 3.6 ms beside two threads that write to the slow node of `lab-dcpmm`, on
/// which a quarter of the pages are.
pub const CLEARING: RecordVisit =
    RecordVisit { work: 21_000, entry: RecordUse::Write, record: RecordUse::Write, own: 0 };

/// Reading accessed bits from the page tables and counting what was found. Two bytes are kept of
/// each. The kernel's copy, the walk and the counting are 4, 4 and 3 ns a page.
pub const READING: RecordVisit =
    RecordVisit { work: 11_000, entry: RecordUse::Read, record: RecordUse::No, own: 2 };

/// The same, when only the accessed pages are counted.
pub const COUNTING: RecordVisit = RecordVisit { own: 0, ..READING };

/// Taking the translation of one huge page away (`MADV_COLD`), one a call: 1.2 us on an AMD EPYC
/// virtual machine as in the lab, 0.5 to 1.1 by eight.
pub const COOLING: Nanos = Nanos(1_200);

/// Reading the entries of huge pages back, at most: [`READING`] of a table of 512. Live, a word is
/// read for each.
pub const READING_A_TABLE: Nanos = Nanos(3_000);

/// Finding a process's page tables for the first time, by the kernel's own pointers (ADR 0044).
pub const FINDING_TABLES: Nanos = Nanos::micros(11);

/// Clearing soft-dirty bits (`clear_refs` = 4). With [`SCANNING`] 30 ns a page: 7 ms for 900 MiB in
/// `docs/results/tracking.md`.
pub const CLEARING_SOFT_DIRTY: RecordVisit =
    RecordVisit { work: 12_000, entry: RecordUse::Write, record: RecordUse::No, own: 0 };

/// Asking which pages were written (`PAGEMAP_SCAN`).
pub const SCANNING: RecordVisit =
    RecordVisit { work: 18_000, entry: RecordUse::Read, record: RecordUse::No, own: 0 };

/// Looking up frame numbers in `/proc/PID/pagemap`: 1.4 ms for 40,960 pages. The kernel looks at
/// each frame's record.
pub const LOOKING_UP: RecordVisit =
    RecordVisit { work: 34_000, entry: RecordUse::Read, record: RecordUse::Read, own: 0 };

/// Finding which of those pages are huge, and noting where they are: 1.1 ms for as many.
pub const NOTING: RecordVisit =
    RecordVisit { work: 27_000, entry: RecordUse::Read, record: RecordUse::No, own: HEAT };

/// Asking `move_pages` where pages are, as the mover does before it moves: 0.15 us a page measured;
/// the record says.
pub const QUERYING: RecordVisit =
    RecordVisit { work: 150_000, entry: RecordUse::Read, record: RecordUse::Read, own: 0 };

/// Bytes of the heat map a page (`docs/results/tracking.md`).
const HEAT: u64 = 10;

/// Merging looks at accesses into the heat map, picoseconds a page. As the next, [`DecisionCost`]
/// and [`READING`] by the instructions of `terrace run` in the lab (ADR 0261), a quarter of a
/// nanosecond each.
pub const MERGING: u64 = 25_000;

/// Merging looks at writes.
pub const MERGING_WRITES: u64 = 85_000;

/// What the engine does for any decision: sums by node, the journal's digest.
pub const BOOKS: RecordVisit =
    RecordVisit { work: 26_000, entry: RecordUse::No, record: RecordUse::No, own: HEAT };

/// What a policy takes of the manager's CPU, picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionCost {
    /// Of each page, at each decision.
    pub each: u64,
    /// Of each page, once where pages are to move: choosing which.
    pub planning: u64,
    /// Of each page that is to move, the mover's and the engine's accounts (120 ns) among it.
    pub moving: u64,
}

impl DecisionCost {
    /// Of the policy of this name. Those that were not measured go over the pages and sort them as
    /// `histogram` does.
    pub fn by_policy(policy: &str) -> Self {
        match policy {
            "terrace" | "terrace-write-blind" => {
                Self { each: 40_000, planning: 190_000, moving: 120_000 }
            }
            "hyplacer" | "hyplacer-write-blind" => {
                Self { each: 15_000, planning: 0, moving: 120_000 }
            }
            _ => Self { each: 45_000, planning: 0, moving: 350_000 },
        }
    }
}

/// How long one call of `move_pages` is kept waiting beside its work where the program wants all
/// cores: it begins by waiting for an expedited grace period (`lru_cache_disable`, mm/swap.c), and
/// who has the core meanwhile keeps it to the end of a slice (`RUN_TO_PARITY`,
/// kernel/sched/fair.c). This and the next by 103 calls in the lab of 1 to 5 ms of CPU time, whose
/// waits are 0, 3, 6 and 9 ms.
pub const KEPT_WAITING: Nanos = Nanos::micros(430);

/// The same for what it takes of CPU time, thousandths of that, beside what the program's thread
/// has anyhow.
pub const KEPT_WAITING_BY_WORK: u64 = 280;

/// Comparing a glance with what the heat map foresees: look and comparison are a fifth of a full
/// look (eight looks) and decision (ADR 0055), and the look is [`CLEARING`] and [`READING`].
pub const FORESEEING: RecordVisit =
    RecordVisit { work: 38_000, entry: RecordUse::No, record: RecordUse::No, own: HEAT };

/// An interrupt for dropping translations on a core that runs the program (an estimate; published
/// figures for x86 lie between 0.5 and 4 us with the wait of the sender).
pub const SHOOT_DOWN: Nanos = Nanos::micros(1);

/// What one record of the processor's sampling costs the core that makes it: an estimate, in the
/// order of what is published for x86.
pub const SAMPLING: Nanos = Nanos(250);

/// An interrupt that empties the processor's buffer: about 20,000 cycles on a Xeon Phi of 1.4 GHz
/// (the paper on sampling with PEBS under McKernel in the proceedings of MCHPC'18, section on
/// interrupts).
pub const SAMPLES_INTERRUPT: Nanos = Nanos::micros(14);

/// Reading so many samples and counting them by page: an estimate, a cache miss or two each.
pub const fn draining(samples: u64) -> Nanos {
    Nanos(2_000 + samples * 200)
}

/// One sampling of so many DAMON regions, bit asked for and next bit cleared: 1,000 regions every 5
/// ms took 9% to 19% of a core in the lab's guest, 0.45 to 0.95 us each; the middle.
pub const fn sampling_regions(regions: u64) -> Nanos {
    Nanos(regions * 700)
}
