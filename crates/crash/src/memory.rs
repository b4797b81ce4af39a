//! Caches with values. Two contents are kept: what is coherent, which any core reads, and, of
//! lines that are dirty in some cache, what memory holds instead. Memory use grows with the lines
//! stored to and with dirty lines.

use crate::contents::{parts, MemoryContents};
use crate::hash::NumberSet;
use crate::region::DataObject;
use terrace_cache::{
    Hierarchy, HierarchyError, HierarchySpec, Inclusion, LevelSpec, MemoryTraffic,
};
use terrace_trace::CacheOperation;

/// Bytes of a line at most.
const MOST_LINE: u64 = 4096;
/// Bytes of a load that are followed: no instruction loads more, and a damaged recording may say
/// so.
const MOST_LOADED: u32 = 1 << 16;

/// Which caches lie between cores and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheSetup {
    /// None: every store reaches memory at once.
    Uncached {
        /// Bytes of the lines in which dirty data are counted.
        line: u64,
    },
    /// Caches that nothing ever leaves but by flushes.
    Unlimited {
        /// Bytes of a line.
        line: u64,
    },
    /// Levels.
    Levels(HierarchySpec),
}

impl CacheSetup {
    /// The paper's: eight private caches of 256 KiB that do not allocate on writes, and a shared
    /// inclusive one of 20 MiB; LRU, lines of 64 bytes (section 4.1). Ways: 8 and 20, as its tool
    /// is published.
    #[must_use]
    pub fn nvc() -> Self {
        let mut private = LevelSpec::new(256 << 10, 8, false);
        private.write.allocate = false;
        let mut shared = LevelSpec::new(20 << 20, 20, true);
        shared.inclusion = Inclusion::Inclusive;
        Self::Levels(HierarchySpec { cores: 8, line: 64, levels: vec![private, shared] })
    }

    /// Whether an outer level never holds older changes that reach memory by themselves: then
    /// images are exact. Levels that are neither inclusive nor exclusive do not say so.
    #[must_use]
    pub fn keeps_one_version(&self) -> bool {
        match self {
            Self::Uncached { .. } | Self::Unlimited { .. } => true,
            Self::Levels(spec) => {
                spec.levels.iter().skip(1).all(|l| l.inclusion != Inclusion::Neither)
            }
        }
    }

    /// Bytes of a line.
    #[must_use]
    pub fn line_bytes(&self) -> u64 {
        match self {
            Self::Uncached { line } | Self::Unlimited { line } => *line,
            Self::Levels(spec) => spec.line,
        }
    }
}

#[derive(Debug)]
enum Caches {
    Uncached,
    Unlimited,
    Levels(Box<Hierarchy>),
}

/// What a crash would lose, all memory together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LostData {
    /// Lines dirty in some cache.
    pub dirty_lines: u64,
    /// Of their bytes, those that differ from memory.
    pub inconsistent_bytes: u64,
}

/// Caches, and what they and memory hold.
#[derive(Debug)]
pub struct CachedMemory {
    caches: Caches,
    line_shift: u32,
    contents: MemoryContents,
    /// Lines of objects, half-open, ascending.
    watched: Vec<(u64, u64)>,
    /// Watched lines that memory was given since they were taken last.
    written: NumberSet,
    /// Lines that reached memory in the access at hand.
    reached: Vec<u64>,
    /// No two caches hold different changes to a line.
    one_version: bool,
    lines_written: u64,
}

impl CachedMemory {
    /// Empty caches over memory full of zeroes.
    ///
    /// # Errors
    /// [`HierarchyError`]; [`HierarchyError::Line`] also for lines of more than a page.
    pub fn new(setup: &CacheSetup) -> Result<Self, HierarchyError> {
        let line = setup.line_bytes();
        if !line.is_power_of_two() || line > MOST_LINE {
            return Err(HierarchyError::Line);
        }
        let caches = match setup {
            CacheSetup::Uncached { .. } => Caches::Uncached,
            CacheSetup::Unlimited { .. } => Caches::Unlimited,
            CacheSetup::Levels(spec) => Caches::Levels(Box::new(Hierarchy::new(spec)?)),
        };
        Ok(Self {
            caches,
            line_shift: line.trailing_zeros(),
            contents: MemoryContents::new(line.trailing_zeros()),
            watched: Vec::new(),
            written: NumberSet::default(),
            reached: Vec::new(),
            one_version: setup.keeps_one_version(),
            lines_written: 0,
        })
    }

