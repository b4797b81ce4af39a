//! Where a waiting thread goes on: on a CPU that is idle, as the kernel has it, or on the pager's
//! own.
//!
//! A thread that faults wakes the pager, and the pager wakes the thread. The kernel looks for an
//! idle CPU each time (`select_idle_sibling`, `kernel/sched/fair.c`), which suits two that work at
//! once; these two take turns, and each time a CPU must be woken from idleness. In a virtual
//! machine that is an exit to the host and back: 20 us on the machine of the measurements, a
//! context switch on one CPU 2.5 us. Elsewhere, or with work of the pager's own to do meanwhile, it
//! may be the other way round. So both are tried in turns, and the better one is kept for a while.

use terrace_types::{Nanos, Tick, Tid};

/// Faults of a round, all of one thread, one at a time.
const ROUND: u32 = 256;
/// A trial that by then takes this many times the time of the better way ends.
const HOPELESS: (u32, f64) = (ROUND / 4, 1.2);
/// Rounds between two trials: twice as many each time that a trial changes nothing, from the first
/// to the last of these.
const KEPT: [u32; 2] = [2, 32];
/// A trial wins that takes less than this part of the time.
const BETTER: f64 = 0.95;
/// Between two faults the program may have done anything; more than this tells nothing of the
/// pager.
const LONGEST: Nanos = Nanos::millis(1);
/// A round with more than this part of others' faults is void.
const OTHERS: u32 = 8;

/// Decides it.
#[derive(Debug, Clone, Default)]
pub(crate) struct WakeAffinity {
    /// How the present round is done, and how rounds are done unless tried otherwise.
    here: bool,
    best_here: bool,
    /// Mean time of a fault in the last round done elsewhere, and here.
    times: [Option<f64>; 2],
    last: Option<(Tid, Tick)>,
    count: u32,
    others: u32,
    spent: Nanos,
    /// Rounds since the last trial, and how many there are to be.
    kept: u32,
    keep: u32,
}

impl WakeAffinity {
    /// Takes in that faults were reported: one, of this thread, or several. Whether a thread that
    /// waits alone is to go on here.
    pub fn observe(&mut self, one: Option<Tid>, now: Tick) -> bool {
        let before = self.last.take();
        match (one, before) {
            (Some(tid), Some((same, then))) if tid == same => {
                self.count += 1;
                self.spent += now.since(then).min(LONGEST);
            }
            _ => self.others += 1,
        }
        self.last = one.map(|tid| (tid, now));
        if self.others > 1 + ROUND / OTHERS {
            // Several threads: each wants a CPU of its own.
            *self = Self { last: self.last, ..Self::default() };
        } else if self.count >= ROUND || self.is_hopeless() {
            self.round_ends();
        }
        self.here
    }

    fn mean(&self) -> f64 {
        self.spent.as_secs_f64() / f64::from(self.count.max(1))
    }

    fn is_hopeless(&self) -> bool {
        let best = self.times[usize::from(self.best_here)].unwrap_or(f64::INFINITY);
        self.here != self.best_here && self.count >= HOPELESS.0 && self.mean() > HOPELESS.1 * best
    }

    fn round_ends(&mut self) {
        let mean = self.mean();
        (self.count, self.others, self.spent) = (0, 0, Nanos::ZERO);
        let tried = self.here != self.best_here;
        self.times[usize::from(self.here)] = Some(mean);
        let [of_best, of_other] =
            [self.best_here, !self.best_here].map(|here| self.times[usize::from(here)]);
        if tried {
            if of_best.zip(of_other).is_some_and(|(best, other)| other < BETTER * best) {
                self.best_here = self.here;
                self.keep = 0;
            }
            (self.here, self.kept) = (self.best_here, 0);
            self.keep = (2 * self.keep).clamp(KEPT[0], KEPT[1]);
        } else {
            self.kept += 1;
            self.here = self.best_here ^ (of_other.is_none() || self.kept >= self.keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults of one thread that take so many microseconds elsewhere and here; how many of them
    /// were done here.
    fn done_here(
        near: &mut WakeAffinity,
        now: &mut Tick,
        faults: u32,
        elsewhere: u64,
        here: u64,
    ) -> u32 {
        let mut count = 0;
        for _ in 0..faults {
            let is_here = near.observe(Some(Tid(7)), *now);
            count += u32::from(is_here);
            *now = Tick(now.0 + 1000 * if is_here { here } else { elsewhere });
        }
        count
    }

    #[test]
    fn the_better_way_is_found_and_kept() {
        let (mut near, mut now) = (WakeAffinity::default(), Tick(0));
        let count = done_here(&mut near, &mut now, 100 * ROUND, 77, 30);
        assert!(count > 90 * ROUND, "{count} of {} here", 100 * ROUND);
        let (mut near, mut now) = (WakeAffinity::default(), Tick(0));
        let count = done_here(&mut near, &mut now, 100 * ROUND, 30, 77);
        // What is far worse is not tried to the end.
        assert!(count > ROUND / 4 && count < 3 * ROUND, "{count} of {} here", 100 * ROUND);
    }

    #[test]
    fn no_difference_leaves_things_as_the_kernel_has_them() {
        let (mut near, mut now) = (WakeAffinity::default(), Tick(0));
        let count = done_here(&mut near, &mut now, 100 * ROUND, 50, 49);
        assert!(count < 8 * ROUND, "{count} of {} here", 100 * ROUND);
    }

    #[test]
    fn what_was_best_is_given_up_when_it_is_no_more() {
        let (mut near, mut now) = (WakeAffinity::default(), Tick(0));
        done_here(&mut near, &mut now, 100 * ROUND, 77, 30);
        let count = done_here(&mut near, &mut now, 100 * ROUND, 30, 77);
        assert!(count < 40 * ROUND, "{count} of {} here", 100 * ROUND);
    }

    #[test]
    fn threads_that_fault_by_turns_are_left_alone() {
        let (mut near, mut now) = (WakeAffinity::default(), Tick(0));
        done_here(&mut near, &mut now, 10 * ROUND, 77, 30);
        let mut here = 0;
        for n in 0..100 * ROUND {
            here += u32::from(
                near.observe(Some(Tid(7 + (n % 2) as i32)), Tick(now.0 + u64::from(n) * 30_000)),
            );
        }
        assert!(here <= 2 + ROUND / OTHERS, "{here}");
        assert!((0..1000).all(|n| !near.observe(None, Tick(n))), "several at once");
        done_here(&mut near, &mut now, 10 * ROUND, 77, 30);
        assert!(
            (0..1000).filter(|n| near.observe(None, Tick(*n))).count() < 40,
            "several at once, after one was alone"
        );
    }
}
