//! Moving many pages of a process as fast as the machine can: what `terrace run`, arenas and
//! staging share.
//!
//! Each huge page is passed to `move_pages(2)` once and migrates whole. A list is divided among
//! threads if CPUs are idle and the machine's costs predict a gain ([`MoveCosts::threads`]). One
//! thread is limited by the kernel's work per page, not by memory bandwidth: twelve of the lab's
//! cores migrate pages 7.8 times as fast as one (docs/results/migration.md).

use crate::MoveCosts;
use terrace_mover::HUGE_PAGES;
use terrace_sys::{idle_cpus, move_pages, Category, MoveCall, PageMap, PageStatus, Root};
use terrace_types::{Nanos, NodeId, Pid, Vpn, VpnRange};

/// Maximum number of threads, however many CPUs there are: the kernel's locks leave no gain from
/// more (docs/results/migration.md measures twelve).
const THREADS: u32 = 16;

/// The shared mover. Cheap to make and to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    costs: MoveCosts,
    most: u32,
}

impl Bulk {
    /// For a machine with these costs; uses as many threads as shorten a call.
    #[must_use]
    pub const fn new(costs: MoveCosts) -> Self {
        Self { costs, most: THREADS }
    }

    /// The same on the calling thread alone: for callers that already run in many threads.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self { most: 1, ..self }
    }

    /// Base pages for a call of about `span`: a multiple of a huge page, at least one. For callers
    /// that have other work to check for between calls.
    #[must_use]
    pub fn batch(&self, span: Nanos) -> u64 {
        (self.costs.batch(span) / HUGE_PAGES * HUGE_PAGES).max(HUGE_PAGES)
    }

    /// Migrates base pages of `pid` to node `to`; returns one status for each, in order. A huge
    /// page whose base pages are all listed, in order, is passed to the kernel once. Errors are
    /// part of the result, as with [`move_pages`].
    #[must_use]
    pub fn move_pages(&self, pid: Pid, pages: &[Vpn], to: NodeId) -> MoveCall {
        let huge = huge_runs(pid, pages);
        if huge.is_empty() {
            return self.move_units(pid, pages, pages.len() as u64, to);
        }
        let heads = heads(pages, &huge);
        let asked: Vec<Vpn> = heads.iter().map(|at| pages[*at]).collect();
        let call = self.move_units(pid, &asked, pages.len() as u64, to);
        spread(pages.len(), &heads, call)
    }

    /// Migrates units, each a base page or the first page of a huge page, which have `base_pages`
    /// base pages in all; returns one status for each unit.
    #[must_use]
    pub fn move_units(&self, pid: Pid, units: &[Vpn], base_pages: u64, to: NodeId) -> MoveCall {
        let most = self.most.min(units.len() as u32);
        let wanted = self.costs.threads(base_pages, most);
        let idle = || idle_cpus(&Root::live());
        let threads = if wanted > 1 { self.costs.threads(base_pages, most.min(idle())) } else { 1 };
        divided(units, threads as usize, |part| move_pages(pid, part, to))
    }
}

/// Splits a range into parts of at most `most` base pages (at least a huge page). Except at the
/// ends of the range, parts begin and end at huge-page boundaries: a huge page split over two calls
/// would be passed to the kernel page by page.
pub fn batches(range: VpnRange, most: u64) -> impl Iterator<Item = VpnRange> {
    let most = most.max(HUGE_PAGES);
    let mut at = range.start.0;
    std::iter::from_fn(move || {
        let start = at;
        at = ((start + most) / HUGE_PAGES * HUGE_PAGES).min(range.end.0);
        (start < at).then(|| VpnRange::new(Vpn(start), Vpn(at)))
    })
}

/// Ranges of huge pages among `pages`, long enough to hold a whole one. Empty if the kernel cannot
/// report them: then base pages are passed one by one, which is slower but still correct.
fn huge_runs(pid: Pid, pages: &[Vpn]) -> Vec<VpnRange> {
    let mut found = Vec::new();
    let mut map = None;
    let mut at = 0;
    while at < pages.len() {
        let run = pages[at..]
            .iter()
            .enumerate()
            .take_while(|(i, page)| page.0 == pages[at].0 + *i as u64)
            .count();
        if run as u64 >= HUGE_PAGES {
            // Opened for each list: after exec, a descriptor still refers to the old address space.
            let map = map.get_or_insert_with(|| PageMap::open(&Root::live(), pid).ok());
            let range = VpnRange::new(pages[at], Vpn(pages[at].0 + run as u64));
            if let Some(map) = map {
                let _missing_is_slower =
                    map.scan(range, Category::HUGE, Category::HUGE, |run, _| found.push(run));
            }
        }
        at += run;
    }
    found
}

