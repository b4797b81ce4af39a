//! What will be touched next: streams, and the majority trend of a thread's faults.
//!
//! A *stream* is a thread's access stream with a constant stride. Its window doubles while it
//! proves right (Leap, "Effectively Prefetching Remote Memory with Leap", USENIX ATC 2020,
//! algorithms 1 to 3: the majority of the last deltas over a window that doubles from a quarter of
//! the history; window from hits, 0 after a wrong guess). A fault that fits no stream goes into the
//! thread's history, and a majority found there starts one, so an access stream with some noise in
//! it is found too.
//!
//! Pages that are mapped ahead of need fault no more, so nothing would tell that they were needed.
//! Hence *markers*: one position in the middle of each window is fetched and left out of the map.
//! Its fault costs little, says that the access stream came so far, and is the moment to fetch the
//! next half window. Streams not yet trusted leave out all that they fetch, and so count each hit.

use super::PagerTuning;
use crate::far::geometry::FarPageNo;
use std::collections::HashMap;
use terrace_types::Tid;

/// Faults remembered a thread (Leap's H_size).
const HISTORY: usize = 32;
/// Threads remembered.
const THREADS: usize = 4096;

/// Steps to fetch, the position of the fault included as step 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefetchSteps {
    /// Pages from one step to the next.
    pub stride: i64,
    /// First step to fetch; those before were fetched earlier.
    pub from: u64,
    /// End of the steps to fetch.
    pub to: u64,
    /// The step that is left out of the map, if any.
    pub marker: Option<u64>,
    /// Map what was fetched at once; otherwise only when touched.
    pub trusted: bool,
    /// The access stream writes what it comes by: what was fetched is mapped for writing.
    pub write: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct AccessStream {
    last: FarPageNo,
    stride: i64,
    /// Steps beyond `last` that have been asked for.
    ahead: u64,
    window: u64,
    used: u64,
    /// Of a lone fault: pages below and above it, without a gap, that came or were there with it.
    around: (u64, u64),
    /// It wrote to a page mapped against writing since its last fault.
    wrote: bool,
    /// Its last fault was on a page that was then mapped against writing, to see whether it writes.
    probed: bool,
    /// It writes what it comes by, as far as seen.
    writes: bool,
}

#[derive(Debug, Default)]
struct ThreadStreams {
    streams: Vec<AccessStream>,
    deltas: [i64; HISTORY],
    count: usize,
    last: FarPageNo,
    used: u64,
    /// The last lone miss that was mapped against writing, to see whether it is written.
    observed: Option<FarPageNo>,
    /// How often such misses were written lately, and misses since one was observed.
    writes: i32,
    unwatched: u32,
    tuning: PagerTuning,
}

/// All threads' streams.
#[derive(Debug)]
pub struct FarPrefetcher {
    threads: HashMap<Tid, ThreadStreams>,
    clock: u64,
    most: u64,
    /// Pages of a chunk.
    per: u64,
    enabled: bool,
    tuning: PagerTuning,
}

impl FarPrefetcher {
    /// Windows of at most `most` steps, and fewer where strides are so long that they would span
    /// more than [`PagerTuning::span`] times that many pages in chunks of `per`; 0 switches it off.
    #[must_use]
    pub fn new(most: u64, per: u64, tuning: PagerTuning) -> Self {
        let threads = HashMap::new();
        Self { threads, clock: 0, most: most.max(2), per, enabled: most > 0, tuning }
    }

    /// Whether anything may be fetched ahead.
    pub const fn is_on(&self) -> bool {
        self.enabled
    }

    /// Changes the longest window.
    pub fn limit(&mut self, most: u64) {
        self.most = most.max(2);
    }

