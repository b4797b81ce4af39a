//! The load: threads that run a 3-point stencil over a field of records, a line each, until they
//! are let go.
//!
//! They only read (ADR 0212): lines that a load writes lie in caches that it shares with the
//! command, and are written back by whoever needs their place, which slows the command at nodes
//! that shall not be slower, and by more or less as its own accesses have it.

use super::Knobs;
use crate::task::Trouble;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use terrace_sys::{block_signals, now, pin, sleep, AnonymousMapping, MappingPages};
use terrace_types::{Bytes, CpuId, Nanos, NodeId};

/// Records between two looks at the knobs.
const CHUNK: usize = 64;
/// Doubles of a record: a line, of which the first is the field. So lines cross the bus whole and
/// few instructions stand between.
const RECORD: usize = 8;
/// Bytes that cross the bus between two looks at the knobs.
pub(super) const CHUNK_BYTES: usize = CHUNK * RECORD * 8;

/// Threads that load a node. They end when this is dropped, and with the process however it ends.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// An array for each thread that works, which reads it.
    memory: AnonymousMapping,
    /// Threads have it for reading while they work: so nobody's array changes under him.
    layout: RwLock<Layout>,
    /// The layout shall change: who has it lets it go.
    changing: AtomicBool,
    /// Additions after each chunk, which may change while threads work.
    adds: AtomicU32,
    over: AtomicBool,
    /// Records done by all.
    done: AtomicU64,
}

/// How the memory is divided.
#[derive(Debug, Clone, Copy, Default)]
struct Layout {
    /// Threads that work.
    threads: usize,
    /// Records of an array.
    each: usize,
    /// Bytes that were touched.
    touched: usize,
}

