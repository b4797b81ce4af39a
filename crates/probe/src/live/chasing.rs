//! Latency: idle, with several misses in flight, under load.

use super::memory::ProbeMapping;
use super::LiveMachine;
use crate::chase::{chain, follow, follow_many, ELEMENT, STEP};
use crate::kernels::{self, ElementKernel};
use crate::stats::{judge_alone, judge_values, Rep, StoppingRule};
use crate::task::{PageKind, TaskOutcome, Trouble};
use crate::team;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use terrace_sys::{now, pin, thread_cpu};
use terrace_types::{Bytes, CpuId, Nanos, NodeId, Seed};

/// A run of a chase takes about this long.
const RUN: Nanos = Nanos::millis(12);
/// Bytes between two delays of a loading thread.
const CHUNK: usize = 2048;

/// Where a held chain begins.
fn first_of(held: &ProbeMapping) -> NonNull<u8> {
    NonNull::new(held.mapping.as_ptr()).unwrap_or(NonNull::dangling())
}

/// A chain through the first `bytes` of what is held.
fn chained(cpu: CpuId, held: &mut ProbeMapping, bytes: Bytes) -> Result<NonNull<u8>, Trouble> {
    let bytes = bytes.get() as usize;
    if held.chained != bytes {
        held.chained = 0;
        let mapping = &held.mapping;
        team::on(cpu, move || {
            if let Some(start) = NonNull::new(mapping.as_ptr()) {
                // SAFETY: the mapping is longer than `bytes`, aligned to 2 MiB, writable, and
                // reached by this thread alone: it is held by the one instrument, which is borrowed
                // here.
                unsafe { chain(start, bytes.min(mapping.len()), Seed(0x7e44_ace0)) };
            }
        })?;
        (held.chained, held.was_chained) = (bytes, true);
    }
    Ok(first_of(held))
}

/// Loads that take about [`RUN`] from `start`, and where they end.
///
/// # Safety
/// `start` is an element of a chain that lives and is not written.
unsafe fn pace(start: NonNull<u8>, elements: usize) -> (usize, NonNull<u8>) {
    // Once round a small chain brings it into its cache; of a large one nothing stays.
    let (warm, tries) = (elements.clamp(1 << 12, 1 << 19), 1 << 13);
    // SAFETY: as the caller promises.
    let at = unsafe { follow(start, warm) };
    let began = now();
    // SAFETY: as the caller promises; `follow` ends at an element.
    let at = unsafe { follow(at, tries) };
    let each = now().since(began).get().max(1) as f64 / tries as f64;
    let loads = (RUN.get() as f64 / each) as usize;
    (loads.clamp(1 << 12, 1 << 24) / STEP * STEP, at)
}

