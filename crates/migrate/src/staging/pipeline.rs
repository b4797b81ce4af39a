//! The pipeline itself: threads, buffers and what becomes of each block.

use super::adapt::{Adapt, Window};
use super::api::{Mode, Options, Report, StageError, Threads};
use super::blocks::{checked, Block};
use super::copies::{Copies, Part};
use super::copy::past_caches;
use super::fast::{Fast, Homes};
use super::model::{copies_at_once, decide, wanted_slots, Decision, Why, Work};
use super::places::Places;
use super::schedule::{choose, Choice, Counts, Role};
use crate::bulk::Bulk;
use crate::way::MoveCosts;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use terrace_sys::{now, Mapping};
use terrace_types::{Bytes, Tick};

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
    copies: Copies,
    copying: u32,
    failed: Option<StageError>,
    adapt: Option<Adapt>,
    migrators: u32,
    window: Window,
    window_began: Tick,
    report: Report,
}

impl State {
    /// `bytes` of a part were carried. Whether its block is there now.
    fn carried(&mut self, part: &Part, bytes: usize) -> bool {
        let whole = self.copies.there(part);
        let stayed = Bytes((part.range.len() - bytes) as u64);
        if part.back {
            self.report.returned += Bytes(bytes as u64);
        } else {
            self.report.brought += Bytes(bytes as u64);
            self.report.stayed += stayed;
        }
        match (whole, part.back) {
            (true, true) => {
                self.free.push(part.slot);
                self.left -= 1;
            }
            (true, false) => self.ready.push_back((part.block, part.slot)),
            (false, _) => {}
        }
        whole
    }
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
            stayed: Bytes::ZERO,
            stalls: 0,
            stalled: terrace_types::Nanos::ZERO,
            changes: 0,
            prepared: terrace_types::Nanos::ZERO,
            released: terrace_types::Nanos::ZERO,
            took: terrace_types::Nanos::ZERO,
        };
        let mut report = match decision {
            Ok((migrators, slots)) => {
                (report.migrators, report.slots) = (migrators, slots);
                self.staged(report, largest)?
            }
            Err(why) => {
                report.mode = Mode::InPlace(why);
                report.threads = self.in_place(threads)?;
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
                let slots = o.slots.unwrap_or(wanted_slots(workers, migrators, self.returns()));
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
                    stay: o.keep_addresses,
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

    /// Each thread takes the next block until none is left. Threads that there were.
    fn in_place(&self, mut threads: u32) -> Result<u32, StageError> {
        let next = Mutex::new((0_usize, None::<StageError>));
        let take = || {
            let mut next = lock(&next);
            let block = next.0;
            next.0 += 1;
            (block < self.blocks.len() && next.1.is_none()).then_some(block)
        };
        std::thread::scope(|scope| {
            let mut places = Places::new(&self.options.cpus);
            for index in 0..threads.min(self.blocks.len().max(1) as u32) {
                let (take, next) = (&take, &next);
                let begun = places.begin(scope, index, move || {
                    while let Some(block) = take() {
                        let (offset, bytes) = self.blocks[block];
                        let at = self.base.0.wrapping_add(offset);
                        if let Err(message) = self.kernel(block, at, bytes, None) {
                            let failed = StageError::Panicked { block, message, intact: !self.back };
                            lock(next).1.get_or_insert(failed);
                        }
                    }
                });
                match begun {
                    Ok(()) => threads = index + 1,
                    // Fewer do it too.
                    Err(_) if index > 0 => break,
                    Err(e) => {
                        lock(next).1 = Some(e.into());
                        break;
                    }
                }
            }
        });
        match next.into_inner().unwrap_or_else(PoisonError::into_inner).1 {
            Some(failed) => Err(failed),
            None => Ok(threads),
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

    fn staged(&self, mut report: Report, largest: usize) -> Result<Report, StageError> {
        let began = now();
        let slots = report.slots as usize;
        let fast = self.fast(slots, largest)?;
        report.prepared = now().since(began);
        let (threads, migrators) = (report.threads, report.migrators);
        let adapt = matches!(self.options.threads, Threads::Auto(_)).then(|| Adapt::new(threads, migrators));
        let state = Mutex::new(State {
            next: 0,
            free: (0..slots).rev().collect(),
            ready: VecDeque::new(),
            done: VecDeque::new(),
            left: self.blocks.len(),
            copies: Copies::default(),
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
            let mut places = Places::new(&self.options.cpus);
            for index in 0..threads {
                let (state, changed, fast) = (&state, &changed, &fast);
                let role = match self.options.threads {
                    Threads::Auto(_) | Threads::InPlace(_) => Role::Either,
                    Threads::Fixed { workers, .. } if index < workers => Role::Worker,
                    Threads::Fixed { .. } => Role::Migrator,
                };
                let begun = places.begin(scope, index, move || self.thread(role, state, changed, fast));
                if let Err(e) = begun {
                    lock(state).failed = Some(e.into());
                    changed.notify_all();
                    break;
                }
            }
        });
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failed {
            Some(failed) => {
                if let Fast::Pages(homes) = &fast {
                    (0..state.next).for_each(|block| homes.bring_home(self.block(block)));
                }
                Err(failed)
            }
            None => {
                let ended = now();
                drop(fast);
                Ok(Report { migrators: state.migrators, released: now().since(ended), ..state.report })
            }
        }
    }

    /// One thread from begin to end.
    fn thread(&self, role: Role, shared: &Mutex<State>, changed: &Condvar, fast: &Fast) {
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
                Choice::Help | Choice::Bring | Choice::Return => {
                    let Some(part) = self.part(&mut state, choice) else { continue };
                    state.copying += 1;
                    drop(state);
                    // SAFETY: the part lies in its block, which lies in the data, borrowed while this runs; no other block has its
                    // elements. To a buffer: nobody writes the data meanwhile, since a block is returned only after it was
                    // worked on. Back from a buffer: `back` is set by `stage_update` alone, for which the data is borrowed for
                    // writing. The buffer was free, or its block worked on, when this copy was begun; it is given to others once
                    // all parts are there. Each part is one thread's.
                    let bytes = unsafe { fast.carry(self.block(part.block), &part) };
                    state = lock(shared);
                    state.copying -= 1;
                    if !state.carried(&part, bytes) {
                        // Nobody waits for a part of a block.
                        continue;
                    }
                }
                Choice::Work => {
                    let Some((block, slot)) = state.ready.pop_front() else { continue };
                    drop(state);
                    let bytes = self.blocks[block].1;
                    let (at, buffers) = fast.at(slot, self.block(block));
                    let ran = self.kernel(block, at, bytes, buffers);
                    state = lock(shared);
                    if let Err(message) = ran {
                        let intact = buffers.is_some() || !self.back;
                        state.failed.get_or_insert(StageError::Panicked { block, message, intact });
                        continue;
                    }
                    state.window.done += Bytes(bytes as u64);
                    if self.returns() {
                        state.done.push_back((block, slot));
                    } else {
                        state.free.push(slot);
                        state.left -= 1;
                    }
                }
            }
            self.look(&mut state);
            changed.notify_all();
        }
    }

    /// Buffers, or the way home of pages.
    fn fast(&self, slots: usize, largest: usize) -> Result<Fast, StageError> {
        let o = self.options;
        if !o.keep_addresses {
            return Ok(Fast::buffers(o.fast, slots, largest)?);
        }
        let home = o.slow.or_else(|| Homes::of((0..self.blocks.len()).map(|block| self.block(block))));
        let home = home.ok_or(StageError::NoHome)?;
        Ok(Fast::Pages(Homes::new(Bulk::new(o.costs.map_or_else(MoveCosts::default, |c| c.moves)), home, o.fast)))
    }

    /// Whether blocks go back once they were worked on: pages do, changed or not.
    const fn returns(&self) -> bool {
        self.back || self.options.keep_addresses
    }

    fn block(&self, block: usize) -> Block {
        let (offset, bytes) = self.blocks[block];
        Block { data: self.base.0.wrapping_add(offset), bytes }
    }

    /// What a thread that copies takes.
    fn part(&self, state: &mut State, choice: Choice) -> Option<Part> {
        match choice {
            Choice::Bring => {
                let (slot, block) = (state.free.pop()?, state.next);
                state.next += 1;
                Some(state.copies.begin(block, slot, false, self.blocks[block].1))
            }
            Choice::Return => {
                let (block, slot) = state.done.pop_front()?;
                Some(state.copies.begin(block, slot, true, self.blocks[block].1))
            }
            _ => state.copies.take(),
        }
    }

    fn counts(&self, state: &State) -> Counts {
        Counts {
            waiting: self.blocks.len() - state.next,
            free: state.free.len(),
            ready: state.ready.len(),
            done: state.done.len(),
            left: state.left,
            parts: state.copies.has_parts(),
            copying: state.copying,
            migrators: state.migrators,
            most: self.options.costs.as_ref().map_or(u32::MAX, |c| copies_at_once(c, self.options.keep_addresses)),
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
