//! The live target: `/proc` of its processes, zones of the machine.

use crate::{ProcessTree, TierWriteCounter};
use std::collections::{BTreeMap, BTreeSet};
use terrace_engine::{Mapping, MappingKind, Target, TargetChange, TargetError};
use terrace_sys::maps::{maps, smaps, MapLine};
use terrace_sys::zones::{free_memory, zones, FrameMap};
use terrace_sys::{query_pages, task, Category, PageEntry, PageMap, PageStatus, Root, SysError};
use terrace_types::{
    Area, Bytes, NodeId, PageFlags, PageStat, Pid, ThroughputSource, TierState, Vpn, VpnRange,
};

/// Nodes of one rank, nearest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierNodes {
    /// Nodes.
    pub nodes: Vec<NodeId>,
}

/// Running processes as the engine sees them.
#[derive(Debug)]
pub struct LiveTarget {
    root: Root,
    tree: ProcessTree,
    tiers: Vec<TierNodes>,
    mappings: Vec<Mapping>,
    frames: FrameMap,
    page_size: Bytes,
    allowed: BTreeMap<Pid, Vec<NodeId>>,
    /// Processes that this user may not read: children that became somebody else's (`sudo`,
    /// `ping`).
    hidden: BTreeSet<Pid>,
    /// Of each tier, what counts the bytes written to it.
    counted: Vec<Option<TierWriteCounter>>,
    huge_pages: bool,
    /// The kernel gives huge pages without being asked.
    huge_pages_given: bool,
    /// To some of the processes, as of the last refresh.
    huge_pages_wanted: bool,
    scan_works: bool,
    frames_shown: bool,
}

/// Entries of a page map read at once, eight bytes each: all of them would take more than the heat
/// map.
const LOCATED_AT_ONCE: usize = 4096;

/// Base pages of a huge page.
const HUGE_SPAN: u64 = 512;

/// What a page is apart from where.
const PLACE: PageFlags = PageFlags(
    PageFlags::PRESENT.0
        | PageFlags::HUGE_HEAD.0
        | PageFlags::HUGE_TAIL.0
        | PageFlags::PINNED.0
        | PageFlags::SHARED.0,
);

/// Which pages are located.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocateScope {
    All,
    /// Those not known to be present.
    New,
}

impl LiveTarget {
    /// The processes of `tree`, over `tiers`, best first. Call [`Target::refresh`] before use.
    ///
    /// # Errors
    /// When the machine's zones cannot be read.
    pub fn new(root: Root, tree: ProcessTree, tiers: Vec<TierNodes>) -> Result<Self, SysError> {
        let frames = FrameMap::new(&zones(&root)?);
        let huge = root.text("/sys/kernel/mm/transparent_hugepage/enabled");
        // Linux 6.8 on sets each size by itself.
        let of_size = root.text("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled");
        let given = of_size.ok().filter(|text| !text.contains("[inherit]"));
        let given = given.or_else(|| huge.as_ref().ok().cloned());
        Ok(Self {
            tree,
            tiers,
            mappings: Vec::new(),
            frames,
            page_size: terrace_sys::page_size(),
            allowed: BTreeMap::new(),
            hidden: BTreeSet::new(),
            counted: Vec::new(),
            huge_pages: huge.is_ok_and(|t| !t.contains("[never]")),
            huge_pages_given: given.is_some_and(|t| t.contains("[always]")),
            huge_pages_wanted: true,
            scan_works: true,
            frames_shown: true,
            root,
        })
    }

    /// With counters of the bytes written to each tier, in the tiers' order, where there are such.
    #[must_use]
    pub fn counting(mut self, counters: Vec<Option<TierWriteCounter>>) -> Self {
        self.counted = counters;
        self
    }

    /// The processes.
    #[must_use]
    pub const fn tree(&self) -> &ProcessTree {
        &self.tree
    }

    /// The processes, to exclude helpers of our own.
    pub const fn tree_mut(&mut self) -> &mut ProcessTree {
        &mut self.tree
    }

    /// Nodes that every process may use.
    fn allowed(&self) -> BTreeSet<NodeId> {
        let mut lists = self.allowed.values();
        let first: BTreeSet<NodeId> = lists.next().into_iter().flatten().copied().collect();
        lists.fold(first, |all, list| all.into_iter().filter(|n| list.contains(n)).collect())
    }