impl Loader {
    /// Sets space for regions of up to `largest` on `node` aside, not touched, and makes a thread
    /// for each of `cpus`; none works until [`Loader::set`].
    ///
    /// # Errors
    /// No such node, or no such CPU.
    pub fn start(cpus: &[CpuId], node: NodeId, largest: Bytes) -> Result<Self, Trouble> {
        let memory = AnonymousMapping::new(largest, MappingPages::Huge)?;
        memory.bind(node)?;
        let shared = Arc::new(Shared {
            memory,
            layout: RwLock::new(Layout::default()),
            changing: AtomicBool::new(false),
            adds: AtomicU32::new(0),
            over: AtomicBool::new(false),
            done: AtomicU64::new(0),
        });
        let mut loader = Self { shared, threads: Vec::new() };
        for (index, cpu) in cpus.iter().enumerate() {
            let (shared, cpu) = (loader.shared.clone(), *cpu);
            let made =
                std::thread::Builder::new().name("terrace-load".to_owned()).spawn(move || {
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
        let bytes =
            usize::try_from(knobs.region.get()).unwrap_or(usize::MAX).min(shared.memory.len());
        if bytes > touched {
            shared.memory.prefault(touched..bytes)?;
            shared.memory.fill_part(touched..bytes);
        }
        let threads = (knobs.threads as usize).min(self.threads.len());
        let each = bytes / (8 * RECORD) / threads.max(1) / CHUNK * CHUNK;
        shared.adds.store(knobs.adds, Ordering::Relaxed);
        *layout = Layout { threads, each, touched: bytes.max(touched) };
        Ok(())
    }

    /// [`Loader::set`] where only additions change: threads go on meanwhile.
    pub fn set_adds(&self, adds: u32) {
        self.shared.adds.store(adds, Ordering::Relaxed);
    }

    /// Bytes read by the load so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed) * 8 * RECORD as u64
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
            if index >= layout.threads
                || layout.each < CHUNK
                || self.changing.load(Ordering::Relaxed)
            {
                drop(layout);
                sleep(Nanos::millis(1));
                continue;
            }
            self.load(index, &layout);
        }
    }

    /// Works by this layout until it shall change.
    fn load(&self, index: usize, layout: &RwLockReadGuard<'_, Layout>) {
        let (doubles, base) = (layout.each * RECORD, self.memory.as_ptr().cast::<f64>());
        // SAFETY: thread `index` has the doubles from `index * doubles` to `(index + 1) * doubles`,
        // which lie in the mapping (each is its records by the threads that work, rounded down, and
        // `index` is one of these). All only read while the layout is held, as it is as long as
        // this slice lives; `set` writes when nobody holds it. The mapping lives as long as `self`.
        // Its bytes are zero or doubles.
        let records =
            unsafe { std::slice::from_raw_parts(base.add(index * doubles).cast_const(), doubles) };
        let mut chunks = records.chunks_exact(CHUNK * RECORD).cycle();
        let mut sum = 0.0;
        while !self.over.load(Ordering::Relaxed) && !self.changing.load(Ordering::Relaxed) {
            // There is one: whoever has fewer records than a chunk does not come here.
            let Some(chunk) = chunks.next() else { break };
            sum += stencil(chunk);
            additions(self.adds.load(Ordering::Relaxed));
            self.done.fetch_add(CHUNK as u64, Ordering::Relaxed);
        }
        std::hint::black_box(sum);
    }
}

/// So many that do nothing.
#[inline(never)]
fn additions(number: u32) {
    let mut idle = 0_u32;
    for _ in 0..number {
        idle = std::hint::black_box(idle.wrapping_add(1));
    }
}

/// Nanoseconds of an addition on the CPU that this thread is on, which is taken to be like the
/// load's.
#[must_use]
pub fn addition() -> f64 {
    const MANY: u32 = 20_000;
    let one = || {
        let began = now();
        additions(MANY);
        now().since(began).get() as f64 / f64::from(MANY)
    };
    (0..3).map(|_| one()).fold(f64::INFINITY, f64::min)
}

/// The sum of `(a[i] + a[i + 1] + a[i + 2]) / 3` over the fields of these records.
fn stencil(records: &[f64]) -> f64 {
    let mut fields = records.chunks_exact(RECORD).map(|record| record[0]);
    let (mut a, mut b) = (fields.next().unwrap_or(0.0), fields.next().unwrap_or(0.0));
    let mut sum = 0.0;
    for c in fields {
        sum += (a + b + c) * (1.0 / 3.0);
        (a, b) = (b, c);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_works_when_set_and_is_gone_when_dropped() {
        let _turn = crate::degrade::tests::TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let root = terrace_sys::Root::live();
        let node = terrace_sys::zones::nodes_with_memory(&root)[0];
        let me = terrace_types::Pid(std::process::id() as i32);
        let mine = || {
            let threads = terrace_sys::task::threads(&root, me).unwrap_or_default();
            let name = |t: &terrace_types::Tid| {
                root.text(&format!("/proc/self/task/{t}/comm")).unwrap_or_default()
            };
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
            while loader.bytes() < before + more
                && terrace_sys::now().since(began) < Nanos::secs(20)
            {
                sleep(Nanos::millis(2));
            }
            loader.bytes() >= before + more
        };
        // One over a small region, both over a larger one, and one over that.
        let touched = || loader.shared.layout.read().unwrap().touched;
        for (threads, region, space) in [(1, 1, 1), (2, 4, 4), (1, 2, 4), (7, 900, 4)] {
            loader.set(Knobs { threads, adds: 0, region: Bytes::mib(region) }).unwrap();
            assert!(works(8 << 20), "{threads} {region}");
            assert_eq!(touched(), space << 20);
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
        let fields = [3.0, 6.0, 9.0, 0.0, 3.0];
        let records: Vec<f64> =
            fields.iter().flat_map(|f| [*f, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0]).collect();
        assert_eq!(stencil(&records), 6.0 + 5.0 + 4.0);
        assert_eq!(stencil(&records[..RECORD]), 0.0);
    }
}
