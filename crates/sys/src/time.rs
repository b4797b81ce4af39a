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
pub struct Stretch {
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
    pub fn start(self) -> Stretch {
        Stretch { cpu: own_cpu(), start: now(), coarse: self.coarse }
    }
}

impl Default for CpuMeter {
    fn default() -> Self {
        Self::new()
    }
}

impl Stretch {
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

#[cfg(test)]
mod tests {
    use super::*;

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