    /// A thread touched `at` and it was not mapped. `missing`: nor was it on its way. What to fetch
    /// with it.
    pub fn touch(&mut self, tid: Tid, at: FarPageNo, missing: bool) -> Option<PrefetchSteps> {
        if !self.enabled {
            return None;
        }
        self.clock += 1;
        if self.threads.len() > THREADS {
            let old = self.clock.saturating_sub(THREADS as u64);
            self.threads.retain(|_, t| t.used > old);
        }
        let (clock, most) =
            (self.clock, PrefetchReach { most: self.most, per: self.per, tuning: self.tuning });
        let thread = self
            .threads
            .entry(tid)
            .or_insert_with(|| ThreadStreams { tuning: self.tuning, ..ThreadStreams::default() });
        thread.used = clock;
        if let Some(stream) = thread.follow(at) {
            stream.used = clock;
            return stream.advance(at, most, missing);
        }
        let trend = thread.remember(at);
        if let Some(stride) = trend {
            // The seed that this fault would be is this stream.
            let mut stream = AccessStream {
                last: at,
                stride,
                ahead: 0,
                window: 1,
                used: clock,
                ..AccessStream::default()
            };
            let ahead = stream.advance(at, most, missing);
            thread.keep(stream);
            return ahead;
        }
        thread.keep(AccessStream {
            last: at,
            stride: 0,
            ahead: 0,
            window: 1,
            used: clock,
            ..AccessStream::default()
        });
        None
    }

    /// A thread wrote to a page mapped against writing. True when that is part of an access stream,
    /// which will go on writing.
    pub fn wrote(&mut self, tid: Tid, at: FarPageNo) -> bool {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return false;
        };
        if thread.observed == Some(at) {
            thread.observed = None;
            thread.writes = (thread.writes + 1).min(8);
        }
        let (trusted, mut part) = (self.tuning.trusted_window, false);
        for s in &mut thread.streams {
            if s.window >= trusted && s.steps_to(at).is_some_and(|n| n <= s.ahead) {
                s.wrote = true;
                part = true;
            }
        }
        part
    }

    /// An access stream's fault at `at` was served by mapping it against writing.
    pub fn probed(&mut self, tid: Tid, at: FarPageNo) {
        if let Some(s) = self.stream(tid, at) {
            s.probed = true;
        }
    }

    /// Whether a lone miss by reading is likely to be followed by a write, as this thread's were
    /// lately: then it is mapped for writing at once, which saves a fault. Each eighth is not, to
    /// see whether that is still so.
    pub fn will_write(&mut self, tid: Tid, at: FarPageNo) -> bool {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return false;
        };
        if thread.observed.take().is_some() {
            thread.writes = (thread.writes - 2).max(0);
        }
        thread.unwatched += 1;
        if thread.writes >= 4 && thread.unwatched % 8 != 0 {
            return true;
        }
        thread.observed = Some(at);
        false
    }

    /// The lone fault at `at` has pages around it, without a gap: so many below and above. An
    /// access stream would fault next beyond them.
    pub fn among(&mut self, tid: Tid, at: FarPageNo, below: u64, above: u64) {
        let streams = self.threads.get_mut(&tid).map(|t| &mut t.streams);
        if let Some(s) = streams.and_then(|s| s.iter_mut().find(|s| s.last == at && s.stride == 0))
        {
            s.around = (below, above);
        }
    }

    /// What was last advised to `tid` at `at` was fetched up to, not including, step `end`; the
    /// rest is to be asked for again.
    pub fn reached(&mut self, tid: Tid, at: FarPageNo, end: u64) {
        if let Some(s) = self.stream(tid, at) {
            s.ahead = end.saturating_sub(1);
        }
    }

    /// What was fetched for `tid`'s access stream near `at` was thrown away untouched.
    pub fn report_unused(&mut self, tid: Tid, at: FarPageNo) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            for s in &mut thread.streams {
                if s.steps_to(at).is_some_and(|n| n <= s.ahead) {
                    s.window = (s.window / 2).max(1);
                    s.ahead = 0;
                }
            }
        }
    }

    fn stream(&mut self, tid: Tid, at: FarPageNo) -> Option<&mut AccessStream> {
        self.threads.get_mut(&tid)?.streams.iter_mut().find(|s| s.last == at && s.stride != 0)
    }
}

