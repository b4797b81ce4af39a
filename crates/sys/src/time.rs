//! Time and own CPU use.

use terrace_types::{Nanos, Tick};

fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a writable timespec that outlives the call; both clocks exist on Linux.
    unsafe { libc::clock_gettime(clock, &mut t) };
    (t.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(t.tv_nsec as u64)
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
    }
}