impl LiveMachine<'_> {
    pub(super) fn chase(
        &mut self,
        initiator: NodeId,
        target: NodeId,
        pages: PageKind,
        bytes: Bytes,
    ) -> Result<TaskOutcome, Trouble> {
        let cpu = self.cpus(initiator, 1)?[0];
        let (rule, stop, fine) = (self.rule(), self.stop, self.fine);
        let held = self.hold(cpu, target, pages, bytes)?;
        let start = chained(cpu, held, bytes)?;
        let elements = (bytes.get() as usize / ELEMENT).max(1);
        let (at, loads) = (AtomicUsize::new(start.as_ptr() as usize), AtomicUsize::new(0));
        let work = |_: usize| {
            let Some(element) = NonNull::new(at.load(Ordering::Relaxed) as *mut u8) else { return };
            // SAFETY: `at` holds elements of the chain only; its memory is held until this function
            // returns, and nobody writes it.
            let end = unsafe {
                if loads.load(Ordering::Relaxed) == 0 {
                    let (paced, end) = pace(element, elements);
                    loads.store(paced, Ordering::Relaxed);
                    end
                } else {
                    follow(element, loads.load(Ordering::Relaxed))
                }
            };
            at.store(end.as_ptr() as usize, Ordering::Relaxed);
        };
        let reps = team::repeat(&[cpu], &rule, stop, work)?;
        let loads = loads.load(Ordering::Relaxed).max(1) as f64;
        let figure = judge_alone(&reps, fine, |span| span.get() as f64 / loads);
        Ok(TaskOutcome::new(figure, None, held.how()))
    }

    pub(super) fn misses(
        &mut self,
        initiator: NodeId,
        target: NodeId,
        bytes: Bytes,
        chains: u32,
    ) -> Result<TaskOutcome, Trouble> {
        let cpu = self.cpus(initiator, 1)?[0];
        let (rule, stop, fine) = (self.rule(), self.stop, self.fine);
        let held = self.hold_best(cpu, target, bytes)?;
        let start = chained(cpu, held, bytes)?;
        let elements = (bytes.get() as usize / ELEMENT).max(1);
        let count = (chains as usize).clamp(1, crate::chase::MAX_CHAINS);
        // Elements of one cycle, in places that have nothing to do with their order in it.
        let begin = |k: usize| start.as_ptr() as usize + (elements / count * k) * ELEMENT;
        let starts: Vec<AtomicUsize> = (0..count).map(|k| AtomicUsize::new(begin(k))).collect();
        // At memory's latency, this many loads of each chain take about as long as a run should.
        let loads = 40_000;
        let work = |_: usize| {
            let mut at: Vec<NonNull<u8>> = starts
                .iter()
                .filter_map(|s| NonNull::new(s.load(Ordering::Relaxed) as *mut u8))
                .collect();
            // SAFETY: all are elements of the chain, which is held until this function returns;
            // nobody writes it.
            unsafe { follow_many(&mut at, loads) };
            starts
                .iter()
                .zip(&at)
                .for_each(|(s, a)| s.store(a.as_ptr() as usize, Ordering::Relaxed));
        };
        let reps = team::repeat(&[cpu], &rule, stop, work)?;
        let figure = judge_alone(&reps, fine, |span| span.get() as f64 / (loads * count) as f64);
        Ok(TaskOutcome::new(figure, None, held.how()))
    }

    /// The first CPU chases through two thirds of the memory while the others work on the rest.
    pub(super) fn loaded(
        &mut self,
        initiator: NodeId,
        target: NodeId,
        kernel: ElementKernel,
        delay: u32,
        threads: u32,
        bytes: Bytes,
    ) -> Result<TaskOutcome, Trouble> {
        let cpus = self.cpus(initiator, threads + 1)?;
        let (rule, stop) = (self.rule(), self.stop);
        let held = self.hold_best(cpus[0], target, bytes)?;
        let region = bytes.get() as usize / 3 * 2 / 4096 * 4096;
        if held.chained != region {
            held.filled(cpus[0])?;
        }
        let start = chained(cpus[0], held, Bytes(region as u64))?;
        let rest = held.mapping.len().min(bytes.get() as usize) - region;
        let load = Load {
            base: held.mapping.as_ptr().wrapping_add(region) as usize,
            each: rest / threads as usize / 4096 * 4096,
            kernel,
            delay,
            done: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            over: AtomicBool::new(false),
        };
        let (at, elements) = (start.as_ptr() as usize, region / ELEMENT);
        let (reps, share) = std::thread::scope(|scope| {
            let (load, rule, cpu) = (&load, &rule, cpus[0]);
            let loader = |(index, cpu): (usize, CpuId)| {
                scope.spawn(move || pin(&[cpu]).map(|()| load.run(index)))
            };
            let loaders: Vec<_> = cpus[1..].iter().copied().enumerate().map(loader).collect();
            let chaser = scope
                .spawn(move || pin(&[cpu]).map(|()| under_load(at, elements, rule, stop, load)));
            let reps = chaser.join();
            load.over.store(true, Ordering::Relaxed);
            let shares =
                loaders.into_iter().filter_map(|l| l.join().ok()).collect::<Result<Vec<f64>, _>>();
            Ok::<_, Trouble>((
                reps.unwrap_or(Ok(Vec::new()))?,
                shares?.into_iter().fold(1.0, f64::min),
            ))
        })?;
        let reps = under_some_load(reps, threads)?;
        let busy = |run: &Loaded| run.busy.min(share);
        let latency: Vec<(f64, f64)> = reps.iter().map(|r| (r.ns, busy(r))).collect();
        let rate: Vec<(f64, f64)> = reps.iter().map(|r| (r.rate, busy(r))).collect();
        let (figure, second) = (judge_values(&latency), Some(judge_values(&rate)));
        Ok(TaskOutcome::new(figure, second, held.how()))
    }
}

