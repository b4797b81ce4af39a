//! Allocating and freeing: an arena's caches, one a thread, over its segments.
//!
//! One allocation of 64 bytes, told from end to end: the thread's table gives its cache in the arena; the
//! cache's bin for that size has a short stack of blocks freed lately, and its top is the answer. If the stack
//! is empty, the bin's current slab is asked: its summary gives a word, the word a bit, the bit an address.
//! Freeing goes the other way: address to slab by table, slab to cache, and if the cache is this thread's, the
//! block goes on the stack, marked; when the stack is full, half of it becomes bits again. No lock is taken and
//! no atomic step made. Freed by another thread, the bit is set atomically in a second map, and the slab is put
//! in the owner's mailbox, where it is found when the owner runs out of blocks.
//!
//! The stack is there for speed: a bit set by `free` and taken by the next `alloc` has to travel through memory
//! and several multiplications (measured: 11 ns a round with 1,000 live blocks; through the stack 7).

use super::error::{AllocError, FreeError};
use super::meta;
use super::place::SPILL_MOST;
use super::sizes::{
    aligned_class, block_size, class_of, computed_class, slab_slices, tabled_class, CLASSES, MIN_ALIGN, SLICE,
    SLICE_SHIFT, SMALL_MAX, TABLED,
};
use super::slab::{state, Freed, Place, Slab};
use super::space::{self, Segment, SEGMENT_SLICES};
use super::thread::Thread;
use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{compiler_fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use terrace_sys::Lock;

/// Arenas at most.
pub(crate) const ARENAS_MOST: usize = 1 << 16;
/// Free slices that may hold old content before they are given back to the kernel: 16 MiB.
const DIRTY_MOST: usize = 256;
/// Segments double up to 4 MiB * 2^10, unless a block needs more.
const ORDER_MOST: usize = 10;
/// A large block this long gives its pages back as soon as it is freed.
const DISCARD_AT: usize = 1 << 20;

static NO_SLAB: Slab = Slab::empty();

/// Blocks on a bin's stack at most.
const STACK: usize = 32;
/// Bytes on a bin's stack at most.
const STACK_BYTES: usize = 16 << 10;
/// A stack of freed blocks (all three null: none), and the slabs of one class.
#[repr(C, align(64))]
struct Bin {
    // The first 16 bytes of a line are left to what is used seldom: see `space::TABLE_AT`.
    current: *const Slab,
    listed: *mut Slab,
    top: *mut *mut u8,
    end: *mut *mut u8,
    bottom: *mut *mut u8,
}

/// Where a class's bin is among a cache's bins, in bytes.
const fn bin_at(class: usize) -> u32 {
    (class * size_of::<Bin>()) as u32
}

/// Where the bin for a size is in a cache, in bytes, by sixteenths: the common sizes find it with one load.
const BIN_BY_SIXTEEN: [u16; TABLED / 16 + 1] = {
    let mut table = [0; TABLED / 16 + 1];
    let mut at = 0;
    while at < table.len() {
        table[at] = (offset_of!(Cache, bins) + computed_class(at * 16) * size_of::<Bin>()) as u16;
        at += 1;
    }
    table
};

const fn room_of(class: usize) -> usize {
    let fits = STACK_BYTES / block_size(class);
    if fits < STACK {
        fits
    } else {
        STACK
    }
}

/// What stands in a freed block's second word until it is handed out again: no program has it there by chance,
/// and a copy of it elsewhere means nothing.
#[inline(always)]
fn mark(at: usize) -> usize {
    at ^ 0x9d5c_1f3a_b7e6_4820
}

/// # Safety
/// `at` is a block.
#[inline(always)]
unsafe fn is_marked(at: *mut u8) -> bool {
    // SAFETY: blocks have 16 bytes at least and are aligned to 16.
    unsafe { at.cast::<usize>().add(1).read() == mark(at as usize) }
}

/// One thread's part of an arena.
#[repr(C, align(64))]
pub(crate) struct Cache {
    /// Token of the thread that has it; 0: an orphan. The first word is where the pool keeps its link.
    owner: AtomicU64,
    next: *mut Cache,
    /// Generation of the arena; 0 once that is destroyed. Never used again, so a stale pointer to this record is
    /// known by it.
    generation: AtomicU64,
    /// Its thread is changing it: a signal handler keeps out.
    busy: AtomicBool,
    inner: *const Inner,
    next_orphan: *mut Cache,
    bins: [Bin; CLASSES],
    /// Slabs that others freed into; on a line of its own.
    mailbox: Mailbox,
}

#[repr(align(64))]
struct Mailbox(AtomicPtr<Slab>);

/// Record of an arena. Never unmapped, so a stale handle finds a generation that is not its own.
#[repr(C, align(128))]
pub(crate) struct Inner {
    /// Differs for all arenas that ever were; 0: there is none.
    pub(crate) generation: AtomicU64,
    pub(crate) index: AtomicU32,
    pub(crate) lock: Lock,
    locked: UnsafeCell<Held>,
}

/// What the arena's lock guards.
pub(crate) struct Held {
    pub(crate) segments: *mut Segment,
    pub(crate) limit: usize,
    pub(crate) taken: usize,
    pub(crate) peak: usize,
    dirty_free: usize,
    caches: *mut Cache,
    orphans: *mut Cache,
    /// Classes in the order in which they are filled.
    pub(crate) classes: [u16; SPILL_MOST],
    pub(crate) class_count: usize,
    order: usize,
    pub(crate) twice: u64,
}

// SAFETY: `locked` is reached under `lock` alone; the rest is atomic.
unsafe impl Sync for Inner {}

static GENERATIONS: AtomicU64 = AtomicU64::new(1);
static INNERS: AtomicPtr<Inner> = AtomicPtr::new(null_mut());

/// Maps the records of arenas, the first time. Whether they are there.
pub(crate) fn ready() -> bool {
    if !INNERS.load(Acquire).is_null() {
        return true;
    }
    let Ok(at) = terrace_sys::map_zeroed(ARENAS_MOST * size_of::<Inner>()) else { return false };
    // Whoever was first wins; the loser's mapping costs addresses only.
    let _other_was_first = INNERS.compare_exchange(null_mut(), at as *mut Inner, AcqRel, Acquire);
    true
}

impl Inner {
    /// The record with this number. [`ready`] came before, and `index` is below [`ARENAS_MOST`].
    pub(crate) fn at(index: usize) -> &'static Inner {
        debug_assert!(index < ARENAS_MOST);
        // SAFETY: the table has that many records, zero at first: generation 0, a free lock, null pointers,
        // all valid; it is never unmapped.
        unsafe { &*INNERS.load(Acquire).add(index & (ARENAS_MOST - 1)) }
    }

    /// What the lock guards.
    ///
    /// # Safety
    /// The caller holds the lock, and the reference ends before it gives it back.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn held(&self) -> &mut Held {
        // SAFETY: by the contract this is the only reference.
        unsafe { &mut *self.locked.get() }
    }

    /// Starts an arena in this record. Returns its generation.
    pub(crate) fn start(&self, index: usize, limit: usize, classes: &[u16]) -> u64 {
        let _held = self.lock.hold();
        // SAFETY: the lock is held.
        let held = unsafe { self.held() };
        let mut order = [0; SPILL_MOST];
        order[..classes.len()].copy_from_slice(classes);
        *held = Held {
            segments: null_mut(),
            limit,
            taken: 0,
            peak: 0,
            dirty_free: 0,
            caches: null_mut(),
            orphans: null_mut(),
            classes: order,
            class_count: classes.len(),
            order: 0,
            twice: 0,
        };
        self.index.store(index as u32, Relaxed);
        let generation = GENERATIONS.fetch_add(1, Relaxed);
        self.generation.store(generation, Release);
        generation
    }

    /// Ends the arena of this generation: all blocks are gone. Whether there was one.
    ///
    /// # Safety
    /// No block of the arena is used any more, and no thread is allocating from it or freeing into it.
    pub(crate) unsafe fn end(&self, generation: u64) -> bool {
        let _held = self.lock.hold();
        if self.generation.compare_exchange(generation, 0, AcqRel, Relaxed).is_err() {
            return false;
        }
        // SAFETY: the lock is held.
        let held = unsafe { self.held() };
        let mut segment = std::mem::replace(&mut held.segments, null_mut());
        while !segment.is_null() {
            // SAFETY: segments in the list are this arena's; by the contract nothing in them is used. Slabs
            // go back to the pool first, since the table that finds them is cleared with the segment.
            unsafe {
                let next = (*segment).next;
                (*segment).each_slab(|slab| {
                    space::clear_slab((*slab).start.load(Relaxed), (*slab).slices.load(Relaxed) as usize);
                    give_slab(slab);
                });
                space::give_segment(segment);
                segment = next;
            }
        }
        let mut cache = std::mem::replace(&mut held.caches, null_mut());
        held.orphans = null_mut();
        while !cache.is_null() {
            // SAFETY: caches in the list are this arena's; threads that know of them see the generation.
            unsafe {
                let next = (*cache).next;
                for bin in &(*cache).bins {
                    if !bin.bottom.is_null() {
                        meta::give(bin.bottom.cast(), STACK * size_of::<*mut u8>());
                    }
                }
                (*cache).generation.store(0, Release);
                meta::give(cache.cast(), size_of::<Cache>());
                cache = next;
            }
        }
        held.taken = 0;
        true
    }

    /// A thread that ends leaves its cache.
    pub(crate) fn orphan(&self, cache: *mut Cache, generation: u64) {
        if self.generation.load(Relaxed) == generation {
            // SAFETY: the arena is alive, and the calling thread is the cache's owner until the line below.
            unsafe { (*cache).empty_stacks() };
        }
        let _held = self.lock.hold();
        if self.generation.load(Relaxed) != generation {
            return;
        }
        // SAFETY: the generation is the cache's, so it is alive; the lock is held.
        unsafe {
            (*cache).owner.store(0, Release);
            let held = self.held();
            (*cache).next_orphan = held.orphans;
            held.orphans = cache;
        }
    }

    /// A cache for the calling thread: an orphan, or a new one.
    fn adopt(&self, generation: u64, token: u64) -> Result<*mut Cache, AllocError> {
        let _held = self.lock.hold();
        if self.generation.load(Relaxed) != generation {
            return Err(AllocError::Destroyed);
        }
        // SAFETY: the lock is held; orphans are caches of this arena.
        unsafe {
            let held = self.held();
            if !held.orphans.is_null() {
                let cache = held.orphans;
                held.orphans = (*cache).next_orphan;
                (*cache).owner.store(token, Release);
                return Ok(cache);
            }
            let cache = meta::take(size_of::<Cache>()).cast::<Cache>();
            if cache.is_null() {
                return Err(AllocError::NoAddresses);
            }
            cache.write(Cache {
                owner: AtomicU64::new(token),
                generation: AtomicU64::new(generation),
                busy: AtomicBool::new(false),
                inner: self,
                next: held.caches,
                next_orphan: null_mut(),
                bins: [const { Bin::EMPTY }; CLASSES],
                mailbox: Mailbox(AtomicPtr::new(null_mut())),
            });
            held.caches = cache;
            Ok(cache)
        }
    }

    /// Takes slices for a block or a slab: the segment, the first slice, whether they may hold old content.
    /// The lock is held.
    fn take_slices(
        &self,
        held: &mut Held,
        slices: usize,
        align: usize,
    ) -> Result<(*mut Segment, usize, bool), AllocError> {
        if held.taken.checked_add(slices).is_none_or(|all| all > held.limit) {
            return Err(AllocError::Limit);
        }
        let mut segment = held.segments;
        while !segment.is_null() {
            // SAFETY: segments in the list are this arena's, and its lock is held.
            let this = unsafe { &mut *segment };
            if let Some((first, dirty)) = this.take(slices, align) {
                held.taken += slices;
                held.peak = held.peak.max(held.taken);
                return Ok((segment, first, dirty));
            }
            segment = this.next;
        }
        let segment = self.more(held, slices, align)?;
        // SAFETY: fresh, and this arena's.
        let this = unsafe { &mut *segment };
        this.next = held.segments;
        held.segments = segment;
        let (first, dirty) = this.take(slices, align).ok_or(AllocError::NoAddresses)?;
        held.taken += slices;
        held.peak = held.peak.max(held.taken);
        Ok((segment, first, dirty))
    }

    /// One more segment, of the first class with room for it.
    fn more(&self, held: &mut Held, slices: usize, align: usize) -> Result<*mut Segment, AllocError> {
        // Not more than the limit can ever fill.
        let left = (held.limit - held.taken).div_ceil(SEGMENT_SLICES).max(1);
        let most = (usize::BITS - 1 - left.leading_zeros()) as usize;
        let wanted = held.order.min(most).min(ORDER_MOST);
        let owner = std::ptr::from_ref(self) as usize;
        let count = held.class_count;
        for (at, class) in held.classes[..count].iter().enumerate() {
            let mut order = wanted;
            if at + 1 < count {
                match spill(*class, slices, order) {
                    Some(fits) => order = fits,
                    None => continue,
                }
            }
            // When addresses get scarce, the least that will do.
            for order in [order, 0] {
                if let Ok(segment) = space::segment(*class, slices, align, order, owner) {
                    held.order += 1;
                    return Ok(segment);
                }
            }
        }
        Err(AllocError::NoAddresses)
    }

    /// Gives slices back. The lock is held.
    fn give_slices(&self, held: &mut Held, segment: *mut Segment, first: usize, slices: usize, discard: bool) {
        held.taken -= slices;
        // SAFETY: the slices were taken from this segment of this arena, whose lock is held.
        unsafe { (*segment).put(first, slices, discard) };
        if discard {
            return;
        }
        held.dirty_free += slices;
        if held.dirty_free > DIRTY_MOST {
            held.dirty_free = 0;
            let mut segment = held.segments;
            while !segment.is_null() {
                // SAFETY: as above.
                unsafe {
                    (*segment).purge_free();
                    segment = (*segment).next;
                }
            }
        }
    }

    /// Blocks on stacks of all caches, and their bytes. The lock is held.
    pub(crate) fn on_stacks(held: &Held) -> (u64, u64) {
        let mut sums = (0, 0);
        let mut cache = held.caches;
        while !cache.is_null() {
            // SAFETY: caches in the list are this arena's, and the lock keeps them.
            let (blocks, bytes) = unsafe { Cache::on_stacks(cache) };
            sums = (sums.0 + blocks, sums.1 + bytes);
            // SAFETY: as above.
            cache = unsafe { (*cache).next };
        }
        sums
    }

    /// Counts and frees that a signal handler could see half-way end with this.
    fn enter(&self, generation: u64) -> Result<(&'static Thread, *mut Cache), AllocError> {
        let here = Thread::begin();
        if here.is_null() {
            return Err(AllocError::NoAddresses);
        }
        // SAFETY: the calling thread's own state, alive while it runs.
        let thread = unsafe { &*here };
        if thread.busy.get() {
            return Err(AllocError::Reentered);
        }
        let index = self.index.load(Relaxed) as usize;
        let mut cache = thread.cache(index, generation);
        // SAFETY: an arena of this generation is alive, so its caches are.
        if !cache.is_null() && unsafe { (*cache).busy.load(Relaxed) } {
            return Err(AllocError::Reentered);
        }
        if cache.is_null() {
            let _inside = Inside::new(thread);
            cache = self.adopt(generation, thread.token)?;
            if !thread.enter(index, generation, cache) {
                self.orphan(cache, generation);
                return Err(AllocError::NoAddresses);
            }
        }
        Ok((thread, cache))
    }
}

