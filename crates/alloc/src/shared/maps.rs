//! What is in the file: its head, and three maps of bits. All of it is atomics, because other
//! processes write it too; each change is made under the lock, after a note of what is about to
//! change.

use crate::arena::{find_run, mask};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*};
use terrace_sys::RobustLock;

/// Bytes of a grain: a cache line, so that blocks of two processes share none.
pub(super) const GRANULE: usize = 64;
/// Bytes that get their memory at once.
pub(super) const CHUNK: usize = 64 << 10;
const CHUNK_GRANULES: usize = CHUNK / GRANULE;
/// The last two bytes are the format's version.
const MAGIC: u64 = u64::from_be_bytes(*b"TRCSHM\0\x01");
const HEAD_LEN: usize = 4096;
const MAX_BYTES: u64 = 1 << 46;

/// Where things are, from the size alone, so that nothing of a file needs to be trusted for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub used_at: usize,
    pub starts_at: usize,
    pub backed_at: usize,
    pub data_at: usize,
    pub data_len: usize,
    pub file_len: usize,
}

impl Geometry {
    /// For blocks of `size` bytes together; `None`: there can be no such arena.
    pub fn for_size(size: u64) -> Option<Self> {
        if size == 0 || size > MAX_BYTES {
            return None;
        }
        let data_len = (size as usize).next_multiple_of(CHUNK);
        // Whole words: a chunk has 1,024 grains.
        let map = data_len / GRANULE / 8;
        let backed = (data_len / CHUNK).div_ceil(64) * 8;
        let starts_at = HEAD_LEN + map;
        let backed_at = starts_at + map;
        let data_at = (backed_at + backed).next_multiple_of(CHUNK);
        Some(Self {
            used_at: HEAD_LEN,
            starts_at,
            backed_at,
            data_at,
            data_len,
            file_len: data_at + data_len,
        })
    }
}

/// The file's first page.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Head {
    magic: AtomicU64,
    size: AtomicU64,
    /// Offset plus one; 0: none.
    root: AtomicU64,
    recovered: AtomicU64,
    /// What is being changed: first grain, grains, and whether there is a change.
    at: AtomicU64,
    len: AtomicU64,
    busy: AtomicU64,
    /// Grains and blocks allocated; found anew from the maps when a holder died.
    used: AtomicU64,
    blocks: AtomicU64,
    /// Word of the used map where a search begins.
    next: AtomicU64,
    pub lock: RobustLock,
}

const _: () = assert!(size_of::<Head>() <= HEAD_LEN);

impl Head {
    /// The last step of creating.
    pub fn begin(&self, size: usize) {
        self.size.store(size as u64, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Bytes for blocks, or what is wrong.
    pub fn size(&self) -> Result<u64, &'static str> {
        match self.magic.load(Acquire) {
            MAGIC => Ok(self.size.load(Relaxed)),
            other if other >> 16 == MAGIC >> 16 => Err("its format is of another version"),
            _ => Err("it does not begin as one"),
        }
    }

    pub fn set_root(&self, offset: Option<u64>) {
        self.root.store(offset.map_or(0, |o| o.wrapping_add(1)), Release);
    }

    pub fn root(&self) -> Option<u64> {
        self.root.load(Acquire).checked_sub(1)
    }

    pub fn recovered(&self) -> u64 {
        self.recovered.load(Relaxed)
    }
}

/// What a freed offset was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freed {
    /// A block of so many grains.
    Done {
        granules: usize,
    },
    NotAllocated,
    Interior,
}

/// The maps of a file. Changed under the lock alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps<'a> {
    head: &'a Head,
    used: &'a [AtomicU64],
    starts: &'a [AtomicU64],
    backed: &'a [AtomicU64],
    granules: usize,
}

impl<'a> Maps<'a> {
    /// # Safety
    /// `base` is the start of a mapping of `geometry.file_len` bytes that lives for `'a`.
    pub unsafe fn from_base(base: *const u8, geometry: &Geometry, head: &'a Head) -> Self {
        // SAFETY: each map lies in the mapping, by the contract and `for_size`, at a multiple of 8;
        // a page's start is one too. Atomics may hold any value, and change at any time.
        let map = |at: usize, end: usize| unsafe {
            std::slice::from_raw_parts(base.add(at).cast::<AtomicU64>(), (end - at) / 8)
        };
        let backed_end = geometry.backed_at + (geometry.data_len / CHUNK).div_ceil(64) * 8;
        Self {
            head,
            used: map(geometry.used_at, geometry.starts_at),
            starts: map(geometry.starts_at, geometry.backed_at),
            backed: map(geometry.backed_at, backed_end),
            granules: geometry.data_len / GRANULE,
        }
    }

    /// The first of a run of free grains at a multiple of `align` grains: from where the last
    /// search ended on, then from the start.
    pub fn find(&self, granules: usize, align: usize) -> Option<usize> {
        let next = (self.head.next.load(Relaxed) as usize).min(self.used.len());
        let from = |word: usize| {
            let free = |w: usize| !self.used[word + w].load(Relaxed);
            find_run(free, self.granules - word * 64, granules, align, word * 64)
                .map(|at| word * 64 + at)
        };
        from(next).or_else(|| from(0))
    }

