//! What the command's CPUs can read of a node at this moment: a burst of reads by one thread on
//! each of them at the same time, now and then.
//!
//! A burst takes the CPUs from the command for a quarter of a millisecond or so; what all of them
//! took is counted. Each goes on where the last one ended, over a region that no cache holds.

use super::{LoadReading, Loader};
use crate::kernels::{run, ElementKernel, Form, GRAIN};
use crate::task::Trouble;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use terrace_sys::{
    block_signals, now, pin, sleep, thread_cpu, AnonymousMapping, MappingPages, SysError,
};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId, Tick};

/// What all threads read in a burst, and a thread at least: enough that the clock and the first
/// miss do not matter.
const BURST: usize = 4 << 20;
const LEAST: usize = 256 << 10;
/// A thread that has not come after this does not get its CPU soon; the burst is left out.
const PATIENCE: Nanos = Nanos::millis(1);
/// A thread that had less of its CPU was interrupted in its burst.
const UNDISTURBED: f64 = 0.97;

/// Threads that take readings, one on each CPU. The one that asks must be on the first
/// ([`ThreadSampler::on_first`]).
#[derive(Debug)]
pub struct ThreadSampler {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    first: CpuId,
    spent: Nanos,
    disturbed: u32,
}

#[derive(Debug)]
struct Shared {
    memory: AnonymousMapping,
    /// Threads.
    all: u32,
    /// Bytes of a thread's burst.
    each: usize,
    /// The burst that is asked for; `None`: all go home.
    asked: Mutex<Option<u32>>,
    changed: Condvar,
    here: AtomicU32,
    /// The last burst that all came to, and the last one that was left out.
    go: AtomicU32,
    left_out: AtomicU32,
    done: AtomicU32,
    /// Of the burst: when the first began and the last ended, and whether one was interrupted; what
    /// helpers' CPUs were used for.
    began: AtomicU64,
    ended: AtomicU64,
    interrupted: AtomicBool,
    spent: AtomicU64,
}

impl ThreadSampler {
    /// Over `region` of `node`, which is touched now.
    ///
    /// # Errors
    /// No memory, no such node, no such CPU.
    pub fn start(cpus: &[CpuId], node: NodeId, region: Bytes) -> Result<Self, Trouble> {
        let memory = AnonymousMapping::new(region, MappingPages::Huge)?;
        memory.bind(node)?;
        memory.prefault(0..memory.len())?;
        memory.fill();
        let all = cpus.len().max(1);
        let each = (BURST / all).max(LEAST).min(memory.len() / all) / (GRAIN * 8) * GRAIN * 8;
        let shared = Arc::new(Shared {
            memory,
            all: all as u32,
            each,
            asked: Mutex::new(Some(0)),
            changed: Condvar::new(),
            here: AtomicU32::new(0),
            go: AtomicU32::new(0),
            left_out: AtomicU32::new(0),
            done: AtomicU32::new(0),
            began: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            interrupted: AtomicBool::new(false),
            spent: AtomicU64::new(0),
        });
        let first = cpus.first().copied().unwrap_or_default();
        let mut sampler =
            Self { shared, threads: Vec::new(), first, spent: Nanos::ZERO, disturbed: 0 };
        for (index, cpu) in cpus.iter().enumerate().skip(1) {
            let (shared, cpu) = (sampler.shared.clone(), *cpu);
            let made =
                std::thread::Builder::new().name("terrace-read".to_owned()).spawn(move || {
                    block_signals();
                    // A CPU that went away meanwhile: the burst is read elsewhere.
                    let _elsewhere = pin(&[cpu]);
                    shared.help(index);
                });
            let failed = |e: std::io::Error| {
                Trouble::Sys(SysError::from_io(
                    "clone",
                    "a reading thread",
                    &e,
                    "raise the limit on threads",
                ))
            };
            sampler.threads.push(made.map_err(failed)?);
        }
        Ok(sampler)
    }

    /// Keeps the calling thread where it must be to ask.
    ///
    /// # Errors
    /// The CPU may not be used.
    pub fn on_first(&self) -> Result<(), SysError> {
        pin(&[self.first])
    }

    /// What is left now, and what `load` took meanwhile. None where a thread did not get its CPU in
    /// time or lost it.
    pub fn read(&mut self, load: &Loader) -> Option<LoadReading> {
        let (cpu, asked) = (thread_cpu(), now());
        let reading = self.shared.lead(asked, load);
        self.spent += (thread_cpu() - cpu) + Nanos(self.shared.spent.swap(0, Ordering::Relaxed));
        self.disturbed += u32::from(reading.is_none());
        reading
    }

    /// CPUs that read.
    #[must_use]
    pub fn cpus(&self) -> u64 {
        u64::from(self.shared.all)
    }

    /// CPU time that all readings took.
    #[must_use]
    pub const fn spent(&self) -> Nanos {
        self.spent
    }

    /// Readings that gave nothing.
    #[must_use]
    pub const fn disturbed(&self) -> u32 {
        self.disturbed
    }
}