/// Order of a segment that the class's node has room for; `None`: it has no room for what is needed.
fn spill(class: u16, slices: usize, wanted: usize) -> Option<usize> {
    let (node, ops) = space::class_node(class)?;
    let Some(room) = ops.room(node) else { return Some(wanted) };
    let room = (room.get() >> SLICE_SHIFT) as usize;
    if room < slices.max(SEGMENT_SLICES) {
        return None;
    }
    let mut order = wanted;
    while order > 0 && SEGMENT_SLICES << order > room {
        order -= 1;
    }
    Some(order)
}

/// The calling thread is inside the allocator.
struct Inside<'a>(&'a Thread);

impl<'a> Inside<'a> {
    fn new(thread: &'a Thread) -> Self {
        thread.busy.set(true);
        // A signal handler on this thread must see the mark before anything is changed.
        compiler_fence(SeqCst);
        Self(thread)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        self.0.busy.set(false);
    }
}

/// The calling thread is changing this cache of its own.
struct Changing(*const Cache);

impl Changing {
    /// # Safety
    /// The cache is alive as long as this is.
    #[inline(always)]
    unsafe fn new(cache: *const Cache) -> Self {
        // SAFETY: by the contract.
        unsafe { (*cache).busy.store(true, Relaxed) };
        compiler_fence(SeqCst);
        Self(cache)
    }
}

