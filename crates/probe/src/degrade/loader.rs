//! The load: threads that run a 3-point stencil until they are let go.

use super::Knobs;
use crate::task::Trouble;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
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
    /// Two arrays for each thread that works: one read, one written.
    memory: Mapping,
    /// Threads have it for reading while they work: so nobody's arrays change under him.
    layout: RwLock<Layout>,
    /// The layout shall change: who has it lets it go.
    changing: AtomicBool,
    over: AtomicBool,
    /// Elements done by all.
    done: AtomicU64,
}

/// How the memory is divided.
#[derive(Debug, Clone, Copy, Default)]
struct Layout {
    /// Threads that work.
    threads: usize,
    /// Doubles of an array.
    each: usize,
    adds: u32,
    /// Bytes that were touched.
    touched: usize,
}

impl Loader {
    /// Sets room for regions of up to `largest` on `node` aside, not touched, and makes a thread for each of `cpus`; none works until
    /// [`Loader::set`].
    ///
    /// # Errors
    /// No such node, or no such CPU.
    pub fn start(cpus: &[CpuId], node: NodeId, largest: Bytes) -> Result<Self, Trouble> {
        let memory = Mapping::new(largest, Pages::Huge)?;
        memory.bind(node)?;
        let shared = Arc::new(Shared {
            memory,
            layout: RwLock::new(Layout::default()),
            changing: AtomicBool::new(false),
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

    /// Loads like this from now on, all threads that work over the whole region together.
    ///
    /// # Errors
    /// No memory for a larger region; nothing loads then.
    pub fn set(&self, knobs: Knobs) -> Result<(), Trouble> {
        let shared = &*self.shared;
        shared.changing.store(true, Ordering::Relaxed);
        let mut layout = shared.layout.write().unwrap_or_else(PoisonError::into_inner);
        shared.changing.store(false, Ordering::Relaxed);
        let touched = std::mem::take(&mut *layout).touched;
        layout.touched = touched;
        if knobs.threads == 0 {
            return Ok(());
        }
        let bytes = usize::try_from(knobs.region.get()).unwrap_or(usize::MAX).min(shared.memory.len());
        if bytes > touched {
            shared.memory.prefault(touched..bytes)?;
            shared.memory.fill_part(touched..bytes);
        }
        let threads = (knobs.threads as usize).min(self.threads.len());
        let each = bytes / 16 / threads.max(1) / CHUNK * CHUNK;
        *layout = Layout { threads, each, adds: knobs.adds, touched: bytes.max(touched) };
        Ok(())
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
        while !self.over.load(Ordering::Relaxed) {
            let layout = self.layout.read().unwrap_or_else(PoisonError::into_inner);
            if index >= layout.threads || layout.each < 2 * CHUNK || self.changing.load(Ordering::Relaxed) {
                drop(layout);
                sleep(Nanos::millis(1));
                continue;
            }
            self.load(index, &layout);
        }
    }

    /// Works by this layout until it shall change.
    fn load(&self, index: usize, layout: &RwLockReadGuard<'_, Layout>) {
        let (each, base) = (layout.each, self.memory.as_ptr().cast::<f64>());
        // SAFETY: thread `index` has the doubles from `2 * index * each` to `2 * (index + 1) * each`, which lie in the mapping
        // (each is its doubles by twice the threads that work, rounded down, and `index` is one of these) and belong to no other
        // thread: all that work have the same layout, held for reading as long as these slices live. The mapping lives as long
        // as `self`. Its bytes are zero or doubles.
        let (a, b) = unsafe {
            let first = base.add(2 * index * each);
            let a = std::slice::from_raw_parts(first.cast_const(), each);
            (a, std::slice::from_raw_parts_mut(first.add(each), each))
        };
        let mut at = 1;
        while !self.over.load(Ordering::Relaxed) && !self.changing.load(Ordering::Relaxed) {
            let end = (at + CHUNK).min(each - 1);
            stencil(&a[at - 1..end + 1], &mut b[at..end]);
            let mut idle = 0_u32;
            for _ in 0..layout.adds {
                idle = std::hint::black_box(idle.wrapping_add(1));
            }
            self.done.fetch_add((end - at) as u64, Ordering::Relaxed);
            at = if end + 1 >= each { 1 } else { end };
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
        let works = |more: u64| {
            let (began, before) = (terrace_sys::now(), loader.bytes());
            while loader.bytes() < before + more && terrace_sys::now().since(began) < Nanos::secs(20) {
                sleep(Nanos::millis(2));
            }
            loader.bytes() >= before + more
        };
        // One over a small region, both over a larger one, and one over that.
        let touched = || loader.shared.layout.read().unwrap().touched;
        for (threads, region, room) in [(1, 1, 1), (2, 4, 4), (1, 2, 4), (7, 900, 4)] {
            loader.set(Knobs { threads, adds: 0, region: Bytes::mib(region) }).unwrap();
            assert!(works(8 << 20), "{threads} {region}");
            assert_eq!(touched(), room << 20);
        }
        loader.set(Knobs { threads: 0, adds: 0, region: Bytes::mib(4) }).unwrap();
        let before = loader.bytes();
        (0..1000).for_each(|_| std::thread::yield_now());
        assert_eq!(loader.bytes(), before, "all are let go when it returns");
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