    /// Chunks under a run that have no memory yet, in stretches. Nothing is allocated for it:
    /// signal handlers come here.
    pub fn without_memory(
        self,
        at: usize,
        granules: usize,
    ) -> impl Iterator<Item = Range<usize>> + 'a {
        let has =
            move |chunk: usize| self.backed[chunk / 64].load(Relaxed) >> (chunk % 64) & 1 == 1;
        let (mut next, end) = (at / CHUNK_GRANULES, (at + granules).div_ceil(CHUNK_GRANULES));
        std::iter::from_fn(move || {
            while next < end && has(next) {
                next += 1;
            }
            let start = next;
            while next < end && !has(next) {
                next += 1;
            }
            (start < next).then_some(start..next)
        })
    }

    pub fn set_backed(&self, chunks: &Range<usize>, has: bool) {
        change(self.backed, chunks.start, chunks.end, has);
    }

    /// Notes that grains are about to change. Whoever finds the note makes them free, which undoes
    /// an allocation that nobody was notified of, and finishes a free.
    fn note(&self, at: usize, granules: usize) {
        self.head.at.store(at as u64, Relaxed);
        self.head.len.store(granules as u64, Relaxed);
        store(&self.head.busy, 1);
    }

    /// Makes a block of free grains.
    pub fn put(&self, at: usize, granules: usize) {
        self.note(at, granules);
        change(self.starts, at, at + 1, true);
        change(self.used, at, at + granules, true);
        store(&self.head.used, self.head.used.load(Relaxed) + granules as u64);
        store(&self.head.blocks, self.head.blocks.load(Relaxed) + 1);
        store(&self.head.next, ((at + granules) / 64) as u64);
        store(&self.head.busy, 0);
    }

    fn bit(map: &[AtomicU64], at: usize) -> bool {
        map[at / 64].load(Relaxed) >> (at % 64) & 1 == 1
    }

    /// The block that begins at `offset` bytes.
    pub fn length(&self, offset: usize) -> Freed {
        let at = offset / GRANULE;
        if !Self::bit(self.used, at) {
            return Freed::NotAllocated;
        }
        if offset % GRANULE != 0 || !Self::bit(self.starts, at) {
            return Freed::Interior;
        }
        // A block ends before the next start or the next free grain; looked for from the word that
        // it begins in.
        let first = at / 64;
        let ends = |word: usize| {
            let bits =
                self.starts[first + word].load(Relaxed) | !self.used[first + word].load(Relaxed);
            // Behind the bit that it begins with.
            if word == 0 {
                bits & (u64::MAX - 1) << (at % 64)
            } else {
                bits
            }
        };
        let end = find_run(ends, self.granules - first * 64, 1, 1, 0)
            .map_or(self.granules, |end| first * 64 + end);
        Freed::Done { granules: end - at }
    }

    /// Makes the grains of the block at `offset` free.
    pub fn remove(&self, offset: usize) -> Freed {
        let found = self.length(offset);
        if let Freed::Done { granules } = found {
            let at = offset / GRANULE;
            self.note(at, granules);
            self.clear(at, granules);
            store(&self.head.used, self.head.used.load(Relaxed).saturating_sub(granules as u64));
            store(&self.head.blocks, self.head.blocks.load(Relaxed).saturating_sub(1));
            // The lowest space is used first.
            store(&self.head.next, self.head.next.load(Relaxed).min((at / 64) as u64));
            store(&self.head.busy, 0);
        }
        found
    }

    fn clear(&self, at: usize, granules: usize) {
        change(self.used, at, at + granules, false);
        change(self.starts, at, at + 1, false);
    }

    /// After a holder's death: its change is undone or finished, and counts are found anew.
    pub fn put_right(&self) {
        if self.head.busy.load(Relaxed) != 0 {
            let at = (self.head.at.load(Relaxed) as usize).min(self.granules);
            let len = (self.head.len.load(Relaxed) as usize).min(self.granules - at);
            if len > 0 {
                self.clear(at, len);
            }
        }
        let count = |map: &[AtomicU64]| {
            map.iter().map(|w| u64::from(w.load(Relaxed).count_ones())).sum::<u64>()
        };
        store(&self.head.used, count(self.used));
        store(&self.head.blocks, count(self.starts));
        store(&self.head.next, 0);
        store(&self.head.recovered, self.head.recovered.load(Relaxed) + 1);
        store(&self.head.busy, 0);
    }

    pub fn used_bytes(&self) -> u64 {
        self.head.used.load(Relaxed) * GRANULE as u64
    }

    pub fn blocks(&self) -> u64 {
        self.head.blocks.load(Relaxed)
    }

    pub fn backed_chunks(&self) -> u64 {
        self.backed.iter().map(|w| u64::from(w.load(Relaxed).count_ones())).sum()
    }

    /// Whether maps, counts and note agree.
    #[cfg(test)]
    pub fn is_whole(&self) -> bool {
        let mut blocks = 0;
        for at in 0..self.granules {
            let (used, start) = (Self::bit(self.used, at), Self::bit(self.starts, at));
            let inner = used && !start;
            if (start && !used) || (inner && (at == 0 || !Self::bit(self.used, at - 1))) {
                return false;
            }
            blocks += u64::from(start);
        }
        let used: u64 = self.used.iter().map(|w| u64::from(w.load(Relaxed).count_ones())).sum();
        self.head.busy.load(Relaxed) == 0
            && self.head.used.load(Relaxed) == used
            && self.head.blocks.load(Relaxed) == blocks
    }
}

/// One store that a dying process has made or not, before all that come after it: the kernel lets a
/// process end between two instructions, and `Release` keeps the compiler from changing their
/// order.
fn store(word: &AtomicU64, value: u64) {
    #[cfg(test)]
    super::tests::count_a_store();
    word.store(value, Release);
}

fn change(map: &[AtomicU64], start: usize, end: usize, set: bool) {
    let first = start / 64;
    for (at, word) in map[first..end.div_ceil(64).max(first)].iter().enumerate() {
        let bits = mask(first + at, start, end);
        let old = word.load(Relaxed);
        store(word, if set { old | bits } else { old & !bits });
    }
}
