//! What tracking, locating and deciding cost, in CPU time of the manager. Each from a measurement that is named; none
//! from the results that the simulator is compared with.

use terrace_types::Nanos;

/// A cost in picoseconds for each base page.
const fn per_page(pages: u64, ps: u64) -> Nanos {
    Nanos(pages.saturating_mul(ps) / 1000)
}

/// Clearing accessed bits (`clear_refs` = 1): 0.86 ms for 40,960 pages in the lab, measured by itself
/// (`crates/track/examples/livecheck.rs`, as are the next two).
pub const fn clearing(pages: u64) -> Nanos {
    per_page(pages, 21_000)
}

/// Reading accessed bits from the page tables: 0.24 ms for the same pages.
pub const fn reading(pages: u64) -> Nanos {
    per_page(pages, 6_000)
}

/// Taking the translation of one huge page away (`MADV_COLD`), one a call: 1.2 us on an AMD EPYC virtual machine as in the
/// lab, 0.5 to 1.1 by eight.
pub const COOLING: Nanos = Nanos(1_200);

/// Reading the entries of huge pages back, at most: [`reading`] of a table of 512. Live, a word is read for each.
pub const READING_A_TABLE: Nanos = Nanos(3_000);

/// Finding a process's page tables for the first time, by the kernel's own pointers (ADR 0044).
pub const FINDING_TABLES: Nanos = Nanos::micros(11);

/// Clearing soft-dirty bits (`clear_refs` = 4). With [`scanning`] 30 ns a page: 7 ms for 900 MiB in
/// `docs/results/tracking.md`.
pub const fn clearing_soft_dirty(pages: u64) -> Nanos {
    per_page(pages, 12_000)
}

/// Asking which pages were written (`PAGEMAP_SCAN`).
pub const fn scanning(pages: u64) -> Nanos {
    per_page(pages, 18_000)
}

/// Looking up where pages are, by `/proc/PID/pagemap` and frame numbers: 1.4 ms for 40,960 pages, and 1.1 ms to find
/// which of them are huge.
pub const fn locating(pages: u64) -> Nanos {
    per_page(pages, 61_000)
}

/// Asking `move_pages` where pages are, as the mover does before it moves: 0.15 us a page measured.
pub const fn querying(pages: u64) -> Nanos {
    per_page(pages, 150_000)
}

/// Merging what was seen into the heat map, deciding, journalling: 5.7 ms a step of `terrace` for 40,974 pages in the
/// lab, locating in every other step included; what is left without that.
pub const fn deciding(pages: u64) -> Nanos {
    per_page(pages, 108_000)
}

/// Comparing a glance with what the heat map foresees: look and comparison are a fifth of a full look (eight looks) and
/// decision (ADR 0055), and the look is [`clearing`] and [`reading`].
pub const fn foreseeing(pages: u64) -> Nanos {
    per_page(pages, 38_000)
}

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
