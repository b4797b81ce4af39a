//! The pipeline itself: threads, buffers and what becomes of each block.

use super::adapt::{Adapt, Window};
use super::copy::{copy, past_caches};
use super::model::{copies_at_once, decide, wanted_slots, Costs, Decision, Why, Work};
use super::schedule::{choose, Choice, Counts, Role};
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use terrace_sys::{now, pin, Mapping, Pages, SysError};
use terrace_types::{Bytes, CpuId, NodeId, Tick};

/// How threads are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// By the model, adapted while running; the number of all of them.
    Auto(u32),
    /// As said, stage it pays or not.
    Fixed {
        /// Threads that run the kernel.
        workers: u32,
        /// Threads that copy.
        migrators: u32,
    },
    /// All of them run the kernel in place.
    InPlace(u32),
}

/// How to stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The node of the buffers.
    pub fast: NodeId,
    /// The node the data lies on, where known.
    pub slow: Option<NodeId>,
    /// Threads.
    pub threads: Threads,
    /// CPUs that threads are kept on, in turn; empty: anywhere.
    pub cpus: Vec<CpuId>,
    /// Buffers; `None`: as many as keep all threads busy.
    pub slots: Option<u32>,
    /// Fast memory that buffers may take.
    pub room: Bytes,
    /// How often the kernel goes over a block.
    pub passes: f64,
    /// Nanoseconds a thread computes on a byte in one pass, were memory infinitely fast; 0 where not known.
    pub compute_ns_per_byte: f64,
    /// What the machine can do, where known.
    pub costs: Option<Costs>,
}

impl Options {
    /// On buffers of node `fast`, with so many threads and a kernel of one pass.
    #[must_use]
    pub fn new(fast: NodeId, threads: Threads) -> Self {
        Self {
            fast,
            slow: None,
            threads,
            cpus: Vec::new(),
            slots: None,
            room: Bytes::gib(1),
            passes: 1.0,
            compute_ns_per_byte: 0.0,
            costs: None,
        }
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// Blocks went through fast memory.
    Staged,
    /// The kernel ran where the data lies.
    InPlace(Why),
}

/// How it went.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Staged or not.
    pub mode: Mode,
    /// Threads in all.
    pub threads: u32,
    /// Threads that copied, at the end.
    pub migrators: u32,
    /// Buffers.
    pub slots: u32,
    /// Blocks.
    pub blocks: usize,
    /// Bytes copied to fast memory.
    pub brought: Bytes,
    /// Bytes copied back.
    pub returned: Bytes,
    /// Times that a thread waited because no block was ready.
    pub stalls: u64,
    /// How long, all threads together, the wait for the first blocks included.
    pub stalled: terrace_types::Nanos,
    /// Changes of the number of copying threads.
    pub changes: u32,
    /// Until threads began: buffers were made and touched. Part of `took`.
    pub prepared: terrace_types::Nanos,
    /// From begin to end.
    pub took: terrace_types::Nanos,
}

/// Why the data was not worked through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// Two blocks share elements.
    #[error("blocks {first} and {second} overlap; give ranges that share no element")]
    Overlap {
        /// Number of a block.
        first: usize,
        /// Number of another.
        second: usize,
    },
    /// A block reaches beyond the data, or ends before it begins.
    #[error("block {block} is {start}..{end} of {length} elements; give ranges within the data")]
    OutOfBounds {
        /// Its number.
        block: usize,
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
        /// Elements there are.
        length: usize,
    },
    /// No thread to work.
    #[error("no threads were given; give one at least, and two to stage")]
    NoThreads,
    /// The kernel panicked. Blocks that were through before are whole, all others as they were, but for this one where
    /// `intact` is false.
    #[error("the kernel panicked at block {block}: {message}{}", if *.intact { "" } else { " (the block may be half done: it was worked on in place)" })]
    Panicked {
        /// The block's number.
        block: usize,
        /// What it said.
        message: String,
        /// Whether the block's source is as it was.
        intact: bool,
    },
    /// Buffers or threads could not be had.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// Runs `kernel` on every block (its number, and its elements) and keeps what it makes of them. Blocks are ranges of `data`;
