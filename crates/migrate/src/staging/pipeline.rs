//! The pipeline itself: threads, buffers and what becomes of each block.

use super::adapt::{AdaptWindow, ThreadTuner};
use super::api::{StageError, StagingMode, StagingOptions, StagingReport};
use super::blocks::{ask, said, Block, Blocks};
use super::copies::{Copies, Part};
use super::copy::past_caches;
use super::divide::divided;
use super::fast::{FastBuffers, HomeNodes};
use super::model::copies_at_once;
use super::model::Threads;
use super::places::Places;
use super::schedule::{choose, Choice, Counts, Role};
use crate::bulk::Bulk;
use crate::MoveCosts;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use terrace_sys::{now, AnonymousMapping, SysError};
use terrace_types::{Bytes, Nanos, Tick};

/// Runs `kernel` on every block (its number, and its elements) and keeps what it makes of them.
/// Blocks are ranges of `data`; kernels of different blocks run at the same time and in no certain
/// order. What lies in no block is not touched.
///
/// `blocks` is asked for the first [`StagingOptions::ahead`] before anything runs, and for each
/// further one when there is space for it, by one thread at a time. A range that overlaps any
/// earlier one or leaves the data ends the run: see [`StageError`].
///
/// # Errors
/// [`StageError`]; what became of blocks then, [`StageError::Panicked`] says.
pub fn stage_update<T: Copy + Send + Sync>(
    data: &mut [T],
    blocks: impl IntoIterator<Item = Range<usize>, IntoIter: Send>,
    options: &StagingOptions,
    kernel: impl Fn(usize, &mut [T]) + Sync,
) -> Result<StagingReport, StageError> {
    let base = data.as_mut_ptr();
    let blocks = Blocks::new::<T>(data.len(), Box::new(blocks.into_iter()));
    let run = |block: usize, at: *mut u8, bytes: usize, _: Buffers<'_>| {
        // SAFETY: `at` is the block's own elements in `data`, borrowed for writing as long as this
        // function runs and in no other block, or a buffer that holds a copy of them and is aligned
        // to a page; `bytes` is their size.
        kernel(block, unsafe {
            std::slice::from_raw_parts_mut(at.cast::<T>(), elements::<T>(bytes))
        });
    };
    Pipeline { base: Address(base.cast()), back: true, options, run: &run }.go(blocks)
}

/// Runs `kernel` on every block (its number, and its elements), which it can only read.
///
/// # Errors
/// [`StageError`].
pub fn stage_read<T: Copy + Send + Sync>(
    data: &[T],
    blocks: impl IntoIterator<Item = Range<usize>, IntoIter: Send>,
    options: &StagingOptions,
    kernel: impl Fn(usize, &[T]) + Sync,
) -> Result<StagingReport, StageError> {
    let base = data.as_ptr().cast_mut();
    let blocks = Blocks::new::<T>(data.len(), Box::new(blocks.into_iter()));
    let run = |block: usize, at: *mut u8, bytes: usize, _: Buffers<'_>| {
        // SAFETY: as in `stage_update`, but that `data` is borrowed for reading and nothing writes
        // to it: results do not go back.
        kernel(block, unsafe {
            std::slice::from_raw_parts(at.cast_const().cast::<T>(), elements::<T>(bytes))
        });
    };
    Pipeline { base: Address(base.cast()), back: false, options, run: &run }.go(blocks)
}

/// The buffers that a block lies in; none where it lies in the data itself.
pub type Buffers<'a> = Option<&'a Arc<AnonymousMapping>>;

/// [`stage_update`] of bytes (`back`) or [`stage_read`], for languages whose kernels may keep what
/// they were given: a kernel gets the address of its block as well, and the buffers it lies in,
/// which are given back with the last [`Arc`] of them.
///
/// # Errors
/// [`StageError`].
pub fn stage_held(
    data: &mut [u8],
    back: bool,
    blocks: impl IntoIterator<Item = Range<usize>, IntoIter: Send>,
    options: &StagingOptions,
    kernel: impl Fn(usize, &mut [u8], Buffers<'_>) + Sync,
) -> Result<StagingReport, StageError> {
    let base = data.as_mut_ptr();
    let blocks = Blocks::new::<u8>(data.len(), Box::new(blocks.into_iter()));
    let run = |block: usize, at: *mut u8, bytes: usize, buffers: Buffers<'_>| {
        // SAFETY: as in `stage_update`.
        kernel(block, unsafe { std::slice::from_raw_parts_mut(at, bytes) }, buffers);
    };
    Pipeline { base: Address(base), back, options, run: &run }.go(blocks)
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

pub(super) struct Pipeline<'a> {
    base: Address,
    pub(super) back: bool,
    pub(super) options: &'a StagingOptions,
    run: &'a (dyn Fn(usize, *mut u8, usize, Buffers<'_>) + Sync),
}