impl Drop for Changing {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        // SAFETY: by the contract of `new`.
        unsafe { (*self.0).busy.store(false, Relaxed) };
    }
}

/// What stands for the cache used last where there is none: of no arena, owned by nobody.
pub(crate) static NO_CACHE: NoCache = NoCache(Cache {
    owner: AtomicU64::new(0),
    generation: AtomicU64::new(0),
    busy: AtomicBool::new(false),
    inner: std::ptr::null(),
    next: null_mut(),
    next_orphan: null_mut(),
    bins: [const { Bin::EMPTY }; CLASSES],
    mailbox: Mailbox(AtomicPtr::new(null_mut())),
});

pub(crate) struct NoCache(pub(crate) Cache);

// SAFETY: never written: no arena has its generation, and no slab names it.
unsafe impl Sync for NoCache {}

/// What slow paths return: an address, or the number of an error; one register instead of two words in memory.
type Raw = usize;

fn raw_of(result: Result<NonNull<u8>, AllocError>) -> Raw {
    match result {
        Ok(block) => block.as_ptr() as usize,
        Err(error) => error as usize + 1,
    }
}

#[inline(always)]
fn result_of(raw: Raw) -> Result<NonNull<u8>, AllocError> {
    if raw > ERRORS.len() {
        // SAFETY: not zero.
        return Ok(unsafe { NonNull::new_unchecked(raw as *mut u8) });
    }
    Err(ERRORS[(raw.wrapping_sub(1)) % ERRORS.len()])
}