/// kernels of different blocks run at the same time and in no certain order. What lies in no block is not touched.
///
/// # Errors
/// [`StageError`]; what became of blocks then, [`StageError::Panicked`] says.
pub fn stage_update<T: Copy + Send + Sync>(
    data: &mut [T],
    blocks: impl IntoIterator<Item = Range<usize>>,
    options: &Options,
    kernel: impl Fn(usize, &mut [T]) + Sync,
) -> Result<Report, StageError> {
    let base = data.as_mut_ptr();
    let blocks = checked::<T>(data.len(), blocks)?;
    let run = |block: usize, at: *mut u8, bytes: usize, _: Buffers<'_>| {
        // SAFETY: `at` is the block's own elements in `data`, borrowed for writing as long as this function runs and in no
        // other block, or a buffer that holds a copy of them and is aligned to a page; `bytes` is their size.
        kernel(block, unsafe { std::slice::from_raw_parts_mut(at.cast::<T>(), elements::<T>(bytes)) });
    };
    Pipeline { base: Address(base.cast()), blocks, back: true, options, run: &run }.go()
}

/// Runs `kernel` on every block (its number, and its elements), which it can only read.
///
/// # Errors
/// [`StageError`].
pub fn stage_read<T: Copy + Send + Sync>(
    data: &[T],
    blocks: impl IntoIterator<Item = Range<usize>>,
    options: &Options,
    kernel: impl Fn(usize, &[T]) + Sync,
) -> Result<Report, StageError> {
    let base = data.as_ptr().cast_mut();
    let blocks = checked::<T>(data.len(), blocks)?;
    let run = |block: usize, at: *mut u8, bytes: usize, _: Buffers<'_>| {
        // SAFETY: as in `stage_update`, but that `data` is borrowed for reading and nothing writes to it: results do not go
        // back.
        kernel(block, unsafe { std::slice::from_raw_parts(at.cast_const().cast::<T>(), elements::<T>(bytes)) });
    };
    Pipeline { base: Address(base.cast()), blocks, back: false, options, run: &run }.go()
}

/// The buffers that a block lies in; none where it lies in the data itself.
pub type Buffers<'a> = Option<&'a Arc<Mapping>>;

/// [`stage_update`] of bytes (`back`) or [`stage_read`], for languages whose kernels may keep what they were given: a kernel gets the
/// address of its block as well, and the buffers it lies in, which are given back with the last [`Arc`] of them.
///
/// # Errors
/// [`StageError`].
pub fn stage_held(
    data: &mut [u8],
    back: bool,
    blocks: impl IntoIterator<Item = Range<usize>>,
    options: &Options,
    kernel: impl Fn(usize, &mut [u8], Buffers<'_>) + Sync,
) -> Result<Report, StageError> {
    let base = data.as_mut_ptr();
    let blocks = checked::<u8>(data.len(), blocks)?;
    let run = |block: usize, at: *mut u8, bytes: usize, buffers: Buffers<'_>| {
        // SAFETY: as in `stage_update`.
        kernel(block, unsafe { std::slice::from_raw_parts_mut(at, bytes) }, buffers);
    };
    Pipeline { base: Address(base), blocks, back, options, run: &run }.go()
}

fn elements<T>(bytes: usize) -> usize {
    bytes.checked_div(std::mem::size_of::<T>()).unwrap_or(0)
}

/// Blocks as (offset, length) in bytes, none beyond the data and no two with an element in common.
fn checked<T>(
    length: usize,
    blocks: impl IntoIterator<Item = Range<usize>>,
) -> Result<Vec<(usize, usize)>, StageError> {
    let size = std::mem::size_of::<T>();
    let mut all = Vec::new();
    for (block, range) in blocks.into_iter().enumerate() {
        let Range { start, end } = range;
        if end > length || start > end {
            return Err(StageError::OutOfBounds { block, start, end, length });
        }
        all.push((start * size, (end - start) * size));
    }
    let mut order: Vec<usize> = (0..all.len()).filter(|b| all[*b].1 > 0).collect();
    order.sort_unstable_by_key(|b| all[*b].0);
    for pair in order.windows(2) {
        if all[pair[0]].0 + all[pair[0]].1 > all[pair[1]].0 {
            let (first, second) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
            return Err(StageError::Overlap { first, second });
        }
    }
    Ok(all)
}

