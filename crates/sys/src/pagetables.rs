//! Reading another process's page tables from outside, page by page.
//!
//! No stock file shows which pages were *read*. The hardware keeps that as the accessed bit of each
//! page-table entry; `clear_refs` clears it; reading it back takes the table itself. Tables are
//! ordinary frames that `/proc/kpageflags` marks, and `/proc/kcore` shows their contents. Which
//! table is whose needs no kernel symbol: a table that holds, in the right places, frames that
//! pagemap says only this process maps, is its table. From one matched leaf table the table above
//! it is found the same way; that one (a gibibyte of addresses) is remembered, and leaf tables are
//! looked up in it afresh at every walk. A stale answer can only misjudge heat, never write.
//!
//! x86-64 entry layout (Intel SDM vol. 3, 4.5): bit 0 present, 5 accessed, 6 dirty, 7 huge (in the
//! upper table), 12..52 frame.
//!
//! Where the kernel carries type information, its own pointers lead to the tables at once
//! ([`Tasks`]); the search over all frames, which grows with the machine, is for kernels without.

use crate::tasks::Tasks;
use crate::{KernelMemory, PageMap, Root, SysError};
use std::collections::{BTreeMap, HashMap};
use terrace_types::{Nanos, Pid, Tick, Vpn, VpnRange};

const ENTRIES: u64 = 512;
/// Pages under one upper table: a gibibyte.
const SLOT: u64 = ENTRIES * ENTRIES;
/// Two-megabyte parts of a slot that are probed for a match.
const PROBES: usize = 32;

/// One entry of a page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableEntry(pub u64);

impl TableEntry {
    /// Maps memory.
    #[must_use]
    pub const fn present(self) -> bool {
        self.0 & 1 == 1
    }

    /// Used by the processor for a translation since the bit was cleared.
    #[must_use]
    pub const fn accessed(self) -> bool {
        self.0 >> 5 & 1 == 1
    }

    /// Written since it was mapped or cleaned by the kernel.
    #[must_use]
    pub const fn dirty(self) -> bool {
        self.0 >> 6 & 1 == 1
    }

    /// In an upper table: maps a huge page itself.
    #[must_use]
    pub const fn huge(self) -> bool {
        self.0 >> 7 & 1 == 1
    }

    /// Frame.
    #[must_use]
    pub const fn pfn(self) -> u64 {
        (self.0 & 0x000f_ffff_ffff_f000) >> 12
    }
}

/// The page tables of some processes.
#[derive(Debug)]
pub struct PageTables {
    memory: KernelMemory,
    frames_end: u64,
    /// Table of each slot that was recognised.
    slots: BTreeMap<(Pid, u64), u64>,
    /// Table above those: 512 slots each. Where known, new slots are found in it without a scan.
    uppers: BTreeMap<(Pid, u64), u64>,
    next_scan: Tick,
    backoff: Nanos,
    failed_scans: u32,
    /// The kernel's list of processes, where it can be followed.
    tasks: Option<Tasks>,
    /// Kernel addresses of processes.
    found: BTreeMap<Pid, u64>,
    /// Times that pagemap contradicted what the list led to.
    contradicted: u32,
}

/// Contradictions after which the kernel's list is not followed any more.
const DISTRUST: u32 = 3;

/// A frame that only the process maps, and where.
#[derive(Debug, Clone, Copy)]
struct Probe {
    vpn: u64,
}

impl Probe {
    const fn slot(self) -> u64 {
        self.vpn / SLOT
    }

    const fn leaf(self) -> u64 {
        self.vpn / ENTRIES
    }
}

impl PageTables {
    /// Opens the kernel's files.
    ///
    /// # Errors
    /// As [`KernelMemory::open`]; [`SysError::Absent`] on other processors than x86-64.
    pub fn open(root: &Root) -> Result<Self, SysError> {
        Self::check_processor()?;
        let frames = crate::zones::FrameMap::new(&crate::zones::zones(root)?);
        let memory = KernelMemory::open(root)?;
        Ok(Self {
            tasks: Tasks::open(root, &memory),
            found: BTreeMap::new(),
            contradicted: 0,
            memory,
            frames_end: frames.end(),
            slots: BTreeMap::new(),
            uppers: BTreeMap::new(),
            next_scan: Tick::ZERO,
            backoff: Nanos::millis(100),
            failed_scans: 0,
        })
    }