/// In the order of their numbers.
const ERRORS: [AllocError; 6] = [
    AllocError::TooLarge,
    AllocError::Alignment,
    AllocError::Limit,
    AllocError::NoAddresses,
    AllocError::Destroyed,
    AllocError::Reentered,
];

/// Allocates `size` bytes, aligned to 16.
#[inline(always)]
pub(crate) fn alloc(inner: &'static Inner, generation: u64, size: usize) -> Result<NonNull<u8>, AllocError> {
    if size > TABLED {
        return result_of(bigger(inner, generation, size));
    }
    let cache = super::thread::last_cache();
    // SAFETY: as in `small_raw`; the table holds places of bins.
    unsafe {
        if (*cache).generation.load(Relaxed) == generation && !(*cache).busy.load(Relaxed) {
            let at = usize::from(BIN_BY_SIXTEEN[size.div_ceil(16)]);
            if let Some(block) = pop_stacked(cache, cache.byte_add(at).cast()) {
                return Ok(block);
            }
        }
    }
    result_of(small_raw(inner, generation, tabled_class(size)))
}

/// The block freed last of a thread's own cache, if one is on the stack.
///
/// # Safety
/// The cache is the calling thread's, and its arena is alive.
#[inline(always)]
unsafe fn pop_stacked(cache: *mut Cache, bin: *mut Bin) -> Option<NonNull<u8>> {
    // SAFETY: `bin` is one of the cache's; a stack holds marked blocks from `bottom` to `top`, nobody's; blocks have 16 bytes at least.
    unsafe {
        let _changing = Changing::new(cache);
        let top = (*bin).top;
        if top == (*bin).bottom {
            return None;
        }
        (*bin).top = top.sub(1);
        let block = *top.sub(1);
        block.cast::<usize>().add(1).write(0);
        Some(NonNull::new_unchecked(block))
    }
}

#[inline(never)]
fn bigger(inner: &'static Inner, generation: u64, size: usize) -> Raw {
    if size <= SMALL_MAX {
        small_raw(inner, generation, class_of(size))
    } else {
        raw_of(large(inner, generation, size, MIN_ALIGN, false))
    }
}

/// Allocates `size` bytes at a multiple of `align`; `zero`: all of them zero.
pub(crate) fn alloc_with(
    inner: &'static Inner,
    generation: u64,
    size: usize,
    align: usize,
    zero: bool,
) -> Result<NonNull<u8>, AllocError> {
    if !align.is_power_of_two() {
        return Err(AllocError::Alignment);
    }
    let Some(class) = aligned_class(size, align) else { return large(inner, generation, size, align, zero) };
    let block = small(inner, generation, class)?;
    if zero {
        // SAFETY: the block has at least `size` bytes and is the caller's alone.
        unsafe { block.as_ptr().write_bytes(0, size) };
    }
    Ok(block)
}

fn small(inner: &'static Inner, generation: u64, class: usize) -> Result<NonNull<u8>, AllocError> {
    result_of(small_raw(inner, generation, class))
}

/// From the cache that the thread used last, if it is this arena's.
#[inline(never)]
fn small_raw(inner: &'static Inner, generation: u64, class: usize) -> Raw {
    let cache = super::thread::last_cache();
    // SAFETY: caches are records of the pool, which live for ever. The generation is this arena's, which is
    // alive, so the record is its cache, and this thread's, for it was when it was noted.
    unsafe {
        if (*cache).generation.load(Relaxed) != generation || (*cache).busy.load(Relaxed) {
            return small_elsewhere(inner, generation, class);
        }
        let block = pop(cache, class);
        if block.is_null() {
            return raw_of(small_slow(inner, generation, class));
        }
        block as usize
    }
}

