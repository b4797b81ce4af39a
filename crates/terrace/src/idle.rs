//! `run --policy none`: nothing is moved, and how much memory was idle for how long is reported.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use terrace_policy::place::{CustomPolicy, PolicyNeeds};
use terrace_types::{
    Bytes, Nanos, NodeId, PageFlags, PageStat, Pid, Plan, PolicyWork, Request, Snapshot, Tick,
};

/// Pages whose times are kept together.
const CHUNK: u64 = 512;
/// Shares of memory that are reported, percent.
const SHARES: [u8; 5] = [50, 25, 10, 5, 1];

/// The memory of a program that is most idle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleShare {
    /// So much of the memory, percent, the most idle first.
    pub percent: u8,
    /// It was not accessed for at least so long before the end.
    pub idle_seconds: f64,
}

/// How much memory was idle for how long, at the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleMemory {
    /// For how long accesses were observed: no memory counts as idle for longer.
    pub observed_seconds: f64,
    /// Memory that was present at the end.
    pub bytes: u64,
    /// By share of the memory.
    pub shares: Vec<IdleShare>,
}

impl IdleMemory {
    /// One sentence.
    #[must_use]
    pub fn line(&self) -> String {
        let shares: Vec<String> = self
            .shares
            .iter()
            .map(|s| format!("{}% for {:.1} s", s.percent, s.idle_seconds))
            .collect();
        format!(
            "idle at the end, of {} observed over {:.1} s: {} and longer",
            Bytes(self.bytes),
            self.observed_seconds,
            shares.join(", ")
        )
    }
}

/// When pages were last found accessed.
#[derive(Debug, Default)]
pub struct IdleObserver {
    first: Option<Tick>,
    now: Tick,
    /// Milliseconds from the first snapshot, by process and number of the chunk; zero: not yet.
    last: BTreeMap<(Pid, u64), Box<[u32; CHUNK as usize]>>,
    /// Pages in memory by how long they had been idle at the last snapshot, milliseconds.
    idle_ms: Vec<u32>,
    page_bytes: u64,
}

impl IdleObserver {
    /// Reads a snapshot; asks for the accessed bits of all nodes to be cleared.
    fn step(&mut self, snapshot: &Snapshot, now: Tick) -> Plan {
        let is_present = |page: &PageStat| page.flags.has(PageFlags::PRESENT);
        if !snapshot.areas.iter().any(|area| area.pages.iter().any(is_present)) {
            // The program has ended: what was found before holds.
            return Plan::default();
        }
        self.now = now;
        let first = *self.first.get_or_insert(now);
        let at = u32::try_from(now.since(first).get() / 1_000_000).unwrap_or(u32::MAX - 1) + 1;
        self.page_bytes = snapshot.page_size.get();
        self.idle_ms.clear();
        let mut present = BTreeMap::new();
        for area in &snapshot.areas {
            for (vpn, page) in (area.start.0..).zip(&area.pages) {
                let key = (area.pid, vpn / CHUNK);
                if !is_present(page) {
                    continue;
                }
                let times = present.entry(key).or_insert_with(|| {
                    self.last.remove(&key).unwrap_or_else(|| Box::new([0; CHUNK as usize]))
                });
                let last = &mut times[(vpn % CHUNK) as usize];
                if page.flags.has(PageFlags::REFERENCED) {
                    *last = at;
                }
                // A page that was never found accessed is idle since observing began.
                self.idle_ms.push(at - (*last).max(1));
            }
        }
        // What is not mapped any more is forgotten.
        self.last = present;
        let nodes: Vec<NodeId> =
            snapshot.tiers.iter().flat_map(|tier| tier.nodes.iter().copied()).collect();
        Plan {
            requests: vec![Request::Clear { nodes }],
            work: PolicyWork { scanned_pages: snapshot.page_count(), ..PolicyWork::default() },
            ..Plan::default()
        }
    }

