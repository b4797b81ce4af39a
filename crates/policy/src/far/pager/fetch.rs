//! What is brought in: what was touched, its neighbours, and what access streams will want next.

use super::busy::BusyChunk;
use super::{prefetch, BusyPhase, PageFault, Pager, PagerAction};
use crate::far::geometry::{ones, ChunkNo, FarPageNo, PageMask};
use terrace_types::Tick;

/// What an access stream is still to be given.
#[derive(Debug, Clone, Copy)]
pub(super) struct StalledPrefetch {
    touch: PageFault,
    ahead: prefetch::PrefetchSteps,
}

impl StalledPrefetch {
    /// Whether the same access stream has come by what was to be fetched here, or asks for it anew.
    fn is_overtaken(&self, touch: PageFault, ahead: prefetch::PrefetchSteps) -> bool {
        if self.touch.tid != touch.tid || self.ahead.stride != ahead.stride || ahead.stride == 0 {
            return false;
        }
        let at = self.touch.page as i64 + self.ahead.from as i64 * ahead.stride;
        let steps = (at - touch.page as i64) / ahead.stride;
        (steps < 0 && steps.unsigned_abs() <= 2 * ahead.to)
            || (ahead.from == 0 && steps.unsigned_abs() <= ahead.to)
    }
}

impl Pager {
    /// Brings a page that is neither mapped nor in a frame, with what probably comes next.
    pub(super) fn fetch(
        &mut self,
        chunk: ChunkNo,
        bit: PageMask,
        touch: PageFault,
        now: Tick,
    ) -> bool {
        self.guarded = Some(chunk);
        let served = self.fetch_guarded(chunk, bit, touch, now);
        self.guarded = None;
        let Some(ahead) = served else {
            return false;
        };
        if let Some(a) = ahead {
            self.fetch_ahead(Some(chunk), touch, a, now);
        }
        true
    }

    /// The part of a fetch within the touched chunk. `None`: not now.
    fn fetch_guarded(
        &mut self,
        chunk: ChunkNo,
        bit: PageMask,
        touch: PageFault,
        now: Tick,
    ) -> Option<Option<prefetch::PrefetchSteps>> {
        let stored = self.chunks[chunk as usize].stored & bit != 0;
        let missing = self.geometry.whole(chunk) & !self.chunks[chunk as usize].resident;
        if !self.make_space(u64::from(missing.count_ones()), now) {
            // Space for all that an access stream may want here comes when a victim is written; a
            // single page is for when nothing is under way.
            let soon = self.busy.values().any(|b| b.phase != BusyPhase::Parked);
            if soon || !self.make_space(1, now) {
                return None;
            }
        }
        if stored && !self.reserve_frame(1) {
            return None;
        }
        let ahead = self.prefetch.touch(touch.tid, touch.page, true);
        let trusted = ahead.is_some_and(|a| a.trusted);
        let alone =
            !touch.write && ahead.is_none() && self.prefetch.will_write(touch.tid, touch.page);
        let write = touch.write || alone || ahead.is_some_and(|a| a.write);
        let mut here = bit;
        if let Some(a) = ahead {
            // What the access stream wants of this chunk; all that it will want of it, when it is
            // trusted.
            let end =
                if trusted { a.to.max(u64::from(self.geometry.pages_per_chunk())) } else { a.to };
            let steps = (0..end).map_while(|n| self.step(touch.page, a.stride, n));
            let within = steps.map(|g| self.geometry.split(g)).take_while(|(u, _)| *u == chunk);
            let mask = within.fold(0, |m, (_, b)| m | b);
            if self.make_space(u64::from(mask.count_ones()), now) {
                here |= mask;
            }
        }
        let none = (0, 0);
        let (neighbours, left_out) =
            if stored && !trusted { self.neighbours_of(chunk, bit, touch, now) } else { none };
        let u = self.chunks[chunk as usize];
        here = (here | neighbours) & !u.resident & self.fetchable(chunk, here | neighbours);
        // Without trust, zeros that nobody asked for are not mapped, and what was read is mapped
        // when touched.
        let zeros = here & !u.stored & if trusted { here } else { bit };
        let read = here & u.stored;
        if zeros != 0 {
            self.map_zeros(chunk, zeros, write);
        }
        if read != 0 && self.reserve_frame(1) {
            if stored {
                self.counts.misses += 1;
            }
            let want = if trusted { read } else { read & (bit | neighbours) };
            if ahead.is_none() {
                let (around, n) = (u.resident | want | left_out, bit.trailing_zeros());
                let below = (around << (63 - n) << 1).leading_ones();
                let above = (around >> n >> 1).trailing_ones();
                self.prefetch.among(touch.tid, touch.page, below.into(), above.into());
            }
            let along = u64::from((want & neighbours & !bit).count_ones())
                * self.geometry.page_bytes() as u64;
            self.counts.prefetched_bytes += along;
            self.counts.mapped_ahead_bytes += along;
            self.begin_read(chunk, read, BusyChunk::reading(read, want, want & bit, write, touch));
        }
        Some(ahead)
    }

