//! From a pointer to what it is: freed by its owner, by another thread, as whole slices, or not at
//! all.

use super::*;

/// Frees a block.
///
/// # Safety
/// Nobody uses the block any more.
#[inline(always)]
pub(crate) unsafe fn free(at: *mut u8) -> Result<(), FreeError> {
    // SAFETY: by the contract.
    unsafe {
        if free_cached(at) {
            return Ok(());
        }
        freed_of(free_slowly(at))
    }
}

/// Frees a block of the cache used last that has space for it on its stack; false: nothing was
/// done. Makes no call: `errno` is as it was.
///
/// # Safety
/// As [`free`].
#[inline(always)]
pub(crate) unsafe fn free_cached(at: *mut u8) -> bool {
    let cache = super::thread::last_cache();
    // SAFETY: as in `free_slowly`; entries of the table point to records of the pool, which live
    // for ever.
    unsafe {
        let Some(slab) = (*cache).table.slab_of(at as usize).and_then(|s| s.as_ref()) else {
            return false;
        };
        let shape = slab.shape();
        usually(slab.cache.load(Relaxed) == cache as usize)
            && usually(!(*cache).busy.load(Relaxed))
            && usually(slab.was_handed(at as usize, shape))
            && usually(!is_marked(at))
            && usually(push_stacked(shape, cache, at))
    }
}

/// Frees a block that [`free_cached`] did not: a full stack, another arena's, another thread's, a
/// large one, or none.
///
/// C's convention: it never unwinds, so that who calls it last needs no frame before (ADR 0228).
///
/// # Safety
/// As [`free`].
#[inline(never)]
unsafe extern "C" fn free_slowly(at: *mut u8) -> Raw {
    let (slab, raw) = match slab_at(at as usize) {
        Ok(found) => found,
        Err(error) => return raw_of_free(Err(error)),
    };
    let cache = super::thread::last_cache();
    // SAFETY: caches are records of the pool, which live for ever. A slab names a cache only while
    // its arena is alive, so this one is, and it is this thread's, for it was when it was noted.
    raw_of_free(unsafe {
        if slab.cache.load(Relaxed) == cache as usize && !(*cache).busy.load(Relaxed) {
            free_own(slab, raw, cache, at)
        } else {
            free_elsewhere(raw, at)
        }
    })
}

/// # Safety
/// The slab is the cache's, the cache the calling thread's.
unsafe fn free_own(
    slab: &Slab,
    raw: *mut Slab,
    cache: *mut Cache,
    at: *mut u8,
) -> Result<(), FreeError> {
    // SAFETY: by the contract; what was handed out is a block.
    unsafe {
        if !slab.was_handed(at as usize, slab.shape()) || is_marked(at) {
            return Err(not_a_block(raw, at as usize));
        }
        if !push_stacked(slab.shape(), cache, at) {
            let _changing = ChangingCache::new(cache);
            put_slow(cache, raw, at);
        }
        Ok(())
    }
}

/// Puts a block on its bin's stack; false where that is full.
///
/// # Safety
/// The shape is that of the block's slab, which is the cache's, and the cache is the calling
/// thread's; `at` is a block that nobody uses, not marked.
#[inline(always)]
unsafe fn push_stacked(shape: Shape, cache: *mut Cache, at: *mut u8) -> bool {
    // SAFETY: by the contract; a shape tells the place of a bin; a stack has space above `top`
    // where that is not its last word; blocks have 16 bytes at least.
    unsafe {
        let _changing = ChangingCache::new(cache);
        let bin = cache.byte_add(shape.bin()).cast::<Bin>();
        let top = (*bin).top.load(Relaxed);
        if !usually(!is_last(top)) {
            return false;
        }
        at.cast::<usize>().add(1).write(mark(at as usize));
        top.add(1).write(at);
        (*bin).top.store(top.add(1), Relaxed);
        true
    }
}

/// Frees a block that is not of the cache used last: of another arena, of another thread, or a
/// large one.
unsafe fn free_elsewhere(raw: *mut Slab, at: *mut u8) -> Result<(), FreeError> {
    // SAFETY: slabs and caches are records of the pool, which live for ever; `here` is this
    // thread's own state; the rest by the contract of `free`.
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
        if !slab.was_handed(at as usize, slab.shape()) || is_marked(at) {
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

unsafe fn put_slow(cache: *mut Cache, slab: *mut Slab, block: *mut u8) {
    // SAFETY: by the contract of `Cache::put_slow`, which the caller keeps; `here` is this thread's
    // own state.
    unsafe {
        // Slabs may be given back below, under the arena's lock.
        let here = Thread::here();
        let _inside = (!here.is_null()).then(|| InsideAllocator::new(&*here));
        (*cache).put_slow(slab, block);
    }
}

#[cold]
#[inline(never)]
fn free_remote(
    slab: &Slab,
    raw: *mut Slab,
    cache: *mut Cache,
    block: usize,
    at: *mut u8,
) -> Result<(), FreeError> {
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
        // A handler that frees a large block while this thread holds the arena's lock would wait
        // for itself; the block stays allocated.
        return Ok(());
    }
    // SAFETY: this thread's own state.
    let _inside = InsideAllocator::new(unsafe { &*here });
    let inner = inner_of(at).ok_or(FreeError::Foreign)?;
    let _locked = inner.lock.hold();
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
        inner.give_slices(
            inner.locked(),
            segment,
            first,
            slices,
            slices << SLICE_SHIFT >= DISCARD_AT,
        );
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
        Place::Block(_) => {
            // SAFETY: it is a block.
            let marked = || unsafe { is_marked(at as *mut u8) };
            if slab.was_handed(at, slab.shape()) && !marked() {
                Ok(size)
            } else {
                Err(FreeError::NotAllocated)
            }
        }
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
    let _inside = InsideAllocator::new(unsafe { &*here });
    let Ok((slab, _)) = slab_at(at) else { return false };
    let wanted = size.max(1).div_ceil(SLICE);
    let _locked = inner.lock.hold();
    if slab.state.load(Relaxed) != state::LARGE || slab.start.load(Relaxed) != at {
        return false;
    }
    // SAFETY: the lock is held; the segment is the arena's.
    let (locked, segment) =
        unsafe { (inner.locked(), &mut *(slab.segment.load(Relaxed) as *mut Segment)) };
    let slices = slab.slices.load(Relaxed) as usize;
    let first = (at - segment.start) >> SLICE_SHIFT;
    if wanted < slices {
        inner.give_slices(locked, segment, first + wanted, slices - wanted, true);
    } else if wanted > slices {
        let more = wanted - slices;
        if locked.taken + more > locked.limit || !segment.is_free(first + slices, more) {
            return false;
        }
        segment.take_at(first + slices, more);
        locked.taken += more;
        locked.peak = locked.peak.max(locked.taken);
    }
    slab.slices.store(wanted as u32, Relaxed);
    slab.size.store(wanted << SLICE_SHIFT, Relaxed);
    true
}
