//! Time and own CPU use.

use terrace_types::{Nanos, Tick};

fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a writable timespec that outlives the call; both clocks exist on Linux.
    unsafe { libc::clock_gettime(clock, &mut t) };
    (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)
}

/// Monotonic time.
#[must_use]
pub fn now() -> Tick {
    Tick(read_clock(libc::CLOCK_MONOTONIC))
}

/// CPU time all threads of this process have used.
#[must_use]
pub fn own_cpu() -> Nanos {
    Nanos(read_clock(libc::CLOCK_PROCESS_CPUTIME_ID))
}

/// CPU time the calling thread has used.
#[must_use]
pub fn thread_cpu() -> Nanos {
    Nanos(read_clock(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// How CPU time of a stretch of work is had.
///
/// The scheduler's account is the truth where its clock is fine. In a virtual machine without a
/// usable time-stamp counter that clock stands still between ticks and short work reads as
/// nothing; there the time that passed is taken instead, an upper bound for work that never waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuMeter {
    coarse: bool,
}

/// A stretch of work under way.
#[derive(Debug, Clone, Copy)]
pub struct BoostPeriod {
    cpu: Nanos,
    start: Tick,
    coarse: bool,
}

impl CpuMeter {
    /// Finds out how fine the scheduler's clock is, by at most a quarter of a millisecond of work.
    #[must_use]
    pub fn new() -> Self {
        let (cpu, start) = (own_cpu(), now());
        while own_cpu() == cpu {
            if now().since(start) > Nanos::micros(250) {
                return Self { coarse: true };
            }
        }
        Self { coarse: false }
    }

    /// Whether times are upper bounds.
    #[must_use]
    pub const fn coarse(self) -> bool {
        self.coarse
    }

    /// Starts measuring.
    #[must_use]
    pub fn start(self) -> BoostPeriod {
        BoostPeriod { cpu: own_cpu(), start: now(), coarse: self.coarse }
    }
}

impl Default for CpuMeter {
    fn default() -> Self {
        Self::new()
    }
}

impl BoostPeriod {
    /// CPU time since the start, less `waited`, time in it that was slept through.
    #[must_use]
    pub fn used(self, waited: Nanos) -> Nanos {
        let cpu = own_cpu() - self.cpu;
        if self.coarse {
            cpu.max(now().since(self.start) - waited)
        } else {
            cpu
        }
    }
}

/// Sleeps at least `span`, through signals.
pub fn sleep(span: Nanos) {
    std::thread::sleep(std::time::Duration::from_nanos(span.0));
}

/// Until dropped, the calling thread is scheduled ahead of ordinary work.
///
/// Where every CPU is busy with the target, a look or a batch of moves that takes 10 ms of CPU
/// takes twice that in time, and the decision made from it is late. What it uses of a CPU is
/// bounded elsewhere.
#[derive(Debug)]
pub struct PriorityBoost {
    before: libc::c_int,
}

/// How far ahead: nice levels.
const AHEAD: libc::c_int = 10;

impl PriorityBoost {
    /// Raises the calling thread's priority; threads and processes that it starts inherit it.
    /// `None` where the user may not (no `CAP_SYS_NICE`, no `RLIMIT_NICE`), which is no error.
    #[must_use]
    pub fn of_ordinary_work() -> Option<Self> {
        // SAFETY: getpriority takes numbers; 0 is the calling thread. -1 is a priority or an error,
        // and errors (there is such a thread: this one) cannot occur.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // SAFETY: setpriority takes numbers; 0 is the calling thread alone, as Linux has it.
        let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, (before - AHEAD).max(-20)) };
        (set == 0).then_some(Self { before })
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        // SAFETY: as in `of_ordinary_work`; lowering a priority is always allowed.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_is_put_back() {
        // In a thread of its own: nobody else's priority changes.
        let (before, during, after) = std::thread::spawn(|| {
            // SAFETY: takes numbers only.
            let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
            let before = nice();
            let ahead = PriorityBoost::of_ordinary_work();
            let during = ahead.is_some().then(nice);
            drop(ahead);
            (before, during, nice())
        })
        .join()
        .unwrap();
        assert_eq!(after, before);
        match during {
            Some(during) => assert!(during < before || before == -20),
            None => println!("skipped: this user may not raise priorities"),
        }
    }

    #[test]
    fn time_passes_and_work_costs() {
        let (t, c) = (now(), own_cpu());
        sleep(Nanos::millis(2));
        assert!(now().since(t) >= Nanos::millis(2));
        let mut x = 1_u64;
        while own_cpu() <= c {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert_ne!(x, 0);
        let meter = CpuMeter::new();
        let work = meter.start();
        let before = now();
        while now().since(before) < Nanos::millis(3) {}
        assert!(work.used(Nanos::ZERO) > Nanos::ZERO);
    }
}
