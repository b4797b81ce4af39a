//! Allocating and freeing: an arena's caches, one a thread, over its segments.
//!
//! One allocation of 64 bytes from end to end: the thread's table gives its cache in the
//! arena; the cache's bin for that size has a short stack of blocks freed lately, and its top is
//! the answer. If the stack is empty, the bin's current slab is asked: its summary gives a word,
//! the word a bit, the bit an address. Freeing goes the other way: address to slab by table, slab
//! to cache, and if the cache is this thread's, the block goes on the stack, marked; when the stack
//! is full, half of it becomes bits again. No lock is taken and no atomic step made. Freed by
//! another thread, the bit is set atomically in a second map, and the slab is put in the owner's
//! mailbox, where it is found when the owner runs out of blocks.
//!
//! The stack is there for speed: a bit set by `free` and taken by the next `alloc` has to travel
//! through memory and several multiplications (measured: 11 ns a round with 1,000 live blocks;
//! through the stack 7).

mod allocating;
mod cache;
mod freeing;
mod guards;
mod raw;
mod stack;
mod thread;

pub(crate) use allocating::{alloc, alloc_cached, alloc_with};
pub(crate) use freeing::{free, free_cached, inner_of, resize_large, usable};
pub(crate) use thread::Thread;

use guards::{ChangingCache, InsideAllocator};
use raw::{freed_of, raw_of, raw_of_free, result_of, Raw};
use stack::*;

use super::error::{ArenaAllocError, FreeError};
use super::meta;
use super::place::MAX_SPILL;
use super::sizes::{
    aligned_class, block_size, class_of, computed_class, slab_slices, CLASSES, MIN_ALIGN, SLICE,
    SLICE_SHIFT, SMALL_MAX, TABLED,
};
use super::slab::{state, Freed, Place, Shape, Slab};
use super::space::{self, Segment, SEGMENT_SLICES};
use std::cell::UnsafeCell;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use terrace_sys::ForkSafeLock;

/// Arenas at most.
pub(crate) const MAX_ARENAS: usize = 1 << 16;
/// Free slices that may hold old content before they are given back to the kernel: 16 MiB.
const MAX_DIRTY: usize = 256;
/// Segments double up to 4 MiB * 2^10, unless a block needs more.
const MAX_ORDER: usize = 10;
/// A large block this long gives its pages back as soon as it is freed.
const DISCARD_AT: usize = 1 << 20;

static NO_SLAB: Slab = Slab::empty();

/// One thread's part of an arena.
#[repr(C, align(64))]
pub(crate) struct Cache {
    /// Token of the thread that has it; 0: an orphan. The first word is where the pool keeps its
    /// link.
    owner: AtomicU64,
    next: *mut Cache,
    /// Generation of the arena; 0 once that is destroyed. Never used again, so a stale pointer to
    /// this record is known by it.
    generation: AtomicU64,
    /// Its thread is changing it: a signal handler keeps out.
    busy: AtomicBool,
    /// Where slabs are found, here because freeing reads the rest of this line too.
    table: space::Table,
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
    pub(crate) lock: ForkSafeLock,
    locked: UnsafeCell<LockedArena>,
}

/// What the arena's lock guards.
pub(crate) struct LockedArena {
    pub(crate) segments: *mut Segment,
    pub(crate) limit: usize,
    pub(crate) taken: usize,
    pub(crate) peak: usize,
    dirty_free: usize,
    caches: *mut Cache,
    orphans: *mut Cache,
    /// Classes in the order in which they are filled.
    pub(crate) classes: [u16; MAX_SPILL],
    pub(crate) class_count: usize,
    order: usize,
    pub(crate) twice: u64,
}

// SAFETY: `locked` is reached under `lock` alone; the rest is atomic.
unsafe impl Sync for Inner {}

/// Number of the record of the arena that has this generation.
pub(crate) const fn index_of(generation: u64) -> usize {
    generation as usize % MAX_ARENAS
}

