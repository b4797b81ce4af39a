//! What the mover needs of the kernel.

use crate::bulk::Bulk;
use crate::way::MoveCosts;
use terrace_sys::{
    now, query_pages, sleep, take_turn, Category, MoveCall, PageMap, PageStatus, Root, SysError,
};
use terrace_types::{Nanos, NodeId, Pid, Tick, Vpn, VpnRange};

/// The kernel, or a stand-in.
pub trait MoveCalls {
    /// Where each page is.
    ///
    /// # Errors
    /// When the process has ended or may not be asked.
    fn query(&mut self, pid: Pid, pages: &[Vpn]) -> Result<Vec<PageStatus>, SysError>;
    /// Asks to move pages, base or the first of huge ones, `base_pages` together; everything is a
    /// value.
    fn move_to(&mut self, pid: Pid, pages: &[Vpn], base_pages: u64, to: NodeId) -> MoveCall;
    /// Runs of pages of `range` mapped by huge entries, in order; empty when nothing can tell.
    fn huge(&mut self, pid: Pid, range: VpnRange) -> Vec<VpnRange>;
    /// Monotonic time.
    fn now(&mut self) -> Tick;
    /// Lets time pass.
    fn wait(&mut self, span: Nanos);

    /// Base pages for a call of this length, by what the machine's file says of it; `None` where
    /// nothing does.
    fn batch(&self, _span: Nanos) -> Option<u64> {
        None
    }

    /// Before pages go down to make room: a good moment to go on on another CPU. Not between them
    /// and those that go up: freed pages stay on lists of the CPU that freed them for a while
    /// (kernel: `free_unref_page` in `mm/page_alloc.c`).
    fn turn(&mut self) {}
}

/// The running kernel.
#[derive(Debug)]
pub struct KernelCalls {
    root: Root,
    huge_pages: bool,
    costs: MoveCosts,
    bulk: Bulk,
}

impl KernelCalls {
    /// Finds out whether transparent huge pages are in use at all. `costs` say how many threads
    /// pay, and how many pages the first call may carry.
    #[must_use]
    pub fn new(root: Root, costs: MoveCosts) -> Self {
        let enabled = root.text("/sys/kernel/mm/transparent_hugepage/enabled");
        let huge_pages = enabled.is_ok_and(|t| !t.contains("[never]"));
        Self { root, huge_pages, costs, bulk: Bulk::new(costs) }
    }
}

impl MoveCalls for KernelCalls {
    fn query(&mut self, pid: Pid, pages: &[Vpn]) -> Result<Vec<PageStatus>, SysError> {
        query_pages(pid, pages)
    }

    fn move_to(&mut self, pid: Pid, pages: &[Vpn], base_pages: u64, to: NodeId) -> MoveCall {
        self.bulk.move_units(pid, pages, base_pages, to)
    }

    fn huge(&mut self, pid: Pid, range: VpnRange) -> Vec<VpnRange> {
        let mut found = Vec::new();
        if !self.huge_pages {
            return found;
        }
        // Opened anew each time: a descriptor stays bound to memory that exec replaces.
        if let Ok(map) = PageMap::open(&self.root, pid) {
            // Where the scan is missing huge pages go page by page: slower, and still right.
            let _missing_is_slower =
                map.scan(range, Category::HUGE, Category::HUGE, |run, _| found.push(run));
        }
        found
    }

    fn now(&mut self) -> Tick {
        now()
    }

    fn wait(&mut self, span: Nanos) {
        sleep(span);
    }

    fn batch(&self, span: Nanos) -> Option<u64> {
        Some(self.costs.batch(span))
    }

    fn turn(&mut self) {
        take_turn();
    }
}
