//! Levels of caches between cores and memory, coherent by MESI.
//!
//! An access looks from the nearest level outwards and fills on its way back. What leaves a level
//! dirty is written to the next level out that has the line, else to memory. Private caches of
//! different cores are kept coherent where the shared levels begin (at memory, if there are none):
//! a write takes the line from all other cores, a read leaves it shared and its changes written
//! out.

use crate::level::{CachedLine, LineFlags, SetAssociativeCache};
use crate::prefetch::{Prefetch, Prefetcher};
use crate::spec::{HierarchyError, HierarchySpec, Inclusion, LevelSpec};

/// What memory is asked to do, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryTraffic {
    /// A line is read.
    Read(u64),
    /// A line is written: written back, flushed or written through.
    Write(u64),
}

/// A core's view of a line, by MESI's four states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mesi {
    /// This core alone has it, changed.
    Modified,
    /// This core alone has it, as memory (or a shared level) has it.
    Exclusive,
    /// Others may have it too.
    Shared,
    /// This core does not have it.
    Invalid,
}

/// What one level did, all its caches together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LevelCount {
    /// Demands that found their line.
    pub hits: u64,
    /// Demands that did not.
    pub misses: u64,
    /// Lines that left for lack of space, dirty or not.
    pub evictions: u64,
    /// Dirty lines handed on outwards.
    pub writebacks: u64,
    /// Lines fetched unasked.
    pub prefetches: u64,
    /// Of those, lines that a demand found later.
    pub useful: u64,
    /// Lines taken away by other cores, by flushes and by outer levels that include this one.
    pub invalidations: u64,
}

/// One level: one cache, or one a core.
#[derive(Debug, Clone)]
struct HierarchyLevel {
    spec: LevelSpec,
    caches: Vec<SetAssociativeCache>,
    prefetchers: Vec<Prefetcher>,
    count: LevelCount,
}

impl HierarchyLevel {
    #[inline(always)]
    fn at(&self, core: usize) -> usize {
        if self.spec.shared {
            0
        } else {
            core
        }
    }

    /// The caches of the first so many cores, or the one that all share.
    #[inline(always)]
    fn of_first(&mut self, cores: usize) -> &mut [SetAssociativeCache] {
        let count = if self.spec.shared { 1 } else { cores };
        &mut self.caches[..count]
    }
}

/// All levels.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    tiers: Vec<HierarchyLevel>,
    cores: usize,
    /// Cores that accessed anything, or have a smaller number than one that did: the private
    /// caches of the others are empty, and nobody looks there.
    active: usize,
    /// Levels that are private, from the first on.
    private: usize,
    line_shift: u32,
    wanted: Vec<u64>,
}

const PLAIN: LineFlags = LineFlags::DIRTY.without(LineFlags::DIRTY);
const PAGE_SHIFT: u32 = 12;

impl Hierarchy {
    /// Empty caches.
    ///
    /// # Errors
    /// [`HierarchyError`].
    pub fn new(spec: &HierarchySpec) -> Result<Self, HierarchyError> {
        spec.check()?;
        let mut tiers = Vec::with_capacity(spec.levels.len());
        for (index, level) in spec.levels.iter().enumerate() {
            let cache =
                SetAssociativeCache::new(level.bytes, level.ways, spec.line, level.replacement)
                    .map_err(|why| HierarchyError::Level { level: index, why })?;
            let copies = if level.shared { 1 } else { spec.cores };
            tiers.push(HierarchyLevel {
                spec: *level,
                caches: vec![cache; copies],
                prefetchers: vec![Prefetcher::default(); copies],
                count: LevelCount::default(),
            });
        }
        Ok(Self {
            private: spec.levels.iter().take_while(|l| !l.shared).count(),
            tiers,
            cores: spec.cores,
            active: 0,
            line_shift: spec.line.trailing_zeros(),
            wanted: Vec::new(),
        })
    }

    /// What each level did so far, nearest first.
    #[must_use]
    pub fn counts(&self) -> Vec<LevelCount> {
        self.tiers.iter().map(|t| t.count).collect()
    }

