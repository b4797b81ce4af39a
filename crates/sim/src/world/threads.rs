//! What the program's threads do next: their accesses from the feed, waiting for a time of the
//! recording or for each other, starting and ending.

use super::{SimThread, ThreadActivity, World, MAIN, PAGE};
use crate::feed::{ThreadSupply, HEAP};
use crate::memory::ABSENT;
use terrace_model::PS;
use terrace_types::{Nanos, Vpn, VpnRange};

impl World {
    /// Gets a thread's next accesses, or what comes in their place.
    pub(super) fn refill(&mut self, core: usize, thread: usize) {
        let next = self.program.threads[thread].waiting.pop_front();
        if let Some(events) = next {
            let t = &mut self.program.threads[thread];
            let done = std::mem::replace(&mut t.events, events);
            t.at = 0;
            self.program.feed.recycle(done);
            return;
        }
        match std::mem::replace(&mut self.program.threads[thread].then, ThreadSupply::Continue) {
            ThreadSupply::Continue | ThreadSupply::Accesses(_) => self.ask(core, thread),
            ThreadSupply::Reached(time) => {
                self.program.threads[thread].reached = time;
                self.wake(core);
            }
            ThreadSupply::Until(time) => {
                self.program.threads[thread].doing = ThreadActivity::Until(time);
                self.wake(core);
            }
            ThreadSupply::Allocated(bytes) => {
                self.hold(bytes);
                self.ask(core, thread);
            }
            ThreadSupply::WriteBack(addresses) => self.write_lines_back(core, &addresses),
            ThreadSupply::Meet => {
                self.program.threads[thread].doing = ThreadActivity::Meeting;
                self.release(core);
            }
            ThreadSupply::Done if thread == MAIN => self.begin(core),
            ThreadSupply::Done => {
                self.program.threads[thread].doing = ThreadActivity::Ended;
                self.release(core);
                self.wake(core);
                if self.program.threads.iter().all(|t| t.doing == ThreadActivity::Ended) {
                    self.measured.end = Some((self.engine.units[core].core.time, self.counters()));
                }
            }
        }
    }

    fn ask(&mut self, core: usize, thread: usize) {
        if thread == MAIN {
            match self.program.feed.prepare() {
                ThreadSupply::Accesses(events) => {
                    self.program.threads[MAIN].waiting.push_back(events)
                }
                other => self.program.threads[MAIN].then = other,
            }
            return;
        }
        let begin = self.measured.begin.as_ref().map_or(0, |b| b.0);
        let now = Nanos(self.engine.units[core].core.time.saturating_sub(begin) / PS);
        // A step is taken whole: the workload cannot be asked for another thread's before.
        loop {
            match self.program.feed.step(thread - 1, now) {
                ThreadSupply::Accesses(events) => {
                    self.program.threads[thread].waiting.push_back(events)
                }
                other => break self.program.threads[thread].then = other,
            }
        }
    }

    /// A core writes lines back; those of pages that nobody touched yet are in no cache.
    fn write_lines_back(&mut self, core: usize, addresses: &[u64]) {
        for address in addresses {
            self.engine.units[core].core.execute(1);
            let page = self.memory.page_of(address / PAGE).filter(|page| page.frame != ABSENT);
            if let Some(page) = page {
                let physical = u64::from(page.frame) * PAGE + address % PAGE;
                self.engine.write_line_back(core, physical);
            }
        }
        // Who stores to such a line again changes more than counts.
        self.cores.iter_mut().for_each(|core| core.mmu.unsettle());
    }

    /// The program's own heap is about to have so many bytes.
    fn hold(&mut self, bytes: u64) {
        let first = HEAP / PAGE;
        let (end, mapped) = (first + bytes.div_ceil(PAGE), self.program.heap_mapped.max(first));
        if end > mapped {
            self.memory.map(VpnRange::new(Vpn(mapped), Vpn(end)));
            self.program.heap_mapped = end;
        }
    }

    /// The main thread is done: the others start.
    fn begin(&mut self, core: usize) {
        self.program.threads[MAIN].doing = ThreadActivity::Ended;
        for thread in &mut self.program.threads[MAIN + 1..] {
            thread.doing = ThreadActivity::Running;
        }
        let time = self.engine.units[core].core.time;
        for unit in &mut self.engine.units {
            unit.core.time = unit.core.time.max(time);
        }
        self.measured.begin = Some((time, self.counters()));
        if self.stops.at_begin {
            self.stops.stop();
        }
    }

    /// Threads that wait for a time of the recording go on when all who run have come to it; when
    /// nobody runs, the first of them does.
    fn wake(&mut self, core: usize) {
        let runs = |t: &&SimThread| {
            matches!(
                t.doing,
                ThreadActivity::Running | ThreadActivity::Paging | ThreadActivity::Moving(_)
            )
        };
        let running = self.program.threads.iter().filter(runs).map(|t| t.reached).min();
        let waiting = |t: &SimThread| {
            if let ThreadActivity::Until(time) = t.doing {
                Some(time)
            } else {
                None
            }
        };
        let due = running.or(self.program.threads.iter().filter_map(waiting).min());
        let Some(due) = due else { return };
        let time = self.engine.units[core].core.time;
        for (core, unit) in self.cores.iter().zip(&mut self.engine.units) {
            for thread in &core.queue.threads {
                let thread = &mut self.program.threads[*thread];
                if waiting(thread).is_some_and(|until| until <= due) {
                    thread.reached = thread.reached.max(due);
                    thread.doing = ThreadActivity::Running;
                    unit.core.time = unit.core.time.max(time);
                }
            }
        }
    }

    /// When nobody runs any more, those who wait for each other go on together.
    fn release(&mut self, core: usize) {
        let comes = |t: &SimThread| {
            matches!(
                t.doing,
                ThreadActivity::Running
                    | ThreadActivity::Paging
                    | ThreadActivity::Moving(_)
                    | ThreadActivity::Unborn
            )
        };
        if self.program.threads.iter().any(comes) {
            return;
        }
        let time = self.engine.units[core].core.time;
        for (core, unit) in self.cores.iter().zip(&mut self.engine.units) {
            for thread in &core.queue.threads {
                if self.program.threads[*thread].doing == ThreadActivity::Meeting {
                    self.program.threads[*thread].doing = ThreadActivity::Running;
                    unit.core.time = unit.core.time.max(time);
                }
            }
        }
    }
}