/// How far a window goes.
#[derive(Debug, Clone, Copy)]
struct PrefetchReach {
    most: u64,
    per: u64,
    tuning: PagerTuning,
}

impl PrefetchReach {
    fn steps(self, stride: i64) -> u64 {
        self.most
            .min(self.tuning.span * self.most / stride.unsigned_abs().clamp(1, self.per))
            .max(2)
    }
}

impl AccessStream {
    /// Steps from the last position to `at`; `None` when `at` is not on the path.
    fn steps_to(&self, at: FarPageNo) -> Option<u64> {
        let delta = at.wrapping_sub(self.last) as i64;
        if self.stride == 0 || delta.checked_rem(self.stride)? != 0 {
            return None;
        }
        u64::try_from(delta / self.stride).ok()
    }

    /// Stride and window of the access stream that a lone fault and one at `at` are, if they are
    /// one: side by side, or with nothing between them but what came with the first. Another fault
    /// among those is of no access stream.
    fn begun_by(&self, at: FarPageNo, near: i64) -> Option<(i64, u64)> {
        let delta = at.wrapping_sub(self.last) as i64;
        let (below, above) = (self.around.0 as i64, self.around.1 as i64);
        if self.stride != 0 || delta == 0 {
            None
        } else if delta == above + 1 {
            Some((1, above.max(1) as u64))
        } else if delta == -below - 1 {
            Some((-1, below.max(1) as u64))
        } else {
            (delta.abs() <= near && (delta > above || delta < -below)).then_some((delta, 1))
        }
    }

    fn advance(
        &mut self,
        at: FarPageNo,
        most: PrefetchReach,
        missing: bool,
    ) -> Option<PrefetchSteps> {
        let steps = self.steps_to(at).unwrap_or(0);
        // What was asked for and is not there has gone again, or never came: all of it is asked for
        // anew.
        let late = missing || steps > self.ahead;
        // Markers are mapped against writing, so each half window says anew whether the access
        // stream writes; other faults say nothing.
        let (wrote, probed) = (std::mem::take(&mut self.wrote), std::mem::take(&mut self.probed));
        self.writes = wrote || (self.writes && !probed);
        // Right so far: twice as much, whether it was in time or came late.
        if steps > 0 || self.window == 1 {
            self.window *= 2;
        }
        self.window = self.window.min(most.steps(self.stride));
        self.ahead = if late { 0 } else { self.ahead - steps };
        self.last = at;
        if self.ahead > self.window / 2 {
            return None;
        }
        let from = if self.ahead == 0 { 0 } else { self.ahead + 1 };
        let to = self.window + 1;
        self.ahead = self.window;
        let trusted = self.window >= most.tuning.trusted_window;
        let marker = (self.window / 2).max(from);
        let write = self.writes;
        Some(PrefetchSteps {
            stride: self.stride,
            from,
            to,
            marker: (trusted && marker > 0).then_some(marker),
            trusted,
            write,
        })
    }
}

impl ThreadStreams {
    /// The stream that `at` continues: one fetched ahead beyond it, or that expects it next; or a
    /// lone fault nearby, which becomes one.
    fn follow(&mut self, at: FarPageNo) -> Option<&mut AccessStream> {
        let PagerTuning { trusted_window: trusted, near_pages, .. } = self.tuning;
        // An access stream that has earned its window may have gone over mapped pages for about
        // that long without a fault.
        let reach = |s: &AccessStream| {
            2 + if s.window >= trusted { s.ahead.max(s.window) } else { s.ahead }
        };
        let known = self.streams.iter().position(|s| s.steps_to(at).is_some_and(|n| n <= reach(s)));
        let found = known.or_else(|| {
            let near = self.streams.iter().position(|s| s.begun_by(at, near_pages).is_some())?;
            let s = &mut self.streams[near];
            (s.stride, s.window) = s.begun_by(at, near_pages)?;
            s.last = at;
            Some(near)
        })?;
        self.last = at;
        self.streams.get_mut(found)
    }

