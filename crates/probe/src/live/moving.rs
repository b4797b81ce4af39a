//! What it costs to move pages or to copy their data, and to have other CPUs drop a translation.

use super::memory::{fresh, pages_of};
use super::LiveMachine;
use crate::stats::{judge, judge_values, Rep, StoppingRule};
use crate::task::{Method, PageKind, TaskOutcome, Trouble};
use crate::team;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use terrace_sys::{move_pages, now, pin, query_pages, AnonymousMapping, PageStatus, Root};
use terrace_types::{Bytes, CpuId, Nanos, NodeId, Pid, Vpn};

/// What is moved where, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) method: Method,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) bytes: Bytes,
    pub(super) batch: u32,
    pub(super) pages: PageKind,
}

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

impl Order {
    /// Bytes of what the kernel moves at once.
    fn unit(&self) -> usize {
        match self.pages {
            PageKind::Huge => HUGE,
            PageKind::Base => terrace_sys::page_size().get() as usize,
        }
    }
}

impl LiveMachine<'_> {
    pub(super) fn moved(
        &mut self,
        order: &Order,
        caller: NodeId,
        threads: u32,
    ) -> Result<TaskOutcome, Trouble> {
        let cpus = self.cpus(caller, threads)?;
        self.held = None;
        let rule = StoppingRule { limit: Nanos(self.rule().limit.get() * 2), ..self.rule() };
        let began = now();
        let mut reps: Vec<Rep> = Vec::new();
        while rule.needs_repeat(&reps, now().since(began)) {
            self.stopped()?;
            reps.push(one(order, &cpus, self.stop)?);
        }
        let whole =
            order.bytes.get() as f64 * if order.method == Method::Exchange { 2.0 } else { 1.0 };
        let figure = judge(&reps, |span| whole / span.get().max(1) as f64 * 1e9);
        let second = Some(judge(&reps, |span| span.get() as f64));
        let how = if order.pages == PageKind::Huge { "huge pages" } else { "base pages" };
        Ok(TaskOutcome::new(figure, second, how))
    }

    pub(super) fn shootdown(
        &mut self,
        initiator: NodeId,
        others: u32,
    ) -> Result<TaskOutcome, Trouble> {
        const CALLS: u32 = 200;
        let cpus = self.cpus(initiator, others + 1)?;
        let mapping = AnonymousMapping::new(Bytes(HUGE as u64), pages_of(PageKind::Base))?;
        mapping.prefault(0..mapping.len())?;
        let (rule, stop) = (self.rule(), self.stop);
        let (over, ready) = (AtomicBool::new(false), AtomicU32::new(0));
        let values = std::thread::scope(|scope| {
            let (over, ready, mapping, rule) = (&over, &ready, &mapping, &rule);
            let other = |cpu: CpuId| {
                scope.spawn(move || -> Result<(), Trouble> {
                    let pinned = pin(&[cpu]);
                    ready.fetch_add(1, Ordering::Release);
                    pinned?;
                    while !over.load(Ordering::Relaxed) {
                        // SAFETY: the byte is readable at all times: only the right to write is
                        // taken away; nobody writes it but by an atomic of the same type.
                        unsafe { (*mapping.as_ptr().cast::<AtomicU32>()).load(Ordering::Relaxed) };
                    }
                    Ok(())
                })
            };
            let threads: Vec<_> = cpus[1..].iter().copied().map(other).collect();
            let cpu = cpus[0];
            let caller = scope.spawn(move || -> Result<Vec<(f64, f64)>, Trouble> {
                pin(&[cpu])?;
                while ready.load(Ordering::Acquire) < others {
                    std::thread::yield_now();
                }
                let (mut reps, mut values) = (Vec::new(), Vec::new());
                let began = now();
                while rule.needs_repeat(&reps, now().since(began)) && !stop.load(Ordering::Relaxed)
                {
                    let (mut spent, cpu, start) = (Nanos::ZERO, terrace_sys::thread_cpu(), now());
                    for _ in 0..CALLS {
                        mapping.protect(0..1, true)?;
                        // SAFETY: the page is writable again, and written by this thread alone,
                        // atomically.
                        unsafe {
                            (*mapping.as_ptr().cast::<AtomicU32>()).fetch_add(1, Ordering::Relaxed)
                        };
                        let before = now();
                        mapping.protect(0..1, false)?;
                        spent += now().since(before);
                    }
                    let all = now().since(start).get().max(1) as f64;
                    let cpu = terrace_sys::thread_cpu() - cpu;
                    let busy = (cpu.get() as f64 / all).min(1.0);
                    reps.push(Rep { span: spent, busy, cpu });
                    values.push((spent.get() as f64 / f64::from(CALLS), busy));
                }
                Ok(values)
            });
            let values = caller.join();
            over.store(true, Ordering::Relaxed);
            threads
                .into_iter()
                .filter_map(|t| t.join().ok())
                .collect::<Result<Vec<()>, Trouble>>()?;
            values.unwrap_or(Ok(Vec::new()))
        })?;
        Ok(TaskOutcome::new(judge_values(&values), None, "mprotect of one page"))
    }
}

