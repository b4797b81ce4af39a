//! From a pointer to what it is: freed by its owner, by another thread, as whole slices, or not at all.

use super::*;

/// Frees a block.
///
/// # Safety
/// Nobody uses the block any more.
#[inline(always)]
pub(crate) unsafe fn free(at: *mut u8) -> Result<(), FreeError> {
    let (slab, raw) = slab_at(at as usize)?;
    let cache = crate::arena::thread::last_cache();
    // SAFETY: caches are records of the pool, which live for ever. A slab names a cache only while its arena is
    // alive, so this one is, and it is this thread's, for it was when it was noted.
    unsafe {
        if slab.cache.load(Relaxed) != cache as usize || (*cache).busy.load(Relaxed) {
            return free_elsewhere(raw, at);
        }
        free_own(slab, raw, cache, at)
    }
}

/// Frees a block of the cache used last that has room for it on its stack; false: nothing was done. Makes no call: `errno`
/// is as it was.
///
/// # Safety
/// As [`free`].
#[inline(always)]
pub(crate) unsafe fn free_cached(at: *mut u8) -> bool {
    let Ok((slab, _)) = slab_at(at as usize) else { return false };
    let cache = crate::arena::thread::last_cache();
    // SAFETY: as in `free`.
    unsafe {
        slab.cache.load(Relaxed) == cache as usize
            && !(*cache).busy.load(Relaxed)
            && slab.was_handed(at as usize)
            && !is_marked(at)
            && push_stacked(slab, cache, at)
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
        if !push_stacked(slab, cache, at) {
            let _changing = Changing::new(cache);
            put_slow(cache, raw, at);
        }
        Ok(())
    }
}

/// Puts a block on its bin's stack; false where that is full.
///
/// # Safety
/// The slab is the cache's, the cache the calling thread's; `at` is a block that nobody uses, not marked.
#[inline(always)]
unsafe fn push_stacked(slab: &Slab, cache: *mut Cache, at: *mut u8) -> bool {
    // SAFETY: by the contract; a slab names the place of its bin; blocks have 16 bytes at least.
    unsafe {
        let _changing = Changing::new(cache);
        let bin = cache.byte_add(slab.bin.load(Relaxed) as usize).byte_add(offset_of!(Cache, bins)).cast::<Bin>();
        let top = (*bin).top.load(Relaxed);
        if top == (*bin).end {
            return false;
        }
        (*bin).top.store(top.add(1), Relaxed);
        *top = at;
        at.cast::<usize>().add(1).write(mark(at as usize));
        true
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
