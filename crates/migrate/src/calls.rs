//! The calls of the mover, made of the running kernel.

use crate::bulk::Bulk;
use terrace_mover::{CallError, MoveCall, MoveCalls, MoveCosts, MovePages, PageStatus};
use terrace_sys::{now, query_pages, sleep, take_turn, Category, PageMap, Root, SysError};
use terrace_types::{Nanos, NodeId, Pid, Tick, Vpn, VpnRange};

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

/// The mover of the running kernel, on a machine on which moving costs so much.
#[must_use]
pub fn live_mover(costs: MoveCosts) -> MovePages<KernelCalls> {
    MovePages::new(KernelCalls::new(Root::live(), costs), terrace_sys::page_size())
}

impl MoveCalls for KernelCalls {
    fn query(&mut self, pid: Pid, pages: &[Vpn]) -> Result<Vec<PageStatus>, CallError> {
        query_pages(pid, pages).map_err(|why| match why {
            SysError::Gone { .. } => CallError::Gone,
            SysError::NotPermitted { .. } => CallError::NotPermitted,
            _ => CallError::Other,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_engine::{MoveFailure, MoveLimits, Mover};
    use terrace_types::{Move, MoveReason};

    fn limits() -> MoveLimits {
        let (longest_call, total) = (Nanos::millis(20), Nanos::secs(10));
        MoveLimits { longest_call, rate: None, batch: 512, total }
    }

    #[test]
    fn own_pages_on_this_machine_are_already_there() {
        let page = terrace_sys::page_size().get();
        let memory = vec![1_u8; 64 * page as usize];
        let first = Vpn(memory.as_ptr() as u64 / page + 1);
        let me = Pid(std::process::id() as i32);
        let node = match terrace_sys::query_pages(me, &[first]) {
            Ok(found) => match found[0] {
                PageStatus::On(node) => node,
                other => panic!("own page is {other:?}"),
            },
            Err(e) => return println!("skipped: {e}"),
        };
        let whole = Move {
            pid: me,
            start: first,
            pages: 60,
            from: node,
            to: node,
            reason: MoveReason::Hot,
        };
        let outcome = live_mover(MoveCosts::default()).apply(&[whole], false, &limits());
        assert_eq!(outcome.failed, [(MoveFailure::AlreadyThere, 60)]);
        drop(memory);
    }

    #[test]
    fn nobody_is_gone() {
        let (from, to, reason) = (NodeId(1), NodeId(0), MoveReason::Hot);
        let lost = Move { pid: Pid(i32::MAX), start: Vpn(0), pages: 8, from, to, reason };
        let outcome = live_mover(MoveCosts::default()).apply(&[lost], false, &limits());
        assert_eq!(outcome.failed, [(MoveFailure::Gone, 8)]);
    }
}
