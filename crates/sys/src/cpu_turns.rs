//! Turns among CPUs: what a thread takes of CPUs that have work of their own, it takes of all of
//! them alike.
//!
//! The scheduler wakes a thread where it ran last. Beside a program with a thread on every CPU that
//! is always the same one, whose thread falls behind all others; and a program is as late as its
//! last thread.

use crate::allowance::Mask;
use crate::limits::{cpu_quota, current_cpu, own_cpus};
use crate::time::thread_cpu;
use crate::Root;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use terrace_types::{CpuId, Nanos};

/// How much more than of the least used CPU may be taken of one: a change of CPU costs some 50 us.
const UNEVEN: Nanos = Nanos::millis(1);

thread_local! {
    static BOOK: RefCell<Option<CpuUsage>> = const { RefCell::new(None) };
}

/// What the thread has used, by CPU.
#[derive(Debug, Default)]
struct CpuUsage {
    used: BTreeMap<CpuId, Nanos>,
    /// The thread's CPU time up to which it is booked.
    booked: Nanos,
}

impl CpuUsage {
    /// Books what was used on `cpu` since it was last asked. Where to go on, if elsewhere. `busy`:
    /// the CPUs that the thread may run on, if all of them have work of others to do. What is used
    /// beside an idle one is taken from nobody and not booked.
    fn turn(
        &mut self,
        cpu: CpuId,
        total: Nanos,
        busy: impl FnOnce() -> Option<Vec<CpuId>>,
    ) -> Option<CpuId> {
        let since = total.saturating_sub(self.booked);
        if since < UNEVEN {
            return None;
        }
        self.booked = total;
        let cpus = busy()?;
        let here = self.used.entry(cpu).or_default();
        *here += since;
        let here = *here;
        let used = |cpu: &CpuId| self.used.get(cpu).copied().unwrap_or_default();
        let least = cpus.into_iter().min_by_key(used)?;
        (here >= used(&least) + UNEVEN).then_some(least)
    }
}

/// While it lives, the calling thread changes CPUs at [`take_turn`].
#[derive(Debug)]
pub struct InTurn(PhantomData<*const ()>);

impl InTurn {
    /// Begins for the calling thread.
    #[must_use]
    pub fn among_cpus() -> Self {
        BOOK.set(Some(CpuUsage { used: BTreeMap::new(), booked: thread_cpu() }));
        Self(PhantomData)
    }
}

impl Drop for InTurn {
    fn drop(&mut self) {
        BOOK.set(None);
    }
}

/// A good moment to change CPUs. Does nothing unless [`InTurn`] lives in this thread, and nothing
/// where any CPU is idle: there the scheduler knows better. Which CPUs the thread may run on stays
/// as it is.
pub fn take_turn() {
    BOOK.with_borrow_mut(|book| {
        let (Some(book), Some(cpu)) = (book.as_mut(), current_cpu()) else { return };
        let mut allowed = Vec::new();
        let next = book.turn(cpu, thread_cpu(), || {
            allowed = own_cpus().unwrap_or_default();
            all_busy(allowed.len()).then(|| allowed.clone())
        });
        if let Some(next) = next {
            go(next, &allowed);
        }
    });
}

/// Goes to another CPU without being bound to it. One that went away meanwhile is no harm: the
/// thread stays where it is.
fn go(next: CpuId, allowed: &[CpuId]) {
    CurrentCpu::at(Some(next), allowed).go();
}

/// The CPU that a thread is on, and those that it may run on: for a child that is to start there.
#[derive(Clone, Copy)]
pub(crate) struct CurrentCpu {
    one: Mask,
    allowed: Mask,
}

impl CurrentCpu {
    /// Of the calling thread. Where the kernel does not tell, [`CurrentCpu::go`] does nothing.
    pub fn now() -> Self {
        Self::at(current_cpu(), &own_cpus().unwrap_or_default())
    }

    fn at(cpu: Option<CpuId>, allowed: &[CpuId]) -> Self {
        let one =
            if allowed.is_empty() { Mask::from_cpus(&[]) } else { Mask::from_cpus(cpu.as_slice()) };
        // One that may run on all CPUs may run on those that are added later.
        let allowed = if allowed.len() >= online() { Mask::ALL } else { Mask::from_cpus(allowed) };
        Self { one, allowed }
    }

    /// Puts the calling thread there. Makes two system calls and nothing else, so that it may be
    /// called between fork and exec.
    pub fn go(&self) {
        if self.one.set() {
            self.allowed.set();
        }
    }
}

/// CPUs that are online.
fn online() -> usize {
    // SAFETY: takes a number and touches no memory of ours.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(usize::MAX)
}

/// Whether more threads want to run than there are CPUs, this one included.
fn all_busy(cpus: usize) -> bool {
    runnable(&Root::live()).is_some_and(|n| n > cpus)
}

