//! The pager's world: memory, frames and a store that is slow, out of order and sometimes fails.

use super::super::*;
use crate::far::geometry::runs;
use terrace_types::Seed;

pub(super) struct World {
    pub(super) pager: Pager,
    pub(super) geometry: Geometry,
    pub(super) now: Tick,
    pub(super) seed: Seed,
    /// Mapped pages: value and whether writing is allowed.
    pub(super) mapped: HashMap<FarPageNo, (u64, bool)>,
    pub(super) frames: HashMap<ChunkNo, HashMap<FarPageNo, u64>>,
    pub(super) store: HashMap<FarPageNo, u64>,
    /// What the program wrote last.
    pub(super) truth: HashMap<FarPageNo, u64>,
    pub(super) poisoned: BTreeSet<FarPageNo>,
    /// Pages that are not the pager's, and their values.
    pub(super) detached: HashMap<FarPageNo, u64>,
    /// Operations of the store under way: chunk, mask, write.
    pub(super) under_way: Vec<(ChunkNo, PageMask, bool)>,
    pub(super) answers: Vec<(u64, bool)>,
    pub(super) fail_reads: u64,
    pub(super) fail_writes: u64,
    pub(super) hold_back: u64,
    pub(super) max_mapped: usize,
    pub(super) max_frames: usize,
}

impl World {
    pub(super) fn new(chunks: u64, budget_chunks: u64, seed: u64) -> Self {
        let geometry = Geometry::new(Bytes(chunks << 16), Bytes(1 << 16), 12).unwrap();
        let settings = PagerSettings {
            budget: Bytes(budget_chunks << 16),
            frames: 24,
            standby: (budget_chunks / 8) as usize,
            window: Bytes::mib(1),
            tries: 3,
            stored: Bytes::ZERO,
            tuning: PagerTuning::USUAL,
        };
        Self {
            pager: Pager::new(geometry, settings),
            geometry,
            now: Tick(0),
            seed: Seed(seed),
            mapped: HashMap::new(),
            frames: HashMap::new(),
            store: HashMap::new(),
            truth: HashMap::new(),
            poisoned: BTreeSet::new(),
            detached: HashMap::new(),
            under_way: Vec::new(),
            answers: Vec::new(),
            fail_reads: 0,
            fail_writes: 0,
            hold_back: 0,
            max_mapped: 0,
            max_frames: 0,
        }
    }

    pub(super) fn chance(&mut self, below: u64) -> u64 {
        let (r, next) = self.seed.next();
        self.seed = next;
        r % below.max(1)
    }

    pub(super) fn per_thousand(&mut self, n: u64) -> bool {
        n > 0 && self.chance(1000) < n
    }

    pub(super) fn pages(&self, chunk: ChunkNo, mask: PageMask) -> Vec<FarPageNo> {
        runs(mask).flat_map(|(b, n)| b..b + n).map(|b| self.geometry.page_at(chunk, b)).collect()
    }

