//! The pager's thread beside those that wait for it: keeps it on one CPU while they take turns
//! there (see [`crate::wake_affinity`]).

use crate::wake_affinity::WakeAffinity;
use terrace_sys::{current_cpu, Fault, LocalWaker, ThreadCpus};
use terrace_types::{CpuId, Tick, Tid};

/// Where the pager's thread runs, and whom it wakes there.
#[derive(Debug, Default)]
pub(crate) struct PagerAffinity {
    near: WakeAffinity,
    local_waker: Option<LocalWaker>,
    /// What the thread may have; none before the first fault, or where it is not known.
    own: Option<ThreadCpus>,
    /// The CPU that it is kept on.
    home: Option<CpuId>,
    /// It waits, for this page.
    waits: Option<(Tid, u64)>,
    /// Threads woken on the pager's CPU.
    pub woken_here: u64,
    refused: bool,
}

impl PagerAffinity {
    /// One that leaves threads to the kernel, unless `may`.
    pub fn new(may: bool) -> Self {
        Self { refused: !may, ..Self::default() }
    }

    /// Takes in faults just reported, and the page of one that is alone.
    pub fn observe(&mut self, faults: &[Fault], page: impl FnOnce(u64) -> u64, now: Tick) {
        let one = match faults {
            [] => return,
            [one] if one.tid != Tid(0) => Some(one),
            _ => None,
        };
        let here = !self.refused && self.near.observe(one.map(|f| f.tid), now);
        self.waits = one.filter(|_| here).map(|f| (f.tid, page(f.address)));
        match (here, self.home) {
            (true, None) => self.choose_cpus(),
            (false, Some(_)) => self.leave(),
            _ => {}
        }
    }

    fn choose_cpus(&mut self) {
        self.local_waker = self.local_waker.take().or_else(|| LocalWaker::new().ok());
        let own = ThreadCpus::read(Tid(0)).ok().filter(|own| own.count() > 1);
        let home = current_cpu().filter(|cpu| own.as_ref().is_some_and(|own| own.has(*cpu)));
        let kept =
            own.as_ref().zip(home).is_some_and(|(own, home)| own.only(home).set(Tid(0)).is_ok());
        (self.own, self.home, self.refused) =
            (own, home.filter(|_| kept), !kept || self.local_waker.is_none());
    }

    fn leave(&mut self) {
        if let (Some(own), Some(_)) = (&self.own, self.home.take()) {
            // It was allowed before; should it not be any more, the kernel has chosen other CPUs
            // already.
            let _chosen_otherwise = own.set(Tid(0));
        }
    }

    /// Whether somebody waits who is to go on here.
    pub const fn is_awaited(&self) -> bool {
        self.waits.is_some() && self.home.is_some()
    }

    /// Does what makes pages present, and wakes the threads that wait for them.
    pub fn waking<T>(&mut self, pages: impl FnOnce(u64) -> bool, work: impl FnOnce() -> T) -> T {
        let waits = self.waits.filter(|w| pages(w.1)).map(|w| w.0).zip(self.home);
        let (Some((tid, home)), Some(local_waker)) = (waits, &mut self.local_waker) else {
            return work();
        };
        self.waits = None;
        let (result, here) = local_waker.wake(tid, home, work);
        if here {
            self.woken_here += 1;
        } else {
            self.join(tid);
        }
        result
    }

    /// Goes to a CPU that the thread may run on; gives up where that was not what kept it away.
    fn join(&mut self, tid: Tid) {
        let (Some(home), Ok(theirs)) = (self.home, ThreadCpus::read(tid)) else {
            return;
        };
        if theirs.has(home) {
            // Scheduled in a way of its own, or forbidden.
            self.leave();
            self.refused = true;
            return;
        }
        let other = self.own.as_ref().and_then(|own| Some((own, theirs.shared_with(own)?)));
        match other.filter(|(own, cpu)| own.only(*cpu).set(Tid(0)).is_ok()) {
            Some((_, cpu)) => self.home = Some(cpu),
            None => self.leave(),
        }
    }
}