    /// Whether this processor's tables can be read.
    ///
    /// # Errors
    /// [`SysError::Absent`] on other processors than x86-64.
    pub fn check_processor() -> Result<(), SysError> {
        if cfg!(target_arch = "x86_64") {
            return Ok(());
        }
        let remedy = "page tables are read on x86-64 only";
        Err(SysError::from_errno("open", "/proc/kcore", libc::ENOSYS, remedy))
    }

    /// Scans in a row that looked for tables which must be there and recognised none.
    #[must_use]
    pub const fn failed_scans(&self) -> u32 {
        self.failed_scans
    }

    /// Forgets a process that ended, executed another program or turned out to be misread.
    pub fn forget(&mut self, pid: Pid) {
        self.slots.retain(|key, _| key.0 != pid);
        self.uppers.retain(|key, _| key.0 != pid);
        self.found.remove(&pid);
        self.next_scan = Tick::ZERO;
        self.backoff = Nanos::millis(100);
    }

    /// Finds the tables of `ranges` that are not known yet; scans all page-table frames of the
    /// machine if some are missing, less and less often while that finds nothing. Returns the
    /// pages of `ranges` whose tables are known.
    ///
    /// # Errors
    /// When the kernel's files cannot be read any more.
    pub fn resolve(
        &mut self,
        pid: Pid,
        pagemap: &PageMap,
        ranges: &[VpnRange],
    ) -> Result<u64, SysError> {
        let now = crate::now();
        if self.look_up(pid, ranges) {
            // A table that is not there has no pages.
            self.failed_scans = 0;
            return Ok(ranges.iter().map(|r| r.len()).sum());
        }
        if self.known(pid, ranges) < ranges.iter().map(|r| r.len()).sum() && now >= self.next_scan {
            let probes = self.probes(pid, pagemap, ranges)?;
            let before = self.slots.len();
            if !probes.is_empty() {
                self.scan(pid, &probes)?;
                let found = self.slots.len() > before;
                self.failed_scans = if found { 0 } else { self.failed_scans + 1 };
            }
            self.backoff = if self.slots.len() > before {
                Nanos::millis(100)
            } else {
                Nanos(self.backoff.0 * 2).min(Nanos::secs(30))
            };
            self.next_scan = crate::now().after(self.backoff);
        }
        Ok(self.known(pid, ranges))
    }

    /// Where the tables of `ranges` are now, by the kernel's own pointers; false where those cannot
    /// be followed, and only tables below known ones were found.
    pub fn look_up(&mut self, pid: Pid, ranges: &[VpnRange]) -> bool {
        let followed = self.follow(pid, ranges);
        self.descend(pid, ranges);
        followed
    }

    /// Finds the upper tables by the kernel's pointers; false where those cannot be followed.
    fn follow(&mut self, pid: Pid, ranges: &[VpnRange]) -> bool {
        let Some(tasks) = &self.tasks else { return false };
        let known = self.found.get(&pid).copied();
        let table = |task: &u64| tasks.top_table(&self.memory, *task, pid);
        let fresh = || tasks.find(&self.memory, pid).and_then(|task| Some((task, table(&task)?)));
        let Some((task, top)) = known.and_then(|task| Some((task, table(&task)?))).or_else(fresh)
        else {
            return false;
        };
        self.found.insert(pid, task);
        for number in numbers(ranges, SLOT * ENTRIES) {
            let mut table = Some(top);
            if tasks.five_levels() {
                table = self.entry(top, number / ENTRIES);
            }
            match table.and_then(|table| self.entry(table, number)) {
                Some(upper) => self.uppers.insert((pid, number), upper),
                None => self.uppers.remove(&(pid, number)),
            };
        }
        true
    }

    /// The table that an entry of another points to.
    fn entry(&self, table: u64, index: u64) -> Option<u64> {
        let entry = TableEntry(self.memory.read_word(table, index % ENTRIES)?);
        (entry.present() && !entry.huge()).then_some(entry.pfn())
    }