    /// An access of `size` bytes (at least one) at `address`: every line of it. Says the index of
    /// the outermost level that had to serve; as many as there are levels: memory did. `memory` is
    /// told what reaches it.
    pub fn access(
        &mut self,
        core: usize,
        address: u64,
        size: u64,
        write: bool,
        memory: &mut impl FnMut(MemoryTraffic),
    ) -> usize {
        let (first, last) = (
            address >> self.line_shift,
            address.saturating_add(size.max(1) - 1) >> self.line_shift,
        );
        (first..=last).map(|line| self.access_line(core, line, write, memory)).max().unwrap_or(0)
    }

    /// As [`Self::access`], of one line by its number.
    #[inline]
    pub fn access_line(
        &mut self,
        core: usize,
        line: u64,
        write: bool,
        memory: &mut impl FnMut(MemoryTraffic),
    ) -> usize {
        let core = core % self.cores;
        self.active = self.active.max(core + 1);
        // The common case: a load that hits the first level, or a store to a line that is this
        // core's alone there.
        let tier = &mut self.tiers[0];
        let at = tier.at(core);
        if !write {
            if let Some(flags) = tier.caches[at].touch(line, PLAIN, LineFlags::PREFETCHED) {
                tier.count.hits += 1;
                tier.count.useful += u64::from(flags.has(LineFlags::PREFETCHED));
                return 0;
            }
            return self.read(core, 0, line, memory).0;
        }
        self.write(core, line, memory)
    }

    /// Looks for a line from `level` outwards and fills on the way back: the level that had it, and
    /// the flags that it comes with.
    fn read(
        &mut self,
        core: usize,
        level: usize,
        line: u64,
        memory: &mut impl FnMut(MemoryTraffic),
    ) -> (usize, LineFlags) {
        let Some(tier) = self.tiers.get_mut(level) else {
            memory(MemoryTraffic::Read(line));
            return (level, LineFlags::EXCLUSIVE);
        };
        let at = tier.at(core);
        if let Some(flags) = tier.caches[at].touch(line, PLAIN, LineFlags::PREFETCHED) {
            tier.count.hits += 1;
            tier.count.useful += u64::from(flags.has(LineFlags::PREFETCHED));
            if level > 0 && tier.spec.inclusion == Inclusion::Exclusive {
                tier.caches[at].remove(line);
                return (level, flags.without(LineFlags::PREFETCHED));
            }
            let carried =
                if flags.has(LineFlags::EXCLUSIVE) { LineFlags::EXCLUSIVE } else { PLAIN };
            return (level, carried);
        }
        tier.count.misses += 1;
        // Where private caches end, other cores are asked first.
        let others = level + 1 == self.private && self.cores > 1 && self.share(core, line, memory);
        let (served, mut flags) = self.read(core, level + 1, line, memory);
        if others {
            // Changes that came out of an exclusive level cannot stay with a line that others have
            // too.
            if flags.has(LineFlags::DIRTY) {
                memory(MemoryTraffic::Write(line));
            }
            flags = flags.without(LineFlags::EXCLUSIVE.with(LineFlags::DIRTY));
        } else if level + 1 == self.private {
            flags = flags.with(LineFlags::EXCLUSIVE);
        }
        let exclusive_here = level > 0 && self.tiers[level].spec.inclusion == Inclusion::Exclusive;
        if !exclusive_here {
            let passed_on = self.fill(core, level, line, flags, memory);
            self.prefetch(core, level, line, memory);
            return (served, passed_on);
        }
        (served, flags)
    }

    /// Lets a line into a level; gives what is known of it at the next nearer one. Changes stay
    /// here.
    fn fill(
        &mut self,
        core: usize,
        level: usize,
        line: u64,
        flags: LineFlags,
        memory: &mut impl FnMut(MemoryTraffic),
    ) -> LineFlags {
        let at = self.tiers[level].at(core);
        if let Some(left) = self.tiers[level].caches[at].insert(line, flags) {
            self.tiers[level].count.evictions += 1;
            self.leave(core, level, left, memory);
        }
        flags.without(LineFlags::DIRTY)
    }