/// An address that threads may be given; what they do with it is proved where they do it.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: sending an address is harmless; each use of it has its own proof.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

struct Pipeline<'a> {
    base: Address,
    blocks: Vec<(usize, usize)>,
    back: bool,
    options: &'a Options,
    run: &'a (dyn Fn(usize, *mut u8, usize, Buffers<'_>) + Sync),
}

/// What threads share, under a lock.
struct State {
    next: usize,
    free: Vec<usize>,
    ready: VecDeque<(usize, usize)>,
    done: VecDeque<(usize, usize)>,
    left: usize,
    copying: u32,
    failed: Option<StageError>,
    adapt: Option<Adapt>,
    migrators: u32,
    window: Window,
    window_began: Tick,
    report: Report,
}

/// The number of copying threads is looked at after so many blocks a thread.
const BLOCKS_A_WINDOW: usize = 4;

impl Pipeline<'_> {
    fn go(&self) -> Result<Report, StageError> {
        let began = now();
        let sizes = self.blocks.iter().map(|b| b.1);
        let (largest, total) = (sizes.clone().max().unwrap_or(0), sizes.sum::<usize>());
        let (threads, decision) = self.divided(largest, total);
        if threads == 0 {
            return Err(StageError::NoThreads);
        }
        let mut report = Report {
            mode: Mode::Staged,
            threads,
            migrators: 0,
            slots: 0,
            blocks: self.blocks.len(),
            brought: Bytes::ZERO,
            returned: Bytes::ZERO,
            stalls: 0,
            stalled: terrace_types::Nanos::ZERO,
            changes: 0,
            prepared: terrace_types::Nanos::ZERO,
            took: terrace_types::Nanos::ZERO,
        };
        let mut report = match decision {
            Ok((migrators, slots)) => {
                (report.migrators, report.slots) = (migrators, slots);
                self.staged(report, largest)?
            }
            Err(why) => {
                report.mode = Mode::InPlace(why);
                self.in_place(threads)?;
                report
            }
        };
        report.took = now().since(began);
        Ok(report)
    }

    /// Threads, and either copying threads and buffers, or why there are none.
    fn divided(&self, largest: usize, total: usize) -> (u32, Result<(u32, u32), Why>) {
        let o = self.options;
        let fits = Bytes(o.room.get() / (largest.max(1) as u64)).get().min(u64::from(u32::MAX)) as u32;
        match o.threads {
            Threads::InPlace(threads) => (threads, Err(Why::Asked)),
            Threads::Fixed { workers, migrators } => {
                let threads = workers + migrators;
                if total == 0 || self.blocks.is_empty() {
                    return (threads, Err(Why::Nothing));
                }
                if workers == 0 || migrators == 0 {
                    return (threads, Err(Why::OneThread));
                }
                if fits < 2 {
                    let wanted = Bytes(largest as u64 * 2);
                    return (threads, Err(Why::NoRoom { wanted, room: o.room }));
                }
                let slots = o.slots.unwrap_or(wanted_slots(workers, migrators, self.back));
                (threads, Ok((migrators, slots.clamp(2, fits))))
            }
            Threads::Auto(threads) => {
                let work = Work {
                    blocks: self.blocks.len(),
                    largest: Bytes(largest as u64),
                    total: Bytes(total as u64),
                    passes: o.passes,
                    compute_ns_per_byte: o.compute_ns_per_byte,
                    back: self.back,
                    threads,
                    room: o.room,
                    one_tier: o.slow == Some(o.fast),
                    read_first: !past_caches(),
                };
                match decide(o.costs.as_ref(), &work) {
                    Decision::Staged(split) => {
                        (threads, Ok((split.migrators, o.slots.unwrap_or(split.slots).clamp(2, fits))))
                    }
                    Decision::InPlace(why) => (threads, Err(why)),
                }
            }
        }
    }

    /// Each thread takes the next block until none is left.
    fn in_place(&self, threads: u32) -> Result<(), StageError> {
        let next = Mutex::new((0_usize, None::<StageError>));
        let take = || {
            let mut next = lock(&next);
            let block = next.0;
            next.0 += 1;
            (block < self.blocks.len() && next.1.is_none()).then_some(block)
        };
        std::thread::scope(|scope| {
            for index in 0..threads.min(self.blocks.len().max(1) as u32) {
                let (take, next) = (&take, &next);
                scope.spawn(move || {
                    self.pinned(index);
                    while let Some(block) = take() {
                        let (offset, bytes) = self.blocks[block];
                        let at = self.base.0.wrapping_add(offset);
                        if let Err(message) = self.kernel(block, at, bytes, None) {
                            let failed = StageError::Panicked { block, message, intact: !self.back };
                            lock(next).1.get_or_insert(failed);
                        }
                    }
                });
            }
        });
        match next.into_inner().unwrap_or_else(PoisonError::into_inner).1 {
            Some(failed) => Err(failed),
            None => Ok(()),
        }
    }

    /// The kernel; a panic of it is its message.
    fn kernel(&self, block: usize, at: *mut u8, bytes: usize, buffers: Buffers<'_>) -> Result<(), String> {
        // Nothing of ours is left half done by a panic: the kernel sees the block's elements and nothing else of ours.
        catch_unwind(AssertUnwindSafe(|| (self.run)(block, at, bytes, buffers))).map_err(|panic| {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
        })
    }

    fn pinned(&self, index: u32) {
        if let Some(cpu) = self.options.cpus.get(index as usize % self.options.cpus.len().max(1)) {
            // A CPU that may not be used: the thread runs elsewhere, slower at worst.
            let _elsewhere = pin(&[*cpu]);
        }
    }

    fn staged(&self, mut report: Report, largest: usize) -> Result<Report, StageError> {
        let began = now();
        // Slots begin at whole pages, so that elements of any alignment can be in them.
        let stride = largest.next_multiple_of(4096);
        let slots = report.slots as usize;
        let pages = if stride * slots >= 4 << 20 { Pages::Huge } else { Pages::Base };
        let buffers = Arc::new(Mapping::new(Bytes((stride * slots) as u64), pages)?);
        buffers.bind(self.options.fast)?;
        buffers.prefault(0..buffers.len())?;
        report.prepared = now().since(began);
        let (threads, migrators) = (report.threads, report.migrators);
        let adapt = matches!(self.options.threads, Threads::Auto(_)).then(|| Adapt::new(threads, migrators));
        let state = Mutex::new(State {
            next: 0,
            free: (0..slots).rev().collect(),
            ready: VecDeque::new(),
            done: VecDeque::new(),
            left: self.blocks.len(),
            copying: 0,
            failed: None,
            migrators,
            adapt,
            window: Window::default(),
            window_began: now(),
            report,
        });
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            for index in 0..threads {
                let (state, changed, buffers) = (&state, &changed, &buffers);
                let role = match self.options.threads {
                    Threads::Auto(_) | Threads::InPlace(_) => Role::Either,
                    Threads::Fixed { workers, .. } if index < workers => Role::Worker,
                    Threads::Fixed { .. } => Role::Migrator,
                };
                scope.spawn(move || {
                    self.pinned(index);
                    self.thread(role, state, changed, buffers, stride);
                });
            }
        });
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failed {
            Some(failed) => Err(failed),
            None => Ok(Report { migrators: state.migrators, ..state.report }),
        }
    }

    /// One thread from begin to end.
    fn thread(&self, role: Role, shared: &Mutex<State>, changed: &Condvar, buffers: &Arc<Mapping>, stride: usize) {
        let slot_at = |slot: usize| buffers.as_ptr().wrapping_add(slot * stride);
        let mut state = lock(shared);
        loop {
            if state.failed.is_some() {
                changed.notify_all();
                return;
            }
            let choice = choose(role, &self.counts(&state));
            match choice {
                Choice::End => {
                    changed.notify_all();
                    return;
                }
                Choice::Starve | Choice::Crowd => {
                    let began = now();
                    state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    let waited = now().since(began);
                    if choice == Choice::Starve && role != Role::Migrator {
                        state.report.stalls += 1;
                        state.report.stalled += waited;
                        state.window.starved += waited;
                    } else {
                        state.window.crowded += waited;
                    }
                    continue;
                }
                Choice::Bring => {
                    let (Some(slot), block) = (state.free.pop(), state.next) else { continue };
                    state.next += 1;
                    state.copying += 1;
                    drop(state);
                    let (offset, bytes) = self.blocks[block];
                    // SAFETY: the block lies in the data, which is borrowed while this runs; nobody writes it meanwhile: no
                    // other block has its elements, and it is returned only after it was worked on. The slot was free, so that
                    // this thread alone has it, and is as long as the largest block.
                    unsafe { copy(self.base.0.wrapping_add(offset), slot_at(slot), bytes) };
                    state = lock(shared);
                    state.copying -= 1;
                    state.report.brought += Bytes(bytes as u64);
                    state.ready.push_back((block, slot));
                }
                Choice::Work => {
                    let Some((block, slot)) = state.ready.pop_front() else { continue };
                    drop(state);
                    let bytes = self.blocks[block].1;
                    let ran = self.kernel(block, slot_at(slot), bytes, Some(buffers));
                    state = lock(shared);
                    if let Err(message) = ran {
                        state.failed.get_or_insert(StageError::Panicked { block, message, intact: true });
                        continue;
                    }
                    state.window.done += Bytes(bytes as u64);
                    if self.back {
                        state.done.push_back((block, slot));
                    } else {
                        state.free.push(slot);
                        state.left -= 1;
                    }
                }
                Choice::Return => {
                    let Some((block, slot)) = state.done.pop_front() else { continue };
                    state.copying += 1;
                    drop(state);
                    let (offset, bytes) = self.blocks[block];
                    // SAFETY: the data is borrowed for writing (`back` is set by `stage_update` alone) and no other block has
                    // these elements; this block was brought, worked on, and is returned by this thread alone.
                    unsafe { copy(slot_at(slot).cast_const(), self.base.0.wrapping_add(offset), bytes) };
                    state = lock(shared);
                    state.copying -= 1;
                    state.report.returned += Bytes(bytes as u64);
                    state.free.push(slot);
                    state.left -= 1;
                }
            }
            self.look(&mut state);
            changed.notify_all();
        }
    }

    fn counts(&self, state: &State) -> Counts {
        Counts {
            waiting: self.blocks.len() - state.next,
            free: state.free.len(),
            ready: state.ready.len(),
            done: state.done.len(),
            left: state.left,
            copying: state.copying,
            migrators: state.migrators,
            most: self.options.costs.as_ref().map_or(u32::MAX, copies_at_once),
        }
    }

    /// Now and then, whether more or fewer threads should copy.
    fn look(&self, state: &mut State) {
        let through = self.blocks.len() - state.left;
        let every = BLOCKS_A_WINDOW * state.report.threads as usize;
        if state.adapt.is_none() || through == 0 || through % every != 0 || state.window.done == Bytes::ZERO {
            return;
        }
        let span = now().since(state.window_began);
        let window = Window { span, ..state.window };
        if let Some(adapt) = &mut state.adapt {
            let next = adapt.told(&window);
            if next != state.migrators {
                state.report.changes += 1;
                state.migrators = next;
            }
        }
        (state.window, state.window_began) = (Window::default(), now());
    }
}

/// A thread that panicked holds no lock of ours: kernels run outside it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
