//! `skew` and `fits`: a hot set and a cold one, each accessed uniformly at random.
//!
//! Cold pages are touched first and so fill the fast tier; the hot set lands where space is left.
//! Every thread increments words of its own (word `threads * k + thread`), so the counts do not
//! depend on how threads interleave.

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::memory::{WordMemory, PAGE_WORDS};
use crate::pace::WorkloadPace;
use crate::random::{mix, HotColdChooser, Lcg};
use crate::scatter::Scatter;
use crate::spec::{HotAccess, HotLayout, WorkloadSpec};
use terrace_types::Nanos;

/// Accesses between two looks at the time.
const STEP: u64 = 16_384;

/// The workload; see the module.
#[derive(Debug)]
pub struct Skew {
    name: &'static str,
    hot_pages: usize,
    cold_pages: usize,
    scatter: Scatter,
    layout: HotLayout,
    hot: HotAccess,
    threads: u64,
    choice: HotColdChooser,
    hot_share: u32,
    seed: u64,
    accesses: u64,
    seconds: Option<Nanos>,
}

/// One thread of it.
#[derive(Debug)]
pub struct SkewThread {
    index: u64,
    random: Lcg,
    left: u64,
    done: u64,
    /// Hot accesses made, and the sum of all words read.
    hot: u64,
    sum: u64,
}