impl Drop for ThreadSampler {
    fn drop(&mut self) {
        *self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // It cannot panic: it reads memory of its own.
            let _never = thread.join();
        }
    }
}

impl Shared {
    /// A thread's part of a burst.
    fn burst(&self, round: u32, index: usize) {
        let bursts = (self.memory.len() / self.each).max(1);
        let at = (round as usize * self.all as usize + index) % bursts * self.each;
        let (cpu, start) = (thread_cpu(), now());
        let part = self.memory.as_ptr().wrapping_add(at).cast::<f64>();
        // SAFETY: `each` bytes from there lie in the mapping, since `at` is below as many whole
        // bursts as fit in it; they are doubles from a multiple of 64 bytes on, are written by
        // nobody, and are a multiple of the grain. Every processor has this form.
        std::hint::black_box(unsafe {
            run(ElementKernel::Read, Form::Lines, &[part], self.each / 8)
        });
        let end = now();
        let busy = (thread_cpu() - cpu).get() as f64 / end.since(start).get().max(1) as f64;
        if busy < UNDISTURBED {
            self.interrupted.store(true, Ordering::Relaxed);
        }
        self.began.fetch_min(start.0, Ordering::Relaxed);
        self.ended.fetch_max(end.0, Ordering::Relaxed);
    }

    fn help(&self, index: usize) {
        let mut last = 0;
        loop {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let round = loop {
                match *asked {
                    None => return,
                    Some(round) if round != last => break round,
                    Some(_) => {
                        asked = self.changed.wait(asked).unwrap_or_else(PoisonError::into_inner)
                    }
                }
            };
            drop(asked);
            last = round;
            let cpu = thread_cpu();
            self.here.fetch_add(1, Ordering::AcqRel);
            // No longer than the one who leads has patience.
            while self.go.load(Ordering::Acquire) != round
                && self.left_out.load(Ordering::Acquire) != round
            {
                std::hint::spin_loop();
            }
            if self.go.load(Ordering::Acquire) == round {
                self.burst(round, index);
            }
            self.spent.fetch_add((thread_cpu() - cpu).get(), Ordering::Relaxed);
            self.done.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn lead(&self, asked: Tick, load: &Loader) -> Option<LoadReading> {
        let others = self.all - 1;
        self.here.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.began.store(u64::MAX, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        self.interrupted.store(false, Ordering::Relaxed);
        let round = {
            let mut last = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let round = last.unwrap_or(0).wrapping_add(1);
            *last = Some(round);
            round
        };
        self.changed.notify_all();
        while self.here.load(Ordering::Acquire) < others && now().since(asked) < PATIENCE {
            std::hint::spin_loop();
        }
        let all = self.here.load(Ordering::Acquire) == others;
        if all { &self.go } else { &self.left_out }.store(round, Ordering::Release);
        let before = load.bytes();
        if all {
            self.burst(round, 0);
        }
        while self.done.load(Ordering::Acquire) < others {
            sleep(Nanos::micros(20));
        }
        // A burst or so later than it ended where others were waited for: it is the rate that
        // counts.
        let (span, taken) = (now(), load.bytes() - before);
        let (began, ended) =
            (Tick(self.began.load(Ordering::Relaxed)), Tick(self.ended.load(Ordering::Relaxed)));
        if !all || self.interrupted.load(Ordering::Relaxed) {
            return None;
        }
        let rate = |bytes: u64, span: Nanos| {
            BytesPerSec((bytes as f64 / span.get().max(1) as f64 * 1e9) as u64)
        };
        let left = rate((self.each * self.all as usize) as u64, ended.since(began));
        Some(LoadReading { left, load: rate(taken, span.since(began)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degrade::Knobs;

    #[test]
    fn bursts_read_what_there_is_and_their_cost_is_counted() {
        let _turn = crate::degrade::tests::TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let root = terrace_sys::Root::live();
        let node = terrace_sys::zones::nodes_with_memory(&root)[0];
        let cpus = terrace_sys::own_cpus().unwrap();
        // More threads than CPUs too: then nobody comes in time, and nothing hangs.
        for cpus in [cpus[..1].to_vec(), cpus.clone(), vec![cpus[0]; 3]] {
            let (loader, mut sampler) = match (
                Loader::start(&cpus[..1], node, Bytes::mib(4)),
                ThreadSampler::start(&cpus, node, Bytes::mib(16)),
            ) {
                (Ok(loader), Ok(sampler)) => (loader, sampler),
                (Err(e), _) | (_, Err(e)) => return println!("skipped: {e}"),
            };
            loader.set(Knobs { threads: 0, adds: 0, region: Bytes::mib(4) }).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    sampler.on_first().unwrap();
                    for _ in 0..20 {
                        if let Some(reading) = sampler.read(&loader) {
                            assert!(reading.left > BytesPerSec(0));
                            assert_eq!(reading.load, BytesPerSec(0));
                        }
                    }
                });
            });
            assert!(sampler.spent() > Nanos::ZERO && sampler.disturbed() <= 20);
        }
    }
}