static GENERATIONS: AtomicU64 = AtomicU64::new(1);
static INNERS: AtomicPtr<Inner> = AtomicPtr::new(null_mut());

/// Maps the records of arenas, the first time. Whether they are there.
pub(crate) fn ready() -> bool {
    if !INNERS.load(Acquire).is_null() {
        return true;
    }
    let Ok(at) = terrace_sys::map_zeroed(MAX_ARENAS * size_of::<Inner>()) else { return false };
    // Whoever was first wins; the loser's mapping costs addresses only.
    let _other_was_first = INNERS.compare_exchange(null_mut(), at as *mut Inner, AcqRel, Acquire);
    true
}

impl Inner {
    /// The record with this number. [`ready`] came before, and `index` is below [`MAX_ARENAS`].
    pub(crate) fn by_index(index: usize) -> &'static Inner {
        debug_assert!(index < MAX_ARENAS);
        // SAFETY: the table has that many records, zero at first: generation 0, a free lock, null
        // pointers, all valid; it is never unmapped.
        unsafe { &*INNERS.load(Acquire).add(index & (MAX_ARENAS - 1)) }
    }

    /// What the lock guards.
    ///
    /// # Safety
    /// The caller holds the lock, and the reference ends before it gives it back.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn locked(&self) -> &mut LockedArena {
        // SAFETY: by the contract this is the only reference.
        unsafe { &mut *self.locked.get() }
    }

    /// Starts an arena in this record. Returns its generation.
    pub(crate) fn start(&self, index: usize, limit: usize, classes: &[u16]) -> u64 {
        let _locked = self.lock.hold();
        // SAFETY: the lock is held.
        let locked = unsafe { self.locked() };
        let mut order = [0; MAX_SPILL];
        order[..classes.len()].copy_from_slice(classes);
        *locked = LockedArena {
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
        let generation = GENERATIONS.fetch_add(1, Relaxed) * MAX_ARENAS as u64 + index as u64;
        self.generation.store(generation, Release);
        generation
    }

    /// Ends the arena of this generation: all blocks are gone. Whether there was one.
    ///
    /// # Safety
    /// No block of the arena is used any more, and no thread is allocating from it or freeing into
    /// it.
    pub(crate) unsafe fn end(&self, generation: u64) -> bool {
        let _locked = self.lock.hold();
        if self.generation.compare_exchange(generation, 0, AcqRel, Relaxed).is_err() {
            return false;
        }
        // SAFETY: the lock is held.
        let locked = unsafe { self.locked() };
        let mut segment = std::mem::replace(&mut locked.segments, null_mut());
        while !segment.is_null() {
            // SAFETY: segments in the list are this arena's; by the contract nothing in them is
            // used. Slabs go back to the pool first, since the table that finds them is cleared
            // with the segment.
            unsafe {
                let next = (*segment).next;
                (*segment).each_slab(|slab| {
                    space::clear_slab(
                        (*slab).start.load(Relaxed),
                        (*slab).slices.load(Relaxed) as usize,
                    );
                    give_slab(slab);
                });
                space::give_segment(segment);
                segment = next;
            }
        }
        let mut cache = std::mem::replace(&mut locked.caches, null_mut());
        locked.orphans = null_mut();
        while !cache.is_null() {
            // SAFETY: caches in the list are this arena's; threads that know of them see the
            // generation.
            unsafe {
                let next = (*cache).next;
                for bin in &(*cache).bins {
                    bin.end();
                }
                (*cache).generation.store(0, Release);
                meta::give(cache.cast(), size_of::<Cache>());
                cache = next;
            }
        }
        locked.taken = 0;
        true
    }

    /// A thread that ends leaves its cache.
    pub(crate) fn orphan(&self, cache: *mut Cache, generation: u64) {
        if self.generation.load(Relaxed) == generation {
            // SAFETY: the arena is alive, and the calling thread is the cache's owner until the
            // line below.
            unsafe { (*cache).empty_stacks() };
        }
        let _locked = self.lock.hold();
        if self.generation.load(Relaxed) != generation {
            return;
        }
        // SAFETY: the generation is the cache's, so it is alive; the lock is held.
        unsafe {
            (*cache).owner.store(0, Release);
            let locked = self.locked();
            (*cache).next_orphan = locked.orphans;
            locked.orphans = cache;
        }
    }

    /// A cache for the calling thread: an orphan, or a new one.
    fn adopt(&self, generation: u64, token: u64) -> Result<*mut Cache, ArenaAllocError> {
        let _locked = self.lock.hold();
        if self.generation.load(Relaxed) != generation {
            return Err(ArenaAllocError::Destroyed);
        }
        // SAFETY: the lock is held; orphans are caches of this arena.
        unsafe {
            let locked = self.locked();
            if !locked.orphans.is_null() {
                let cache = locked.orphans;
                locked.orphans = (*cache).next_orphan;
                (*cache).owner.store(token, Release);
                return Ok(cache);
            }
            let cache = meta::take(size_of::<Cache>()).cast::<Cache>();
            if cache.is_null() {
                return Err(ArenaAllocError::NoAddresses);
            }
            cache.write(Cache {
                owner: AtomicU64::new(token),
                generation: AtomicU64::new(generation),
                busy: AtomicBool::new(false),
                table: space::Table::now(),
                inner: self,
                next: locked.caches,
                next_orphan: null_mut(),
                bins: [const { Bin::empty() }; CLASSES],
                mailbox: Mailbox(AtomicPtr::new(null_mut())),
            });
            locked.caches = cache;
            Ok(cache)
        }
    }

    /// Takes slices for a block or a slab: the segment, the first slice, whether they may hold old
    /// content. The lock is held.
    fn take_slices(
        &self,
        locked: &mut LockedArena,
        slices: usize,
        align: usize,
    ) -> Result<(*mut Segment, usize, bool), ArenaAllocError> {
        if locked.taken.checked_add(slices).is_none_or(|all| all > locked.limit) {
            return Err(ArenaAllocError::Limit);
        }
        let mut segment = locked.segments;
        while !segment.is_null() {
            // SAFETY: segments in the list are this arena's, and its lock is held.
            let this = unsafe { &mut *segment };
            if let Some((first, dirty)) = this.take(slices, align) {
                locked.taken += slices;
                locked.peak = locked.peak.max(locked.taken);
                return Ok((segment, first, dirty));
            }
            segment = this.next;
        }
        let segment = self.more(locked, slices, align)?;
        // SAFETY: fresh, and this arena's.
        let this = unsafe { &mut *segment };
        this.next = locked.segments;
        locked.segments = segment;
        let (first, dirty) = this.take(slices, align).ok_or(ArenaAllocError::NoAddresses)?;
        locked.taken += slices;
        locked.peak = locked.peak.max(locked.taken);
        Ok((segment, first, dirty))
    }

    /// One more segment, of the first class with space for it.
    fn more(
        &self,
        locked: &mut LockedArena,
        slices: usize,
        align: usize,
    ) -> Result<*mut Segment, ArenaAllocError> {
        // Not more than the limit can ever fill.
        let left = (locked.limit - locked.taken).div_ceil(SEGMENT_SLICES).max(1);
        let most = (usize::BITS - 1 - left.leading_zeros()) as usize;
        let wanted = locked.order.min(most).min(MAX_ORDER);
        let owner = std::ptr::from_ref(self) as usize;
        let count = locked.class_count;
        for (at, class) in locked.classes[..count].iter().enumerate() {
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
                    locked.order += 1;
                    return Ok(segment);
                }
            }
        }
        Err(ArenaAllocError::NoAddresses)
    }

    /// Gives slices back. The lock is held.
    fn give_slices(
        &self,
        locked: &mut LockedArena,
        segment: *mut Segment,
        first: usize,
        slices: usize,
        discard: bool,
    ) {
        locked.taken -= slices;
        // SAFETY: the slices were taken from this segment of this arena, whose lock is held.
        unsafe { (*segment).put(first, slices, discard) };
        if discard {
            return;
        }
        locked.dirty_free += slices;
        if locked.dirty_free > MAX_DIRTY {
            Self::purge(locked);
        }
    }

    /// Gives the pages of free slices back to the kernel; how many slices had some. The lock is
    /// held.
    pub(crate) fn purge(locked: &mut LockedArena) -> usize {
        let mut segment = locked.segments;
        while !segment.is_null() {
            // SAFETY: segments in the list are this arena's, whose lock is held.
            unsafe {
                (*segment).purge_free();
                segment = (*segment).next;
            }
        }
        std::mem::take(&mut locked.dirty_free)
    }

    /// Blocks on stacks of all caches, and their bytes. The lock is held.
    pub(crate) fn on_stacks(locked: &LockedArena) -> (u64, u64) {
        let mut sums = (0, 0);
        let mut cache = locked.caches;
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
    fn enter(&self, generation: u64) -> Result<(&'static Thread, *mut Cache), ArenaAllocError> {
        let here = Thread::begin();
        if here.is_null() {
            return Err(ArenaAllocError::NoAddresses);
        }
        // SAFETY: the calling thread's own state, alive while it runs.
        let thread = unsafe { &*here };
        if thread.busy.get() {
            return Err(ArenaAllocError::Reentered);
        }
        let index = index_of(generation);
        let mut cache = thread.cache(index, generation);
        // SAFETY: an arena of this generation is alive, so its caches are.
        if !cache.is_null() && unsafe { (*cache).busy.load(Relaxed) } {
            return Err(ArenaAllocError::Reentered);
        }
        if cache.is_null() {
            let _inside = InsideAllocator::new(thread);
            cache = self.adopt(generation, thread.token)?;
            if !thread.enter(index, generation, cache) {
                self.orphan(cache, generation);
                return Err(ArenaAllocError::NoAddresses);
            }
        }
        Ok((thread, cache))
    }
}

