//! What tracking, locating and deciding cost, in CPU time of the manager. Each from a measurement that is named; none
//! from the results that the simulator is compared with.

use terrace_types::Nanos;

/// A cost in picoseconds for each base page.
const fn per_page(pages: u64, ps: u64) -> Nanos {
    Nanos(pages.saturating_mul(ps) / 1000)
}

/// Clearing accessed bits (`clear_refs` = 1). With [`reading`] 33 ns a page and look: in the lab's journals of `skew`
/// (`docs/results/truth.md`) a window of eight looks at 40,974 pages took 12.1 ms of CPU, soft-dirty's part taken off.
/// How the 33 divide between the two walks is an estimate.
pub const fn clearing(pages: u64) -> Nanos {
    per_page(pages, 14_000)
}

/// Reading accessed bits from the page tables.
pub const fn reading(pages: u64) -> Nanos {
    per_page(pages, 19_000)
}

/// Finding a process's page tables for the first time: kernel memory is searched for them. 42.5 ms in the lab, for
/// 160 MiB as for 256 MiB watched, on a machine of 1216 MiB: it goes by the machine's memory.
pub const fn finding_tables(machine_pages: u64) -> Nanos {
    per_page(machine_pages, 137_000)
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

/// Merging what was seen into the heat map, deciding, journalling: 12.8 ms (`hyplacer`) and 15.1 ms (`terrace`) a step
/// for 40,974 pages in the same journals, locating included; what is left without that.
pub const fn deciding(pages: u64) -> Nanos {
    per_page(pages, 285_000)
}

/// An interrupt for dropping translations on a core that runs the program (an estimate; published figures for x86 lie
/// between 0.5 and 4 us with the wait of the sender).
pub const SHOOT_DOWN: Nanos = Nanos::micros(1);