    /// Slots as the tables above them say now.
    fn descend(&mut self, pid: Pid, ranges: &[VpnRange]) {
        let mut words = [0_u64; ENTRIES as usize];
        let slots = numbers(ranges, SLOT);
        for slots in slots.chunk_by(|a, b| a / ENTRIES == b / ENTRIES) {
            let (first, last) = (slots[0], slots[slots.len() - 1]);
            let Some(&upper) = self.uppers.get(&(pid, first / ENTRIES)) else {
                if self.found.contains_key(&pid) {
                    self.slots.retain(|key, _| key.0 != pid || !slots.contains(&key.1));
                }
                continue;
            };
            let words = &mut words[..=(last - first) as usize];
            if !self.memory.read_words(upper, first % ENTRIES, words) {
                continue;
            }
            for slot in slots {
                let entry = TableEntry(words[(slot - first) as usize]);
                if entry.present() && !entry.huge() {
                    self.slots.insert((pid, *slot), entry.pfn());
                } else {
                    self.slots.remove(&(pid, *slot));
                }
            }
        }
    }

    fn known(&self, pid: Pid, ranges: &[VpnRange]) -> u64 {
        let mut pages = 0;
        for range in ranges {
            each_part(*range, SLOT, |slot, part| {
                if self.slots.contains_key(&(pid, slot)) {
                    pages += part.len();
                }
            });
        }
        pages
    }

    /// Frames by which the tables of unknown slots are recognised.
    fn probes(
        &self,
        pid: Pid,
        pagemap: &PageMap,
        ranges: &[VpnRange],
    ) -> Result<HashMap<u64, Probe>, SysError> {
        let mut probes = HashMap::new();
        let mut parts_of_slot: HashMap<u64, usize> = HashMap::new();
        let mut entries = Vec::new();
        for range in ranges {
            let mut leaves = Vec::new();
            each_part(*range, ENTRIES, |_, part| leaves.push(part));
            for part in leaves {
                let slot = part.start.0 / SLOT;
                let taken = parts_of_slot.entry(slot).or_default();
                if self.slots.contains_key(&(pid, slot)) || *taken >= PROBES {
                    continue;
                }
                pagemap.read(part, &mut entries)?;
                let own = entries
                    .iter()
                    .enumerate()
                    .filter(|(_, e)| e.present() && e.exclusive() && !e.file() && e.pfn() != 0);
                let before = probes.len();
                for (at, entry) in own.take(4) {
                    probes.insert(entry.pfn(), Probe { vpn: part.start.0 + at as u64 });
                }
                *taken += usize::from(probes.len() > before);
            }
        }
        Ok(probes)
    }

    /// Looks through all page-table frames of the machine, twice: leaf tables that hold the probes,
    /// then upper tables that hold those leaf tables. Most matches win; a tie tells nothing.
    fn scan(&mut self, pid: Pid, probes: &HashMap<u64, Probe>) -> Result<(), SysError> {
        let mut words = [0_u64; ENTRIES as usize];
        let mut tables = Vec::new();
        let mut leaves: HashMap<u64, u64> = HashMap::new();
        let mut votes: HashMap<(u64, u64), u32> = HashMap::new();
        let mut first = 0;
        while first < self.frames_end {
            let count = (self.frames_end - first).min(1 << 15) as usize;
            let frames = self.memory.frames(first, count)?;
            if frames.is_empty() {
                break;
            }
            for (at, _) in frames.iter().enumerate().filter(|(_, f)| f.page_table()) {
                let pfn = first + at as u64;
                if !self.memory.read_frame(pfn, &mut words) {
                    continue;
                }
                tables.push(pfn);
                for (index, entry) in words.iter().map(|w| TableEntry(*w)).enumerate() {
                    let Some(probe) = entry.present().then(|| probes.get(&entry.pfn())).flatten()
                    else {
                        continue;
                    };
                    if probe.vpn % ENTRIES == index as u64 {
                        leaves.insert(pfn, probe.leaf());
                    } else if entry.huge()
                        && probe.vpn % ENTRIES == 0
                        && probe.leaf() % ENTRIES == index as u64
                    {
                        *votes.entry((probe.slot(), pfn)).or_default() += 1;
                    }
                }
            }
            first += frames.len() as u64;
        }
        for &pfn in &tables {
            if !self.memory.read_frame(pfn, &mut words) {
                continue;
            }
            for (index, entry) in words.iter().map(|w| TableEntry(*w)).enumerate() {
                let leaf = (entry.present() && !entry.huge()).then(|| leaves.get(&entry.pfn()));
                if let Some(leaf) = leaf.flatten().filter(|l| **l % ENTRIES == index as u64) {
                    *votes.entry((leaf / ENTRIES, pfn)).or_default() += 1;
                }
            }
        }
        self.elect(pid, &votes);
        self.find_uppers(pid, &tables);
        Ok(())
    }