    /// Leap's FindTrend over this thread's deltas, `at` included.
    fn remember(&mut self, at: FarPageNo) -> Option<i64> {
        let delta = at.wrapping_sub(self.last) as i64;
        self.last = at;
        self.deltas[self.count % HISTORY] = delta;
        self.count += 1;
        let newest = |n: usize| self.deltas[(self.count - 1 - n) % HISTORY];
        let mut window = self.tuning.first_window;
        while window <= HISTORY && self.count > window {
            // Boyer and Moore's vote, and a second pass to see that it is a majority.
            let (mut candidate, mut votes) = (0, 0_u32);
            for n in 0..window {
                if votes == 0 {
                    candidate = newest(n);
                }
                if newest(n) == candidate {
                    votes += 1;
                } else {
                    votes -= 1;
                }
            }
            let have = (0..window).filter(|n| newest(*n) == candidate).count();
            if have > window / 2 {
                // A trend that this very fault does not follow is no reason to fetch.
                return (candidate != 0 && delta == candidate).then_some(candidate);
            }
            window *= 2;
        }
        None
    }

    fn keep(&mut self, stream: AccessStream) {
        if self.streams.len() >= self.tuning.streams {
            let oldest =
                self.streams.iter().enumerate().min_by_key(|(_, s)| s.used).map(|(n, _)| n);
            if let Some(oldest) = oldest {
                self.streams.swap_remove(oldest);
            }
        }
        self.streams.push(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Seed;

    const T: Tid = Tid(7);

    /// Follows positions and returns how many positions had been fetched before they were touched,
    /// and how many were fetched.
    fn stream(
        prefetcher: &mut FarPrefetcher,
        positions: impl Iterator<Item = u64>,
    ) -> (usize, usize, usize) {
        let mut mapped = std::collections::HashSet::new();
        let mut parked = std::collections::HashSet::new();
        let (mut hits, mut faults) = (0, 0);
        for at in positions {
            if mapped.contains(&at) {
                hits += 1;
                continue;
            }
            faults += 1;
            hits += usize::from(parked.contains(&at));
            mapped.insert(at);
            if let Some(a) = prefetcher.touch(T, at, !parked.contains(&at)) {
                for step in a.from..a.to {
                    let to = at.wrapping_add_signed(a.stride * step as i64);
                    let set =
                        if a.trusted && a.marker != Some(step) { &mut mapped } else { &mut parked };
                    set.insert(to);
                }
            }
        }
        (hits, faults, mapped.union(&parked).count())
    }

    #[test]
    fn streams_up_down_and_strided_are_prefetched() {
        for stride in [1_i64, -1, 3, -16, 500, 4000] {
            // As with 64 MiB of memory.
            let mut p = FarPrefetcher::new(1024, 16, PagerTuning::USUAL);
            let (hits, faults, _) =
                stream(&mut p, (0..2000).map(|n| (1_i64 << 40).wrapping_add(n * stride) as u64));
            let seeds = if stride.abs() <= PagerTuning::USUAL.near_pages { 2 } else { 12 };
            assert!(
                hits >= 2000 - seeds && faults < 60,
                "stride {stride}: {hits} hits, {faults} faults"
            );
        }
    }

    #[test]
    fn a_readahead_window_spans_a_bounded_number_of_chunks() {
        for stride in [1_i64, 2, 3, -15, 16, 500] {
            let mut p = FarPrefetcher::new(256, 16, PagerTuning::USUAL);
            let mut farthest = 0;
            for n in 0..2000 {
                let at = (1_i64 << 40).wrapping_add(n * stride) as u64;
                farthest = farthest.max(p.touch(Tid(1), at, false).map_or(0, |a| a.to));
            }
            let chunks = farthest * stride.unsigned_abs().min(16) / 16;
            assert!(
                chunks <= 65 && (farthest == 257 || chunks >= 60),
                "stride {stride}: {farthest} steps, {chunks} chunks ahead"
            );
        }
    }

    #[test]
    fn three_interleaved_streams_are_distinguished() {
        let mut p = FarPrefetcher::new(256, 16, PagerTuning::USUAL);
        let at = (0..6000_u64).map(|n| (n % 3) * 1_000_000 + n / 3);
        let (hits, faults, fetched) = stream(&mut p, at);
        assert!(hits > 5950 && faults < 150 && fetched < 7000, "{hits} {faults} {fetched}");
    }

    #[test]
    fn a_noisy_stream_is_found_by_majority() {
        let mut p = FarPrefetcher::new(64, 16, PagerTuning::USUAL);
        let mut seed = Seed(5);
        let mut at = 1_u64 << 30;
        let positions: Vec<u64> = (0..3000)
            .map(|_| {
                let (r, next) = seed.next();
                seed = next;
                if r % 5 == 0 {
                    return (1 << 50) + (r >> 20);
                }
                at += 700;
                at
            })
            .collect();
        let (hits, _, _) = stream(&mut p, positions.into_iter());
        assert!(hits > 2000, "{hits}");
    }

    #[test]
    fn chance_is_hardly_fetched_for() {
        let mut p = FarPrefetcher::new(256, 16, PagerTuning::USUAL);
        let mut seed = Seed(1);
        let positions: Vec<u64> = (0..20_000)
            .map(|_| {
                let (r, next) = seed.next();
                seed = next;
                r % (1 << 24)
            })
            .collect();
        let (_, faults, fetched) = stream(&mut p, positions.into_iter());
        assert!(faults > 19_000 && fetched < 20_200, "{faults} {fetched}");
    }

    #[test]
    fn a_wrong_prediction_shrinks_the_readahead_window() {
        let mut p = FarPrefetcher::new(256, 16, PagerTuning::USUAL);
        for at in 0..200 {
            p.touch(T, at, true);
        }
        p.report_unused(T, 201);
        let after = p.threads[&T].streams.iter().find(|s| s.stride == 1).unwrap();
        assert!(after.window <= 128 && after.ahead == 0);
    }

    #[test]
    fn streams_that_write_are_recognised_until_they_stop() {
        let mut p = FarPrefetcher::new(64, 16, PagerTuning::USUAL);
        let mut guesses = [0, 0];
        for n in 0..400_u64 {
            let at = n * 7919 % 100_003 * 1000;
            p.touch(T, at, true);
            let guess = p.will_write(T, at);
            let writes = n < 200;
            guesses[usize::from(!writes)] += i32::from(guess);
            if writes && !guess {
                p.wrote(T, at);
            }
        }
        assert!(guesses[0] > 160 && guesses[1] < 40, "{guesses:?}");
        let mut stream = FarPrefetcher::new(64, 16, PagerTuning::USUAL);
        let writes: Vec<bool> = (0..300)
            .filter_map(|at| {
                let ahead = stream.touch(T, at, false)?;
                assert!(ahead.window_is_small() || stream.wrote(T, at));
                Some(ahead.write)
            })
            .collect();
        assert!(writes.last() == Some(&true));
    }

    impl PrefetchSteps {
        fn window_is_small(&self) -> bool {
            !self.trusted
        }
    }

    #[test]
    fn a_stalled_prefetch_is_requested_again() {
        let mut p = FarPrefetcher::new(64, 16, PagerTuning::USUAL);
        for at in 0..3 {
            p.touch(T, at, true);
        }
        let before = p.threads[&T].streams[0].ahead;
        p.reached(T, 2, 1);
        assert!(before > 0 && p.threads[&T].streams[0].ahead == 0);
        assert!(p.touch(T, 3, true).is_some_and(|a| a.from == 0 && a.to > 1));
    }
}
