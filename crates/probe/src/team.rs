//! Threads on CPUs of their own that do the same work at the same time, again and again.

use crate::stats::{Rep, StoppingRule};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Mutex;
use terrace_sys::{now, pin, thread_cpu, SysError};
use terrace_types::{CpuId, Nanos, Tick};

/// Where threads wait for each other. Spins for a while, for runs are short, then lets others run,
/// for CPUs may be few.
#[derive(Debug)]
pub struct Meeting {
    all: u32,
    here: AtomicU32,
    round: AtomicU32,
    broken: AtomicBool,
}

impl Meeting {
    /// For so many threads.
    #[must_use]
    pub const fn new(all: u32) -> Self {
        Self {
            all,
            here: AtomicU32::new(0),
            round: AtomicU32::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Waits until all are here. False once somebody left for good.
    pub fn wait(&self) -> bool {
        let round = self.round.load(Ordering::Acquire);
        if self.here.fetch_add(1, Ordering::AcqRel) + 1 == self.all {
            self.here.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return !self.broken.load(Ordering::Acquire);
        }
        let mut spins = 0_u32;
        while self.round.load(Ordering::Acquire) == round {
            if self.broken.load(Ordering::Acquire) {
                return false;
            }
            spins = spins.saturating_add(1);
            if spins < 2_000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        !self.broken.load(Ordering::Acquire)
    }

    /// Somebody cannot come: nobody waits any more.
    pub fn leave(&self) {
        self.broken.store(true, Ordering::Release);
    }
}

/// One thread a CPU does `work` (its argument is the thread's number) at the same time, as often as
/// `rule` says and until `stop`. The first run warms up and does not count.
///
/// # Errors
/// A thread cannot be kept on its CPU.
pub fn repeat(
    cpus: &[CpuId],
    rule: &StoppingRule,
    stop: &AtomicBool,
    work: impl Fn(usize) + Sync,
) -> Result<Vec<Rep>, SysError> {
    let meeting = Meeting::new(cpus.len() as u32);
    let go = AtomicBool::new(true);
    let times: Vec<Mutex<Times>> =
        cpus.iter().map(|_| Mutex::new((Tick(0), Tick(0), Nanos::ZERO))).collect();
    let (meeting, go, times, work) = (&meeting, &go, &times, &work);
    let one = |index: usize, cpu: CpuId| -> Result<Vec<Rep>, SysError> {
        if let Err(e) = pin(&[cpu]) {
            meeting.leave();
            return Err(e);
        }
        let mut reps = Vec::new();
        let mut began = now();
        let mut warm = false;
        while meeting.wait() {
            let (cpu, start) = (thread_cpu(), now());
            work(index);
            let end = now();
            let used = thread_cpu() - cpu;
            if let Ok(mut mine) = times[index].lock() {
                *mine = (start, end, used);
            }
            if !meeting.wait() {
                break;
            }
            if index == 0 {
                if warm {
                    reps.push(together(times));
                } else {
                    (warm, began) = (true, now());
                }
                let again =
                    rule.needs_repeat(&reps, now().since(began)) && !stop.load(Ordering::Relaxed);
                go.store(again, Ordering::Release);
            }
            if !meeting.wait() || !go.load(Ordering::Acquire) {
                break;
            }
        }
        Ok(reps)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            cpus.iter().enumerate().map(|(i, cpu)| scope.spawn(move || one(i, *cpu))).collect();
        let mut first = Ok(Vec::new());
        for (index, thread) in threads.into_iter().enumerate() {
            // `work` does not panic: it is our own loops over memory.
            match thread.join() {
                Ok(Ok(reps)) if index == 0 => first = first.and(Ok(reps)),
                Ok(Err(e)) => first = Err(e),
                _ => {}
            }
        }
        first
    })
}

/// As [`repeat`], once and without warming up.
///
/// # Errors
/// A thread cannot be kept on its CPU.
pub fn once(cpus: &[CpuId], work: impl Fn(usize) + Sync) -> Result<Rep, SysError> {
    let meeting = Meeting::new(cpus.len() as u32);
    let times: Vec<Mutex<Times>> =
        cpus.iter().map(|_| Mutex::new((Tick(0), Tick(0), Nanos::ZERO))).collect();
    let (meeting, times, work) = (&meeting, &times, &work);
    let one = |index: usize, cpu: CpuId| -> Result<(), SysError> {
        if let Err(e) = pin(&[cpu]) {
            meeting.leave();
            return Err(e);
        }
        if meeting.wait() {
            let (cpu, start) = (thread_cpu(), now());
            work(index);
            let end = now();
            let used = thread_cpu() - cpu;
            if let Ok(mut mine) = times[index].lock() {
                *mine = (start, end, used);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            cpus.iter().enumerate().map(|(i, cpu)| scope.spawn(move || one(i, *cpu))).collect();
        // `work` does not panic: it is our own loops over memory and system calls.
        threads.into_iter().filter_map(|t| t.join().ok()).collect::<Result<Vec<()>, SysError>>()
    })?;
    Ok(together(times))
}

/// Does something on a CPU, in a thread of its own.
///
/// # Errors
/// The thread cannot be kept there.
pub fn on<T: Send>(cpu: CpuId, work: impl FnOnce() -> T + Send) -> Result<Option<T>, SysError> {
    std::thread::scope(|scope| {
        scope.spawn(move || pin(&[cpu]).map(|()| work())).join().ok().transpose()
    })
}

/// A thread's begin, end and CPU time between them.
type Times = (Tick, Tick, Nanos);

/// From the first start to the last end, and the least share of a CPU.
fn together(times: &[Mutex<Times>]) -> Rep {
    let (mut first, mut last, mut busy, mut cpu) = (Tick(u64::MAX), Tick(0), 1.0_f64, Nanos::ZERO);
    for (start, end, used) in times.iter().filter_map(|t| t.lock().ok().map(|t| *t)) {
        busy = busy.min(used.get() as f64 / end.since(start).get().max(1) as f64);
        first = first.min(start);
        if end >= last {
            (last, cpu) = (end, used);
        }
    }
    Rep { span: Nanos(last.since(first).get().max(1)), busy, cpu }
}

/// The CPU, of the first few, that a thread gets most of now.
#[must_use]
pub fn quietest(cpus: &[CpuId]) -> Option<CpuId> {
    const TRIED: usize = 8;
    const LOOK: Nanos = Nanos::millis(2);
    let share = |cpu: CpuId| {
        let spin = move || {
            let (cpu, start) = (thread_cpu(), now());
            while now().since(start) < LOOK {
                std::hint::spin_loop();
            }
            (thread_cpu() - cpu).get() as f64 / now().since(start).get().max(1) as f64
        };
        on(cpu, spin).ok().flatten().unwrap_or(0.0)
    };
    let shares = cpus.iter().take(TRIED).map(|cpu| (share(*cpu), *cpu));
    // Of equal ones the first.
    shares.reduce(|best, next| if next.0 > best.0 + 0.02 { next } else { best }).map(|s| s.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_work_as_often_and_a_stop_is_heard() {
        let cpu = terrace_sys::own_cpus().unwrap()[0];
        let counts = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
        let rule = StoppingRule { least: 4, most: 4, enough: 1.0, limit: Nanos::secs(20) };
        let stop = AtomicBool::new(false);
        let work = |i: usize| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        };
        let reps = repeat(&[cpu; 3], &rule, &stop, work).unwrap();
        assert_eq!(reps.len(), 4);
        let counts: Vec<u32> = counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [5, 5, 5], "one of them warms up");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(repeat(&[cpu; 2], &rule, &stop, |_| {}).unwrap().len(), 0);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_and_nobody_waits() {
        let cpu = terrace_sys::own_cpus().unwrap()[0];
        let rule = StoppingRule { least: 4, most: 4, enough: 1.0, limit: Nanos::secs(20) };
        let error =
            repeat(&[cpu, CpuId(8000)], &rule, &AtomicBool::new(false), |_| {}).unwrap_err();
        assert!(error.to_string().contains("8000"), "{error}");
    }
}