    /// Mappings of one process. Flags are read only where they can matter: smaps walks every page.
    /// Merging (KSM) is no reason to: only some pages of a mapping offered for it are merged, and
    /// those are reported page by page ([`flags_of`]).
    fn read_mappings(&mut self, pid: Pid) -> Result<Vec<Mapping>, SysError> {
        let status = task::status(&self.root, pid)?;
        let flags_matter = status.locked_kib > 0 || status.hugetlb_kib > 0;
        let lines = if flags_matter { smaps(&self.root, pid)? } else { maps(&self.root, pid)? };
        let shift = self.page_size.get().trailing_zeros();
        self.allowed.insert(pid, status.mems_allowed);
        self.huge_pages_wanted |= !status.thp_disabled;
        let usable = lines.iter().filter(|l| l.read || l.write || l.exec);
        Ok(usable
            .map(|line| Mapping {
                pid,
                range: VpnRange::new(Vpn(line.start >> shift), Vpn(line.end >> shift)),
                kind: kind_of(line),
                writable: line.write,
            })
            .collect())
    }

    /// Those of `hidden` that were not before, and why.
    fn newly_hidden(&mut self, hidden: Vec<(Pid, SysError)>) -> Vec<(Pid, String)> {
        let before =
            std::mem::replace(&mut self.hidden, hidden.iter().map(|(pid, _)| *pid).collect());
        hidden
            .into_iter()
            .filter(|(pid, _)| !before.contains(pid))
            .map(|(pid, e)| (pid, e.to_string()))
            .collect()
    }

    /// Of all pages, or of those alone that are not known to be present.
    fn locate_area(
        &mut self,
        area: &mut Area,
        which: LocateScope,
        pagemap: &PageMap,
    ) -> Result<(), SysError> {
        let wanted =
            |page: &PageStat| which == LocateScope::All || !page.flags.has(PageFlags::PRESENT);
        let pinned = self.pinned_ranges(area);
        let (mut entries, mut unplaced) = (Vec::new(), Vec::new());
        let (scans, mut huge) = (self.huge_pages && self.scan_works, Vec::new());
        let mut next = area.start;
        for part in area.pages.chunks_mut(LOCATED_AT_ONCE) {
            let first = next;
            next = Vpn(first.0 + part.len() as u64);
            let Some(from) = part.iter().position(wanted) else { continue };
            let to = part.iter().rposition(wanted).map_or(part.len(), |last| last + 1);
            let range = VpnRange::new(Vpn(first.0 + from as u64), Vpn(first.0 + to as u64));
            pagemap.read(range, &mut entries)?;
            if scans {
                huge.extend(perhaps_huge(range, &entries));
            }
            for ((vpn, page), entry) in
                (range.start.0..).map(Vpn).zip(&mut part[from..to]).zip(&entries)
            {
                if !wanted(page) {
                    continue;
                }
                page.flags = page.flags.without(PLACE);
                if !entry.present() {
                    continue;
                }
                page.flags = page.flags.with(flags_of(*entry, vpn, &pinned));
                match self
                    .frames
                    .node(entry.pfn())
                    .filter(|_| entry.pfn() != 0 && self.frames.usable())
                {
                    Some(node) => page.node = node.0 as u8,
                    None => unplaced.push(vpn),
                }
            }
        }
        if !unplaced.is_empty() {
            self.frames_shown = false;
            self.ask_for(area, &unplaced)?;
        }
        for range in huge {
            self.mark_huge(area, range, pagemap)?;
        }
        Ok(())
    }

    /// Without frame numbers the kernel is asked page by page (0.15 us each, measured).
    fn ask_for(&self, area: &mut Area, pages: &[Vpn]) -> Result<(), SysError> {
        for part in pages.chunks(4096) {
            for (vpn, status) in part.iter().zip(query_pages(area.pid, part)?) {
                let page = &mut area.pages[(vpn.0 - area.start.0) as usize];
                match status {
                    PageStatus::On(node) => page.node = node.0 as u8,
                    PageStatus::Error(_) | PageStatus::Untouched => {
                        page.flags = page.flags.without(PLACE);
                    }
                }
            }
        }
        Ok(())
    }