/// What threads share, under a lock.
struct State<'a> {
    blocks: Blocks<'a>,
    next: usize,
    free: Vec<usize>,
    ready: VecDeque<(usize, usize)>,
    done: VecDeque<(usize, usize)>,
    /// Blocks that nothing is left to do with.
    through: usize,
    copies: Copies,
    copying: u32,
    failed: Option<StageError>,
    adapt: Option<ThreadTuner>,
    migrators: u32,
    window: AdaptWindow,
    window_began: Tick,
    /// When the buffers had been made and touched.
    prepared: Tick,
    report: StagingReport,
}

impl State<'_> {
    /// `bytes` of a part were carried. Whether its block is there now.
    fn carried(&mut self, part: &Part, bytes: usize) -> bool {
        let whole = self.copies.part_done(part);
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
                self.through += 1;
            }
            (true, false) => self.ready.push_back((part.block, part.slot)),
            (false, _) => {}
        }
        whole
    }

    /// What a thread that copies takes.
    fn part(&mut self, choice: Choice) -> Option<Part> {
        match choice {
            Choice::Bring => {
                let (slot, block) = (self.free.pop()?, self.next);
                self.next += 1;
                Some(self.copies.begin(block, slot, false, self.blocks.known()[block].1))
            }
            Choice::Return => {
                let (block, slot) = self.done.pop_front()?;
                Some(self.copies.begin(block, slot, true, self.blocks.known()[block].1))
            }
            _ if self.failed.is_some() => self.copies.take_back(),
            _ => self.copies.take(),
        }
    }

    /// The next block is larger than a buffer: it is worked on where it lies, and has a buffer all
    /// the same, by which no more of them are asked for than there are buffers.
    fn stays(&mut self) {
        let Some(slot) = self.free.pop() else { return };
        self.report.stayed += Bytes(self.blocks.known()[self.next].1 as u64);
        self.ready.push_back((self.next, slot));
        self.next += 1;
    }

    /// A block was worked on.
    fn worked(&mut self, (block, slot): (usize, usize), bytes: usize, goes_back: bool) {
        self.window.done += Bytes(bytes as u64);
        if goes_back {
            self.done.push_back((block, slot));
        } else {
            self.free.push(slot);
            self.through += 1;
        }
    }

    /// A thread waited, for a block or for a buffer.
    fn waited(&mut self, for_a_block: bool, span: Nanos) {
        if for_a_block {
            self.report.stalls += 1;
            self.report.stalled += span;
            self.window.starved += span;
        } else {
            self.window.crowded += span;
        }
    }

    /// Now and then, whether more or fewer threads should copy.
    fn fill_ahead(&mut self) {
        let every = BLOCKS_A_WINDOW * self.report.threads as usize;
        if self.adapt.is_none()
            || self.through == 0
            || self.through % every != 0
            || self.window.done == Bytes::ZERO
        {
            return;
        }
        let span = now().since(self.window_began);
        let window = AdaptWindow { span, ..self.window };
        if let Some(adapt) = &mut self.adapt {
            let next = adapt.observe(&window);
            if next != self.migrators {
                self.report.changes += 1;
                self.migrators = next;
            }
        }
        (self.window, self.window_began) = (AdaptWindow::default(), now());
    }
}

/// The number of copying threads is looked at after so many blocks a thread.
const BLOCKS_A_WINDOW: usize = 4;