    /// A line has left a level for lack of space.
    fn leave(
        &mut self,
        core: usize,
        level: usize,
        left: CachedLine,
        memory: &mut impl FnMut(MemoryTraffic),
    ) {
        let mut flags = left.flags;
        if self.tiers[level].spec.inclusion == Inclusion::Inclusive {
            flags = self.take_from_nearer(core, level, left.line, flags);
        }
        let next_takes_all =
            self.tiers.get(level + 1).is_some_and(|t| t.spec.inclusion == Inclusion::Exclusive);
        if flags.has(LineFlags::DIRTY) {
            self.tiers[level].count.writebacks += 1;
        }
        if next_takes_all {
            let elsewhere = self.tiers[level + 1].spec.shared
                && !self.tiers[level].spec.shared
                && self.holders(left.line).any(|other| other != core);
            if flags.has(LineFlags::DIRTY) || !elsewhere {
                self.put(
                    core,
                    level + 1,
                    CachedLine { line: left.line, flags: flags.without(LineFlags::PREFETCHED) },
                    memory,
                );
            }
        } else if flags.has(LineFlags::DIRTY) {
            self.write_out(core, level + 1, left.line, memory);
        }
    }

    /// Lets a line that left a nearer level into an exclusive one.
    fn put(
        &mut self,
        core: usize,
        level: usize,
        held: CachedLine,
        memory: &mut impl FnMut(MemoryTraffic),
    ) {
        let at = self.tiers[level].at(core);
        let dirty = if held.flags.has(LineFlags::DIRTY) { LineFlags::DIRTY } else { PLAIN };
        if !self.tiers[level].caches[at].mark(held.line, dirty, PLAIN) {
            if let Some(left) = self.tiers[level].caches[at].insert(held.line, held.flags) {
                self.tiers[level].count.evictions += 1;
                self.leave(core, level, left, memory);
            }
        }
    }

    /// Takes a line out of all nearer caches that `level` covers for `core`; its flags with their
    /// changes.
    fn take_from_nearer(
        &mut self,
        core: usize,
        level: usize,
        line: u64,
        flags: LineFlags,
    ) -> LineFlags {
        let (shared, active) = (self.tiers[level].spec.shared, self.active);
        let mut flags = flags;
        for tier in &mut self.tiers[..level] {
            let at = if tier.spec.shared { 0 } else { core };
            let caches = if shared && !tier.spec.shared {
                tier.of_first(active)
            } else {
                std::slice::from_mut(&mut tier.caches[at])
            };
            let mut gone = 0;
            for left in caches.iter_mut().filter_map(|cache| cache.remove(line)) {
                gone += 1;
                if left.has(LineFlags::DIRTY) {
                    flags = flags.with(LineFlags::DIRTY);
                }
            }
            tier.count.invalidations += gone;
        }
        flags
    }

    /// Writes a changed line to the next cache outwards that has it, else to memory.
    fn write_out(
        &mut self,
        core: usize,
        level: usize,
        line: u64,
        memory: &mut impl FnMut(MemoryTraffic),
    ) {
        for index in level..self.tiers.len() {
            let tier = &mut self.tiers[index];
            let at = tier.at(core);
            if tier.caches[at].mark(
                line,
                if tier.spec.write.back { LineFlags::DIRTY } else { PLAIN },
                PLAIN,
            ) && tier.spec.write.back
            {
                return;
            }
        }
        memory(MemoryTraffic::Write(line));
    }

    fn write(&mut self, core: usize, line: u64, memory: &mut impl FnMut(MemoryTraffic)) -> usize {
        let mut served = None;
        for level in 0..self.tiers.len() {
            if level == 0 {
                self.own(core, line, memory);
            }
            let tier = &mut self.tiers[level];
            let (at, policy) = (tier.at(core), tier.spec.write);
            let mark = if policy.back {
                LineFlags::DIRTY.with(LineFlags::EXCLUSIVE)
            } else {
                LineFlags::EXCLUSIVE
            };
            let mut here = tier.caches[at].touch(line, mark, LineFlags::PREFETCHED);
            if let Some(flags) = here {
                tier.count.hits += 1;
                tier.count.useful += u64::from(flags.has(LineFlags::PREFETCHED));
                served.get_or_insert(level);
            } else if policy.allocate {
                let (found, _) = self.read(core, level, line, memory);
                served.get_or_insert(found);
                let at = self.tiers[level].at(core);
                here = self.tiers[level].caches[at].touch(line, mark, PLAIN);
            } else {
                tier.count.misses += 1;
            }
            if here.is_some() && policy.back {
                return served.unwrap_or(level);
            }
        }
        memory(MemoryTraffic::Write(line));
        served.unwrap_or(self.tiers.len())
    }