/// One move of all of it, everything set up before and put away after the clock runs.
fn one(order: &Order, cpus: &[CpuId], stop: &AtomicBool) -> Result<Rep, Trouble> {
    let source = placed(order, cpus[0], order.from, stop)?;
    let bytes = (order.bytes.get() as usize).min(source.len());
    let part = |thread: usize| share(bytes, order.unit(), cpus.len(), thread);
    match order.method {
        Method::MovePages => {
            let rep =
                team::once(cpus, |thread| move_range(order, &source, part(thread), order.to))?;
            arrived(order, &source, bytes, order.to)?;
            Ok(rep)
        }
        Method::Mbind => {
            let step = batch_bytes(order);
            let rep = team::once(cpus, |thread| {
                let range = part(thread);
                for at in range.clone().step_by(step) {
                    // What did not move is found by looking afterwards.
                    let _looked_up_after =
                        source.move_by_mbind(at..(at + step).min(range.end), order.to);
                }
            })?;
            arrived(order, &source, bytes, order.to)?;
            Ok(rep)
        }
        Method::Exchange => {
            let other = placed(order, cpus[0], order.to, stop)?;
            let step = batch_bytes(order);
            let rep = team::once(cpus, |thread| {
                let range = part(thread);
                for at in range.clone().step_by(step) {
                    let piece = at..(at + step).min(range.end);
                    move_range(order, &other, piece.clone(), order.from);
                    move_range(order, &source, piece, order.to);
                }
            })?;
            arrived(order, &source, bytes, order.to)?;
            arrived(order, &other, bytes, order.from)?;
            Ok(rep)
        }
        Method::CopyFaulting | Method::CopyPrefaulted => {
            let faulting = order.method == Method::CopyFaulting;
            let target = AnonymousMapping::new(order.bytes, pages_of(order.pages))?;
            target.bind(order.to)?;
            if !faulting {
                super::memory::touch(cpus[0], &target)?;
            }
            Ok(team::once(cpus, |thread| {
                let range = part(thread);
                // SAFETY: both mappings are longer than the range, do not overlap, and threads have
                // parts of their own.
                unsafe {
                    let (from, to) =
                        (source.as_ptr().add(range.start), target.as_ptr().add(range.start));
                    std::ptr::copy_nonoverlapping(from.cast_const(), to, range.len());
                }
                if faulting {
                    source.release(range);
                }
            })?)
        }
    }
}

/// Memory on `node`, without a policy of its own that would fight the move.
fn placed(
    order: &Order,
    cpu: CpuId,
    node: NodeId,
    stop: &AtomicBool,
) -> Result<AnonymousMapping, Trouble> {
    if !order.method.moves_pages() {
        return fresh(cpu, node, order.pages, order.bytes, stop);
    }
    let mapping = AnonymousMapping::new(order.bytes, pages_of(order.pages))?;
    let touched = team::on(cpu, || {
        terrace_sys::bind_thread_memory(node)?;
        mapping.prefault(0..mapping.len()).map(|()| mapping.fill())
    })?;
    touched.unwrap_or(Ok(()))?;
    if order.pages == PageKind::Huge
        && mapping.huge_bytes(&Root::live()).get() * 10 < mapping.len() as u64 * 9
    {
        return Err(Trouble::NoHugePages);
    }
    Ok(mapping)
}

/// A thread's part of so many bytes, whole units.
fn share(bytes: usize, unit: usize, threads: usize, thread: usize) -> Range<usize> {
    let units = bytes.div_ceil(unit);
    let at = |t: usize| (units * t / threads * unit).min(bytes);
    at(thread)..at(thread + 1)
}

fn batch_bytes(order: &Order) -> usize {
    (order.batch.max(1) as usize).saturating_mul(order.unit()).min(1 << 40)
}

/// First page of each unit of a range.
fn units(order: &Order, mapping: &AnonymousMapping, range: Range<usize>) -> Vec<Vpn> {
    let page = terrace_sys::page_size().get();
    let base = mapping.as_ptr() as u64;
    range.step_by(order.unit()).map(|offset| Vpn((base + offset as u64) / page)).collect()
}

fn move_range(order: &Order, mapping: &AnonymousMapping, range: Range<usize>, to: NodeId) {
    // Process 0 is the calling one.
    for batch in units(order, mapping, range).chunks(order.batch.max(1) as usize) {
        // What did not move is found by looking afterwards.
        let _looked_up_after = move_pages(Pid(0), batch, to);
    }
}

/// Looks up where pages are now; up to one in a hundred may have been in use elsewhere for a
/// moment.
fn arrived(
    order: &Order,
    mapping: &AnonymousMapping,
    bytes: usize,
    node: NodeId,
) -> Result<(), Trouble> {
    let pages = units(order, mapping, 0..bytes);
    let left =
        query_pages(Pid(0), &pages)?.iter().filter(|s| **s != PageStatus::On(node)).count() as u64;
    if left * 100 > pages.len() as u64 {
        return Err(Trouble::NotMoved { left, all: pages.len() as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_whole_units_and_leave_none() {
        for (bytes, unit, threads) in
            [(1 << 20, 4096, 3), (4096, 4096, 2), (10_000, 4096, 2), (6 << 20, 2 << 20, 4)]
        {
            let parts: Vec<Range<usize>> =
                (0..threads).map(|t| share(bytes, unit, threads, t)).collect();
            assert_eq!(parts[0].start, 0);
            assert_eq!(parts[threads - 1].end, bytes);
            assert!(parts.windows(2).all(|w| w[0].end == w[1].start));
            assert!(parts.iter().all(|p| p.start % unit == 0 || p.start == bytes));
        }
    }
}