    /// The tables in which the recognised ones are entered at their place.
    fn find_uppers(&mut self, pid: Pid, tables: &[u64]) {
        let own: HashMap<u64, u64> =
            self.slots.iter().filter(|(k, _)| k.0 == pid).map(|(k, pfn)| (*pfn, k.1)).collect();
        let mut words = [0_u64; ENTRIES as usize];
        for &pfn in tables {
            if !self.memory.read_frame(pfn, &mut words) {
                continue;
            }
            for (index, entry) in words.iter().map(|w| TableEntry(*w)).enumerate() {
                let slot = (entry.present() && !entry.huge()).then(|| own.get(&entry.pfn()));
                if let Some(slot) = slot.flatten().filter(|s| **s % ENTRIES == index as u64) {
                    self.uppers.insert((pid, slot / ENTRIES), pfn);
                }
            }
        }
    }

    fn elect(&mut self, pid: Pid, votes: &HashMap<(u64, u64), u32>) {
        let mut best: HashMap<u64, (u32, u64, bool)> = HashMap::new();
        for (&(slot, pfn), &count) in votes {
            let lead = best.entry(slot).or_insert((0, 0, false));
            if count > lead.0 {
                *lead = (count, pfn, false);
            } else if count == lead.0 {
                lead.2 = true;
            }
        }
        for (slot, (_, pfn, tie)) in best {
            if !tie {
                self.slots.insert((pid, slot), pfn);
            }
        }
    }

    /// Walks the known tables over `ranges`: `each(which of them, first page, entries, huge)`.
    /// Parts without a table are passed over. `huge` is `None` for one entry a page; for a huge
    /// page there is one entry, for so many pages, and its frame is that of the huge page's first
    /// page, which may lie before the first page told.
    pub fn walk(
        &self,
        pid: Pid,
        ranges: &[VpnRange],
        mut each: impl FnMut(usize, Vpn, &[u64], Option<u64>),
    ) {
        let mut leaf = [0_u64; ENTRIES as usize];
        self.each_leaf(pid, ranges, |of, part, entry| {
            if entry.huge() {
                return each(of, part.start, &[entry.0], Some(part.len()));
            }
            let words = &mut leaf[..part.len() as usize];
            if self.read_entries(entry, part, words) {
                each(of, part.start, words, None);
            }
        });
    }

    /// The parts of `ranges` that have a table of entries a page each, or are a huge page's: which
    /// of them it is a part of, and the entry that says where. Neighbours of one slot are read
    /// together.
    pub fn each_leaf(
        &self,
        pid: Pid,
        ranges: &[VpnRange],
        mut each: impl FnMut(usize, VpnRange, TableEntry),
    ) {
        let mut words = [0_u64; ENTRIES as usize];
        let mut parts = Vec::new();
        for (of, range) in ranges.iter().enumerate() {
            each_part(*range, SLOT, |slot, part| parts.push((slot, of, part)));
        }
        for parts in parts.chunk_by(|a, b| a.0 == b.0) {
            let Some(&table) = self.slots.get(&(pid, parts[0].0)) else { continue };
            let first = parts.iter().map(|part| part.2.start.0 / ENTRIES).min();
            let last = parts.iter().map(|part| (part.2.end.0 - 1) / ENTRIES).max();
            let (Some(first), Some(last)) = (first, last) else { continue };
            let words = &mut words[..=(last - first) as usize];
            if !self.memory.read_words(table, first % ENTRIES, words) {
                continue;
            }
            for (_, of, part) in parts {
                each_part(*part, ENTRIES, |number, part| {
                    let entry = TableEntry(words[(number - first) as usize]);
                    if entry.present() {
                        each(*of, part, entry);
                    }
                });
            }
        }
    }

    /// The entries of these pages, which all lie in this table, into as many words.
    pub fn read_entries(&self, table: TableEntry, pages: VpnRange, words: &mut [u64]) -> bool {
        self.memory.read_words(table.pfn(), pages.start.0 % ENTRIES, words)
    }