    /// Does what the pager asks, until it asks nothing.
    pub(super) fn act(&mut self) {
        while let Some(action) = self.pager.next_action() {
            match action {
                PagerAction::Read { chunk, mask } => {
                    self.frames.entry(chunk).or_default();
                    self.under_way.push((chunk, mask, false));
                }
                PagerAction::Write { chunk, mask } => {
                    assert!(self.frames.contains_key(&chunk), "write without frame");
                    self.under_way.push((chunk, mask, true));
                }
                PagerAction::Install { chunk, mask, protect } => {
                    for g in self.pages(chunk, mask) {
                        let value = *self.frames[&chunk]
                            .get(&g)
                            .expect("installed what the frame does not hold");
                        assert!(self.mapped.insert(g, (value, !protect)).is_none(), "mapped twice");
                    }
                }
                PagerAction::Zeros { chunk, mask, protect } => {
                    for g in self.pages(chunk, mask) {
                        assert_eq!(
                            self.truth.get(&g).copied().unwrap_or(0),
                            0,
                            "zeros for data of page {g}"
                        );
                        assert!(self.mapped.insert(g, (0, !protect)).is_none(), "mapped twice");
                    }
                }
                PagerAction::Release { chunk } => {
                    assert!(self.frames.remove(&chunk).is_some(), "released no frame");
                    assert!(
                        self.under_way.iter().all(|(u, _, _)| *u != chunk),
                        "released while in use"
                    );
                }
                PagerAction::Unprotect { chunk, mask } => {
                    for g in self.pages(chunk, mask) {
                        self.mapped.get_mut(&g).expect("unprotected what is not mapped").1 = true;
                    }
                }
                PagerAction::Drop { chunk, mask } => {
                    for g in self.pages(chunk, mask) {
                        let (value, _) =
                            self.mapped.remove(&g).expect("dropped what is not mapped");
                        let _: u64 = value;
                    }
                }
                PagerAction::Extract { chunk, mask, dirty } => {
                    assert_eq!(dirty & !mask, 0);
                    let frame = self.frames.entry(chunk).or_default();
                    assert!(frame.is_empty(), "a frame in use was taken");
                    let (mut got, mut zeros) = (0, 0);
                    let held = { self.hold_back };
                    for g in self.pages(chunk, mask) {
                        let bit = self.geometry.split(g).1;
                        if self.per_thousand(held) {
                            continue;
                        }
                        let (value, writable) =
                            self.mapped.remove(&g).expect("extracted what is not mapped");
                        assert!(
                            dirty & bit != 0 || !writable,
                            "page {g}: what is not protected may have been written"
                        );
                        self.frames.get_mut(&chunk).unwrap().insert(g, value);
                        got |= bit;
                        zeros |= if value == 0 { bit } else { 0 };
                    }
                    self.pager.extracted(chunk, got, zeros, self.now);
                }
                PagerAction::CopyOut { chunk, mask } => {
                    let mut frame = HashMap::new();
                    for g in self.pages(chunk, mask) {
                        let page = self.mapped.get_mut(&g).expect("copied what is not mapped");
                        page.1 = false;
                        frame.insert(g, page.0);
                    }
                    self.frames.insert(chunk, frame);
                    self.pager.extracted(chunk, mask, 0, self.now);
                }
                PagerAction::Wake { chunk, mask, .. } => {
                    for g in self.pages(chunk, mask) {
                        let there = self.mapped.contains_key(&g) || self.detached.contains_key(&g);
                        assert!(there, "woken for what is not mapped");
                    }
                }
                PagerAction::Poison { chunk, mask, .. } => {
                    for g in self.pages(chunk, mask) {
                        assert!(!self.mapped.contains_key(&g), "poisoned what is there");
                        self.poisoned.insert(g);
                    }
                }
                PagerAction::Forget { chunk, mask } => {
                    for g in self.pages(chunk, mask) {
                        self.store.remove(&g);
                    }
                }
                PagerAction::Cure { chunk, mask } => {
                    for g in self.pages(chunk, mask) {
                        self.poisoned.remove(&g);
                    }
                }
                PagerAction::Detach { chunk, mask } => {
                    for g in self.pages(chunk, mask) {
                        let value = self.mapped.remove(&g).map_or(0, |(value, _)| value);
                        assert!(self.detached.insert(g, value).is_none(), "detached twice");
                    }
                }
                PagerAction::Answer { command, ok } => self.answers.push((command, ok)),
            }
            self.max_mapped = self.max_mapped.max(self.mapped.len());
            self.max_frames = self.max_frames.max(self.frames.len());
        }
    }

    /// One operation of the store ends, any of those under way.
    pub(super) fn complete(&mut self) -> bool {
        if self.under_way.is_empty() {
            let Some(wait) = self.pager.deadline(self.now) else {
                return false;
            };
            self.now = self.now.after(wait);
            self.pager.balance(self.now);
            self.act();
            return true;
        }
        let n = self.chance(self.under_way.len() as u64) as usize;
        let (chunk, mask, write) = self.under_way.swap_remove(n);
        self.now = self.now.after(Nanos::micros(30));
        let (fr, fw) = (self.fail_reads, self.fail_writes);
        if write {
            let failed = self.per_thousand(fw);
            for g in self.pages(chunk, mask) {
                let value = self.frames[&chunk][&g];
                // A failed write leaves anything behind.
                self.store.insert(g, if failed { u64::MAX } else { value });
            }
            self.pager.write_done(
                chunk,
                if failed { WriteOutcome::Failed } else { WriteOutcome::Done },
                self.now,
            );
        } else {
            let failed = self.per_thousand(fr);
            for g in self.pages(chunk, mask) {
                let value = self.store.get(&g).copied().expect("read what was never stored");
                self.frames.get_mut(&chunk).unwrap().insert(g, value);
            }
            self.pager.read_done(
                chunk,
                if failed { ReadOutcome::Failed } else { ReadOutcome::Done },
                self.now,
            );
        }
        self.act();
        true
    }