    fn mark_huge(
        &mut self,
        area: &mut Area,
        range: VpnRange,
        pagemap: &PageMap,
    ) -> Result<(), SysError> {
        let first = area.start.0;
        let scanned = pagemap.scan(range, Category::HUGE, Category::HUGE, |run, _| {
            for vpn in run.start.0..run.end.0 {
                let page = &mut area.pages[(vpn - first) as usize];
                let head = vpn % HUGE_SPAN == 0;
                let flag = if head { PageFlags::HUGE_HEAD } else { PageFlags::HUGE_TAIL };
                page.flags = page.flags.with(flag);
            }
        });
        match scanned {
            Err(SysError::Absent { .. }) => {
                self.scan_works = false;
                Ok(())
            }
            other => other,
        }
    }

    fn locate_which(&mut self, areas: &mut [Area], which: LocateScope) -> Result<(), TargetError> {
        for areas in areas.chunk_by_mut(|a, b| a.pid == b.pid) {
            let pid = areas[0].pid;
            let located = PageMap::open(&self.root, pid).and_then(|pagemap| {
                areas.iter_mut().try_for_each(|area| self.locate_area(area, which, &pagemap))
            });
            match located {
                Ok(()) => {}
                Err(e) if task::is_over(&self.root, pid, &e) => {
                    for page in areas.iter_mut().flat_map(|area| &mut area.pages) {
                        page.flags = page.flags.without(PLACE);
                    }
                }
                Err(e) => return Err(refused("find the pages", pid, &e)),
            }
        }
        Ok(())
    }

    /// Parts of the area in mappings that are left alone.
    fn pinned_ranges(&self, area: &Area) -> Vec<(VpnRange, PageFlags)> {
        let range = area.range();
        let from =
            self.mappings.partition_point(|m| (m.pid, m.range.end) <= (area.pid, range.start));
        self.mappings[from..]
            .iter()
            .take_while(|m| m.pid == area.pid && m.range.start < range.end)
            .filter_map(|m| {
                let flags = match m.kind {
                    MappingKind::Anonymous | MappingKind::FilePrivate => return None,
                    MappingKind::Shared => PageFlags::PINNED.with(PageFlags::SHARED),
                    MappingKind::HugeTlb | MappingKind::Pinned => PageFlags::PINNED,
                };
                m.range.intersect(range).map(|r| (r, flags))
            })
            .collect()
    }
}

/// Parts of this range whose frames lie as a huge page's do, in its order from a multiple of its
/// size on, or are not shown: those alone are worth asking for. (To ask for all took 7% of the CPU
/// time of `terrace` where no page was huge, `kvcache` in the lab.)
fn perhaps_huge(range: VpnRange, entries: &[PageEntry]) -> Vec<VpnRange> {
    let mut found: Vec<VpnRange> = Vec::new();
    let mut start = range.start.0;
    while start < range.end.0 {
        let end = (start / HUGE_SPAN + 1).saturating_mul(HUGE_SPAN).min(range.end.0);
        let at = |vpn: u64| entries.get((vpn - range.start.0) as usize);
        if let (Some(first), Some(last)) = (at(start), at(end - 1)) {
            let in_order = last.pfn().wrapping_sub(first.pfn()) == end - 1 - start
                && first.pfn() % HUGE_SPAN == start % HUGE_SPAN;
            let shown = first.pfn() != 0 && last.pfn() != 0;
            if first.present() && last.present() && (in_order || !shown) {
                match found.last_mut() {
                    Some(before) if before.end.0 == start => before.end = Vpn(end),
                    _ => found.push(VpnRange::new(Vpn(start), Vpn(end))),
                }
            }
        }
        start = end;
    }
    found
}

/// Flags of a present page from its pagemap entry and its mapping.
fn flags_of(entry: PageEntry, vpn: Vpn, pinned: &[(VpnRange, PageFlags)]) -> PageFlags {
    let mut flags = PageFlags::PRESENT;
    if let Some((_, more)) = pinned.iter().find(|(range, _)| range.contains(vpn)) {
        flags = flags.with(*more);
    }
    // Page cache, the zero page, KSM pages and copies shared since a fork: all mapped elsewhere
    // too, and moved only with MPOL_MF_MOVE_ALL, which is never asked for. A KSM page that one
    // mapping alone still has is nobody else's, and moves as any other.
    if entry.file() || !entry.exclusive() {
        flags = flags.with(PageFlags::SHARED).with(PageFlags::PINNED);
    }
    flags
}