/// A block of a thread's own cache; null when its current slab has none.
///
/// # Safety
/// The cache is the calling thread's, and its arena is alive.
#[inline(always)]
unsafe fn pop(cache: *mut Cache, class: usize) -> *mut u8 {
    // SAFETY: `current` is never null; a stack holds marked blocks from `bottom` to `top`, nobody's; blocks have
    // 16 bytes at least.
    unsafe {
        if let Some(block) = pop_stacked(cache, &raw mut (*cache).bins[class]) {
            return block.as_ptr();
        }
        let _changing = Changing::new(cache);
        let block = (*(*cache).bins[class].current).take();
        if !block.is_null() {
            block.cast::<usize>().add(1).write(0);
        }
        block
    }
}

/// From a cache that the thread did not use last, which becomes so.
#[inline(never)]
fn small_elsewhere(inner: &'static Inner, generation: u64, class: usize) -> Raw {
    let here = Thread::here();
    if !here.is_null() && inner.generation.load(Relaxed) == generation {
        // SAFETY: the calling thread's own state; the arena is alive, so its caches are.
        unsafe {
            let cache = (*here).cache(inner.index.load(Relaxed) as usize, generation);
            if !cache.is_null() && !(*cache).busy.load(Relaxed) {
                super::thread::note_cache(cache);
                let block = pop(cache, class);
                if !block.is_null() {
                    return block as usize;
                }
            }
        }
    }
    raw_of(small_slow(inner, generation, class))
}

#[cold]
#[inline(never)]
fn small_slow(inner: &'static Inner, generation: u64, class: usize) -> Result<NonNull<u8>, AllocError> {
    let (thread, cache) = inner.enter(generation)?;
    if inner.generation.load(Relaxed) != generation {
        return Err(AllocError::Destroyed);
    }
    let _inside = Inside::new(thread);
    // SAFETY: the cache is this thread's; all below is done by its owner.
    unsafe {
        let _changing = Changing::new(cache);
        loop {
            let slab = match (*cache).refill(class) {
                Err(AllocError::Limit) => {
                    // Blocks of other sizes on stacks may hold whole slabs.
                    (*cache).empty_stacks();
                    (*cache).refill(class)?
                }
                other => other?,
            };
            if let Some(block) = NonNull::new((*slab).take()) {
                block.as_ptr().cast::<usize>().add(1).write(0);
                return Ok(block);
            }
        }
    }
}

fn large(
    inner: &'static Inner,
    generation: u64,
    size: usize,
    align: usize,
    zero: bool,
) -> Result<NonNull<u8>, AllocError> {
    if size > isize::MAX as usize || align > isize::MAX as usize {
        return Err(AllocError::TooLarge);
    }
    let slices = size.max(1).div_ceil(SLICE);
    let (thread, _) = inner.enter(generation)?;
    let _inside = Inside::new(thread);
    let (start, dirty) = {
        let _held = inner.lock.hold();
        if inner.generation.load(Relaxed) != generation {
            return Err(AllocError::Destroyed);
        }
        // SAFETY: the lock is held.
        let held = unsafe { inner.held() };
        let slab = meta::take(size_of::<Slab>()).cast::<Slab>();
        if slab.is_null() {
            return Err(AllocError::NoAddresses);
        }
        let (segment, first, dirty) = match inner.take_slices(held, slices, align) {
            Ok(taken) => taken,
            Err(e) => {
                // SAFETY: taken above, and nobody knows of it.
                unsafe { give_slab(slab) };
                return Err(e);
            }
        };
        // SAFETY: the segment is this arena's; the record is ours until it is in the table.
        let start = unsafe {
            let start = (*segment).start + (first << SLICE_SHIFT);
            (*slab).become_large(start, slices);
            (*slab).segment.store(segment as usize, Relaxed);
            start
        };
        if let Some(entry) = space::slab_entry(start) {
            entry.store(slab, Release);
        }
        (start, dirty)
    };
    let block = start as *mut u8;
    if zero && dirty {
        // SAFETY: the block has at least `size` bytes and is the caller's alone.
        unsafe { block.write_bytes(0, size) };
    }
    NonNull::new(block).ok_or(AllocError::NoAddresses)
}

impl Cache {
    /// Blocks on stacks, and their bytes. Other threads may ask, and get a guess.
    ///
    /// # Safety
    /// The record is a cache.
    unsafe fn on_stacks(this: *const Self) -> (u64, u64) {
        let mut sums = (0, 0);
        for class in 0..CLASSES {
            // SAFETY: the fields are there; the owner may write them at this moment, hence volatile.
            let count = unsafe {
                let bin = &raw const (*this).bins[class];
                let top = std::ptr::read_volatile(&raw const (*bin).top) as usize;
                top.saturating_sub(std::ptr::read_volatile(&raw const (*bin).bottom) as usize) / size_of::<usize>()
            };
            sums = (sums.0 + count as u64, sums.1 + (count * block_size(class)) as u64);
        }
        sums
    }

    /// Turns all stacked blocks into bits. Owner only.
    unsafe fn empty_stacks(&mut self) {
        for class in 0..CLASSES {
            // SAFETY: the owner calls.
            unsafe { self.unstack(class, self.bins[class].count()) };
        }
    }

    /// Turns the lowest `count` blocks of a stack into bits. Owner only.
    unsafe fn unstack(&mut self, class: usize, count: usize) {
        if count == 0 {
            return;
        }
        let bin = &mut self.bins[class];
        let left = bin.count() - count;
        let mut lowest = [null_mut::<u8>(); STACK];
        // SAFETY: the stack holds `count + left` blocks, at most STACK; each is a free block of a slab of this
        // cache, which counts it as used, so that the slab is alive.
        unsafe {
            let bottom = bin.bottom;
            lowest[..count].copy_from_slice(std::slice::from_raw_parts(bottom, count));
            std::ptr::copy(bottom.add(count), bottom, left);
            bin.top = bottom.add(left);
            for block in &lowest[..count] {
                let Ok((slab, raw)) = slab_at(*block as usize) else { continue };
                if let Place::Block(number) = slab.place(*block as usize) {
                    if slab.put(number) == Freed::Done && slab.state.load(Relaxed) != state::CURRENT {
                        self.freed_into(raw);
                    }
                }
            }
        }
    }