    /// Makes a line this core's alone before it is written: it leaves all others, changes included.
    fn own(&mut self, core: usize, line: u64, memory: &mut impl FnMut(MemoryTraffic)) {
        if self.cores == 1 || self.private == 0 {
            return;
        }
        let alone = |f: Option<LineFlags>| f.is_some_and(|f| f.has(LineFlags::EXCLUSIVE));
        if self.tiers[..self.private].iter().any(|t| alone(t.caches[core].peek(line))) {
            return;
        }
        let (mut changed, active) = (false, self.active);
        for tier in &mut self.tiers[..self.private] {
            let mut gone = 0;
            for (other, cache) in tier.of_first(active).iter_mut().enumerate() {
                let left = if other == core { None } else { cache.remove(line) };
                gone += u64::from(left.is_some());
                changed |= left.is_some_and(|left| left.has(LineFlags::DIRTY));
            }
            tier.count.invalidations += gone;
        }
        if changed {
            self.write_out(core, self.private, line, memory);
        }
        for tier in &mut self.tiers[..self.private] {
            tier.caches[core].mark(line, LineFlags::EXCLUSIVE, PLAIN);
        }
    }

    /// A read by `core`: others keep the line, shared, their changes written out. Whether any other
    /// has it.
    fn share(&mut self, core: usize, line: u64, memory: &mut impl FnMut(MemoryTraffic)) -> bool {
        let (mut any, mut changed, active) = (false, None, self.active);
        for tier in &mut self.tiers[..self.private] {
            for (other, cache) in tier.of_first(active).iter_mut().enumerate() {
                if other == core {
                    continue;
                }
                if let Some(flags) = cache.peek(line) {
                    any = true;
                    if flags.has(LineFlags::DIRTY) {
                        changed = Some(other);
                    }
                    cache.mark(line, PLAIN, LineFlags::DIRTY.with(LineFlags::EXCLUSIVE));
                }
            }
        }
        if let Some(other) = changed {
            self.write_out(other, self.private, line, memory);
        }
        any
    }