impl Skew {
    /// The workload as specified.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let pages = |bytes: u64| (bytes as usize / (PAGE_WORDS * 8)).max(1);
        let hot_pages = pages(spec.hot_size.bytes(spec.fast).0);
        let cold_pages = pages(spec.size.bytes(spec.fast).0);
        let threads = u64::from(spec.threads);
        let per_thread = |pages: usize| (pages * PAGE_WORDS) as u64 / threads;
        Self {
            name: spec.name.as_str(),
            hot_pages,
            cold_pages,
            scatter: Scatter::new(hot_pages + cold_pages, spec.seed),
            layout: spec.layout,
            hot: spec.hot,
            threads,
            choice: HotColdChooser::new(
                per_thread(hot_pages),
                per_thread(cold_pages),
                spec.hot_share,
            ),
            hot_share: spec.hot_share,
            seed: spec.seed,
            accesses: spec.accesses,
            seconds: spec.seconds,
        }
    }

    /// Word `k` of the hot set (or of the cold one) that belongs to `thread`, as its place in
    /// memory. Hot pages come first in logical order and last when contiguous.
    #[inline(always)]
    fn place<const SCATTERED: bool>(&self, hot: bool, k: u64, thread: u64) -> usize {
        let word = (k * self.threads + thread) as usize;
        if SCATTERED {
            let page = word / PAGE_WORDS + if hot { 0 } else { self.hot_pages };
            self.scatter.page(page) * PAGE_WORDS + word % PAGE_WORDS
        } else {
            word + if hot { self.cold_pages * PAGE_WORDS } else { 0 }
        }
    }

    fn run<const SCATTERED: bool, const WRITE: bool, M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut SkewThread,
        count: u64,
    ) {
        let (mut random, mut sum, mut hot) = (thread.random, 0u64, 0u64);
        for _ in 0..count {
            let (is_hot, k) = self.choice.pick(random.next());
            let word = self.place::<SCATTERED>(is_hot, k, thread.index);
            hot += u64::from(is_hot);
            if WRITE && is_hot {
                memory.add_own(word, 1);
            } else {
                sum = sum.wrapping_add(memory.load(word));
            }
        }
        thread.random = random;
        thread.hot += hot;
        thread.sum = thread.sum.wrapping_add(sum);
    }

    fn page_of(&self, hot: bool, page: usize) -> usize {
        match (self.layout, hot) {
            (HotLayout::Scattered, true) => self.scatter.page(page),
            (HotLayout::Scattered, false) => self.scatter.page(self.hot_pages + page),
            (HotLayout::Contiguous, true) => self.cold_pages + page,
            (HotLayout::Contiguous, false) => page,
        }
    }

    /// What word `word` holds before the measured phase.
    #[inline(always)]
    const fn initial(&self, word: usize) -> u64 {
        (word as u64 ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Algorithm for Skew {
    type Thread = SkewThread;

    fn words(&self) -> usize {
        self.scatter.span() * PAGE_WORDS
    }

    fn pace(&self) -> WorkloadPace {
        // Contiguous: 9.80 where 80% of the accesses are to the hot set and 11.30 where half are,
        // so 8.80 for a hot and 13.80 for a cold one. Scattered: counted at 80% alone.
        let share = u64::from(self.hot_share);
        WorkloadPace::even(match (self.layout, self.hot) {
            (HotLayout::Contiguous, _) => (880 * share + 1380 * (1_000_000 - share)) / 1_000_000,
            (HotLayout::Scattered, HotAccess::Write) => 2110,
            (HotLayout::Scattered, HotAccess::Read) => 3760,
        })
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for (hot, pages) in [(false, self.cold_pages), (true, self.hot_pages)] {
            // In address order, as a program that fills its arrays would.
            let mut places: Vec<_> = (0..pages).map(|page| self.page_of(hot, page)).collect();
            places.sort_unstable();
            for page in places {
                for word in page * PAGE_WORDS..(page + 1) * PAGE_WORDS {
                    memory.store(word, self.initial(word));
                }
            }
        }
    }

    fn thread(&self, index: u32) -> SkewThread {
        let index = u64::from(index);
        let share = self.accesses / self.threads;
        let rest = u64::from(index < self.accesses % self.threads);
        let left = if self.seconds.is_some() { u64::MAX } else { share + rest };
        SkewThread { index, random: Lcg::new(self.seed, index), left, done: 0, hot: 0, sum: 0 }
    }

    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut SkewThread,
        now: Nanos,
    ) -> ThreadStep {
        if self.seconds.is_some_and(|limit| now >= limit) {
            return ThreadStep::Done;
        }
        let count = thread.left.min(STEP);
        match (self.layout, self.hot) {
            (HotLayout::Contiguous, HotAccess::Write) => {
                self.run::<false, true, M>(memory, thread, count)
            }
            (HotLayout::Contiguous, HotAccess::Read) => {
                self.run::<false, false, M>(memory, thread, count)
            }
            (HotLayout::Scattered, HotAccess::Write) => {
                self.run::<true, true, M>(memory, thread, count)
            }
            (HotLayout::Scattered, HotAccess::Read) => {
                self.run::<true, false, M>(memory, thread, count)
            }
        }
        thread.left -= count;
        thread.done += count;
        if thread.left == 0 {
            ThreadStep::Done
        } else {
            ThreadStep::More
        }
    }

    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        threads: &[SkewThread],
    ) -> Result<WorkloadResult, WrongResult> {
        let mut checksum = 0u64;
        let mut written = 0u64;
        for page in 0..self.hot_pages {
            let place = self.page_of(true, page);
            for offset in 0..PAGE_WORDS {
                let word = place * PAGE_WORDS + offset;
                let count = memory.load(word).wrapping_sub(self.initial(word));
                written = written.wrapping_add(count);
                checksum = checksum.wrapping_add(mix(count ^ (word as u64) << 32));
            }
        }
        let made = threads.iter().map(|t| t.hot).sum::<u64>();
        let expected = if self.hot == HotAccess::Write { made } else { 0 };
        if written != expected {
            return Err(WrongResult {
                workload: self.name,
                what: format!("{written} increments found where {expected} were made"),
            });
        }
        for thread in threads {
            checksum = mix(checksum ^ thread.sum).wrapping_add(thread.done);
        }
        let accesses = threads.iter().map(|t| t.done).sum();
        Ok(WorkloadResult { accesses, checksum: if self.seconds.is_some() { 0 } else { checksum } })
    }
}