    /// What a lone miss brings along: of its 64 KiB, what was mapped when its chunk went, if that
    /// pays of late. And what is left out of it to see that.
    fn neighbours_of(
        &mut self,
        chunk: ChunkNo,
        bit: PageMask,
        touch: PageFault,
        now: Tick,
    ) -> (PageMask, PageMask) {
        if !self.prefetch.is_on() {
            return (0, 0);
        }
        self.neighbours.missed(touch.page);
        let together =
            (self.settings.tuning.around_bytes / self.geometry.page_bytes() as u64).max(1) as u32;
        let first = bit.trailing_zeros() / together * together;
        let u = &self.chunks[chunk as usize];
        let near = (ones(together) << first) & u.went & u.stored & !u.resident & !bit;
        let neighbours = self.neighbours.of(near, self.geometry.page_at(chunk, 0), self.budget);
        if neighbours != 0 && self.make_space(u64::from(neighbours.count_ones()) + 1, now) {
            (neighbours, near & !neighbours)
        } else {
            (0, 0)
        }
    }

    fn step(&self, from: FarPageNo, stride: i64, n: u64) -> Option<FarPageNo> {
        let to = from.checked_add_signed(stride.checked_mul(i64::try_from(n).ok()?)?)?;
        (to < self.geometry.pages()).then_some(to)
    }

    /// Pages of a mask that may be brought in: neither lost nor detached.
    pub(super) fn fetchable(&self, chunk: ChunkNo, mask: PageMask) -> PageMask {
        if self.detached.is_empty() && self.beyond.is_empty() {
            return self.not_lost(chunk, mask);
        }
        self.not_lost(chunk, mask & !self.detached(chunk))
    }

    pub(super) fn not_lost(&self, chunk: ChunkNo, mask: PageMask) -> PageMask {
        if self.lost.is_empty() {
            return mask;
        }
        let first = self.geometry.page_at(chunk, 0);
        let end = first + u64::from(self.geometry.pages_per_chunk());
        self.lost.range(first..end).fold(mask, |m, g| m & !(1 << (g - first)))
    }

    /// Fetches a stream's next steps, chunk by chunk, the last chunk to its end. What finds no
    /// frame or space now goes on when there is some.
    pub(super) fn fetch_ahead(
        &mut self,
        except: Option<ChunkNo>,
        touch: PageFault,
        ahead: prefetch::PrefetchSteps,
        now: Tick,
    ) {
        let per = u64::from(self.geometry.pages_per_chunk());
        self.clock.ahead((ahead.to * ahead.stride.unsigned_abs().clamp(1, per) / per) as usize);
        self.stalled.retain(|s| !s.is_overtaken(touch, ahead));
        if let Some(from) = self.fetch_steps(except, touch, ahead, true, now) {
            if self.stalled.len() >= self.settings.tuning.stalled {
                self.stalled.pop_front();
            }
            self.stalled.push_back(StalledPrefetch {
                touch,
                ahead: prefetch::PrefetchSteps { from, ..ahead },
            });
        }
    }