    /// Frees a block for which the stack has no room. Owner only.
    unsafe fn put_slow(&mut self, slab: *mut Slab, block: *mut u8) {
        // SAFETY: the slab is this cache's, and its owner calls; the stack has the room that is asked of it.
        unsafe {
            let class = usize::from((*slab).class.load(Relaxed)) % CLASSES;
            let room = room_of(class);
            let bin = &mut self.bins[class];
            if bin.bottom.is_null() && room > 0 {
                bin.bottom = meta::take(STACK * size_of::<*mut u8>()).cast();
                bin.top = bin.bottom;
                bin.end = if bin.bottom.is_null() { bin.bottom } else { bin.bottom.add(room) };
            } else {
                let half = bin.count().div_ceil(2);
                self.unstack(class, half);
            }
            let bin = &mut self.bins[class];
            if bin.top != bin.end {
                bin.push(block);
                return;
            }
            let Place::Block(number) = (*slab).place(block as usize) else { return };
            block.cast::<usize>().add(1).write(mark(block as usize));
            if (*slab).put(number) == Freed::Done && (*slab).state.load(Relaxed) != state::CURRENT {
                self.freed_into(slab);
            }
        }
    }

    /// A slab of this class with a free block, made the bin's current one. Owner only.
    unsafe fn refill(&mut self, class: usize) -> Result<*const Slab, AllocError> {
        // SAFETY: slabs in bins and mailbox belong to this cache, whose owner calls; the arena is
        // alive, so `inner` is.
        unsafe {
            self.collect();
            let current = self.bins[class].current;
            if (*current).has_free() {
                return Ok(current);
            }
            if !std::ptr::eq(current, &raw const NO_SLAB) {
                (*current).state.store(state::FULL, Relaxed);
                self.bins[class].current = &raw const NO_SLAB;
            }
            let listed = self.bins[class].listed;
            let slab = if listed.is_null() {
                self.fresh(class)?
            } else {
                self.unlist(listed);
                listed
            };
            (*slab).state.store(state::CURRENT, Relaxed);
            self.bins[class].current = slab;
            Ok(slab)
        }
    }

    /// Takes back what other threads freed.
    unsafe fn collect(&mut self) {
        let mut slab = self.mailbox.0.swap(null_mut(), Acquire);
        // SAFETY: slabs in the mailbox are this cache's and stay so: what was freed into them
        // still counts as used. `mail` is read before `collect`, after which others may write it.
        unsafe {
            while !slab.is_null() {
                let next = (*slab).mail.load(Relaxed);
                let twice = (*slab).collect();
                if twice > 0 {
                    let inner = &*self.inner;
                    let _held = inner.lock.hold();
                    inner.held().twice += u64::from(twice);
                }
                if (*slab).has_free() {
                    self.freed_into(slab);
                }
                slab = next;
            }
        }
    }

    /// A block of the slab became free: it may have to be listed, or be given back.
    unsafe fn freed_into(&mut self, slab: *mut Slab) {
        // SAFETY: the slab is this cache's, and its owner calls.
        unsafe {
            match (*slab).state.load(Relaxed) {
                state::FULL if (*slab).landed() => self.release(slab),
                state::FULL => self.list(slab),
                state::LISTED if (*slab).landed() => {
                    self.unlist(slab);
                    self.release(slab);
                }
                _ => {}
            }
        }
    }

    unsafe fn list(&mut self, slab: *mut Slab) {
        // SAFETY: the slab is this cache's and in no list; the lists are the owner's.
        unsafe {
            let bin = &mut self.bins[usize::from((*slab).class.load(Relaxed)) % CLASSES];
            (*slab).state.store(state::LISTED, Relaxed);
            (*slab).previous.store(null_mut(), Relaxed);
            (*slab).next.store(bin.listed, Relaxed);
            if !bin.listed.is_null() {
                (*bin.listed).previous.store(slab, Relaxed);
            }
            bin.listed = slab;
        }
    }

    unsafe fn unlist(&mut self, slab: *mut Slab) {
        // SAFETY: the slab is in this cache's list; the lists are the owner's.
        unsafe {
            let (next, previous) = ((*slab).next.load(Relaxed), (*slab).previous.load(Relaxed));
            if previous.is_null() {
                self.bins[usize::from((*slab).class.load(Relaxed)) % CLASSES].listed = next;
            } else {
                (*previous).next.store(next, Relaxed);
            }
            if !next.is_null() {
                (*next).previous.store(previous, Relaxed);
            }
        }
    }

