//! What tracking, locating and deciding cost, in CPU time of the manager. Each from a measurement that is named; none
//! from the results that the simulator is compared with.

use terrace_types::Nanos;

/// A cost in picoseconds for each base page.
const fn per_page(pages: u64, ps: u64) -> Nanos {
    Nanos(pages.saturating_mul(ps) / 1000)
}

/// Clearing accessed bits (`clear_refs` = 1). With [`reading`], 12 ms for a window of eight looks at 256 MiB, as
/// `docs/results/tracking.md` has it: 23 ns a page and look; divided by what each walk does (an estimate).
pub const fn clearing(pages: u64) -> Nanos {
    per_page(pages, 10_000)
}

/// Reading accessed bits from the page tables.
pub const fn reading(pages: u64) -> Nanos {
    per_page(pages, 13_000)
}

/// Finding the page tables the first time: 44 ms for 256 MiB (`docs/results/tracking.md`).
pub const fn finding_tables(pages: u64) -> Nanos {
    per_page(pages, 671_000)
}

/// Clearing soft-dirty bits (`clear_refs` = 4). With [`scanning`] 30 ns a page: 7 ms for 900 MiB in
/// `docs/results/tracking.md`.
pub const fn clearing_soft_dirty(pages: u64) -> Nanos {
    per_page(pages, 12_000)
}

/// Asking which pages were written (`PAGEMAP_SCAN`).
pub const fn scanning(pages: u64) -> Nanos {
    per_page(pages, 18_000)
}

/// Looking up where pages are, by `/proc/PID/pagemap` and frame numbers.
pub const fn locating(pages: u64) -> Nanos {
    per_page(pages, 150_000)
}

/// Asking `move_pages` where pages are, as the mover does before it moves: 0.15 us a page measured.
pub const fn querying(pages: u64) -> Nanos {
    per_page(pages, 150_000)
}

/// Merging what was seen into the heat map and deciding. An estimate: both go over all pages once or twice.
pub const fn deciding(pages: u64) -> Nanos {
    per_page(pages, 40_000)
}

/// An interrupt for dropping translations on a core that runs the program (an estimate; published figures for x86 lie
/// between 0.5 and 4 us with the wait of the sender).
pub const SHOOT_DOWN: Nanos = Nanos::micros(1);