/// Threads that run or want to, this one included. In a container those of the whole machine.
fn runnable(root: &Root) -> Option<usize> {
    let text = root.text("/proc/loadavg").ok()?;
    text.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// CPUs that the calling thread may run on and nobody uses at this moment, the one it is on
/// included, and no more whole ones than its control groups give it time on: beyond those all of
/// the group's threads would stand still together. At least 1, and 1 where the kernel does not
/// tell.
#[must_use]
pub fn idle_cpus(root: &Root) -> u32 {
    idle_of(root, own_cpus().map_or(1, |all| all.len()))
}

fn idle_of(root: &Root, cpus: usize) -> u32 {
    let others = runnable(root).map_or(cpus, |n| n.saturating_sub(1));
    let idle = cpus.saturating_sub(others).max(1) as u32;
    let given = || {
        cpu_quota(root)
            .map_or(u32::MAX, |thousandths| u32::try_from(thousandths / 1000).unwrap_or(u32::MAX))
    };
    // Asked only where it matters: it takes several files.
    if idle > 1 {
        idle.min(given()).max(1)
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_are_used_or_rationed_are_not_idle() {
        let dir = std::env::temp_dir().join(format!("terrace-idle-{}", std::process::id()));
        let idle = |runnable: &str, quota: &str, cpus| {
            for (path, text) in [
                ("proc/loadavg", runnable),
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", quota),
            ] {
                let path = dir.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            idle_of(&Root::with_prefix(&dir), cpus)
        };
        let one = "0.1 0.2 0.3 1/234 567\n";
        assert_eq!(idle(one, "max 100000\n", 12), 12);
        assert_eq!(
            idle("0.1 0.2 0.3 5/234 567\n", "max 100000\n", 12),
            8,
            "this thread is one of the five"
        );
        assert_eq!(idle(one, "390000 100000\n", 12), 3, "three whole ones");
        assert_eq!(idle(one, "50000 100000\n", 12), 1);
        assert_eq!(idle("9 9 9 40/234 567\n", "400000 100000\n", 12), 1);
        assert_eq!(idle("?", "max 100000\n", 12), 1, "where the kernel does not tell");
        std::fs::remove_dir_all(&dir).unwrap();
        let live = idle_cpus(&Root::live());
        assert!(live >= 1 && live as usize <= own_cpus().unwrap().len());
    }

    #[test]
    fn cpus_are_used_alike() {
        let mut book = CpuUsage::default();
        let cpus = || Some(vec![CpuId(0), CpuId(3), CpuId(7)]);
        let (mut cpu, mut total) = (CpuId(3), Nanos::ZERO);
        for burst in 0..300u64 {
            total += Nanos::micros(200 + burst * 37 % 900);
            cpu = book.turn(cpu, total, cpus).unwrap_or(cpu);
        }
        let used: Vec<Nanos> = book.used.values().copied().collect();
        let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
        assert!(used.len() == 3 && most.saturating_sub(*least) < Nanos::millis(4), "{used:?}");
    }

    #[test]
    fn little_is_no_reason_to_change() {
        let mut book = CpuUsage::default();
        let asked = std::cell::Cell::new(false);
        let cpus = || {
            asked.set(true);
            Some(vec![CpuId(0), CpuId(1)])
        };
        assert_eq!(book.turn(CpuId(0), Nanos::micros(900), cpus), None);
        assert!(!asked.get(), "not even asked which there are");
        assert_eq!(
            book.turn(CpuId(0), Nanos::micros(1_900), || Some(vec![CpuId(0), CpuId(1)])),
            Some(CpuId(1))
        );
        assert_eq!(
            book.turn(CpuId(1), Nanos::micros(2_900), || Some(vec![CpuId(0), CpuId(1)])),
            None,
            "0.9 ms apart"
        );
    }

    #[test]
    fn what_is_used_beside_an_idle_cpu_is_taken_from_nobody() {
        let mut book = CpuUsage::default();
        assert_eq!(book.turn(CpuId(0), Nanos::millis(50), || None), None);
        let busy = || Some(vec![CpuId(0), CpuId(1)]);
        let (mut cpu, mut total) = (CpuId(0), Nanos::millis(50));
        for _ in 0..20 {
            total += Nanos::millis(1);
            cpu = book.turn(cpu, total, busy).unwrap_or(cpu);
        }
        assert_eq!(
            book.used.values().copied().collect::<Vec<_>>(),
            [Nanos::millis(10), Nanos::millis(10)]
        );
    }

    #[test]
    fn a_thread_may_run_where_it_might_before() {
        std::thread::spawn(|| {
            let before = own_cpus().unwrap();
            for cpu in &before {
                go(*cpu, &before);
                assert_eq!(own_cpus().unwrap(), before);
            }
            go(CpuId(8_000), &before);
            assert_eq!(own_cpus().unwrap(), before, "there is no such CPU");
            go(before[0], &[]);
            assert_eq!(own_cpus().unwrap(), before, "it is not known where the thread may run");
            go(before[0], &before[..1]);
            assert_eq!(own_cpus().unwrap(), before[..1], "a thread bound to one stays so");
            go(before[0], &before);
            // Others that want every CPU.
            let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let others: Vec<_> = (0..online())
                .map(|_| {
                    let over = std::sync::Arc::clone(&over);
                    std::thread::spawn(
                        move || while !over.load(std::sync::atomic::Ordering::Relaxed) {},
                    )
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(5));
            let turns = InTurn::among_cpus();
            let start = thread_cpu();
            while thread_cpu().saturating_sub(start) < Nanos::millis(10) {
                take_turn();
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            others.into_iter().for_each(|other| other.join().unwrap());
            let booked = BOOK.with_borrow(|book| {
                book.as_ref().map(|b| b.used.values().map(|n| n.get()).sum::<u64>())
            });
            assert!(booked > Some(5_000_000), "{booked:?} ns");
            assert_eq!(own_cpus().unwrap(), before);
            drop(turns);
            assert!(BOOK.with_borrow(Option::is_none));
        })
        .join()
        .unwrap();
    }
}
