//! The running kernel.

use crate::kernel::{AllocatorKernel, MoveCounts, NodeRun};
use crate::mover::mover;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};
use terrace_sys::{
    allowed_nodes, cgroup_headroom, current_cpu, memory_available, now, own_cpus, page_size,
    query_pages, zones, Category, MemPolicy, PageEntry, PageMap, PageStatus, Region, Root,
    SysError,
};
use terrace_types::{Bytes, CpuId, Nanos, NodeId, Pid, Tick, Vpn, VpnRange};

/// Pages asked for a call: enough that the call's own cost does not matter.
const BATCH: usize = 8192;
/// What a call that moves pages may take, by what they cost on this machine: with the usual costs
/// 8192 of them.
const CALL: Nanos = Nanos::millis(20);

/// The running kernel; owns the address space that was reserved through it.
#[derive(Debug)]
pub struct LiveKernel {
    root: Root,
    page: usize,
    nodes: Vec<NodeId>,
    regions: RwLock<BTreeMap<usize, Region>>,
}

impl Default for LiveKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl LiveKernel {
    /// Finds the nodes that this process may use.
    #[must_use]
    pub fn new() -> Self {
        let root = Root::live();
        let with_memory = zones::nodes_with_memory(&root);
        let nodes = match allowed_nodes() {
            Ok(allowed) => with_memory.iter().copied().filter(|n| allowed.contains(n)).collect(),
            Err(_without_numa) => with_memory,
        };
        let page = page_size().get() as usize;
        Self { root, page, nodes, regions: RwLock::new(BTreeMap::new()) }
    }

    fn with<T>(
        &self,
        part: &Range<usize>,
        call: impl FnOnce(&Region) -> Result<T, SysError>,
    ) -> Result<T, SysError> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        match regions.range(..=part.start).next_back() {
            Some((_, region)) if part.end <= region.range().end => call(region),
            _ => Err(SysError::from_errno(
                "look-up",
                format!("{:#x}", part.start),
                22,
                "give reserved addresses",
            )),
        }
    }

    fn vpns(&self, part: &Range<usize>) -> VpnRange {
        VpnRange::new(
            Vpn((part.start / self.page) as u64),
            Vpn(part.end.div_ceil(self.page) as u64),
        )
    }

    /// The node of each page. Where one node has all memory, no leave to ask is needed.
    fn nodes_of(&self, pages: &[Vpn]) -> Result<Vec<PageStatus>, SysError> {
        match (query_pages(me(), pages), self.nodes.as_slice()) {
            (Err(error), [only])
                if error.is_refusal() && zones::is_only_node(&self.root, *only) =>
            {
                Ok(vec![PageStatus::On(*only); pages.len()])
            }
            (statuses, _) => statuses,
        }
    }

    /// Pages of `part` that are there; of a huge page the first alone, with how many it has.
    fn present(&self, part: &Range<usize>) -> Result<Vec<(Vpn, u64)>, SysError> {
        let huge = (2 << 20) / self.page as u64;
        let map = PageMap::open(&self.root, me())?;
        let mut found = Vec::new();
        let scanned = map.scan(self.vpns(part), Category::PRESENT, Category::HUGE, |run, has| {
            let step = if has.has(Category::HUGE) { huge } else { 1 };
            let mut at = run.start.0;
            while at < run.end.0 {
                // A run may begin inside a huge page.
                let next = ((at / step + 1) * step).min(run.end.0);
                found.push((Vpn(at), next - at));
                at = next;
            }
        });
        if scanned.is_ok() {
            return Ok(found);
        }
        // Before Linux 6.7: entry by entry.
        found.clear();
        let mut entries: Vec<PageEntry> = Vec::new();
        let range = self.vpns(part);
        map.read(range, &mut entries)?;
        let present = entries.iter().enumerate().filter(|(_, e)| e.present());
        found.extend(present.map(|(at, _)| (Vpn(range.start.0 + at as u64), 1)));
        Ok(found)
    }
}

fn me() -> Pid {
    Pid(std::process::id() as i32)
}

impl AllocatorKernel for LiveKernel {
    fn page_size(&self) -> Bytes {
        Bytes(self.page as u64)
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.nodes.clone()
    }

    fn free_memory(&self) -> Vec<(NodeId, Bytes)> {
        let zones = zones::zones(&self.root).unwrap_or_default();
        let free = |node: NodeId| zones::free_memory(&zones, node, self.page_size()).sure;
        match self.nodes.as_slice() {
            // With one node nothing spills: what the kernel can reclaim is space as well.
            [only] => {
                let available = memory_available(&self.root).unwrap_or_default();
                vec![(*only, free(*only).max(available))]
            }
            nodes => nodes.iter().map(|n| (*n, free(*n))).collect(),
        }
    }

    fn headroom(&self) -> Option<Bytes> {
        cgroup_headroom(&self.root)
    }

    fn cpus(&self) -> Vec<CpuId> {
        own_cpus().unwrap_or_default()
    }

    fn cpu(&self) -> Option<CpuId> {
        current_cpu()
    }

    fn reserve(&self, len: Bytes, align: Bytes) -> Result<Range<usize>, SysError> {
        let region = Region::reserve(len, align)?;
        let range = region.range();
        self.regions.write().unwrap_or_else(PoisonError::into_inner).insert(range.start, region);
        Ok(range)
    }

    fn bind(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError> {
        self.with(part, |region| region.bind(part, policy))
    }

    fn huge(&self, part: &Range<usize>, welcome: bool) {
        // Without huge pages it is slower, and still right.
        let _advice = self.with(part, |region| region.huge(part, welcome));
    }

    fn discard(&self, part: &Range<usize>) -> Result<(), SysError> {
        self.with(part, |region| region.discard(part))
    }

    fn populate(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError> {
        self.with(part, |region| region.populate(part, policy))
    }

    fn resident(&self, part: &Range<usize>) -> Result<Vec<NodeRun>, SysError> {
        let mut runs: Vec<NodeRun> = Vec::new();
        for batch in self.present(part)?.chunks(BATCH) {
            let pages: Vec<Vpn> = batch.iter().map(|(vpn, _)| *vpn).collect();
            for ((vpn, count), status) in batch.iter().zip(self.nodes_of(&pages)?) {
                let PageStatus::On(node) = status else { continue };
                let start = (vpn.0 as usize * self.page).max(part.start);
                let end = ((vpn.0 + count) as usize * self.page).min(part.end);
                match runs.last_mut() {
                    Some(last) if last.range.end == start && last.node == node => {
                        last.range.end = end
                    }
                    _ => runs.push(NodeRun { range: start..end, node }),
                }
            }
        }
        Ok(runs)
    }

    fn move_to(&self, parts: &[Range<usize>], to: NodeId) -> MoveCounts {
        let mut done = MoveCounts::default();
        let pages: Vec<Vpn> = parts
            .iter()
            .flat_map(|p| (p.start / self.page..p.end.div_ceil(self.page)).map(|v| Vpn(v as u64)))
            .collect();
        let mover = mover();
        for batch in pages.chunks(mover.batch(CALL) as usize) {
            let call = mover.move_pages(me(), batch, to);
            let there = call.pages.iter().filter(|s| **s == PageStatus::On(to)).count();
            done.moved += Bytes((there * self.page) as u64);
            done.stayed += Bytes(((batch.len() - there) * self.page) as u64);
        }
        done
    }

    fn now(&self) -> Tick {
        now()
    }
}