    /// Bytes of a line.
    #[must_use]
    pub fn line_bytes(&self) -> u64 {
        1 << self.line_shift
    }

    /// From now on, remembers which lines of these objects reach memory.
    pub fn watch(&mut self, objects: &[DataObject]) {
        let shift = self.line_shift;
        let mut lines: Vec<(u64, u64)> = objects
            .iter()
            .filter(|o| o.bytes > 0 && o.is_restored())
            .map(|o| (o.address >> shift, ((o.end() - 1) >> shift) + 1))
            .collect();
        lines.sort_unstable();
        self.watched = lines;
        self.written.clear();
    }

    /// Content that came about unseen, by a system call or before the recording: coherent, and in
    /// memory but for lines that are dirty.
    pub fn preset(&mut self, address: u64, bytes: &[u8]) {
        self.contents.write(address, bytes);
    }

    /// A core loads.
    pub fn load(&mut self, core: usize, address: u64, size: u32) {
        let bytes = u64::from(size.clamp(1, MOST_LOADED));
        let last = address.saturating_add(bytes - 1) >> self.line_shift;
        for line in address >> self.line_shift..=last {
            self.load_line(core, line);
        }
    }

    fn load_line(&mut self, core: usize, line: u64) {
        let Self { caches, contents, reached, .. } = self;
        match caches {
            Caches::Levels(levels) => {
                levels.access_line(core, line, false, &mut |traffic| match traffic {
                    MemoryTraffic::Read(line) => {
                        contents.touch(line);
                    }
                    MemoryTraffic::Write(line) => reached.push(line),
                });
            }
            Caches::Uncached | Caches::Unlimited => {
                contents.touch(line);
            }
        }
        self.settle_reached();
    }

    /// A core stores.
    pub fn store(&mut self, core: usize, address: u64, bytes: &[u8]) {
        for (at, from, count) in parts(address, bytes.len(), 1 << self.line_shift) {
            self.store_line(core, at >> self.line_shift);
            self.contents.write(at, &bytes[from..from + count]);
        }
    }

    /// What a store to a line does before its value is there.
    fn store_line(&mut self, core: usize, line: u64) {
        let Self { caches, contents, reached, .. } = self;
        let slot = contents.touch(line);
        let known = contents.is_behind(slot);
        let stays_behind = match caches {
            Caches::Uncached => {
                reached.push(line);
                false
            }
            Caches::Unlimited => !known,
            Caches::Levels(levels) => {
                let mut own = false;
                levels.access_line(core, line, true, &mut |traffic| match traffic {
                    MemoryTraffic::Read(line) => {
                        contents.touch(line);
                    }
                    MemoryTraffic::Write(other) => {
                        reached.push(other);
                        own |= other == line;
                    }
                });
                // What reached memory during the store is either this store, written through, or
                // what another core had changed before it.
                if own {
                    levels.is_dirty(line)
                } else {
                    !known
                }
            }
        };
        if stays_behind {
            if let Some(at) = self.reached.iter().position(|other| *other == line) {
                self.reached.swap_remove(at);
                self.lines_written += 1;
                self.note_written(line);
            }
            self.contents.keep(line, slot);
        }
        self.settle_reached();
    }

    /// Lines that reached memory hold there what is coherent.
    fn settle_reached(&mut self) {
        if self.reached.is_empty() {
            return;
        }
        let mut reached = std::mem::take(&mut self.reached);
        for line in reached.drain(..) {
            self.lines_written += 1;
            // Where an outer level may have an older version, it is that one that was written, and
            // which it is was not kept: memory counts as it was.
            let newer = match &self.caches {
                Caches::Levels(levels) => !self.one_version && levels.is_dirty(line),
                Caches::Uncached | Caches::Unlimited => false,
            };
            if !newer {
                self.contents.settle(line);
                self.note_written(line);
            }
        }
        self.reached = reached;
    }