    /// What was found; `None` before two snapshots.
    #[must_use]
    pub fn idle(&self) -> Option<IdleMemory> {
        let observed = self.now.since(self.first?);
        if observed == Nanos::ZERO || self.idle_ms.is_empty() {
            return None;
        }
        let mut longest_first = self.idle_ms.clone();
        longest_first.sort_unstable_by(|a, b| b.cmp(a));
        let share = |percent: u8| {
            let pages = (longest_first.len() * usize::from(percent)).div_ceil(100);
            let idle_seconds = f64::from(longest_first[pages.max(1) - 1]) / 1e3;
            IdleShare { percent, idle_seconds }
        };
        Some(IdleMemory {
            observed_seconds: observed.as_secs_f64(),
            bytes: self.page_bytes * longest_first.len() as u64,
            shares: SHARES.into_iter().map(share).collect(),
        })
    }
}

/// A policy that moves nothing, and what it observes.
#[must_use]
pub fn observer() -> (CustomPolicy, Arc<Mutex<IdleObserver>>) {
    let observed = Arc::new(Mutex::new(IdleObserver::default()));
    let seen = observed.clone();
    let needs = PolicyNeeds { heat: true, ..PolicyNeeds::default() };
    let policy = CustomPolicy::new(needs, move |snapshot, now, _seed| {
        seen.lock().unwrap_or_else(PoisonError::into_inner).step(snapshot, now)
    });
    (policy.named("none"), observed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::{Area, ThroughputSource, TierState, Vpn};

    fn snapshot(referenced: &[bool]) -> Snapshot {
        let page = |referenced: &bool| PageStat {
            flags: match referenced {
                true => PageFlags::PRESENT.with(PageFlags::REFERENCED),
                false => PageFlags::PRESENT,
            },
            ..PageStat::default()
        };
        let pages = referenced.iter().map(page).collect();
        Snapshot {
            page_size: Bytes(4096),
            tiers: vec![TierState {
                nodes: vec![NodeId(3)],
                capacity: Bytes(1 << 20),
                free: Bytes(0),
                unused: Bytes(0),
                write_throughput: None,
                throughput_source: ThroughputSource::Unknown,
            }],
            areas: vec![Area { pid: Pid(7), start: Vpn(500), pages }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn memory_is_idle_since_it_was_last_accessed() {
        let mut observer = IdleObserver::default();
        let second = |n: u64| Tick(5_000_000_000 + n * 1_000_000_000);
        // 100 pages across a chunk's end: all accessed at first, half of them 8 s later, one now.
        let plan = observer.step(&snapshot(&[true; 100]), second(0));
        assert_eq!(plan.requests, [Request::Clear { nodes: vec![NodeId(3)] }]);
        assert!(plan.moves.is_empty() && observer.idle().is_none());
        let half: Vec<bool> = (0..100).map(|i| i >= 50).collect();
        observer.step(&snapshot(&half), second(8));
        let one: Vec<bool> = (0..100).map(|i| i == 99).collect();
        observer.step(&snapshot(&one), second(10));
        let idle = observer.idle().unwrap();
        assert_eq!((idle.bytes, idle.observed_seconds), (100 * 4096, 10.0));
        let seconds: Vec<f64> = idle.shares.iter().map(|s| s.idle_seconds).collect();
        assert_eq!(seconds, [10.0; 5], "half is as idle as what is most idle");
        observer.step(&snapshot(&half), second(12));
        let again = observer.idle().unwrap();
        assert_eq!(again.shares[0].idle_seconds, 12.0);
        // The last half is accessed, the first is gone.
        observer.step(&snapshot(&[true; 3]), second(13));
        let few = observer.idle().unwrap();
        assert_eq!((few.bytes, few.shares[4].idle_seconds), (3 * 4096, 0.0));
        assert!(few.line().contains("50% for 0.0 s"), "{}", few.line());
        observer.step(&snapshot(&[]), second(14));
        assert_eq!(observer.idle(), Some(few), "the program has ended");
    }

    #[test]
    fn what_was_never_accessed_is_idle_since_the_begin() {
        let mut observer = IdleObserver::default();
        observer.step(&snapshot(&[false, true]), Tick(0));
        observer.step(&snapshot(&[false, true]), Tick(4_000_000_000));
        let idle = observer.idle().unwrap();
        assert_eq!(idle.shares.last().map(|s| s.idle_seconds), Some(4.0));
        assert_eq!(idle.shares[0].idle_seconds, 4.0);
    }
}