fn kind_of(line: &MapLine) -> MappingKind {
    let special = ["[vvar]", "[vdso]", "[vsyscall]", "[vvar_vclock]", "[uprobes]"];
    if line.flags.hugetlb || line.name.starts_with("/anon_hugepage") {
        MappingKind::HugeTlb
    } else if line.flags.locked || line.flags.io || special.contains(&line.name.as_str()) {
        MappingKind::Pinned
    } else if line.shared {
        MappingKind::Shared
    } else if line.inode == 0 {
        MappingKind::Anonymous
    } else {
        MappingKind::FilePrivate
    }
}

fn refused(what: &'static str, pid: Pid, error: &SysError) -> TargetError {
    TargetError::Refused {
        what,
        pid,
        why: error.to_string(),
        remedy: "run as its owner or as root",
    }
}

impl Target for LiveTarget {
    fn refresh(&mut self) -> Result<TargetChange, TargetError> {
        let change = self.tree.refresh();
        let mut mappings = Vec::new();
        self.allowed.clear();
        self.huge_pages_wanted = false;
        let pids: Vec<Pid> = self.tree.pids().collect();
        let (mut shown, mut hidden) = (false, Vec::new());
        for pid in pids {
            match self.read_mappings(pid) {
                Ok(found) => {
                    shown = true;
                    mappings.extend(found);
                }
                Err(e) if task::is_over(&self.root, pid, &e) => {}
                Err(e @ SysError::NotPermitted { .. }) => hidden.push((pid, e)),
                Err(e) => return Err(refused("read the mappings", pid, &e)),
            }
        }
        // One that this user may not read does not end what is done for the others.
        if let (false, Some((pid, e))) = (shown, hidden.first()) {
            return Err(refused("read the mappings", *pid, e));
        }
        let left_out = self.newly_hidden(hidden);
        if self.tree.is_empty() {
            self.mappings.clear();
            return Err(TargetError::Ended);
        }
        let mappings_changed = mappings != self.mappings;
        self.mappings = mappings;
        Ok(TargetChange { born: change.born, died: change.died, mappings_changed, left_out })
    }

    fn gets_huge_pages(&self) -> bool {
        self.huge_pages_given && self.huge_pages_wanted
    }

    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn locate(&mut self, areas: &mut [Area]) -> Result<(), TargetError> {
        self.locate_which(areas, LocateScope::All)
    }

    fn locate_new(&mut self, areas: &mut [Area]) -> Result<(), TargetError> {
        self.locate_which(areas, LocateScope::New)
    }

    fn resident(&mut self) -> Result<Bytes, TargetError> {
        let mut pages = 0u64;
        for pid in self.tree.pids() {
            match task::resident_pages(&self.root, pid) {
                Ok(more) => pages = pages.saturating_add(more),
                Err(e) if task::is_over(&self.root, pid, &e) => {}
                Err(e) => return Err(refused("read the memory used", pid, &e)),
            }
        }
        Ok(Bytes(pages.saturating_mul(self.page_size.get())))
    }

