//! What the periodic policies of others share: when to act, the pages of each tier, and an exchange
//! of some of them.
//!
//! These policies examine the pages once a period, choose some to bring up and some to send down,
//! and know nothing else. Each has a file of its own for the choosing.

use super::runs::{free_pages, interleave, units, MoveRuns, MoveUnit};
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::cmp::Ordering;
use terrace_types::{
    Decision, MoveReason, Nanos, NodeId, PageFlags, Plan, PolicyWork, Request, Snapshot, Tick,
};

/// All that a periodic policy remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// When it acts next; at once, if it never has.
    pub next: Option<Tick>,
}

impl State {
    /// The request to wait for the rest of a period; `None`: it is over, and begins anew.
    pub(crate) fn rest(&mut self, now: Tick, period: Nanos) -> Option<Plan> {
        if let Some(next) = self.next.filter(|next| now < *next) {
            let requests = vec![Request::Wait(next.since(now))];
            return Some(Plan { requests, ..Plan::default() });
        }
        self.next = Some(now.after(period));
        None
    }
}

/// A page (or huge page) and what is known of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacedPage {
    /// Index of its area in the snapshot.
    pub area: usize,
    pub unit: MoveUnit,
    /// Accesses a second to each of its base pages, and the writes among them.
    pub rate: u64,
    pub writes: u64,
}

impl PacedPage {
    pub(crate) fn pages(&self) -> u64 {
        u64::from(self.unit.pages)
    }
}

/// Movable pages of the best tier and of all others.
#[derive(Debug)]
pub(crate) struct TierPages {
    pub fast: Vec<PacedPage>,
    pub slow: Vec<PacedPage>,
    /// Base pages free in the best tier, and in the worst.
    pub free: u64,
    free_slow: u64,
    /// Nodes that pages go to.
    to_fast: NodeId,
    to_slow: NodeId,
    /// What was done with the pages so far.
    pub work: WorkCounter,
}

impl TierPages {
    /// Sorted by tier. `None` with one tier only. Pages that nothing is known of yet are left out.
    pub(crate) fn from_snapshot(snap: &Snapshot) -> Option<Self> {
        let (best, worst) =
            (snap.tiers.first()?, snap.tiers.last().filter(|_| snap.tiers.len() > 1)?);
        let (to_fast, to_slow) = (*best.nodes.first()?, *worst.nodes.first()?);
        let (free, free_slow) = (free_pages(snap, 0), free_pages(snap, snap.tiers.len() - 1));
        let known = |a| {
            units(a).filter(|u: &MoveUnit| u.stat.movable() && u.stat.flags.has(PageFlags::KNOWN))
        };
        let is_fast = |unit: &MoveUnit| best.nodes.contains(&unit.stat.node());
        // Counted first, for growing copies all of them several times.
        let (mut all, mut near) = (0, 0);
        for unit in snap.areas.iter().flat_map(known) {
            all += 1;
            near += usize::from(is_fast(&unit));
        }
        let (fast, slow) = (Vec::with_capacity(near), Vec::with_capacity(all - near));
        // Each is read to be counted, and rated to be kept.
        let (scanned_pages, rated_pages) = (snap.page_count(), all as u64);
        let work = Cell::new(PolicyWork { scanned_pages, rated_pages, ..PolicyWork::default() });
        let mut pages = Self { fast, slow, free, free_slow, to_fast, to_slow, work };
        for (area, a) in snap.areas.iter().enumerate() {
            for unit in known(a) {
                let item = PacedPage {
                    area,
                    unit,
                    rate: unit.stat.rate(),
                    writes: unit.stat.writes.rate(),
                };
                if is_fast(&unit) { &mut pages.fast } else { &mut pages.slow }.push(item);
            }
        }
        Some(pages)
    }

