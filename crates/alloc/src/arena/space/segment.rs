//! Slices of a segment: taken, given back, purged.

use super::*;

impl Segment {
    fn word(&self, map: *mut u64, index: usize) -> u64 {
        // SAFETY: both maps have a bit for each slice; callers stay below `slices`, and hold the
        // lock.
        unsafe { map.add(index).read() }
    }

    fn change(&mut self, map: *mut u64, start: usize, end: usize, set: bool) {
        for index in start / 64..end.div_ceil(64) {
            let mask = crate::arena::bits::mask(index, start, end);
            let old = self.word(map, index);
            // SAFETY: as in `word`; `&mut self` is the lock.
            unsafe { map.add(index).write(if set { old | mask } else { old & !mask }) };
        }
    }

    /// Takes a run of free slices. Returns the first, and whether any may hold old content.
    pub(crate) fn take(&mut self, slices: usize, align: usize) -> Option<(usize, bool)> {
        if slices > self.free_slices {
            return None;
        }
        let align = (align >> SLICE_SHIFT).max(1);
        let free = self.free;
        let first = crate::arena::bits::find_run(
            |w| self.word(free, w),
            self.slices,
            slices,
            align,
            self.start >> SLICE_SHIFT,
        )?;
        Some((first, self.take_at(first, slices)))
    }

    /// Takes these slices, which are free. Whether any may hold old content.
    pub(crate) fn take_at(&mut self, first: usize, slices: usize) -> bool {
        let end = first + slices;
        let dirty = (first / 64..end.div_ceil(64))
            .any(|w| self.word(self.dirty, w) & crate::arena::bits::mask(w, first, end) != 0);
        self.change(self.free, first, end, false);
        self.change(self.dirty, first, end, true);
        self.free_slices -= slices;
        dirty
    }

    /// Whether these slices are free.
    pub(crate) fn is_free(&self, first: usize, slices: usize) -> bool {
        let end = first + slices;
        end <= self.slices
            && (first / 64..end.div_ceil(64)).all(|w| {
                let mask = crate::arena::bits::mask(w, first, end);
                self.word(self.free, w) & mask == mask
            })
    }

    /// Gives slices back; `discard`: their pages to the kernel as well.
    pub(crate) fn put(&mut self, first: usize, slices: usize, discard: bool) {
        self.change(self.free, first, first + slices, true);
        self.free_slices += slices;
        if discard {
            self.discard(first, slices);
        }
    }

    fn discard(&mut self, first: usize, slices: usize) {
        let (start, len) = (self.start + (first << SLICE_SHIFT), slices << SLICE_SHIFT);
        let done = match GROUND.get() {
            Some(g) => (g.discard)(start, len),
            // SAFETY: the slices are free, so nothing in them is used; the range is open.
            None => unsafe { discard_range(start, len) }.is_ok(),
        };
        if done {
            self.change(self.dirty, first, first + slices, false);
        }
    }

    /// Gives the pages of all free slices back to the kernel.
    pub(crate) fn purge_free(&mut self) {
        self.purge(|segment, w| segment.word(segment.free, w) & segment.word(segment.dirty, w));
    }

    pub(super) fn purge_all(&mut self) {
        self.change(self.free, 0, self.slices, true);
        self.free_slices = self.slices;
        self.purge(|segment, w| segment.word(segment.dirty, w));
    }

    fn purge(&mut self, which: impl Fn(&Self, usize) -> u64) {
        let mut run: Option<(usize, usize)> = None;
        let mut slice = 0;
        while slice < self.slices {
            let word = which(self, slice / 64);
            if slice % 64 == 0 && run.is_none() && word == 0 {
                slice += 64;
                continue;
            }
            run = match (run, word >> (slice % 64) & 1 == 1) {
                (Some((first, count)), true) => Some((first, count + 1)),
                (None, true) => Some((slice, 1)),
                (Some((first, count)), false) => {
                    self.discard(first, count);
                    None
                }
                (None, false) => None,
            };
            slice += 1;
        }
        if let Some((first, count)) = run {
            self.discard(first, count);
        }
    }

    /// Calls `each` with each slab.
    pub(crate) fn each_slab(&self, mut each: impl FnMut(*mut Slab)) {
        let mut slice = 0;
        while slice < self.slices {
            if slice % 64 == 0 && self.word(self.free, slice / 64) == u64::MAX {
                slice += 64;
                continue;
            }
            let mut step = 1;
            if let Some(entry) = slab_entry(self.start + (slice << SLICE_SHIFT)) {
                let slab = entry.load(Acquire);
                if !slab.is_null() {
                    // SAFETY: entries point to records of the pool, which live for ever.
                    step = unsafe { (*slab).slices.load(Relaxed) as usize }.max(1);
                    each(slab);
                }
            }
            slice += step;
        }
    }

    /// Runs of slices in use, as byte ranges.
    pub(crate) fn used_ranges(&self, into: &mut Vec<(usize, usize)>) {
        let mut slice = 0;
        while slice < self.slices {
            let taken = self.word(self.free, slice / 64) >> (slice % 64) & 1 == 0;
            if taken {
                let start = self.start + (slice << SLICE_SHIFT);
                let end = start + (1 << SLICE_SHIFT);
                match into.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => into.push((start, end)),
                }
            }
            slice += 1;
        }
    }
}
