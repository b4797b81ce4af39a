//! Moving many pages of a process as fast as the machine can: what `terrace run`, arenas and
//! staging share.
//!
//! Huge pages are asked for once each and move whole, and a list is divided among threads where
//! CPUs are idle and the machine's costs say that it pays ([`MoveCosts::threads`]). One thread is
//! bound by the kernel's work for each page, not by the bus: twelve of the lab's cores move 7.8
//! times what one does (docs/results/migration.md).

use crate::MoveCosts;
use terrace_mover::HUGE_PAGES;
use terrace_sys::{idle_cpus, move_pages, Category, MoveCall, PageMap, PageStatus, Root};
use terrace_types::{Nanos, NodeId, Pid, Vpn, VpnRange};

/// Most threads, however many CPUs: more than the kernel's locks let gain anything
/// (docs/results/migration.md has twelve).
const THREADS: u32 = 16;

/// The shared mover. Cheap to make and to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    costs: MoveCosts,
    most: u32,
}

impl Bulk {
    /// On a machine of these costs, by as many threads as pay.
    #[must_use]
    pub const fn new(costs: MoveCosts) -> Self {
        Self { costs, most: THREADS }
    }

    /// By the calling thread alone: for those who are many already.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self { most: 1, ..self }
    }

    /// Base pages for a call that takes about `span`, whole huge pages, one at least: for those who
    /// look up between calls.
    #[must_use]
    pub fn batch(&self, span: Nanos) -> u64 {
        (self.costs.batch(span) / HUGE_PAGES * HUGE_PAGES).max(HUGE_PAGES)
    }

    /// Asks for base pages of `pid` to be on `to`; one status for each, in order. A huge page of
    /// which all base pages are asked for, one after the other, is asked for once. Everything is a
    /// value, as of [`move_pages`].
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

    /// Asks for units, base pages or the first pages of huge ones, which together have
    /// `base_pages`; one status for each unit.
    #[must_use]
    pub fn move_units(&self, pid: Pid, units: &[Vpn], base_pages: u64, to: NodeId) -> MoveCall {
        let most = self.most.min(units.len() as u32);
        let wanted = self.costs.threads(base_pages, most);
        let idle = || idle_cpus(&Root::live());
        let threads = if wanted > 1 { self.costs.threads(base_pages, most.min(idle())) } else { 1 };
        divided(units, threads as usize, |part| move_pages(pid, part, to))
    }
}

/// A range in parts of `most` base pages and fewer, none of which begins or ends within what may be
/// a huge page, but for the range's own ends: a huge page that two calls ask for parts of is asked
/// for page by page.
pub fn batches(range: VpnRange, most: u64) -> impl Iterator<Item = VpnRange> {
    let most = most.max(HUGE_PAGES);
    let mut at = range.start.0;
    std::iter::from_fn(move || {
        let start = at;
        at = ((start + most) / HUGE_PAGES * HUGE_PAGES).min(range.end.0);
        (start < at).then(|| VpnRange::new(Vpn(start), Vpn(at)))
    })
}

/// Runs of huge pages among `pages`, where whole ones may be asked for. Empty where nothing can
/// tell: then base pages are asked for one by one, which is slower and still right.
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
            // Opened for each list: a descriptor stays bound to memory that exec replaces.
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

/// Positions of the pages to ask for: all but those of a huge page whose first page is asked for
/// and all others follow it.
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

/// The statuses of heads as those of all pages: what holds for the first of a huge page holds for
/// all of it.
fn spread(pages: usize, heads: &[usize], call: MoveCall) -> MoveCall {
    let mut all = Vec::with_capacity(pages);
    for (i, status) in call.pages.iter().enumerate() {
        let end = heads.get(i + 1).copied().unwrap_or(pages);
        all.resize(end, *status);
    }
    MoveCall { pages: all, ..call }
}

/// One list in parts that threads ask for, the calling one among them. A thread that cannot be
/// begun leaves its part to the caller.
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

/// What is known of a part whose thread ended without a word.
fn unheard(part: &[Vpn]) -> MoveCall {
    MoveCall { pages: vec![PageStatus::Untouched; part.len()], ..MoveCall::default() }
}

/// The calls as one. The first error number is that of all: pages that it does not concern have a
/// status of their own.
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