    /// A new slab of this class.
    unsafe fn fresh(&mut self, class: usize) -> Result<*mut Slab, AllocError> {
        let slices = slab_slices(class);
        // SAFETY: the arena is alive.
        let inner = unsafe { &*self.inner };
        let _held = inner.lock.hold();
        let slab = meta::take(size_of::<Slab>()).cast::<Slab>();
        if slab.is_null() {
            return Err(AllocError::NoAddresses);
        }
        // SAFETY: the lock is held; the record is ours until it is in the table.
        unsafe {
            let (segment, first, _) = match inner.take_slices(inner.held(), slices, MIN_ALIGN) {
                Ok(taken) => taken,
                Err(e) => {
                    give_slab(slab);
                    return Err(e);
                }
            };
            let start = (*segment).start + (first << SLICE_SHIFT);
            let owner = std::ptr::from_mut(self) as usize;
            (*slab).become_small(start, class, bin_at(class), slices, owner);
            (*slab).segment.store(segment as usize, Relaxed);
            (*slab).state.store(state::CURRENT, Relaxed);
            for slice in 0..slices {
                if let Some(entry) = space::slab_entry(start + (slice << SLICE_SHIFT)) {
                    entry.store(slab, Release);
                }
            }
        }
        Ok(slab)
    }

    /// Gives an empty slab's slices back to the arena.
    unsafe fn release(&mut self, slab: *mut Slab) {
        // SAFETY: the arena is alive; the slab is this cache's, empty, in no list, and nobody frees into it.
        unsafe {
            let inner = &*self.inner;
            let (start, slices) = ((*slab).start.load(Relaxed), (*slab).slices.load(Relaxed) as usize);
            let segment = (*slab).segment.load(Relaxed) as *mut Segment;
            space::clear_slab(start, slices);
            let _held = inner.lock.hold();
            inner.give_slices(inner.held(), segment, (start - (*segment).start) >> SLICE_SHIFT, slices, false);
            give_slab(slab);
        }
    }
}

/// # Safety
/// Nobody but stale pointers knows of the slab.
unsafe fn give_slab(slab: *mut Slab) {
    // SAFETY: slabs are records of this size.
    unsafe {
        (*slab).state.store(state::NONE, Relaxed);
        meta::give(slab.cast(), size_of::<Slab>());
    }
}

/// What is known of a pointer.
#[inline(always)]
fn slab_at(at: usize) -> Result<(&'static Slab, *mut Slab), FreeError> {
    let slab = space::slab_of(at).ok_or(FreeError::Foreign)?;
    if slab.is_null() {
        return Err(FreeError::NotAllocated);
    }
    // SAFETY: entries point to records of the pool, which live for ever.
    Ok((unsafe { &*slab }, slab))
}

/// Frees a block.
///
/// # Safety
/// Nobody uses the block any more.
#[inline(always)]
pub(crate) unsafe fn free(at: *mut u8) -> Result<(), FreeError> {
    let (slab, raw) = slab_at(at as usize)?;
    let cache = super::thread::last_cache();
    // SAFETY: caches are records of the pool, which live for ever. A slab names a cache only while its arena is
    // alive, so this one is, and it is this thread's, for it was when it was noted.
    unsafe {
        if slab.cache.load(Relaxed) != cache as usize || (*cache).busy.load(Relaxed) {
            return free_elsewhere(raw, at);
        }
        free_own(slab, raw, cache, at)
    }
}

/// # Safety
/// The slab is the cache's, the cache the calling thread's.
#[inline(always)]
unsafe fn free_own(slab: &Slab, raw: *mut Slab, cache: *mut Cache, at: *mut u8) -> Result<(), FreeError> {
    // SAFETY: by the contract; what was handed out is a block.
    unsafe {
        if !slab.was_handed(at as usize) || is_marked(at) {
            return Err(not_a_block(raw, at as usize));
        }
        let _changing = Changing::new(cache);
        let bin = cache.byte_add(slab.bin.load(Relaxed) as usize).byte_add(offset_of!(Cache, bins)).cast::<Bin>();
        let top = (*bin).top;
        if top == (*bin).end {
            put_slow(cache, raw, at);
        } else {
            (*bin).top = top.add(1);
            *top = at;
            at.cast::<usize>().add(1).write(mark(at as usize));
        }
        Ok(())
    }
}

/// Frees a block that is not of the cache used last: of another arena, of another thread, or a large one.
#[inline(never)]
unsafe fn free_elsewhere(raw: *mut Slab, at: *mut u8) -> Result<(), FreeError> {
    // SAFETY: slabs and caches are records of the pool, which live for ever; `here` is this thread's own state;
    // the rest by the contract of `free`.
    unsafe {
        let slab = &*raw;
        let cache = slab.cache.load(Relaxed) as *mut Cache;
        if cache.is_null() {
            return free_large(at as usize);
        }
        let here = Thread::here();
        let mine = !here.is_null()
            && (*cache).owner.load(Relaxed) == (*here).token
            && !(*here).busy.get()
            && !(*cache).busy.load(Relaxed);
        if mine {
            return free_own(slab, raw, cache, at);
        }
        if !slab.was_handed(at as usize) || is_marked(at) {
            return Err(not_a_block(raw, at as usize));
        }
        let Place::Block(block) = slab.place(at as usize) else { return Err(FreeError::Interior) };
        free_remote(slab, raw, cache, block, at)
    }
}

/// What a pointer into a slab is that cannot be freed.
#[cold]
#[inline(never)]
unsafe fn not_a_block(slab: *mut Slab, at: usize) -> FreeError {
    // SAFETY: slabs are records of the pool, which live for ever.
    match unsafe { (*slab).place(at) } {
        Place::Block(_) => FreeError::NotAllocated,
        Place::Inside => FreeError::Interior,
    }
}

impl Bin {
    const EMPTY: Self =
        Self { top: null_mut(), end: null_mut(), bottom: null_mut(), current: &raw const NO_SLAB, listed: null_mut() };

    fn count(&self) -> usize {
        (self.top as usize - self.bottom as usize) / size_of::<*mut u8>()
    }