    /// Goes on with what found no frame or space before.
    pub(super) fn resume(&mut self, now: Tick) {
        while let Some(StalledPrefetch { touch, ahead }) = self.stalled.pop_front() {
            if let Some(from) = self.fetch_steps(None, touch, ahead, false, now) {
                self.stalled.push_front(StalledPrefetch {
                    touch,
                    ahead: prefetch::PrefetchSteps { from, ..ahead },
                });
                return;
            }
        }
    }

    /// The step from which on nothing could be fetched now, if any. `instead`: of what was fetched
    /// before and not touched.
    fn fetch_steps(
        &mut self,
        except: Option<ChunkNo>,
        touch: PageFault,
        ahead: prefetch::PrefetchSteps,
        instead: bool,
        now: Tick,
    ) -> Option<u64> {
        let mut step = ahead.from;
        while step < ahead.to {
            let Some(chunk) =
                self.step(touch.page, ahead.stride, step).map(|g| self.geometry.split(g).0)
            else {
                break;
            };
            let (mut mask, mut park, first) = (0, 0, step);
            while let Some((u, bit)) =
                self.step(touch.page, ahead.stride, step).map(|g| self.geometry.split(g))
            {
                if u != chunk || (step >= ahead.to && !ahead.trusted) {
                    break;
                }
                mask |= bit;
                if !ahead.trusted || ahead.marker == Some(step) {
                    park |= bit;
                }
                step += 1;
            }
            let write = touch.write || ahead.write;
            if Some(chunk) != except
                && !self.prefetch_chunk(chunk, mask, park, touch, write, instead, now)
            {
                return Some(first);
            }
        }
        // The last chunk was taken to its end: the stream need not ask for that again.
        self.prefetch.reached(touch.tid, touch.page, step);
        None
    }

    /// Fetches pages nobody waits for; false when there is no free space or frame now.
    #[allow(
        clippy::too_many_arguments,
        reason = "all but one describe the stream, and belong to no one thing"
    )]
    fn prefetch_chunk(
        &mut self,
        chunk: ChunkNo,
        mask: PageMask,
        park: PageMask,
        touch: PageFault,
        write: bool,
        instead: bool,
        now: Tick,
    ) -> bool {
        self.end_trial(chunk);
        let u = &self.chunks[chunk as usize];
        let mask = self.fetchable(chunk, mask & !u.resident);
        let (zeros, read) = (mask & !u.stored & !park, mask & u.stored);
        if let Some(b) = self.busy.get(&chunk) {
            // On its way already, or on its way out and easily had back.
            return b.phase == BusyPhase::Writing || mask & !b.mask == 0;
        }
        if zeros | read == 0 {
            return true;
        }
        let pages = u64::from((zeros | read).count_ones());
        self.guarded = Some(chunk);
        let fits = self.make_space(pages, now);
        self.guarded = None;
        // Half of the frames remain for those who wait.
        let half = self.settings.frames / 2;
        let full = read != 0 && self.busy.len() >= half;
        if !fits || (full && !(instead && self.reserve_frame(self.settings.frames - half + 1))) {
            return false;
        }
        if zeros != 0 {
            self.map_zeros(chunk, zeros, write);
        }
        if read != 0 {
            self.counts.prefetched_bytes +=
                u64::from(read.count_ones()) * self.geometry.page_bytes() as u64;
            self.neighbours.passed(u64::from(read.count_ones()));
            self.begin_read(chunk, read, BusyChunk::reading(read, read & !park, 0, write, touch));
        }
        true
    }

    fn map_zeros(&mut self, chunk: ChunkNo, mask: PageMask, write: bool) {
        self.record_mapped(chunk, mask, write);
        self.counts.zero_fills += 1;
        self.actions.push_back(PagerAction::Zeros { chunk, mask, protect: !write });
    }
}