/// Positions in `pages` of those to pass to the kernel: all, except that of a huge page listed
/// completely and in order only the first base page is passed.
fn heads(pages: &[Vpn], huge: &[VpnRange]) -> Vec<usize> {
    let mut heads = Vec::new();
    let mut at = 0;
    while at < pages.len() {
        heads.push(at);
        let (first, last) = (pages[at].0, pages.get(at + HUGE_PAGES as usize - 1));
        let whole = first % HUGE_PAGES == 0
            && last.is_some_and(|last| last.0 == first + HUGE_PAGES - 1)
            && huge.iter().any(|run| run.start.0 <= first && first + HUGE_PAGES <= run.end.0);
        at += if whole { HUGE_PAGES as usize } else { 1 };
    }
    heads
}

/// Expands the statuses of `heads` to all pages: every base page of a huge page gets the status of
/// its first.
fn spread(pages: usize, heads: &[usize], call: MoveCall) -> MoveCall {
    let mut all = Vec::with_capacity(pages);
    for (i, status) in call.pages.iter().enumerate() {
        let end = heads.get(i + 1).copied().unwrap_or(pages);
        all.resize(end, *status);
    }
    MoveCall { pages: all, ..call }
}

/// Divides a list among threads, the calling one included, which migrate their parts concurrently.
/// The caller migrates the part of a thread that cannot be created.
fn divided(units: &[Vpn], threads: usize, call: impl Fn(&[Vpn]) -> MoveCall + Sync) -> MoveCall {
    if threads < 2 {
        return call(units);
    }
    let mut parts = units.chunks(units.len().div_ceil(threads).max(1));
    let mine = parts.next().unwrap_or_default();
    let mut calls = Vec::with_capacity(threads);
    std::thread::scope(|scope| {
        let call = &call;
        let begun: Vec<_> = parts
            .map(|part| {
                let thread = std::thread::Builder::new().name("terrace-mover".into());
                (part, thread.spawn_scoped(scope, move || call(part)))
            })
            .collect();
        calls.push(call(mine));
        for (part, thread) in begun {
            let done = match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| unheard(part)),
                Err(_) => call(part),
            };
            calls.push(done);
        }
    });
    joined(calls)
}

/// The result for a part whose thread panicked: all its pages count as untouched.
fn unheard(part: &[Vpn]) -> MoveCall {
    MoveCall { pages: vec![PageStatus::Untouched; part.len()], ..MoveCall::default() }
}

