//! Threads that wait for a page: one that is moving, or one from a store behind memory.

use super::{ThreadActivity, World};
use crate::far::SimFarMemory;

/// What lies behind memory, if anything does.
#[derive(Debug, Default)]
pub(super) struct FarSide {
    store: Option<Box<SimFarMemory>>,
    /// Threads that have their pages, and when they go on, picoseconds.
    paged_in: Vec<(usize, u64)>,
}

impl World {
    /// Puts a store behind memory, before anything runs.
    pub fn put_behind(&mut self, far: SimFarMemory) {
        self.memory.paged = true;
        self.far.store = Some(Box::new(far));
    }

    /// What lies behind memory.
    #[must_use]
    pub fn far(&self) -> Option<&SimFarMemory> {
        self.far.store.as_deref()
    }

    /// A thread waits for a page from `time` (picoseconds) on.
    pub(crate) fn page_in(&mut self, thread: usize, vpn: u64, write: bool, time: u64) {
        if let Some(head) = self.memory.waited_for.take() {
            self.program.threads[thread].doing = ThreadActivity::Moving(head);
        } else if let Some(far) = &mut self.far.store {
            self.program.threads[thread].doing = ThreadActivity::Paging;
            far.touch(thread, vpn, write, time);
        }
    }

    /// The page at `head` has moved: threads that wait for it go on now.
    pub(crate) fn has_moved(&mut self, head: usize) {
        self.memory.has_moved(head, self.daemon.time);
        for thread in 0..self.program.threads.len() {
            if self.program.threads[thread].doing != ThreadActivity::Moving(head as u32) {
                continue;
            }
            if let Some(core) = self.core_of(thread) {
                if !self.busy(core) {
                    let time = &mut self.engine.units[core].core.time;
                    *time = self.daemon.time.max(*time);
                }
            }
            self.program.threads[thread].doing = ThreadActivity::Running;
        }
    }

    /// Lets happen behind memory what does before `end`, picoseconds.
    pub(super) fn pass_far(&mut self, end: u64) {
        let Some(far) = &mut self.far.store else { return };
        far.pass(&mut self.memory, end);
        self.far.paged_in.extend(far.woken());
        for vpn in far.stale() {
            self.forget_base_page(vpn);
        }
        for (thread, time) in std::mem::take(&mut self.far.paged_in) {
            let Some(core) = self.core_of(thread) else { continue };
            let at = self.engine.units[core].core.time;
            if self.busy(core) && at < time {
                // Another thread has the core until then.
                self.far.paged_in.push((thread, time));
                continue;
            }
            self.engine.units[core].core.time = at.max(time);
            self.program.threads[thread].doing = ThreadActivity::Running;
        }
    }

    /// All threads wait: time passes until one of them has its page. `false`: none waits for one.
    pub(super) fn wait_for_far(&mut self) -> bool {
        while let Some(next) = self.far.store.as_ref().and_then(|far| far.next()) {
            self.pass_far(next + 1);
            if (0..self.cores.len()).any(|core| self.busy(core)) {
                self.engine.restart();
                return true;
            }
        }
        false
    }

    /// The core that a thread belongs to.
    fn core_of(&self, thread: usize) -> Option<usize> {
        self.cores.iter().position(|core| core.queue.threads.contains(&thread))
    }
}
