//! Bandwidth: kernels over arrays on one node, and over pages interleaved across nodes.

use super::LiveMachine;
use crate::kernels::{self, ElementKernel, GRAIN};
use crate::stats::judge_alone;
use crate::task::{TaskOutcome, Trouble};
use crate::team;
use terrace_sys::{bind_thread_memory, AnonymousMapping, MappingPages, SysError};
use terrace_types::{Bytes, CpuId, Nanos, NodeId};

/// Bytes by which the page offset of each array differs from the previous one's. At equal offsets
/// the processor would take loads from one array to depend on stores to another (4K aliasing, Intel
/// Optimization Reference Manual).
const STAGGER: usize = 17 * 64;

/// Where the arrays of a kernel lie in a block of memory.
struct Arrays {
    first: usize,
    stride: usize,
    /// Elements (`f64`) of each array that one thread works on.
    each: usize,
    arrays: usize,
}

impl Arrays {
    /// Lays out the arrays in the `bytes` bytes from `first`, divided among the threads.
    fn new(first: *mut u8, bytes: usize, arrays: usize, threads: usize) -> Self {
        let stride = bytes / arrays / 4096 * 4096;
        let usable = stride.saturating_sub(arrays * STAGGER) / 8;
        let each = usable / threads.max(1) / GRAIN * GRAIN;
        Self { first: first as usize, stride, each, arrays }
    }

    /// A thread's part of each array.
    fn of(&self, thread: usize) -> Vec<*mut f64> {
        let at = |k: usize| self.first + k * (self.stride + STAGGER) + thread * self.each * 8;
        (0..self.arrays).map(|k| at(k) as *mut f64).collect()
    }
}

impl LiveMachine<'_> {
    pub(super) fn stream(
        &mut self,
        initiator: NodeId,
        target: NodeId,
        kernel: ElementKernel,
        threads: u32,
        bytes: Bytes,
    ) -> Result<TaskOutcome, Trouble> {
        let cpus = self.cpus(initiator, threads)?;
        let held = self.hold_best(cpus[0], target, bytes)?;
        // The arrays overwrite a chain.
        held.filled(cpus[0])?;
        let how = held.how();
        let length = held.mapping.len().min(bytes.get() as usize);
        let first = held.mapping.as_ptr();
        self.best(&cpus, kernel, first, length, how)
    }

    /// The result of a kernel's fastest form over the `length` bytes from `first`, which the caller
    /// keeps mapped.
    fn best(
        &self,
        cpus: &[CpuId],
        kernel: ElementKernel,
        first: *mut u8,
        length: usize,
        how: &str,
    ) -> Result<TaskOutcome, Trouble> {
        let arrays = Arrays::new(first, length, kernel.arrays(), cpus.len());
        let bytes = (arrays.each * cpus.len() * kernel.arrays() * 8) as f64;
        let mut best: Option<TaskOutcome> = None;
        for form in kernels::forms(kernel) {
            let work = |thread: usize| {
                // SAFETY: the parts of different threads and arrays do not overlap and lie in the
                // `length` bytes from `first`: arrays begin `stride + STAGGER` bytes apart, and
                // each ends before the next begins. Every part is 64-byte aligned.
                std::hint::black_box(unsafe {
                    kernels::run(kernel, form, &arrays.of(thread), arrays.each)
                });
            };
            let reps = team::repeat(cpus, &self.rule(), self.stop, work)?;
            let rate = |span: Nanos| bytes / span.get().max(1) as f64 * 1e9;
            // One thread by its own time; several share the bus by the clock's.
            let figure = judge_alone(&reps, self.fine && cpus.len() == 1, rate);
            if best.as_ref().is_none_or(|b| figure.value > b.figure.value) {
                let read_first = kernel == ElementKernel::Write && kernels::stores_read_first();
                best = Some(TaskOutcome {
                    figure,
                    second: None,
                    how: format!("{}, {how}", form.name()),
                    read_first,
                });
            }
        }
        best.ok_or(Trouble::Interrupted)
    }

    pub(super) fn interleave(
        &mut self,
        initiator: NodeId,
        parts: &[(NodeId, u32)],
        threads: u32,
        bytes: Bytes,
    ) -> Result<TaskOutcome, Trouble> {
        let cpus = self.cpus(initiator, threads)?;
        self.held = None;
        let mapping = AnonymousMapping::new(bytes, MappingPages::Base)?;
        deal(&mapping, parts)?;
        team::on(cpus[0], || mapping.fill())?;
        self.best(&cpus, ElementKernel::Read, mapping.as_ptr(), mapping.len(), "base pages")
    }
}

/// Faults in the pages of a mapping so that they are interleaved over the nodes by weight. The
/// memory policy is that of the touching threads (`set_mempolicy(2)`): with `mbind(2)` the kernel
/// would need a VMA for every few pages.
fn deal(mapping: &AnonymousMapping, parts: &[(NodeId, u32)]) -> Result<(), Trouble> {
    let page = terrace_sys::page_size().get() as usize;
    let round: usize = parts.iter().map(|p| p.1 as usize).sum::<usize>().max(1);
    let mut begin = 0;
    for (node, weight) in parts {
        let touch = move || -> Result<(), SysError> {
            bind_thread_memory(*node)?;
            let mut at = begin * page;
            while at < mapping.len() {
                mapping.prefault(at..at + *weight as usize * page)?;
                at += round * page;
            }
            Ok(())
        };
        std::thread::scope(|scope| scope.spawn(touch).join()).unwrap_or(Ok(()))?;
        begin += *weight as usize;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_threads_and_arrays_do_not_overlap() {
        for (bytes, arrays, threads) in
            [(24 << 20, 3, 2), (1 << 20, 5, 7), (40 << 10, 5, 1), (4096, 3, 2)]
        {
            let layout =
                Arrays::new(std::ptr::without_provenance_mut(1 << 21), bytes, arrays, threads);
            let mut spans: Vec<(usize, usize)> = (0..threads)
                .flat_map(|t| layout.of(t))
                .map(|p| (p as usize, p as usize + layout.each * 8))
                .collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "{bytes} {arrays} {threads}");
            let end = spans.last().map_or(0, |s| s.1);
            assert!(layout.each == 0 || end <= (1 << 21) + bytes, "{bytes} {arrays} {threads}");
            assert!(spans.iter().all(|s| s.0 % 64 == 0));
        }
    }
}