/// Those runs that met any load: a thread that makes it may have had no CPU time in one, where the
/// machine is busy.
fn under_some_load(mut runs: Vec<Loaded>, threads: u32) -> Result<Vec<Loaded>, Trouble> {
    let made = runs.len();
    runs.retain(|run| run.rate > 0.0);
    if runs.is_empty() && made > 0 {
        return Err(Trouble::NoLoad { threads });
    }
    Ok(runs)
}

/// A run of the chase under load.
#[derive(Debug, PartialEq)]
struct Loaded {
    /// Nanoseconds a load.
    ns: f64,
    /// Bytes a second of the others meanwhile.
    rate: f64,
    /// Share of its CPU that the chasing thread had.
    busy: f64,
}

/// Chases from the element at address `at`, as long as `rule` says.
fn under_load(
    at: usize,
    elements: usize,
    rule: &StoppingRule,
    stop: &AtomicBool,
    load: &Load,
) -> Vec<Loaded> {
    let Some(start) = NonNull::new(at as *mut u8) else { return Vec::new() };
    // SAFETY: `at` is an element of a chain that the caller holds until this returns; loading
    // threads write behind it.
    let (loads, mut at) = unsafe { pace(start, elements) };
    let (mut reps, mut runs) = (Vec::new(), Vec::new());
    let began = now();
    while rule.needs_repeat(&reps, now().since(began)) && !stop.load(Ordering::Relaxed) {
        let (cpu, begin, bytes) = (thread_cpu(), now(), load.bytes());
        // SAFETY: as above; `follow` ends at an element.
        at = unsafe { follow(at, loads) };
        let (bytes, span, cpu) = (load.bytes() - bytes, now().since(begin), thread_cpu() - cpu);
        let nanos = span.get().max(1) as f64;
        let busy = (cpu.get() as f64 / nanos).min(1.0);
        reps.push(Rep { span, busy, cpu });
        runs.push(Loaded { ns: nanos / loads as f64, rate: bytes as f64 / nanos * 1e9, busy });
    }
    runs
}

/// What loading threads share.
struct Load {
    /// Address of their memory.
    base: usize,
    /// Bytes of it for each thread.
    each: usize,
    kernel: ElementKernel,
    delay: u32,
    /// Bytes done by each.
    done: Vec<AtomicU64>,
    over: AtomicBool,
}

impl Load {
    fn bytes(&self) -> u64 {
        self.done.iter().map(|d| d.load(Ordering::Relaxed)).sum()
    }

    /// Works until it is over. Gives the share of its CPU that the thread had.
    fn run(&self, index: usize) -> f64 {
        let arrays = self.kernel.arrays();
        let form = kernels::forms(self.kernel).pop().unwrap_or(kernels::Form::Plain);
        // Without a delay in larger pieces: nothing but memory should be waited for.
        let chunk = if self.delay == 0 { CHUNK * 32 } else { CHUNK };
        let length = self.each / arrays / chunk * chunk;
        let base = (self.base + index * self.each) as *mut u8;
        let (cpu, began) = (thread_cpu(), now());
        let mut offset = 0;
        while !self.over.load(Ordering::Relaxed) && length > 0 {
            let at: Vec<*mut f64> =
                (0..arrays).map(|k| base.wrapping_add(k * length + offset).cast()).collect();
            // SAFETY: each array has `length` bytes of this thread's own part of the memory, which
            // the instrument holds until all threads are joined; `offset + chunk` is at most
            // `length`, a multiple of the chunk, which is one of 64 doubles; parts begin at
            // multiples of a page.
            unsafe { kernels::run(self.kernel, form, &at, chunk / 8) };
            for _ in 0..self.delay {
                std::hint::black_box(());
            }
            self.done[index].fetch_add((chunk * arrays) as u64, Ordering::Relaxed);
            offset = (offset + chunk) % length;
        }
        (thread_cpu() - cpu).get() as f64 / now().since(began).get().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_met_no_load_does_not_count() {
        let run = |rate| Loaded { ns: 100.0, rate, busy: 1.0 };
        let some = under_some_load(vec![run(0.0), run(2e9), run(0.0)], 1);
        assert_eq!(some.ok(), Some(vec![run(2e9)]));
        assert!(matches!(under_some_load(vec![run(0.0)], 2), Err(Trouble::NoLoad { threads: 2 })));
        assert!(
            under_some_load(Vec::new(), 2).is_ok_and(|runs| runs.is_empty()),
            "interrupted before the first"
        );
    }
}