/// Merges the results of the calls. `errno` is the first that is not 0; pages that it does not
/// concern have a status of their own.
fn joined(calls: Vec<MoveCall>) -> MoveCall {
    let mut all = MoveCall::default();
    for call in calls {
        all.pages.extend(call.pages);
        all.not_migrated += call.not_migrated;
        all.errno = if all.errno == 0 { call.errno } else { all.errno };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    fn pages(range: std::ops::Range<u64>) -> Vec<Vpn> {
        range.map(Vpn).collect()
    }

    #[test]
    fn a_huge_page_is_asked_for_once_and_reported_whole() {
        let huge = [VpnRange::new(Vpn(512), Vpn(1536))];
        let all = pages(510..1540);
        let found = heads(&all, &huge);
        let asked: Vec<u64> = found.iter().map(|at| all[*at].0).collect();
        assert_eq!(asked, [510, 511, 512, 1024, 1536, 1537, 1538, 1539]);
        let status = |page: &u64| {
            if *page == 1024 {
                PageStatus::Error(12)
            } else {
                PageStatus::On(NodeId(3))
            }
        };
        let call =
            MoveCall { pages: asked.iter().map(status).collect(), not_migrated: 1, errno: 12 };
        let reported = spread(all.len(), &found, call);
        assert_eq!(
            (reported.pages.len(), reported.not_migrated, reported.errno),
            (all.len(), 1, 12)
        );
        for (page, status) in all.iter().zip(reported.pages) {
            let failed = (1024..1536).contains(&page.0);
            assert_eq!(
                status,
                if failed { PageStatus::Error(12) } else { PageStatus::On(NodeId(3)) },
                "{page:?}"
            );
        }
    }

    #[test]
    fn a_huge_page_of_which_a_part_is_asked_for_is_asked_for_page_by_page() {
        let huge = [VpnRange::new(Vpn(512), Vpn(1024))];
        let mut with_a_gap = pages(512..1024);
        with_a_gap.remove(77);
        for list in [pages(513..1030), pages(512..1023), with_a_gap] {
            assert_eq!(heads(&list, &huge).len(), list.len());
        }
        assert_eq!(
            heads(&pages(512..1024), &[VpnRange::new(Vpn(512), Vpn(800))]).len(),
            512,
            "half of it is reported"
        );
    }

    #[test]
    fn batches_have_each_page_once_and_cut_no_huge_page() {
        for (start, end, most) in [
            (0, 0, 512),
            (5, 6, 1),
            (7, 5000, 512),
            (512, 4096, 1024),
            (1000, 40_000, 16_384),
            (3, 9000, 700),
        ] {
            let parts: Vec<VpnRange> = batches(VpnRange::new(Vpn(start), Vpn(end)), most).collect();
            let pages: Vec<u64> = parts.iter().flat_map(|p| p.start.0..p.end.0).collect();
            assert_eq!(pages, (start..end).collect::<Vec<u64>>());
            assert!(parts.iter().all(|p| p.len() <= most.max(512)), "{parts:?}");
            assert!(parts.iter().skip(1).all(|p| p.start.0 % 512 == 0), "{parts:?}");
        }
        let slow = Bulk::new(MoveCosts { page: Nanos::micros(100), ..MoveCosts::default() });
        assert_eq!(slow.batch(Nanos::millis(20)), 512, "a huge page in any case");
        assert_eq!(Bulk::new(MoveCosts::default()).batch(Nanos::millis(20)), 8192);
    }

    #[test]
    fn threads_ask_for_each_page_once_and_statuses_keep_their_order() {
        for (count, threads) in [(0, 3), (1, 1), (5, 3), (16, 4), (1000, 7), (3, 16)] {
            let units = pages(0..count);
            let asked = Mutex::new(Vec::new());
            let reported = divided(&units, threads, |part| {
                asked.lock().unwrap().extend_from_slice(part);
                let errno = i32::from(part.contains(&Vpn(4)));
                let pages = part.iter().map(|p| PageStatus::On(NodeId(p.0 as u16))).collect();
                MoveCall { pages, not_migrated: 1, errno }
            });
            let statuses: Vec<PageStatus> =
                units.iter().map(|p| PageStatus::On(NodeId(p.0 as u16))).collect();
            assert_eq!((reported.pages, reported.errno), (statuses, i32::from(count > 4)));
            let asked = asked.into_inner().unwrap();
            assert_eq!(
                (asked.len(), asked.into_iter().collect::<BTreeSet<_>>().len()),
                (units.len(), units.len())
            );
        }
    }

    #[test]
    fn own_pages_are_reported_one_by_one() {
        let size = terrace_sys::page_size().get() as usize;
        let memory = vec![1_u8; 2048 * size];
        let first = memory.as_ptr() as u64 / size as u64 + 1;
        let mine = pages(first..first + 2000);
        let me = Pid(std::process::id() as i32);
        let node = match terrace_sys::query_pages(me, &mine[..1]) {
            Ok(on) => on[0],
            Err(e) => return println!("skipped: {e}"),
        };
        let PageStatus::On(node) = node else { panic!("{node:?}") };
        let costs = MoveCosts {
            call: terrace_types::Nanos(1),
            page: terrace_types::Nanos(1000),
            serial_percent: 0,
        };
        for bulk in [Bulk::new(costs), Bulk::new(costs).alone()] {
            let call = bulk.move_pages(me, &mine, node);
            assert_eq!((call.errno, call.pages.len()), (0, 2000));
            assert!(call.pages.iter().all(|s| *s == PageStatus::On(node)));
        }
        assert!(memory.iter().all(|b| *b == 1));
    }
}
