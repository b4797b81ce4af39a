//! The load: threads that run a 3-point stencil until they are let go.

use super::Knobs;
use crate::task::Trouble;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use terrace_sys::{block_signals, pin, sleep, Mapping, Pages};
use terrace_types::{Bytes, CpuId, Nanos, NodeId};

/// Elements between two looks at the knobs.
const CHUNK: usize = 256;

/// Threads that load a node. They end when this is dropped, and with the process however it ends.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Two arrays for each thread: one read, one written.
    memory: Mapping,
    /// Doubles of an array.
    each: usize,
    threads: AtomicU32,
    adds: AtomicU32,
    over: AtomicBool,
    /// Elements done by all.
    done: AtomicU64,
}

impl Loader {
    /// Makes the region on `node` and a thread for each of `cpus`; none works until [`Loader::set`].
    ///
    /// # Errors
    /// No memory there, or no such CPU.
    pub fn start(cpus: &[CpuId], node: NodeId, region: Bytes) -> Result<Self, Trouble> {
        let memory = Mapping::new(region, Pages::Huge)?;
        memory.bind(node)?;
        memory.prefault(0..memory.len())?;
        memory.fill();
        let each = memory.len() / 16 / cpus.len().max(1) / CHUNK * CHUNK;
        let shared = Arc::new(Shared {
            memory,
            each,
            threads: AtomicU32::new(0),
            adds: AtomicU32::new(0),
            over: AtomicBool::new(false),
            done: AtomicU64::new(0),
        });
        let mut loader = Self { shared, threads: Vec::new() };
        for (index, cpu) in cpus.iter().enumerate() {
            let (shared, cpu) = (loader.shared.clone(), *cpu);
            let made = std::thread::Builder::new().name("terrace-load".to_owned()).spawn(move || {
                block_signals();
                // A CPU that went away meanwhile: the load is elsewhere, and measured as it is.
                let _elsewhere = pin(&[cpu]);
                shared.work(index);
            });
            let thread = made.map_err(|e| {
                Trouble::Sys(terrace_sys::SysError::from_io(
                    "clone",
                    "a loading thread",
                    &e,
                    "raise the limit on threads",
                ))
            })?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// Loads like this from now on.
    pub fn set(&self, knobs: Knobs) {
        self.shared.adds.store(knobs.adds, Ordering::Relaxed);
        self.shared.threads.store(knobs.threads, Ordering::Relaxed);
    }

    /// Bytes read and written by the load so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed) * 16
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic: a loop over memory of its own.
            let _never = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, index: usize) {
        if self.each < 2 * CHUNK {
            return;
        }
        let base = self.memory.as_ptr().cast::<f64>();
        // SAFETY: thread `index` has the doubles from `2 * index * each` to `2 * (index + 1) * each`, which lie in the mapping
        // (each is its doubles by twice the threads, rounded down) and belong to no other thread; the mapping lives as long
        // as `self`. Its bytes are zero or doubles.
        let (a, b) = unsafe {
            let first = base.add(2 * index * self.each);
            let a = std::slice::from_raw_parts(first.cast_const(), self.each);
            (a, std::slice::from_raw_parts_mut(first.add(self.each), self.each))
        };
        let mut at = 1;
        while !self.over.load(Ordering::Relaxed) {
            if index >= self.threads.load(Ordering::Relaxed) as usize {
                sleep(Nanos::millis(1));
                continue;
            }
            let end = (at + CHUNK).min(self.each - 1);
            stencil(&a[at - 1..end + 1], &mut b[at..end]);
            let mut idle = 0_u32;
            for _ in 0..self.adds.load(Ordering::Relaxed) {
                idle = std::hint::black_box(idle.wrapping_add(1));
            }
            self.done.fetch_add((end - at) as u64, Ordering::Relaxed);
            at = if end + 1 >= self.each { 1 } else { end };
        }
    }
}

/// `out[i] = (a[i] + a[i + 1] + a[i + 2]) / 3`
fn stencil(a: &[f64], out: &mut [f64]) {
    for (o, three) in out.iter_mut().zip(a.windows(3)) {
        *o = (three[0] + three[1] + three[2]) * (1.0 / 3.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_works_when_set_and_is_gone_when_dropped() {
        let root = terrace_sys::Root::live();
        let node = terrace_sys::zones::nodes_with_memory(&root)[0];
        let me = terrace_types::Pid(std::process::id() as i32);
        let mine = || {
            let threads = terrace_sys::task::threads(&root, me).unwrap_or_default();
            let name = |t: &terrace_types::Tid| root.text(&format!("/proc/self/task/{t}/comm")).unwrap_or_default();
            threads.iter().filter(|t| name(t).starts_with("terrace-load")).count()
        };
        let cpu = terrace_sys::own_cpus().unwrap()[0];
        let loader = match Loader::start(&[cpu, cpu], node, Bytes::mib(4)) {
            Ok(loader) => loader,
            Err(e) => return println!("skipped: {e}"),
        };
        sleep(Nanos::millis(20));
        assert_eq!((loader.bytes(), mine()), (0, 2), "nothing until it is set");
        loader.set(Knobs { threads: 1, adds: 0 });
        let began = terrace_sys::now();
        while loader.bytes() < 8 << 20 && terrace_sys::now().since(began) < Nanos::secs(20) {
            sleep(Nanos::millis(2));
        }
        assert!(loader.bytes() >= 8 << 20);
        drop(loader);
        assert_eq!(mine(), 0);
    }

    #[test]
    fn the_stencil_is_one() {
        let mut out = [0.0; 3];
        stencil(&[3.0, 6.0, 9.0, 0.0, 3.0], &mut out);
        assert_eq!(out, [6.0, 5.0, 4.0]);
    }
}