impl Pipeline<'_> {
    fn go(&self, mut blocks: Blocks<'_>) -> Result<StagingReport, StageError> {
        let began = now();
        blocks.fill_ahead(self.options.ahead.max(1))?;
        let all = blocks.prospect(self.options.expected, self.options.largest);
        let (threads, decision) = divided(self.options, self.back, !past_caches(), all);
        if threads == 0 {
            return Err(StageError::NoThreads);
        }
        let mut report = StagingReport {
            mode: StagingMode::Staged,
            threads,
            migrators: 0,
            slots: 0,
            blocks: 0,
            brought: Bytes::ZERO,
            returned: Bytes::ZERO,
            stayed: Bytes::ZERO,
            stalls: 0,
            stalled: Nanos::ZERO,
            changes: 0,
            prepared: Nanos::ZERO,
            released: Nanos::ZERO,
            took: Nanos::ZERO,
        };
        let mut report = match decision {
            Ok((migrators, slots)) => {
                (report.migrators, report.slots) = (migrators, slots);
                self.staged(report, blocks, all.largest)?
            }
            Err(why) => {
                report.mode = StagingMode::InPlace(why);
                (report.threads, report.blocks) = self.in_place(blocks, threads)?;
                report
            }
        };
        report.took = now().since(began);
        Ok(report)
    }

    /// The kernel; a panic of it is its message.
    pub(super) fn kernel(
        &self,
        block: usize,
        at: *mut u8,
        bytes: usize,
        buffers: Buffers<'_>,
    ) -> Result<(), String> {
        // Nothing of ours is left half done by a panic: the kernel sees the block's elements and
        // nothing else of ours.
        catch_unwind(AssertUnwindSafe(|| (self.run)(block, at, bytes, buffers)))
            .map_err(|panic| said(panic.as_ref()))
    }

    fn staged(
        &self,
        report: StagingReport,
        blocks: Blocks<'_>,
        largest: usize,
    ) -> Result<StagingReport, StageError> {
        let began = now();
        let slots = report.slots as usize;
        let fast = self.fast(slots, largest, &blocks)?;
        let (threads, migrators) = (report.threads, report.migrators);
        let adapt = matches!(self.options.threads, Threads::Auto(_))
            .then(|| ThreadTuner::new(threads, migrators));
        let state = Mutex::new(State {
            blocks,
            next: 0,
            free: (0..slots).rev().collect(),
            ready: VecDeque::new(),
            done: VecDeque::new(),
            through: 0,
            copies: Copies::default(),
            copying: 0,
            failed: None,
            migrators,
            adapt,
            window: AdaptWindow::default(),
            window_began: began,
            prepared: began,
            report,
        });
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            // Who touches memory keeps the process's list of mappings from others, whose stacks are
            // to be put there.
            let mut places =
                if fast.to_touch() { Places::together } else { Places::new }(&self.options.cpus);
            for index in 0..threads {
                let (state, changed, fast) = (&state, &changed, &fast);
                let role = match self.options.threads {
                    Threads::Auto(_) | Threads::InPlace(_) => Role::Either,
                    Threads::Fixed { workers, .. } if index < workers => Role::Worker,
                    Threads::Fixed { .. } => Role::Migrator,
                };
                let begun = places.begin(scope, index, move || {
                    self.ready(state, fast);
                    self.thread(role, state, changed, fast);
                });
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
                if let FastBuffers::Pages(homes) = &fast {
                    let begun = state.blocks.known().iter().take(state.next);
                    begun.for_each(|block| homes.bring_home(self.block(*block)));
                }
                Err(failed)
            }
            None => {
                let ended = now();
                drop(fast);
                let blocks = state.blocks.known().len();
                let (prepared, released) = (state.prepared.since(began), now().since(ended));
                Ok(StagingReport {
                    blocks,
                    migrators: state.migrators,
                    prepared,
                    released,
                    ..state.report
                })
            }
        }
    }

    /// Buffers are touched by threads that begin.
    fn ready(&self, shared: &Mutex<State<'_>>, fast: &FastBuffers) {
        let failed = |e: SysError| {
            lock(shared).failed.get_or_insert(e.into());
        };
        if let Some(touched) = fast.ready(failed) {
            let mut state = lock(shared);
            state.prepared = touched;
            state.window_began = state.window_began.max(touched);
        }
    }

    /// One thread from there to its end.
    fn thread(&self, role: Role, shared: &Mutex<State<'_>>, changed: &Condvar, fast: &FastBuffers) {
        let mut state = lock(shared);
        loop {
            let choice = match &state.failed {
                // Half of a block that goes back would be neither as it was nor done.
                Some(_) if state.copies.has_parts_back() => Choice::Help,
                Some(_) => Choice::End,
                None => choose(role, &self.counts(&state)),
            };
            match choice {
                Choice::End => {
                    changed.notify_all();
                    return;
                }
                Choice::Starve | Choice::Crowd => {
                    let began = now();
                    state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.waited(
                        choice == Choice::Starve && role != Role::Migrator,
                        now().since(began),
                    );
                    continue;
                }
                Choice::Bring if state.next == state.blocks.known().len() => {
                    state = self.ask(state, shared)
                }
                Choice::Bring if !fast.holds(state.blocks.known()[state.next].1) => state.stays(),
                Choice::Help | Choice::Bring | Choice::Return => {
                    let Some(part) = state.part(choice) else { continue };
                    let block = self.block(state.blocks.known()[part.block]);
                    state.copying += 1;
                    drop(state);
                    // SAFETY: the part lies in its block, which lies in the data, borrowed while
                    // this runs; no other block has its elements. To a buffer: nobody writes the
                    // data meanwhile, since a block is returned only after it was worked on. Back
                    // from a buffer: `back` is set by `stage_update` alone, for which the data is
                    // borrowed for writing. The buffer was free, or its block worked on, when this
                    // copy was begun, and is long enough (`holds`); it is given to others once all
                    // parts are there. Each part is one thread's.
                    let bytes = unsafe { fast.carry(block, &part) };
                    state = lock(shared);
                    state.copying -= 1;
                    if !state.carried(&part, bytes) {
                        // Nobody waits for a part of a block.
                        continue;
                    }
                }
                Choice::Work => {
                    let Some((number, slot)) = state.ready.pop_front() else { continue };
                    let block = self.block(state.blocks.known()[number]);
                    drop(state);
                    let (at, buffers) = fast.at(slot, block);
                    let ran = self.kernel(number, at, block.bytes, buffers);
                    state = lock(shared);
                    if let Err(message) = ran {
                        let intact = buffers.is_some() || !self.back;
                        state.failed.get_or_insert(StageError::Panicked {
                            block: number,
                            message,
                            intact,
                        });
                    } else {
                        let goes_back = self.returns() && fast.holds(block.bytes);
                        state.worked((number, slot), block.bytes, goes_back);
                    }
                }
            }
            state.fill_ahead();
            changed.notify_all();
        }
    }

    /// Asks for one more block. Others go on meanwhile: what gives the blocks may take its time.
    fn ask<'s, 'b>(
        &self,
        mut state: MutexGuard<'s, State<'b>>,
        shared: &'s Mutex<State<'b>>,
    ) -> MutexGuard<'s, State<'b>> {
        let Some(mut ranges) = state.blocks.lend() else { return state };
        drop(state);
        let answer = ask(&mut ranges);
        state = lock(shared);
        if let Err(failed) = state.blocks.answered(ranges, answer) {
            state.failed.get_or_insert(failed);
        }
        state
    }

    /// Buffers, or the way home of pages.
    fn fast(
        &self,
        slots: usize,
        largest: usize,
        blocks: &Blocks<'_>,
    ) -> Result<FastBuffers, StageError> {
        let o = self.options;
        if !o.keep_addresses {
            return Ok(FastBuffers::buffers(o.fast, slots, largest)?);
        }
        let home = o.slow.or_else(|| {
            HomeNodes::of_blocks(blocks.known().iter().map(|block| self.block(*block)))
        });
        let home = home.ok_or(StageError::NoHome)?;
        Ok(FastBuffers::Pages(HomeNodes::new(
            Bulk::new(o.costs.map_or_else(MoveCosts::default, |c| c.moves)),
            home,
            o.fast,
        )))
    }

    /// Whether blocks go back once they were worked on: pages do, changed or not.
    const fn returns(&self) -> bool {
        self.back || self.options.keep_addresses
    }

    pub(super) const fn block(&self, (offset, bytes): (usize, usize)) -> Block {
        Block { data: self.base.0.wrapping_add(offset), bytes }
    }

    fn counts(&self, state: &State<'_>) -> Counts {
        let known = state.blocks.known().len();
        Counts {
            waiting: known - state.next + usize::from(state.blocks.can_ask()),
            free: state.free.len(),
            ready: state.ready.len(),
            done: state.done.len(),
            left: known - state.through + usize::from(!state.blocks.ended()),
            parts: state.copies.has_parts(),
            copying: state.copying,
            migrators: state.migrators,
            most: self
                .options
                .costs
                .as_ref()
                .map_or(u32::MAX, |c| copies_at_once(c, self.options.keep_addresses)),
        }
    }
}

/// A thread that panicked holds no lock of ours: kernels run outside it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