    fn holders(&self, line: u64) -> impl Iterator<Item = usize> + '_ {
        let tiers = &self.tiers[..self.private];
        (0..self.active)
            .filter(move |core| tiers.iter().any(|t| t.caches[*core].peek(line).is_some()))
    }

    fn prefetch(
        &mut self,
        core: usize,
        level: usize,
        line: u64,
        memory: &mut impl FnMut(MemoryTraffic),
    ) {
        let kind = self.tiers[level].spec.prefetch;
        if kind == Prefetch::Nothing {
            return;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        let at = self.tiers[level].at(core);
        self.tiers[level].prefetchers[at].after_miss(
            kind,
            line,
            PAGE_SHIFT - self.line_shift.min(12),
            &mut wanted,
        );
        for line in &wanted {
            if self.tiers[level].caches[at].peek(*line).is_some() {
                continue;
            }
            let others = level < self.private && self.cores > 1 && self.share(core, *line, memory);
            let (counts, rest) = (self.counts(), level + 1);
            let (_, mut flags) = self.read(core, rest, *line, memory);
            // Outer levels saw no demand.
            for (tier, count) in self.tiers[rest..].iter_mut().zip(&counts[rest..]) {
                tier.count.hits = count.hits;
                tier.count.misses = count.misses;
            }
            if others {
                if flags.has(LineFlags::DIRTY) {
                    memory(MemoryTraffic::Write(*line));
                }
                flags = flags.without(LineFlags::EXCLUSIVE.with(LineFlags::DIRTY));
            }
            self.tiers[level].count.prefetches += 1;
            self.fill(core, level, *line, flags.with(LineFlags::PREFETCHED), memory);
        }
        self.wanted = wanted;
    }

    /// CLWB: the line's changes reach memory; it stays where it is, clean. Whether there were any.
    pub fn clwb(&mut self, line: u64, memory: &mut impl FnMut(MemoryTraffic)) -> bool {
        let (mut changed, active) = (false, self.active);
        for cache in self.tiers.iter_mut().flat_map(|t| t.of_first(active)) {
            changed |= cache.peek(line).is_some_and(|f| f.has(LineFlags::DIRTY));
            cache.mark(line, PLAIN, LineFlags::DIRTY);
        }
        if changed {
            memory(MemoryTraffic::Write(line));
        }
        changed
    }

    /// CLFLUSH: the line leaves all caches, its changes reach memory. Whether there were any.
    pub fn clflush(&mut self, line: u64, memory: &mut impl FnMut(MemoryTraffic)) -> bool {
        let (mut changed, active) = (false, self.active);
        for tier in &mut self.tiers {
            let mut gone = 0;
            for left in tier.of_first(active).iter_mut().filter_map(|cache| cache.remove(line)) {
                gone += 1;
                changed |= left.has(LineFlags::DIRTY);
            }
            tier.count.invalidations += gone;
        }
        if changed {
            memory(MemoryTraffic::Write(line));
        }
        changed
    }

    /// WBINVD on `core`: its own caches and the shared ones are emptied, changes reach memory; each
    /// line once. (Lines of other cores that an inclusive level covers leave with it.) Gives how
    /// many lines were written.
    pub fn wbinvd(&mut self, core: usize, memory: &mut impl FnMut(MemoryTraffic)) -> u64 {
        let core = core % self.cores;
        let inclusive =
            self.tiers.iter().any(|t| t.spec.shared && t.spec.inclusion == Inclusion::Inclusive);
        let mut written = std::collections::BTreeSet::new();
        for tier in &mut self.tiers {
            let shared = tier.spec.shared;
            for (index, cache) in tier.caches.iter_mut().enumerate() {
                if !shared && index != core && !inclusive {
                    continue;
                }
                tier.count.invalidations += cache.lines().count() as u64;
                written.extend(
                    cache.lines().filter(|h| h.flags.has(LineFlags::DIRTY)).map(|h| h.line),
                );
                cache.clear();
            }
        }
        written.iter().for_each(|line| memory(MemoryTraffic::Write(*line)));
        written.len() as u64
    }

    /// Lines whose changes memory does not have, ascending: what a loss of power would lose.
    #[must_use]
    pub fn dirty_lines(&self) -> Vec<u64> {
        let held = self.tiers.iter().flat_map(|t| &t.caches).flat_map(SetAssociativeCache::lines);
        let mut lines: Vec<u64> =
            held.filter(|h| h.flags.has(LineFlags::DIRTY)).map(|h| h.line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// Whether some cache has changes to the line that memory does not have.
    #[must_use]
    pub fn is_dirty(&self, line: u64) -> bool {
        let of_active = |t: &HierarchyLevel| if t.spec.shared { 1 } else { self.active };
        let mut caches = self.tiers.iter().flat_map(|t| &t.caches[..of_active(t)]);
        caches.any(|c| c.peek(line).is_some_and(|f| f.has(LineFlags::DIRTY)))
    }

    /// The state of a line in a core's private caches.
    #[must_use]
    pub fn state(&self, core: usize, line: u64) -> Mesi {
        let flags =
            self.tiers[..self.private].iter().filter_map(|t| t.caches.get(core)?.peek(line));
        flags.fold(Mesi::Invalid, |state, f| match state {
            Mesi::Modified => state,
            _ if f.has(LineFlags::DIRTY) => Mesi::Modified,
            Mesi::Exclusive => state,
            _ if f.has(LineFlags::EXCLUSIVE) => Mesi::Exclusive,
            _ => Mesi::Shared,
        })
    }

    /// Whether a level (by its index) holds the line for `core`.
    #[must_use]
    pub fn holds(&self, level: usize, core: usize, line: u64) -> bool {
        self.tiers
            .get(level)
            .is_some_and(|t| t.caches.get(t.at(core)).is_some_and(|c| c.peek(line).is_some()))
    }
}