/// Order of a segment that the class's node has space for; `None`: it has no free space for what is
/// needed.
fn spill(class: u16, slices: usize, wanted: usize) -> Option<usize> {
    let (node, ops) = space::class_node(class)?;
    let Some(free_bytes) = ops.free_bytes(node) else { return Some(wanted) };
    let free_bytes = (free_bytes.get() >> SLICE_SHIFT) as usize;
    if free_bytes < slices.max(SEGMENT_SLICES) {
        return None;
    }
    let mut order = wanted;
    while order > 0 && SEGMENT_SLICES << order > free_bytes {
        order -= 1;
    }
    Some(order)
}

/// What stands for the cache used last where there is none: of no arena, owned by nobody.
pub(crate) static NO_CACHE: NoCache = NoCache(Cache {
    owner: AtomicU64::new(0),
    generation: AtomicU64::new(0),
    busy: AtomicBool::new(false),
    table: space::Table::empty(),
    inner: std::ptr::null(),
    next: null_mut(),
    next_orphan: null_mut(),
    bins: [const { Bin::empty() }; CLASSES],
    mailbox: Mailbox(AtomicPtr::new(null_mut())),
});

#[repr(transparent)]
pub(crate) struct NoCache(pub(crate) Cache);

// SAFETY: never written: no arena has its generation, and no slab names it.
unsafe impl Sync for NoCache {}

/// Tells the compiler what is usual: `condition` is true. What is usual lies in one line then, and
/// takes no jump (ADR 0228).
#[inline(always)]
fn usually(condition: bool) -> bool {
    if !condition {
        seldom();
    }
    condition
}

#[cold]
#[inline]
fn seldom() {}

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