    fn tiers(&mut self) -> Result<Vec<TierState>, TargetError> {
        let pid = self.tree.pids().next().ok_or(TargetError::Ended)?;
        let zones = zones(&self.root).map_err(|e| refused("read the memory left", pid, &e))?;
        let allowed = self.allowed();
        let state = |tier: &TierNodes| {
            let nodes: Vec<NodeId> =
                tier.nodes.iter().copied().filter(|n| allowed.contains(n)).collect();
            let rooms = nodes.iter().map(|n| free_memory(&zones, *n, self.page_size));
            let (mut capacity, mut free, mut unused) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
            for r in rooms {
                capacity += r.capacity;
                free += r.free;
                unused += r.unused;
            }
            let source = ThroughputSource::Unknown;
            TierState {
                nodes,
                capacity,
                free,
                unused,
                write_throughput: None,
                throughput_source: source,
            }
        };
        let mut tiers: Vec<TierState> = self.tiers.iter().map(state).collect();
        let now = terrace_sys::now();
        for (tier, written) in tiers.iter_mut().zip(&mut self.counted) {
            if let Some(rate) = written.as_mut().and_then(|w| w.rate(now)) {
                (tier.write_throughput, tier.throughput_source) =
                    (Some(rate), ThroughputSource::Hardware);
            }
        }
        Ok(tiers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_sys::{AnonymousMapping, MappingPages};

    fn own_target() -> LiveTarget {
        let me = Pid(std::process::id() as i32);
        let nodes = terrace_sys::zones::nodes_with_memory(&Root::live());
        let tree = ProcessTree::new(Root::live(), me);
        LiveTarget::new(Root::live(), tree, vec![TierNodes { nodes }]).unwrap()
    }

    #[test]
    fn own_pages_are_found_where_they_are() {
        let me = Pid(std::process::id() as i32);
        let mut target = own_target();
        let memory = vec![1_u8; 40 * 4096];
        let start = Vpn(memory.as_ptr() as u64 / 4096 + 1);
        target.refresh().unwrap();
        let mut areas = [Area { pid: me, start, pages: vec![PageStat::default(); 32] }];
        target.locate(&mut areas).unwrap();
        assert!(areas[0].pages.iter().all(|p| p.movable()), "{:?}", areas[0].pages[0]);
        let tiers = target.tiers().unwrap();
        assert!(tiers[0].nodes.contains(&areas[0].pages[0].node()));
        assert!(tiers[0].free <= tiers[0].capacity);
        drop(memory);
    }

    #[test]
    fn huge_pages_are_given_unless_the_system_or_the_process_refuses() {
        let mut target = own_target();
        target.refresh().unwrap();
        let me = Pid(std::process::id() as i32);
        let refused = task::status(&Root::live(), me).unwrap().thp_disabled;
        for given in [true, false] {
            target.huge_pages_given = given;
            assert_eq!(target.gets_huge_pages(), given && !refused);
        }
        target.huge_pages_given = true;
        target.huge_pages_wanted = false;
        assert!(!target.gets_huge_pages());
    }

    #[test]
    fn pages_of_several_reads_are_distinguished() {
        let me = Pid(std::process::id() as i32);
        let mut target = own_target();
        let pages = 2 * LOCATED_AT_ONCE + 100;
        let absent = LOCATED_AT_ONCE - 7..LOCATED_AT_ONCE + 9;
        // Zeroed memory of this size is mapped and not touched.
        let mut memory = vec![0_u8; (pages + 1) * 4096];
        let first = memory.as_ptr().align_offset(4096);
        let start = Vpn((memory.as_ptr() as u64 + first as u64) / 4096);
        for page in (0..pages).filter(|p| !absent.contains(p)) {
            memory[first + page * 4096] = 1;
        }
        target.refresh().unwrap();
        let mut areas = [Area { pid: me, start, pages: vec![PageStat::default(); pages] }];
        target.locate(&mut areas).unwrap();
        let found = |p: usize| areas[0].pages[p].flags.has(PageFlags::PRESENT);
        let huge = areas[0].pages.iter().any(|p| p.flags.has(PageFlags::HUGE_HEAD));
        let wrong: Vec<usize> = (0..pages).filter(|p| found(*p) == absent.contains(p)).collect();
        assert!(wrong.is_empty() || huge && wrong.iter().all(|p| found(*p)), "{wrong:?}");
        drop(memory);
    }

    #[test]
    fn of_new_pages_alone_the_rest_stays_as_it_was() {
        let me = Pid(std::process::id() as i32);
        let mut target = own_target();
        let pages = LOCATED_AT_ONCE + 100;
        // Zeroed memory of this size is mapped and not touched.
        let mut memory = vec![0_u8; (pages + 1) * 4096];
        let first = memory.as_ptr().align_offset(4096);
        let start = Vpn((memory.as_ptr() as u64 + first as u64) / 4096);
        let touched = LOCATED_AT_ONCE - 3..LOCATED_AT_ONCE + 5;
        for page in touched.clone() {
            memory[first + page * 4096] = 1;
        }
        target.refresh().unwrap();
        let mut areas = [Area { pid: me, start, pages: vec![PageStat::default(); pages] }];
        // Of one that is taken to be there nothing is asked, though it is not.
        let gone = &mut areas[0].pages[LOCATED_AT_ONCE - 5];
        (gone.flags, gone.node) = (PageFlags::PRESENT, 77);
        target.locate_new(&mut areas).unwrap();
        let [area] = &areas;
        assert!(
            touched.clone().all(|p| area.pages[p].movable()),
            "{:?}",
            area.pages[touched.start]
        );
        assert_eq!(area.pages[LOCATED_AT_ONCE - 5].node, 77);
        let huge = area.pages.iter().any(|p| p.flags.has(PageFlags::HUGE_HEAD));
        assert!(huge || !area.pages[touched.end].flags.has(PageFlags::PRESENT));
        target.locate(&mut areas).unwrap();
        assert!(
            huge || !areas[0].pages[LOCATED_AT_ONCE - 5].flags.has(PageFlags::PRESENT),
            "all are asked for now"
        );
        drop(memory);
    }

    #[test]
    fn frames_in_order_may_be_a_huge_page() {
        let present = |pfn: u64| PageEntry(1 << 63 | pfn);
        let mut entries: Vec<PageEntry> = (0..1_200).map(|i| present(7_000 + 3 * i)).collect();
        let range = VpnRange::new(Vpn(500), Vpn(1_700));
        assert_eq!(perhaps_huge(range, &entries), []);
        // The end of one, a whole one, the begin of one.
        for vpn in (500..512).chain(1_024..1_700) {
            entries[vpn - 500] = present(51_200 + vpn as u64);
        }
        let all = [(500, 512), (1_024, 1_700)].map(|(a, b)| VpnRange::new(Vpn(a), Vpn(b)));
        assert_eq!(perhaps_huge(range, &entries), all);
        entries[1_700 - 501] = PageEntry(0);
        assert_eq!(perhaps_huge(range, &entries)[1], VpnRange::new(Vpn(1_024), Vpn(1_536)));
        // Who is not shown frames asks for all that is there.
        assert_eq!(perhaps_huge(range, &vec![present(0); 1_200]), [range]);
        assert_eq!(perhaps_huge(range, &entries[..3]), []);
    }

    #[test]
    fn pages_of_huge_pages_are_marked() {
        let me = Pid(std::process::id() as i32);
        let mut target = own_target();
        let memory = AnonymousMapping::new(Bytes::mib(4), MappingPages::Huge).unwrap();
        memory.fill();
        let huge = memory.huge_bytes(&Root::live());
        if !target.huge_pages || huge == Bytes::ZERO {
            println!("skipped: this kernel gave no transparent huge page");
            return;
        }
        let start = Vpn(memory.as_ptr() as u64 / 4096);
        target.refresh().unwrap();
        let mut areas = [Area { pid: me, start, pages: vec![PageStat::default(); 1_024] }];
        target.locate(&mut areas).unwrap();
        let has = |flag| areas[0].pages.iter().filter(|p| p.flags.has(flag)).count() as u64;
        let heads = huge.get() / Bytes::mib(2).get();
        assert_eq!(has(PageFlags::HUGE_HEAD), heads);
        assert_eq!(has(PageFlags::HUGE_TAIL), heads * (HUGE_SPAN - 1));
    }

    #[test]
    fn memory_in_use_is_reported_by_process() {
        let mut target = own_target();
        target.refresh().unwrap();
        let before = target.resident().unwrap();
        let memory = vec![1_u8; 64 << 20];
        assert!(target.resident().unwrap() >= before + Bytes::mib(48));
        drop(memory);
    }

    #[test]
    fn an_ended_target_says_so() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        child.wait().unwrap();
        let tree = ProcessTree::new(Root::live(), pid);
        let mut target = LiveTarget::new(Root::live(), tree, vec![]).unwrap();
        assert_eq!(target.refresh(), Err(TargetError::Ended));
        let mut areas = [Area { pid, start: Vpn(1), pages: vec![PageStat::default()] }];
        areas[0].pages[0].flags = PageFlags::PRESENT;
        target.locate(&mut areas).unwrap();
        assert!(!areas[0].pages[0].movable());
    }

    /// A file that nobody may read, root included, stands in for the maps of a child that became
    /// another user's.
    #[test]
    fn a_child_that_cannot_be_read_is_left_alone_and_the_rest_managed() {
        let unreadable = "/sys/bus/platform/drivers_probe";
        if !std::fs::read(unreadable)
            .is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
        {
            println!("skipped: {unreadable} is no file that cannot be read");
            return;
        }
        let dir = std::env::temp_dir().join(format!("terrace-hidden-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("proc")).unwrap();
        std::fs::copy("/proc/zoneinfo", dir.join("proc/zoneinfo")).unwrap();
        for (pid, child) in [(10, "11"), (11, "")] {
            let own = dir.join(format!("proc/{pid}"));
            std::fs::create_dir_all(own.join(format!("task/{pid}"))).unwrap();
            for file in ["stat", "status", "maps"] {
                std::fs::copy(format!("/proc/self/{file}"), own.join(file)).unwrap();
            }
            std::fs::write(own.join(format!("task/{pid}/children")), child).unwrap();
        }
        let hide = |pid: i32| {
            let maps = dir.join(format!("proc/{pid}/maps"));
            std::fs::remove_file(&maps).unwrap();
            std::os::unix::fs::symlink(unreadable, maps).unwrap();
        };
        hide(11);
        let root = Root::with_prefix(&dir);
        let mut target =
            LiveTarget::new(root.clone(), ProcessTree::new(root, Pid(10)), vec![]).unwrap();
        let change = target.refresh().unwrap();
        assert_eq!(change.born, [Pid(11)]);
        assert!(
            change.left_out.len() == 1 && change.left_out[0].0 == Pid(11),
            "{:?}",
            change.left_out
        );
        assert!(
            !target.mappings().is_empty() && target.mappings().iter().all(|m| m.pid == Pid(10))
        );
        assert_eq!(target.refresh().unwrap().left_out, [], "said once");
        hide(10);
        assert!(
            matches!(target.refresh(), Err(TargetError::Refused { pid: Pid(10), .. })),
            "none is left to manage"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn kinds_follow_the_mapping() {
        let line = |text: &str| terrace_sys::maps::parse_maps(text.as_bytes()).unwrap().remove(0);
        let kind = |text: &str| kind_of(&line(text));
        assert_eq!(kind("1000-2000 rw-p 0 0:0 0 [heap]\n"), MappingKind::Anonymous);
        assert_eq!(kind("1000-2000 r-xp 0 0:0 0 [vdso]\n"), MappingKind::Pinned);
        assert_eq!(kind("1000-2000 rw-s 0 0:1 9 /dev/shm/x\n"), MappingKind::Shared);
        assert_eq!(kind("1000-2000 r-xp 0 8:1 9 /bin/x\n"), MappingKind::FilePrivate);
        assert_eq!(
            kind("200000-400000 rw-p 0 0:f 9 /anon_hugepage (deleted)\n"),
            MappingKind::HugeTlb
        );
        let flagged = |map: &str, flags: &str| {
            let text = format!("{map}\nRss: 4 kB\nVmFlags: {flags}\n");
            kind_of(&terrace_sys::maps::parse_smaps(text.as_bytes()).unwrap()[0])
        };
        let plain = "1000-2000 rw-p 0 0:0 0";
        assert_eq!(flagged(plain, "rd wr mr mw me ac"), MappingKind::Anonymous);
        assert_eq!(flagged(plain, "rd wr mr mw me lo ac"), MappingKind::Pinned);
        assert_eq!(flagged(plain, "rd wr mr mw me pf io"), MappingKind::Pinned);
        assert_eq!(
            flagged("1000-2000 rw-s 0 0:1 9 /dev/shm/x", "rd wr sh lo"),
            MappingKind::Pinned
        );
        assert_eq!(
            flagged("200000-400000 rw-s 0 0:f 9 /mnt/huge/x", "rd wr sh ht"),
            MappingKind::HugeTlb
        );
        // Which pages of it are merged, their own bits say.
        assert_eq!(flagged(plain, "rd wr mr mw me ac mg"), MappingKind::Anonymous);
    }

    #[test]
    fn pages_of_others_are_identified_by_their_own_bits() {
        const PRESENT: u64 = 1 << 63;
        const FILE: u64 = 1 << 61;
        const EXCLUSIVE: u64 = 1 << 56;
        let flags = |entry| flags_of(PageEntry(entry), Vpn(5), &[]);
        let movable = |flags| PageStat { flags, ..PageStat::default() }.movable();
        assert!(movable(flags(PRESENT | EXCLUSIVE)));
        // Merged, or shared since a fork; and page cache, mapped once or more often.
        for entry in [PRESENT, PRESENT | FILE, PRESENT | FILE | EXCLUSIVE] {
            assert!(!movable(flags(entry)) && flags(entry).has(PageFlags::SHARED), "{entry:x}");
        }
        let pinned = [(VpnRange::new(Vpn(5), Vpn(6)), PageFlags::PINNED)];
        assert!(!movable(flags_of(PageEntry(PRESENT | EXCLUSIVE), Vpn(5), &pinned)));
        assert!(movable(flags_of(PageEntry(PRESENT | EXCLUSIVE), Vpn(6), &pinned)));
    }
}
