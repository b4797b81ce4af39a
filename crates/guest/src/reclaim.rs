//! `kernel:reclaim`: the command lives in a memory cgroup, and every period the agent asks the
//! kernel to reclaim a little of it while a node is short of free memory. With demotion on, what is
//! reclaimed goes to the slow node.

use crate::stats;
use crate::wire::{Reclaim, ReclaimReport};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

const ROOT: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/terrace-job";
const PAGE: u64 = 4096;

/// The group of one job, and when it is looked at next.
pub struct Reclaimer {
    plan: Reclaim,
    goal_bytes: u64,
    due: u64,
    report: ReclaimReport,
}

impl Reclaimer {
    /// Make the group. The goal is counted from the node's high watermark, below which kswapd works
    /// by itself.
    pub fn new(plan: Reclaim, now: u64) -> io::Result<Self> {
        let named =
            |path: String| move |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
        let control = format!("{ROOT}/cgroup.subtree_control");
        fs::write(&control, "+memory").map_err(named(control))?;
        fs::create_dir_all(GROUP).map_err(named(GROUP.into()))?;
        let reserve = stats::reserve_pages(Path::new("/proc"), plan.node) * PAGE;
        let (goal_bytes, due) = (reserve + plan.free_bytes, now + plan.period_nanos);
        Ok(Reclaimer { plan, goal_bytes, due, report: ReclaimReport::default() })
    }

    /// File to which a process writes "0" to join the group.
    pub fn procs() -> io::Result<fs::File> {
        OpenOptions::new().write(true).open(format!("{GROUP}/cgroup.procs"))
    }

    /// Nanoseconds until the next look.
    pub fn wait(&self, now: u64) -> u64 {
        self.due.saturating_sub(now)
    }

    /// Look, if it is time.
    pub fn tick(&mut self, clock: impl Fn() -> u64) {
        let now = clock();
        if now < self.due {
            return;
        }
        self.report.looks += 1;
        let free =
            stats::free_bytes(Path::new("/sys")).get(&self.plan.node).copied().unwrap_or(u64::MAX);
        let ask = wanted(free, self.goal_bytes, self.plan.step_bytes);
        if ask > 0 {
            self.report.asked_bytes += ask;
            let reclaimed = OpenOptions::new()
                .write(true)
                .open(format!("{GROUP}/memory.reclaim"))
                .and_then(|mut f| f.write_all(ask.to_string().as_bytes()));
            if let Err(e) = reclaimed {
                // EAGAIN: less than asked was found.
                *self.report.refused.entry(e.to_string()).or_insert(0) += 1;
            }
        }
        let after = clock();
        self.report.nanos += after - now;
        // A round that took longer than a period does not make the next ones come in a burst.
        self.due = (self.due + self.plan.period_nanos).max(after + self.plan.period_nanos / 2);
    }

    /// What came of it.
    pub fn report(self) -> ReclaimReport {
        self.report
    }
}

/// Bytes to ask for: what is missing to the goal, at most one step.
fn wanted(free: u64, goal: u64, step: u64) -> u64 {
    goal.saturating_sub(free).min(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_what_is_missing_and_at_most_a_step() {
        assert_eq!(wanted(100, 80, 10), 0);
        assert_eq!(wanted(80, 80, 10), 0);
        assert_eq!(wanted(77, 80, 10), 3);
        assert_eq!(wanted(0, 80, 10), 10);
        assert_eq!(wanted(u64::MAX, 80, 10), 0);
    }

    #[test]
    fn waits_a_period_and_never_bursts() {
        let plan = Reclaim { node: 63, free_bytes: 0, step_bytes: 0, period_nanos: 100 };
        let mut r = Reclaimer { plan, goal_bytes: 0, due: 100, report: ReclaimReport::default() };
        assert_eq!(r.wait(40), 60);
        r.tick(|| 99);
        assert_eq!((r.due, r.report.looks), (100, 0));
        r.tick(|| 100);
        assert_eq!((r.due, r.report.looks), (200, 1));
        r.tick(|| 1000);
        assert_eq!((r.due, r.report.looks), (1050, 2));
    }
}
