//! `shift`: as `skew`, but every few seconds another part of the data becomes the hot set.
//!
//! The data is a row of windows, each as large as the hot set and alike in content. Where the hot
//! set is depends on time, and so on speed; the results must not. Therefore an access is drawn as
//! an offset into whichever window is hot, and results are summed over all windows.

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::memory::{WordMemory, PAGE_WORDS};
use crate::pace::WorkloadPace;
use crate::random::{mix, HotColdChooser, Lcg};
use crate::scatter::Scatter;
use crate::spec::{HotAccess, HotLayout, WorkloadSpec};
use terrace_types::Nanos;

const STEP: u64 = 8_192;

/// The workload; see the module.
#[derive(Debug)]
pub struct Shift {
    window_pages: usize,
    windows: usize,
    scatter: Scatter,
    layout: HotLayout,
    hot: HotAccess,
    /// Words are dealt to the threads in turn, and one more in each round to nobody: cold reads
    /// go there, where nothing is written.
    lanes: u64,
    choice: HotColdChooser,
    seed: u64,
    accesses: u64,
    seconds: Option<Nanos>,
    phase: Nanos,
}

/// One thread of it.
#[derive(Debug)]
pub struct ShiftThread {
    index: u64,
    random: Lcg,
    left: u64,
    done: u64,
    hot: u64,
    sum: u64,
}