    /// A thread touches a page and waits until it may. None when the page is lost.
    pub(super) fn access(&mut self, tid: i32, page: FarPageNo, write: Option<u64>) -> Option<u64> {
        if let (Some(value), false) = (self.detached.get_mut(&page), self.poisoned.contains(&page))
        {
            let truth = self.truth.entry(page).or_default();
            assert_eq!(value, truth, "detached page {page} reads wrong");
            *truth = write.unwrap_or(*truth);
            *value = *truth;
            return Some(*value);
        }
        for _ in 0..100_000 {
            match self.mapped.get(&page).copied() {
                Some((value, writable)) => {
                    assert_eq!(
                        value,
                        self.truth.get(&page).copied().unwrap_or(0),
                        "page {page} reads wrong"
                    );
                    let Some(new) = write else {
                        return Some(value);
                    };
                    if writable {
                        self.mapped.insert(page, (new, true));
                        self.truth.insert(page, new);
                        return Some(new);
                    }
                }
                None if self.poisoned.contains(&page) => return None,
                None => {}
            }
            let protected = self.mapped.contains_key(&page);
            self.pager.touch(
                PageFault { tid: Tid(tid), page, write: write.is_some(), protected },
                self.now,
            );
            self.act();
            let allowed = |w: &Self| match w.mapped.get(&page) {
                Some((_, writable)) => *writable || write.is_none(),
                None => w.poisoned.contains(&page),
            };
            while !allowed(self) && self.complete() {}
        }
        let p = &self.pager;
        let touches = p.deferred.iter().take(3).collect::<Vec<_>>();
        let (chunk, busy) = (p.chunks[(page / 16) as usize], &p.busy);
        panic!(
            "page {page} never came: {touches:?} {chunk:x?} used {} of {} mapped {} {:?} {busy:?} \
                {:?}",
            p.used,
            p.budget,
            self.mapped.len(),
            p.clock,
            self.under_way
        );
    }

    /// Gives a range up.
    pub(super) fn detach(
        &mut self,
        command: u64,
        range: std::ops::Range<u64>,
        contents: DiscardedContents,
    ) {
        let cover: Vec<_> = self.geometry.cover(range.clone(), true).collect();
        let all: Vec<_> = cover.into_iter().flat_map(|(u, mask)| self.pages(u, mask)).collect();
        if contents == DiscardedContents::Drop {
            for g in &all {
                self.truth.remove(g);
                self.poisoned.remove(g);
                self.detached.entry(*g).and_modify(|value| *value = 0);
            }
        }
        self.pager.detach(command, range, contents, self.now);
        self.act();
        self.record_mapped();
        assert_eq!(self.answers.pop(), Some((command, true)), "a detach is answered");
        assert!(all.iter().all(|g| self.detached.contains_key(g)));
    }

    /// Takes a range over, with what is mapped there.
    pub(super) fn attach(&mut self, range: std::ops::Range<u64>) {
        let cover: Vec<_> = self.geometry.cover(range.clone(), true).collect();
        let all: Vec<_> = cover.into_iter().flat_map(|(u, mask)| self.pages(u, mask)).collect();
        // Those of the range that are the pager's already are not reported again.
        for g in all {
            let Some(value) = self.detached.remove(&g) else { continue };
            self.pager.attach(g << 12..(g + 1) << 12);
            if !self.poisoned.contains(&g) && value != 0 {
                self.mapped.insert(g, (value, true));
                self.pager.adopt(g << 12..(g + 1) << 12);
            }
        }
        self.pager.balance(self.now);
        self.act();
    }

    pub(super) fn record_mapped(&mut self) {
        while self.complete() {}
    }
}