    fn note_written(&mut self, line: u64) {
        let next = self.watched.partition_point(|(_, end)| *end <= line);
        if self.watched.get(next).is_some_and(|(start, _)| *start <= line) {
            self.written.insert(line);
        }
    }

    /// A core flushes. Fences change nothing here: flushes take effect at once.
    pub fn operate(&mut self, core: usize, operation: CacheOperation, address: u64) {
        let line = address >> self.line_shift;
        match operation {
            CacheOperation::WriteBack => {
                self.write_back(line, |l, line, mut m| {
                    l.clwb(line, &mut m);
                });
            }
            CacheOperation::Flush | CacheOperation::FlushWeak | CacheOperation::NonTemporal => {
                self.write_back(line, |l, line, mut m| {
                    l.clflush(line, &mut m);
                });
            }
            CacheOperation::WriteBackAll => self.write_back_all(core),
            CacheOperation::StoreFence | CacheOperation::Fence => {}
        }
    }

    fn write_back(
        &mut self,
        line: u64,
        flush: impl Fn(&mut Hierarchy, u64, &mut dyn FnMut(MemoryTraffic)),
    ) {
        let Self { caches, reached, contents, .. } = self;
        match caches {
            Caches::Uncached => {}
            Caches::Unlimited => reached.extend(contents.has_older(line).then_some(line)),
            Caches::Levels(levels) => flush(levels, line, &mut |traffic| {
                if let MemoryTraffic::Write(line) = traffic {
                    reached.push(line);
                }
            }),
        }
        self.settle_reached();
    }

    fn write_back_all(&mut self, core: usize) {
        let Self { caches, reached, contents, .. } = self;
        match caches {
            Caches::Uncached => {}
            Caches::Unlimited => reached.extend(contents.lines_behind()),
            Caches::Levels(levels) => {
                levels.wbinvd(core, &mut |traffic| {
                    if let MemoryTraffic::Write(line) = traffic {
                        reached.push(line);
                    }
                });
            }
        }
        self.settle_reached();
    }

    /// What cores read.
    pub fn read_coherent(&self, address: u64, out: &mut [u8]) {
        self.contents.read_coherent(address, out);
    }

    /// What memory holds: what a crash leaves.
    pub fn read_persistent(&self, address: u64, out: &mut [u8]) {
        self.contents.read_persistent(address, out);
    }

    /// What a crash would lose now: in all, and of each of `objects` the inconsistent bytes. Each
    /// dirty line counts once, however many caches have it (section 3 of the paper).
    #[must_use]
    pub fn lost(&self, objects: &[DataObject]) -> (LostData, Vec<u64>) {
        let mut all = LostData { dirty_lines: self.contents.count_behind(), ..LostData::default() };
        let mut each = vec![0; objects.len()];
        let mut order: Vec<usize> = (0..objects.len()).filter(|i| objects[*i].bytes > 0).collect();
        order.sort_unstable_by_key(|i| objects[*i].address);
        let mut now = vec![0; self.line_bytes() as usize];
        for (line, then) in self.contents.contents_behind() {
            let base = line << self.line_shift;
            self.contents.read_coherent(base, &mut now);
            if now == then {
                continue;
            }
            let differs = |i: &usize| now[*i] != then[*i];
            all.inconsistent_bytes += (0..now.len()).filter(differs).count() as u64;
            let first = order.partition_point(|i| objects[*i].end() <= base);
            for i in &order[first..] {
                let object = &objects[*i];
                if object.address >= base.saturating_add(now.len() as u64) {
                    break;
                }
                let from = object.address.saturating_sub(base) as usize;
                let to = (object.end() - base).min(now.len() as u64) as usize;
                each[*i] += (from..to).filter(|i| differs(i)).count() as u64;
            }
        }
        (all, each)
    }

    /// Watched lines that memory was given since the last call, ascending.
    pub fn take_written(&mut self) -> Vec<u64> {
        let mut lines: Vec<u64> = self.written.drain().collect();
        lines.sort_unstable();
        lines
    }

    /// Lines read from memory or stored to so far, times their bytes.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        self.contents.touched_bytes()
    }

    /// Lines written to memory so far.
    #[must_use]
    pub fn lines_written(&self) -> u64 {
        self.lines_written
    }
}