    /// Brings `up` to the best tier and sends `down` away, space being made just before it is used;
    /// fewer of both where the worst tier cannot take as many.
    pub(crate) fn exchange(
        &self,
        snap: &Snapshot,
        up: &[PacedPage],
        down: &[PacedPage],
        why: MoveReason,
    ) -> Plan {
        let runs = |items: &[PacedPage], to: NodeId, why: MoveReason| {
            let mut items = items.to_vec();
            items.sort_unstable_by_key(|i| (i.area, i.unit.index));
            let mut runs = MoveRuns::default();
            for item in &items {
                let area = &snap.areas[item.area];
                runs.push(area.pid, area.start, &item.unit, to, why);
            }
            runs.moves
        };
        let down = first(down, self.free_slow);
        let up = first(up, self.free + sum(down));
        let (out, into) = (runs(down, self.to_slow, MoveReason::Cold), runs(up, self.to_fast, why));
        let moves = interleave(out, into, self.free, 512);
        Plan { moves, work: self.work.get(), ..Plan::default() }
    }
}

/// What a policy did so far.
pub(crate) type WorkCounter = Cell<PolicyWork>;

/// Counts a comparison of two items by their heat.
fn compare(
    heat: &impl Fn(&PacedPage) -> u64,
    work: &WorkCounter,
    a: &PacedPage,
    b: &PacedPage,
) -> Ordering {
    let mut counted = work.get();
    counted.compared_items += 1;
    work.set(counted);
    by_heat(heat, a, b)
}

/// The hottest first; equal ones in address order.
pub(crate) fn hottest_first(
    work: &WorkCounter,
    items: &mut [PacedPage],
    heat: impl Fn(&PacedPage) -> u64,
) {
    items.sort_unstable_by(|a, b| compare(&heat, work, a, b));
}

/// No two are equal.
fn by_heat(heat: &impl Fn(&PacedPage) -> u64, a: &PacedPage, b: &PacedPage) -> Ordering {
    heat(b).cmp(&heat(a)).then((a.area, a.unit.index).cmp(&(b.area, b.unit.index)))
}

/// The [`first`] of them by [`hottest_first`], with at most `pages` base pages together. The rest
/// is not put in order.
pub(crate) fn hottest(
    work: &WorkCounter,
    mut items: Vec<PacedPage>,
    pages: u64,
    heat: impl Fn(&PacedPage) -> u64,
) -> Vec<PacedPage> {
    // None of them is less than a page.
    let most = usize::try_from(pages).unwrap_or(usize::MAX);
    if most > 0 && most < items.len() {
        items.select_nth_unstable_by(most - 1, |a, b| compare(&heat, work, a, b));
    }
    items.truncate(most);
    hottest_first(work, &mut items, heat);
    items.truncate(first(&items, pages).len());
    items
}

/// The first of `items` with at most `pages` base pages together.
pub(crate) fn first(items: &[PacedPage], pages: u64) -> &[PacedPage] {
    let mut left = pages;
    let count = items
        .iter()
        .take_while(|i| left.checked_sub(i.pages()).map(|l| left = l).is_some())
        .count();
    &items[..count]
}

/// Base pages of all.
pub(crate) fn sum(items: &[PacedPage]) -> u64 {
    items.iter().map(PacedPage::pages).sum()
}

/// Pairs the hottest of `up` with the coldest of `down`, beyond what space is free, as long as
/// `gains` says that one is worth the other's place; at most `most` base pages up. Both must be
/// sorted: `up` hottest first, `down` coldest first.
pub(crate) fn pair<'a>(
    up: &'a [PacedPage],
    down: &'a [PacedPage],
    free: u64,
    most: u64,
    gains: impl Fn(&PacedPage, &PacedPage) -> bool,
) -> (&'a [PacedPage], &'a [PacedPage]) {
    let up = first(up, most);
    let (mut space, mut used, mut taken) = (free, 0, 0);
    for item in up {
        while space < item.pages() && used < down.len() && gains(item, &down[used]) {
            space += down[used].pages();
            used += 1;
        }
        match space.checked_sub(item.pages()) {
            Some(left) => space = left,
            None => break,
        }
        taken += 1;
    }
    (&up[..taken], &down[..used])
}

/// A plan's decision, and the wait for the next period.
pub(crate) fn explain_plan(mut plan: Plan, name: &str, why: String, period: Nanos) -> Plan {
    plan.decisions.push(Decision { name: name.to_owned(), why, gain_ns_per_s: 0, cost_ns: 0 });
    plan.requests.push(Request::Wait(period));
    plan
}

