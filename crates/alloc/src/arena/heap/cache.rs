//! A thread's part of an arena: bins, stacks, slabs, mailbox. All but [`Cache::on_stacks`] is its
//! owner's.

use super::*;

impl Cache {
    /// Blocks on stacks, and their bytes. Other threads may ask, and get a guess.
    ///
    /// # Safety
    /// The record is a cache.
    pub(super) unsafe fn on_stacks(this: *const Self) -> (u64, u64) {
        let mut sums = (0, 0);
        for class in 0..CLASSES {
            // SAFETY: the fields are there; the owner may write them at this moment, hence atomics.
            let count = unsafe { (*this).bins[class].count() };
            sums = (sums.0 + count as u64, sums.1 + (count * block_size(class)) as u64);
        }
        sums
    }

    /// Turns all stacked blocks into bits. Owner only.
    pub(super) unsafe fn empty_stacks(&mut self) {
        for class in 0..CLASSES {
            // SAFETY: the owner calls.
            unsafe { self.unstack(class, self.bins[class].count()) };
        }
    }

    /// Turns the lowest `count` blocks of a stack into bits. Owner only.
    pub(super) unsafe fn unstack(&mut self, class: usize, count: usize) {
        if count == 0 {
            return;
        }
        let bin = &mut self.bins[class];
        let left = bin.count() - count;
        let mut lowest = [null_mut::<u8>(); STACK];
        // SAFETY: the stack holds `count + left` blocks, at most STACK; each is a free block of a
        // slab of this cache, which counts it as used, so that the slab is alive.
        unsafe {
            let stack = bin.stack.load(Relaxed);
            lowest[..count].copy_from_slice(std::slice::from_raw_parts(stack.add(1), count));
            std::ptr::copy(stack.add(1 + count), stack.add(1), left);
            bin.top.store(stack.add(left), Relaxed);
            for block in &lowest[..count] {
                let Ok((slab, raw)) = slab_at(*block as usize) else { continue };
                if let Place::Block(number) = slab.place(*block as usize) {
                    if slab.put(number) == Freed::Done && slab.state.load(Relaxed) != state::CURRENT
                    {
                        self.freed_into(raw);
                    }
                }
            }
        }
    }

    /// Frees a block for which the stack has no free space. Owner only.
    pub(super) unsafe fn put_slow(&mut self, slab: *mut Slab, block: *mut u8) {
        // SAFETY: the slab is this cache's, and its owner calls; the stack has the space that is
        // asked of it.
        unsafe {
            let class = usize::from((*slab).class.load(Relaxed)) % CLASSES;
            let bin = &mut self.bins[class];
            if !bin.begin(stack_capacity(class)) {
                let half = bin.count().div_ceil(2);
                self.unstack(class, half);
            }
            let bin = &mut self.bins[class];
            if !is_last(bin.top.load(Relaxed)) {
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
    pub(super) unsafe fn refill(&mut self, class: usize) -> Result<*const Slab, ArenaAllocError> {
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
    pub(super) unsafe fn collect(&mut self) {
        let mut slab = self.mailbox.0.swap(null_mut(), Acquire);
        // SAFETY: slabs in the mailbox are this cache's and stay so: what was freed into them
        // still counts as used. `mail` is read before `collect`, after which others may write it.
        unsafe {
            while !slab.is_null() {
                let next = (*slab).mail.load(Relaxed);
                let twice = (*slab).collect();
                if twice > 0 {
                    let inner = &*self.inner;
                    let _locked = inner.lock.hold();
                    inner.locked().twice += u64::from(twice);
                }
                if (*slab).has_free() {
                    self.freed_into(slab);
                }
                slab = next;
            }
        }
    }

    /// A block of the slab became free: it may have to be listed, or be given back.
    pub(super) unsafe fn freed_into(&mut self, slab: *mut Slab) {
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

    pub(super) unsafe fn list(&mut self, slab: *mut Slab) {
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

    pub(super) unsafe fn unlist(&mut self, slab: *mut Slab) {
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
    pub(super) unsafe fn fresh(&mut self, class: usize) -> Result<*mut Slab, ArenaAllocError> {
        let slices = slab_slices(class);
        // SAFETY: the arena is alive.
        let inner = unsafe { &*self.inner };
        let _locked = inner.lock.hold();
        let slab = meta::take(size_of::<Slab>()).cast::<Slab>();
        if slab.is_null() {
            return Err(ArenaAllocError::NoAddresses);
        }
        // SAFETY: the lock is held; the record is ours until it is in the table.
        unsafe {
            let (segment, first, _) = match inner.take_slices(inner.locked(), slices, MIN_ALIGN) {
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
    pub(super) unsafe fn release(&mut self, slab: *mut Slab) {
        // SAFETY: the arena is alive; the slab is this cache's, empty, in no list, and nobody frees
        // into it.
        unsafe {
            let inner = &*self.inner;
            let (start, slices) =
                ((*slab).start.load(Relaxed), (*slab).slices.load(Relaxed) as usize);
            let segment = (*slab).segment.load(Relaxed) as *mut Segment;
            space::clear_slab(start, slices);
            let _locked = inner.lock.hold();
            inner.give_slices(
                inner.locked(),
                segment,
                (start - (*segment).start) >> SLICE_SHIFT,
                slices,
                false,
            );
            give_slab(slab);
        }
    }
}

impl Bin {
    pub(super) const fn empty() -> Self {
        Self {
            top: AtomicPtr::new(NoStack::top()),
            stack: AtomicPtr::new(null_mut()),
            current: &raw const NO_SLAB,
            listed: null_mut(),
        }
    }

    /// Gets it a stack with space for so many blocks. Whether it has got one now and had none
    /// before.
    fn begin(&mut self, capacity: usize) -> bool {
        if capacity == 0 || !self.stack.load(Relaxed).is_null() {
            return false;
        }
        let words = meta::take(STACK_SIZE).cast::<*mut u8>();
        if words.is_null() {
            return false;
        }
        // SAFETY: the record has as many words, and is aligned to its size; a space is no more than
        // STACK.
        unsafe {
            let stack = words.add(STACK - capacity);
            stack.write(null_mut());
            self.stack.store(stack, Relaxed);
            self.top.store(stack, Relaxed);
        }
        true
    }

    /// Gives the stack back; its blocks are forgotten.
    ///
    /// # Safety
    /// Nobody uses the bin any more.
    pub(super) unsafe fn end(&self) {
        let stack = self.stack.load(Relaxed);
        if !stack.is_null() {
            let words = (stack as usize & !(STACK_SIZE - 1)) as *mut u8;
            // SAFETY: the record that `begin` took, aligned to its size; by the contract nobody
            // uses it any more.
            unsafe { meta::give(words, STACK_SIZE) };
        }
    }

    /// Blocks on the stack.
    pub(super) fn count(&self) -> usize {
        let stack = self.stack.load(Relaxed) as usize;
        if stack == 0 {
            return 0;
        }
        (self.top.load(Relaxed) as usize).saturating_sub(stack).min(STACK_SIZE)
            / size_of::<*mut u8>()
    }

    /// # Safety
    /// `block` is a free block of this bin's size, and there is space.
    unsafe fn push(&mut self, block: *mut u8) {
        // SAFETY: by the contract; a block has 16 bytes at least.
        unsafe {
            block.cast::<usize>().add(1).write(mark(block as usize));
            let top = self.top.load(Relaxed).add(1);
            top.write(block);
            self.top.store(top, Relaxed);
        }
    }
}
