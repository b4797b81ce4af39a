//! What the mover needs of a kernel.

use terrace_types::{MoveCall, Nanos, NodeId, PageStatus, Pid, Tick, Vpn, VpnRange};

/// Why a call about a process could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The process has ended.
    Gone,
    /// It may not be managed.
    NotPermitted,
    /// Anything else.
    Other,
}

/// The kernel, or a stand-in.
pub trait MoveCalls {
    /// Where each page is.
    ///
    /// # Errors
    /// When the process has ended or may not be asked.
    fn query(&mut self, pid: Pid, pages: &[Vpn]) -> Result<Vec<PageStatus>, CallError>;
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

    /// Before pages go down to free space: a good moment to go on on another CPU. Not between them
    /// and those that go up: freed pages stay on lists of the CPU that freed them for a while
    /// (kernel: `free_unref_page` in `mm/page_alloc.c`).
    fn turn(&mut self) {}
}