impl Shift {
    /// The workload as specified.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let pages = |bytes: u64| (bytes as usize / (PAGE_WORDS * 8)).max(1);
        let lanes = u64::from(spec.threads) + 1;
        // Whole rounds of words, so that lanes are the same in all windows.
        let window_pages = pages(spec.hot_size.bytes(spec.fast).0).next_multiple_of(lanes as usize);
        let all = pages(spec.size.bytes(spec.fast).0) + window_pages;
        let windows = (all + window_pages / 2) / window_pages;
        let windows = windows.max(2);
        let per_lane = |pages: usize| (pages * PAGE_WORDS) as u64 / lanes;
        Self {
            window_pages,
            windows,
            scatter: Scatter::new(window_pages * windows, spec.seed),
            layout: spec.layout,
            hot: spec.hot,
            lanes,
            choice: HotColdChooser::new(
                per_lane(window_pages),
                per_lane(window_pages * windows),
                spec.hot_share,
            ),
            seed: spec.seed,
            accesses: spec.accesses,
            seconds: spec.seconds,
            phase: spec.phase,
        }
    }

    /// The window that is hot at `now`: first the one touched last.
    fn hot_window(&self, now: Nanos) -> usize {
        let phase = (now.0 / self.phase.0.max(1)) as usize;
        (self.windows - 1 + phase % self.windows) % self.windows
    }

    /// Where logical word `word` (window by window) lies.
    #[inline(always)]
    const fn place<const SCATTERED: bool>(&self, word: usize) -> usize {
        if SCATTERED {
            self.scatter.page(word / PAGE_WORDS) * PAGE_WORDS + word % PAGE_WORDS
        } else {
            word
        }
    }

    fn place_any(&self, word: usize) -> usize {
        match self.layout {
            HotLayout::Contiguous => self.place::<false>(word),
            HotLayout::Scattered => self.place::<true>(word),
        }
    }

    fn run<const SCATTERED: bool, const WRITE: bool, M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut ShiftThread,
        count: u64,
        window: usize,
    ) {
        let first = (window * self.window_pages * PAGE_WORDS) as u64;
        let (own, nobody) = (first + thread.index, self.lanes - 1);
        let (mut random, mut sum, mut hot) = (thread.random, 0u64, 0u64);
        for _ in 0..count {
            let (is_hot, k) = self.choice.pick(random.next());
            let word = k * self.lanes + if is_hot { own } else { nobody };
            let word = self.place::<SCATTERED>(word as usize);
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

    const fn window_words(&self) -> usize {
        self.window_pages * PAGE_WORDS
    }

    /// Content of the word at `offset` of each window, before the measured phase.
    const fn initial(&self, offset: usize) -> u64 {
        (offset as u64 ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Algorithm for Shift {
    type Thread = ShiftThread;

    fn words(&self) -> usize {
        self.scatter.span() * PAGE_WORDS
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(890)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for window in 0..self.windows {
            for offset in 0..self.window_words() {
                let word = self.place_any(window * self.window_words() + offset);
                memory.store(word, self.initial(offset));
            }
        }
    }

    fn thread(&self, index: u32) -> ShiftThread {
        let (index, threads) = (u64::from(index), self.lanes - 1);
        let share = self.accesses / threads + u64::from(index < self.accesses % threads);
        let left = if self.seconds.is_some() { u64::MAX } else { share };
        ShiftThread { index, random: Lcg::new(self.seed, index), left, done: 0, hot: 0, sum: 0 }
    }

    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut ShiftThread,
        now: Nanos,
    ) -> ThreadStep {
        if self.seconds.is_some_and(|limit| now >= limit) {
            return ThreadStep::Done;
        }
        let (count, at) = (thread.left.min(STEP), self.hot_window(now));
        match (self.layout, self.hot) {
            (HotLayout::Contiguous, HotAccess::Write) => {
                self.run::<false, true, M>(memory, thread, count, at)
            }
            (HotLayout::Contiguous, HotAccess::Read) => {
                self.run::<false, false, M>(memory, thread, count, at)
            }
            (HotLayout::Scattered, HotAccess::Write) => {
                self.run::<true, true, M>(memory, thread, count, at)
            }
            (HotLayout::Scattered, HotAccess::Read) => {
                self.run::<true, false, M>(memory, thread, count, at)
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
        threads: &[ShiftThread],
    ) -> Result<WorkloadResult, WrongResult> {
        let (mut checksum, mut written) = (0u64, 0u64);
        for offset in 0..self.window_words() {
            let initial = self.initial(offset);
            let count = (0..self.windows).fold(0u64, |count, window| {
                let word = self.place_any(window * self.window_words() + offset);
                count.wrapping_add(memory.load(word).wrapping_sub(initial))
            });
            written = written.wrapping_add(count);
            checksum = checksum.wrapping_add(mix(count ^ (offset as u64) << 32));
        }
        let made = threads.iter().map(|t| t.hot).sum::<u64>();
        let expected = if self.hot == HotAccess::Write { made } else { 0 };
        if written != expected {
            return Err(WrongResult {
                workload: "shift",
                what: format!("{written} increments found where {expected} were made"),
            });
        }
        for thread in threads {
            checksum = mix(checksum ^ thread.sum).wrapping_add(thread.done);
        }
        Ok(WorkloadResult { accesses: threads.iter().map(|t| t.done).sum(), checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn results_do_not_depend_on_when_the_hot_set_moves() {
        let checksum = |text: &str, pace: u64| {
            let mut shift = Shift::new(&WorkloadSpec::parse(text).expect("valid"));
            let memory = Heap::new(shift.words());
            shift.prepare(&memory);
            let mut threads = [shift.thread(0), shift.thread(1)];
            let mut moved = std::collections::BTreeSet::new();
            for (turn, now) in (0..).step_by(2).map(|i| (i, Nanos(i * pace))) {
                moved.insert(shift.hot_window(now));
                let last = threads.each_mut().map(|t| match t.left {
                    0 => ThreadStep::Done,
                    _ => shift.step(&memory, t, now),
                });
                if last == [ThreadStep::Done; 2] || turn > 1_000 {
                    break;
                }
            }
            (shift.finish(&memory, &threads).expect("verified").checksum, moved.len())
        };
        for layout in ["hot=write", "hot=read", "layout=scattered", "layout=scattered,hot=read"] {
            let text = format!("shift,fast=1MiB,accesses=200k,phase_seconds=1,{layout}");
            let (still, windows) = checksum(&text, 0);
            assert_eq!(windows, 1);
            let (moving, windows) = checksum(&text, 700_000_000);
            assert_eq!(windows, 4);
            assert_eq!(still, moving, "{layout}");
        }
    }
}