    /// The entries that map these huge pages, told by their first pages; `None` where there is none
    /// such.
    pub fn huge_entries(&self, pid: Pid, heads: &[Vpn]) -> Vec<Option<TableEntry>> {
        let mut words = [0_u64; ENTRIES as usize];
        let mut entries = Vec::with_capacity(heads.len());
        for heads in heads.chunk_by(|a, b| a.0 / SLOT == b.0 / SLOT) {
            let numbers = heads.iter().map(|head| head.0 / ENTRIES);
            let first = numbers.clone().min().unwrap_or_default();
            let last = numbers.clone().max().unwrap_or_default();
            let words = &mut words[..=(last - first) as usize];
            let table = self.slots.get(&(pid, heads[0].0 / SLOT));
            let read = table.is_some_and(|t| self.memory.read_words(*t, first % ENTRIES, words));
            entries.extend(numbers.map(|number| {
                let entry = TableEntry(words[(number - first) as usize]);
                (read && entry.present() && entry.huge()).then_some(entry)
            }));
        }
        entries
    }

    /// Checks a few entries against pagemap; forgets the process and returns false when they
    /// differ.
    ///
    /// # Errors
    /// When pagemap cannot be read.
    pub fn verify(
        &mut self,
        pid: Pid,
        pagemap: &PageMap,
        range: VpnRange,
    ) -> Result<bool, SysError> {
        let (mut same, mut different) = (0_u32, 0_u32);
        let mut entries = Vec::new();
        let step = (range.len() / 8).max(1);
        let mut at = range.start.0;
        while at < range.end.0 {
            let one = VpnRange::new(Vpn(at), Vpn(at + 1));
            pagemap.read(one, &mut entries)?;
            if let Some(reported) = entries.first().filter(|e| e.present() && e.pfn() != 0) {
                let mut found = None;
                self.walk(pid, &[one], |_, page, words, huge| {
                    let entry = TableEntry(words[0]);
                    let inside = huge.map_or(0, |_| page.0 % ENTRIES);
                    found = entry.present().then_some(entry.pfn() + inside);
                });
                if found == Some(reported.pfn()) {
                    same += 1;
                } else {
                    different += 1;
                }
            }
            at += step;
        }
        let good = different <= same;
        if !good {
            self.forget(pid);
            self.contradicted += 1;
            if self.contradicted >= DISTRUST {
                self.tasks = None;
            }
        }
        Ok(good)
    }
}

/// The numbers of the parts of `size` that `ranges` have pages in, in order.
fn numbers(ranges: &[VpnRange], size: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    ranges.iter().for_each(|range| each_part(*range, size, |number, _| numbers.push(number)));
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Cuts `range` at multiples of `size`: `each(number of the part, pages in it)`.
fn each_part(range: VpnRange, size: u64, mut each: impl FnMut(u64, VpnRange)) {
    let mut at = range.start.0;
    while at < range.end.0 {
        let end = ((at / size + 1) * size).min(range.end.0);
        each(at / size, VpnRange::new(Vpn(at), Vpn(end)));
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_range_once() {
        let mut parts = Vec::new();
        each_part(VpnRange::new(Vpn(510), Vpn(1030)), 512, |n, r| parts.push((n, r.len())));
        assert_eq!(parts, [(0, 2), (1, 512), (2, 6)]);
    }

    #[test]
    fn entries_are_decoded() {
        let entry = TableEntry(0x8000_0000_1234_5067);
        assert!(entry.present() && entry.accessed() && entry.dirty() && !entry.huge());
        assert_eq!(entry.pfn(), 0x12345);
    }

    #[test]
    fn own_tables_are_found_or_it_says_why() {
        let mut tables = match PageTables::open(&Root::live()) {
            Ok(tables) => tables,
            Err(e) => return println!("skipped: {e}"),
        };
        let pid = Pid(std::process::id() as i32);
        let memory = vec![1_u8; 4 << 20];
        let first = memory.as_ptr() as u64 / 4096 + 1;
        let range = VpnRange::new(Vpn(first), Vpn(first + 1000));
        let pagemap = PageMap::open(&Root::live(), pid).unwrap();
        assert_eq!(tables.resolve(pid, &pagemap, &[range]).unwrap(), 1000);
        let mut present = 0;
        tables.walk(pid, &[range], |_, _, words, huge| {
            let entries = words.iter().filter(|w| TableEntry(**w).present()).count() as u64;
            present += entries * huge.unwrap_or(1);
        });
        assert!(present >= 990);
        assert!(tables.verify(pid, &pagemap, range).unwrap());
        drop(memory);
    }
}
