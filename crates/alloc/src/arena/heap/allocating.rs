//! From a size to a block: by the cache used last, by another, by a new slab, by whole slices.

use super::*;

/// Allocates `size` bytes, aligned to 16.
#[inline(always)]
pub(crate) fn alloc(generation: u64, size: usize) -> Result<NonNull<u8>, ArenaAllocError> {
    match alloc_cached(generation, size) {
        Some(block) => Ok(block),
        None => result_of(alloc_slowly(generation, size)),
    }
}

/// The block of this size freed last, where the arena of this generation is the one that the thread
/// used last. Makes no call: `errno` is as it was.
#[inline(always)]
pub(crate) fn alloc_cached(generation: u64, size: usize) -> Option<NonNull<u8>> {
    if !usually(size <= TABLED) {
        return None;
    }
    let cache = super::thread::last_cache();
    // SAFETY: as in `small_raw`; the table holds places of bins.
    unsafe {
        if !usually((*cache).generation.load(Relaxed) == generation && !(*cache).busy.load(Relaxed))
        {
            return None;
        }
        let at = usize::from(BIN_BY_SIXTEEN[size.div_ceil(16)]);
        pop_stacked(cache, cache.byte_add(at).cast())
    }
}

/// The block freed last of a thread's own cache, if one is on the stack.
///
/// # Safety
/// The cache is the calling thread's, and its arena is alive.
#[inline(always)]
unsafe fn pop_stacked(cache: *mut Cache, bin: *mut Bin) -> Option<NonNull<u8>> {
    // SAFETY: `bin` is one of the cache's; above its null a stack holds marked blocks up to `top`,
    // nobody's; blocks have 16 bytes at least.
    unsafe {
        let block = {
            let _changing = ChangingCache::new(cache);
            let top = (*bin).top.load(Relaxed);
            let block = *top;
            if !usually(!block.is_null()) {
                return None;
            }
            (*bin).top.store(top.sub(1), Relaxed);
            block
        };
        block.cast::<usize>().add(1).write(0);
        Some(NonNull::new_unchecked(block))
    }
}

/// C's convention: it never unwinds; one call alone, so that who makes it last needs no frame
/// before (ADR 0228).
#[inline(never)]
extern "C" fn alloc_slowly(generation: u64, size: usize) -> Raw {
    let inner = Inner::by_index(index_of(generation));
    if size <= SMALL_MAX {
        small_raw(inner, generation, class_of(size))
    } else {
        raw_of(large(inner, generation, size, MIN_ALIGN, false))
    }
}

/// Allocates `size` bytes at a multiple of `align`; `zero`: all of them zero.
pub(crate) fn alloc_with(
    generation: u64,
    size: usize,
    align: usize,
    zero: bool,
) -> Result<NonNull<u8>, ArenaAllocError> {
    if !align.is_power_of_two() {
        return Err(ArenaAllocError::Alignment);
    }
    let inner = Inner::by_index(index_of(generation));
    let Some(class) = aligned_class(size, align) else {
        return large(inner, generation, size, align, zero);
    };
    let block = small(inner, generation, class)?;
    if zero {
        // SAFETY: the block has at least `size` bytes and is the caller's alone.
        unsafe { block.as_ptr().write_bytes(0, size) };
    }
    Ok(block)
}

fn small(
    inner: &'static Inner,
    generation: u64,
    class: usize,
) -> Result<NonNull<u8>, ArenaAllocError> {
    result_of(small_raw(inner, generation, class))
}

/// From the cache that the thread used last, if it is this arena's.
fn small_raw(inner: &'static Inner, generation: u64, class: usize) -> Raw {
    let cache = super::thread::last_cache();
    // SAFETY: caches are records of the pool, which live for ever. The generation is this arena's,
    // which is alive, so the record is its cache, and this thread's, for it was when it was noted.
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
    // SAFETY: `current` is never null; above its null a stack holds marked blocks up to `top`,
    // nobody's; blocks have 16 bytes at least.
    unsafe {
        if let Some(block) = pop_stacked(cache, &raw mut (*cache).bins[class]) {
            return block.as_ptr();
        }
        let _changing = ChangingCache::new(cache);
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
            let cache = (*here).cache(index_of(generation), generation);
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
pub(super) fn small_slow(
    inner: &'static Inner,
    generation: u64,
    class: usize,
) -> Result<NonNull<u8>, ArenaAllocError> {
    let (thread, cache) = inner.enter(generation)?;
    if inner.generation.load(Relaxed) != generation {
        return Err(ArenaAllocError::Destroyed);
    }
    let _inside = InsideAllocator::new(thread);
    // SAFETY: the cache is this thread's; all below is done by its owner.
    unsafe {
        let _changing = ChangingCache::new(cache);
        loop {
            let slab = match (*cache).refill(class) {
                Err(ArenaAllocError::Limit) => {
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
) -> Result<NonNull<u8>, ArenaAllocError> {
    if size > isize::MAX as usize || align > isize::MAX as usize {
        return Err(ArenaAllocError::TooLarge);
    }
    let slices = size.max(1).div_ceil(SLICE);
    let (thread, _) = inner.enter(generation)?;
    let _inside = InsideAllocator::new(thread);
    let (start, dirty) = {
        let _locked = inner.lock.hold();
        if inner.generation.load(Relaxed) != generation {
            return Err(ArenaAllocError::Destroyed);
        }
        // SAFETY: the lock is held.
        let locked = unsafe { inner.locked() };
        let slab = meta::take(size_of::<Slab>()).cast::<Slab>();
        if slab.is_null() {
            return Err(ArenaAllocError::NoAddresses);
        }
        let (segment, first, dirty) = match inner.take_slices(locked, slices, align) {
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
    NonNull::new(block).ok_or(ArenaAllocError::NoAddresses)
}
