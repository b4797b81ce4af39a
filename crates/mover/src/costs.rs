//! How moving pages is divided among threads: the costs of a machine file, and what follows from
//! them. Pure.

use terrace_types::Nanos;

/// Time until a thread that is begun for it has a call under way, and has ended: 50 us, as measured
/// in the lab (Linux 6.12, 1 ns an instruction) and on a host of 2 CPUs.
const BEGIN: Nanos = Nanos::micros(50);

/// Most base pages in one call, however fast the machine.
pub const BIGGEST_BATCH: u64 = 16_384;

/// What moving pages costs on a machine: `[migration]` of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveCosts {
    /// A call.
    pub call: Nanos,
    /// A base page by one thread, its copy included.
    pub page: Nanos,
    /// Per cent of a page's cost that threads cannot have beside each other (Amdahl's law): locks,
    /// flushes of translations.
    pub serial_percent: u8,
}

impl Default for MoveCosts {
    /// As measured in the lab on Linux 6.12 (docs/results/migration.md).
    fn default() -> Self {
        Self { call: Nanos::micros(8), page: Nanos(2_300), serial_percent: 5 }
    }
}

impl MoveCosts {
    /// Seconds that `threads` take together for a page each, by Amdahl's law, as a share of what
    /// one takes.
    #[must_use]
    pub fn share(&self, threads: u32) -> f64 {
        let serial = f64::from(self.serial_percent.min(100)) / 100.0;
        serial + (1.0 - serial) / f64::from(threads.max(1))
    }

    /// What `threads` take for so many base pages, each with one call.
    #[must_use]
    pub fn expected(&self, base_pages: u64, threads: u32) -> Nanos {
        let begun = BEGIN.0 * u64::from(threads.max(1) - 1);
        let pages = base_pages as f64 * self.page.get() as f64 * self.share(threads);
        Nanos(begun + self.call.0 + pages.min(9e18) as u64)
    }

    /// Base pages for a call that takes `span` by one thread, 16,384 at most. One in any case.
    #[must_use]
    pub fn batch(&self, span: Nanos) -> u64 {
        ((span - self.call).get() / self.page.get().max(1)).clamp(1, BIGGEST_BATCH)
    }

    /// The number of threads, of `most` at most, that moves so many base pages soonest. The fewer
    /// of those that are alike.
    #[must_use]
    pub fn threads(&self, base_pages: u64, most: u32) -> u32 {
        (1..=most.max(1)).min_by_key(|threads| self.expected(base_pages, *threads)).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: MoveCosts =
        MoveCosts { call: Nanos::micros(8), page: Nanos(2_300), serial_percent: 5 };

    #[test]
    fn threads_are_begun_where_they_gain_more_than_they_cost() {
        assert_eq!(LAB.threads(1, 12), 1);
        // Forty pages are 92 us: a second thread takes half of it and 50 us to begin.
        assert_eq!(LAB.threads(40, 12), 1);
        assert_eq!(LAB.threads(64, 12), 2);
        assert_eq!(LAB.threads(16_384, 12), 12);
        assert_eq!(LAB.threads(16_384, 1), 1);
        assert_eq!(LAB.threads(16_384, 0), 1);
        let last = (1..5000).map(|pages| LAB.threads(pages, 12)).fold(1, |before, now| {
            assert!(now >= before, "more pages, fewer threads");
            now
        });
        assert!(last > 8, "{last}");
    }

    #[test]
    fn a_call_takes_what_it_may() {
        assert_eq!(LAB.batch(Nanos::millis(10)), 4344, "9.992 ms of 2.3 us");
        assert_eq!(LAB.batch(Nanos::secs(1)), BIGGEST_BATCH);
        assert_eq!(
            (LAB.batch(Nanos::micros(3)), LAB.batch(Nanos::ZERO)),
            (1, 1),
            "less than the call itself"
        );
        let slow = MoveCosts { page: Nanos::micros(100), ..LAB };
        assert_eq!(slow.batch(Nanos::millis(10)), 99);
        assert_eq!(MoveCosts { page: Nanos::ZERO, ..LAB }.batch(Nanos::millis(10)), BIGGEST_BATCH);
        for pages in [1, 70, 5000] {
            assert!(LAB.batch(LAB.expected(pages, 1)).abs_diff(pages) <= 1);
        }
    }

    #[test]
    fn what_threads_gain_ends_where_they_wait_for_each_other() {
        // Twelve threads of which each waits a twentieth: 1 / (0.05 + 0.95 / 12).
        assert!((1.0 / LAB.share(12) - 7.74).abs() < 0.01);
        let locked = MoveCosts { serial_percent: 100, ..LAB };
        assert_eq!((locked.threads(1 << 20, 64), locked.share(64)), (1, 1.0));
        let huge = MoveCosts { page: Nanos(u64::MAX), ..LAB };
        assert!(huge.expected(u64::MAX, 3) > Nanos(0), "no overflow");
    }
}