    /// # Safety
    /// `block` is a free block of this bin's size, and there is room.
    #[inline(always)]
    unsafe fn push(&mut self, block: *mut u8) {
        // SAFETY: by the contract; a block has 16 bytes at least.
        unsafe {
            block.cast::<usize>().add(1).write(mark(block as usize));
            *self.top = block;
            self.top = self.top.add(1);
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn put_slow(cache: *mut Cache, slab: *mut Slab, block: *mut u8) {
    // SAFETY: by the contract of `Cache::put_slow`, which the caller keeps; `here` is this thread's own state.
    unsafe {
        // Slabs may be given back below, under the arena's lock.
        let here = Thread::here();
        let _inside = (!here.is_null()).then(|| Inside::new(&*here));
        (*cache).put_slow(slab, block);
    }
}

#[cold]
#[inline(never)]
fn free_remote(slab: &Slab, raw: *mut Slab, cache: *mut Cache, block: usize, at: *mut u8) -> Result<(), FreeError> {
    // SAFETY: `at` is a block, which nobody uses any more.
    unsafe { at.cast::<usize>().add(1).write(mark(at as usize)) };
    let freed = slab.put_remote(block, |slab| {
        // SAFETY: caches are records of the pool, which live for ever.
        let mailbox = unsafe { &(*cache).mailbox.0 };
        let mut first = mailbox.load(Relaxed);
        loop {
            slab.mail.store(first, Relaxed);
            match mailbox.compare_exchange_weak(first, raw, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    });
    if freed == Freed::Twice {
        return Err(FreeError::NotAllocated);
    }
    Ok(())
}

#[cold]
#[inline(never)]
unsafe fn free_large(at: usize) -> Result<(), FreeError> {
    let here = Thread::begin();
    let nested = here.is_null() || {
        // SAFETY: this thread's own state.
        unsafe { (*here).busy.get() }
    };
    if nested {
        // A handler that frees a large block while this thread holds the arena's lock would wait for itself;
        // the block stays allocated.
        return Ok(());
    }
    // SAFETY: this thread's own state.
    let _inside = Inside::new(unsafe { &*here });
    let inner = inner_of(at).ok_or(FreeError::Foreign)?;
    let _held = inner.lock.hold();
    let entry = space::slab_entry(at).ok_or(FreeError::Foreign)?;
    let slab = entry.load(Acquire);
    // SAFETY: entries are null or point to records of the pool; the lock is held.
    unsafe {
        if slab.is_null() || (*slab).state.load(Relaxed) != state::LARGE {
            return Err(FreeError::NotAllocated);
        }
        let start = (*slab).start.load(Relaxed);
        if start != at {
            return Err(FreeError::Interior);
        }
        entry.store(null_mut(), Release);
        let slices = (*slab).slices.load(Relaxed) as usize;
        let segment = (*slab).segment.load(Relaxed) as *mut Segment;
        let first = (start - (*segment).start) >> SLICE_SHIFT;
        inner.give_slices(inner.held(), segment, first, slices, slices << SLICE_SHIFT >= DISCARD_AT);
        give_slab(slab);
    }
    Ok(())
}

/// Bytes that the block at `at` really has.
#[inline(always)]
pub(crate) fn usable(at: usize) -> Result<usize, FreeError> {
    let (slab, _) = slab_at(at)?;
    let size = slab.size.load(Relaxed);
    if slab.cache.load(Relaxed) == 0 {
        return if slab.start.load(Relaxed) == at { Ok(size) } else { Err(FreeError::Interior) };
    }
    match slab.place(at) {
        // SAFETY: it is a block.
        Place::Block(_) if slab.was_handed(at) && unsafe { !is_marked(at as *mut u8) } => Ok(size),
        Place::Block(_) => Err(FreeError::NotAllocated),
        Place::Inside => Err(FreeError::Interior),
    }
}

/// The arena whose segment holds this address.
pub(crate) fn inner_of(at: usize) -> Option<&'static Inner> {
    let owner = space::segment_of(at)?.load(Acquire) as *const Inner;
    // SAFETY: owners are 0 or records of the table of arenas, which lives for ever.
    (!owner.is_null()).then(|| unsafe { &*owner })
}

/// Gives a large block another number of slices where it lies, if it can be. Whether it was done.
///
/// # Safety
/// `at` is a block of the arena `inner`, and the caller's alone.
pub(crate) unsafe fn resize_large(inner: &'static Inner, at: usize, size: usize) -> bool {
    let here = Thread::begin();
    // SAFETY: this thread's own state.
    if here.is_null() || unsafe { (*here).busy.get() } {
        return false;
    }
    // SAFETY: as above.
    let _inside = Inside::new(unsafe { &*here });
    let Ok((slab, _)) = slab_at(at) else { return false };
    let wanted = size.max(1).div_ceil(SLICE);
    let _held = inner.lock.hold();
    if slab.state.load(Relaxed) != state::LARGE || slab.start.load(Relaxed) != at {
        return false;
    }
    // SAFETY: the lock is held; the segment is the arena's.
    let (held, segment) = unsafe { (inner.held(), &mut *(slab.segment.load(Relaxed) as *mut Segment)) };
    let slices = slab.slices.load(Relaxed) as usize;
    let first = (at - segment.start) >> SLICE_SHIFT;
    if wanted < slices {
        inner.give_slices(held, segment, first + wanted, slices - wanted, true);
    } else if wanted > slices {
        let more = wanted - slices;
        if held.taken + more > held.limit || !segment.is_free(first + slices, more) {
            return false;
        }
        segment.take_at(first + slices, more);
        held.taken += more;
        held.peak = held.peak.max(held.taken);
    }
    slab.slices.store(wanted as u32, Relaxed);
    slab.size.store(wanted << SLICE_SHIFT, Relaxed);
    true
}