/// Nothing to do on a machine with one tier.
pub(crate) fn one_tier(period: Nanos) -> Plan {
    explain_plan(Plan::default(), "hold", "there is one tier only".to_owned(), period)
}

/// Milliseconds as a period.
pub(crate) fn period(value: &str) -> Result<Nanos, SetError> {
    number(value, 1.0, 3_600_000.0, "milliseconds, 1 to 3600000").map(|ms| Nanos((ms * 1e6) as u64))
}

/// A number of pages.
pub(crate) fn pages(value: &str) -> Result<u64, SetError> {
    number(value, 1.0, 1e12, "base pages, from 1").map(|n| n as u64)
}

/// Milliseconds, for people.
pub(crate) fn millis(span: Nanos) -> String {
    (span.get() / 1_000_000).to_string()
}

/// Orders rates that may not be numbers; none of ours is.
pub(crate) fn by_value(a: f64, b: f64) -> Ordering {
    a.total_cmp(&b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::PageStat;

    fn item(index: usize, rate: u64, pages: u32) -> PacedPage {
        PacedPage {
            area: 0,
            unit: MoveUnit { index, pages, stat: PageStat::default() },
            rate,
            writes: 0,
        }
    }

    #[test]
    fn pairs_stop_where_nothing_is_gained() {
        let up: Vec<PacedPage> =
            [90, 80, 20, 10].iter().enumerate().map(|(i, r)| item(i, *r, 1)).collect();
        let down: Vec<PacedPage> =
            [1, 30, 40].iter().enumerate().map(|(i, r)| item(10 + i, *r, 1)).collect();
        let (u, d) = pair(&up, &down, 0, 10, |u, d| u.rate > d.rate);
        assert_eq!((u.len(), d.len()), (2, 2));
        let (u, d) = pair(&up, &down, 3, 10, |u, d| u.rate > d.rate);
        assert_eq!((u.len(), d.len()), (4, 1));
        let (u, d) = pair(&up, &down, 0, 1, |_, _| true);
        assert_eq!((u.len(), d.len()), (1, 1));
    }

    #[test]
    fn huge_pages_take_the_space_of_many() {
        let up = [item(0, 90, 4), item(4, 80, 4)];
        let down: Vec<PacedPage> = (0..6).map(|i| item(10 + i, 1, 1)).collect();
        let (u, d) = pair(&up, &down, 1, 100, |_, _| true);
        assert_eq!((u.len(), d.len()), (1, 6));
        assert_eq!((first(&up, 7).len(), sum(&up)), (1, 8));
    }

    proptest::proptest! {
        /// As if all were put in order first.
        #[test]
        fn the_hottest_are_those_of_all_in_order(
            of in proptest::collection::vec((0u64..6,
                proptest::prelude::prop_oneof![6 => proptest::strategy::Just(1u32), 1 => 2u32..6]),
                0..80),
            most in 0u64..120,
        ) {
            let items: Vec<PacedPage> = of.iter().enumerate()
                .map(|(i, (rate, pages))| item(8 * i, *rate, *pages)).collect();
            let mut all = items.clone();
            let work = WorkCounter::default();
            hottest_first(&work, &mut all, |i| i.rate);
            let indexes = |items: &[PacedPage]| items.iter().map(|i| i.unit.index)
                .collect::<Vec<_>>();
            let found = hottest(&work, items, most, |i| i.rate);
            proptest::prop_assert!(found.len() < 2 || work.get().compared_items > 0);
            proptest::prop_assert_eq!(indexes(&found), indexes(first(&all, most)));
        }
    }

    #[test]
    fn a_period_is_waited_for() {
        let mut state = State::default();
        assert!(state.rest(Tick(5), Nanos(10)).is_none());
        let plan = state.rest(Tick(9), Nanos(10)).unwrap();
        assert_eq!(plan.requests, [Request::Wait(Nanos(6))]);
        assert!(state.rest(Tick(15), Nanos(10)).is_none());
    }
}
