//! Memory that a settled program fills on a worse tier: taken in before anything is known of its
//! heat.
//!
//! A program that fills memory begins something new, and uses what it has filled: TPP keeps space
//! for new pages on the better tier because they tend to be hot (Al Maruf et al., ASPLOS 2023,
//! abstract). Space that is kept is paid for all the time, so none is kept here; but newcomers
//! change places at once with the coldest pages of the better tier, where that costs no more than
//! the sample that would tell whether they are hot. Whether they were is found afterwards, and as
//! often as they were not, fewer are taken in unseen
//! (docs/adr/0225-exchange-newly-faulted-pages-before-they-are-sampled.md).

use super::hotness::value_of;
use super::tuning::TerraceTuning;
use super::{NearestNodes, Params};
use crate::place::runs::{add, free_pages, interleave, page_size, units, MoveUnit};
use crate::place::worth::AccessWorth;
use serde::{Deserialize, Serialize};
use terrace_types::{buckets, Move, MoveReason, PageFlags, PageStat, Pid, Snapshot, Tick, Vpn};

/// Whether newcomers were hot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewPageHeat {
    /// Part of what a sample costs that is spent on them unseen, 0 to 1.
    credit: f64,
    /// Since when.
    since: Tick,
    placed_unseen: Vec<(Pid, Vpn)>,
    put_out: Vec<(Pid, Vpn)>,
}

impl Default for NewPageHeat {
    fn default() -> Self {
        Self { credit: 1.0, since: Tick(0), placed_unseen: Vec::new(), put_out: Vec::new() }
    }
}

/// What a sample of all pages costs, with the decision after it.
pub(super) fn sample_cost_ns(p: &Params, snap: &Snapshot) -> f64 {
    let part = p.tuning.sample_cost_divisor as f64;
    2.0 * p.page_cost_ns(snap.move_cost) * snap.page_count() as f64 / part
}

impl NewPageHeat {
    fn credit_at(&self, tuning: &TerraceTuning, now: Tick) -> f64 {
        let since = now.since(self.since).as_secs_f64();
        (self.credit * (since / tuning.new_recovers).exp2()).min(1.0)
    }

    /// Finds what became of those taken in last.
    pub fn review(
        &mut self,
        tuning: &TerraceTuning,
        snap: &Snapshot,
        worth: &AccessWorth,
        now: Tick,
    ) {
        let since = now.since(self.since).as_secs_f64();
        if self.placed_unseen.is_empty() || since < tuning.new_known_after {
            return;
        }
        let [inside, outside] = [&self.placed_unseen, &self.put_out]
            .map(|found| mean_value(tuning, snap, found, worth));
        let Some((inside, outside)) = inside.zip(outside) else { return };
        let (credit, step) = (self.credit_at(tuning, now), tuning.trust_step);
        self.credit = if inside > outside {
            (step * credit).min(1.0)
        } else {
            (credit / step).max(tuning.new_least_credit)
        };
        self.since = now;
        self.placed_unseen.clear();
        self.put_out.clear();
    }

    /// The moves that take them in, and how many they are; empty where there are too few or too
    /// many.
    pub fn take_in(
        &mut self,
        p: &Params,
        snap: &Snapshot,
        worth: &AccessWorth,
        now: Tick,
    ) -> (Vec<Move>, u64) {
        const NOTHING: (Vec<Move>, u64) = (Vec::new(), 0);
        let tuning = &p.tuning;
        let part = tuning.sample_cost_divisor as f64;
        let most = (snap.page_count() as f64 / part * self.credit_at(tuning, now)) as u64;
        let sides = BoundarySides::new(snap);
        let count = sides.new_pages(snap);
        let reserve = snap.tiers[0].capacity.pages(page_size(snap)) as f64 * p.reserve;
        let space = free_pages(snap, 0).saturating_sub(reserve as u64);
        let cost = 2.0 * p.page_cost_ns(snap.move_cost) * count as f64;
        let dear = snap.spendable.is_some_and(|left| cost > left.get() as f64);
        if count < tuning.few_new || count > most || dear || worth.unit() <= 0.0 {
            return NOTHING;
        }
        let Some((up, down)) = sides.moves(p, snap, worth, count.saturating_sub(space)) else {
            return NOTHING;
        };
        (self.placed_unseen, self.put_out) = (samples(tuning, &up), samples(tuning, &down));
        self.credit = self.credit_at(tuning, now);
        self.since = now;
        let count = pages(&up);
        (interleave(down, up, space, tuning.chunk), count)
    }
}

/// Which side of the first boundary a unit is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// On the better tier, and something is known of it.
    Known,
    /// On the worse tier, and nothing is.
    New,
    Other,
}

/// The tiers on both sides of the first boundary, by node.
struct BoundarySides([Option<u8>; 256]);

impl BoundarySides {
    fn new(snap: &Snapshot) -> Self {
        let mut ranks = [None; 256];
        for (rank, tier) in (0u8..).zip(snap.tiers.iter().take(2)) {
            tier.nodes.iter().for_each(|node| ranks[usize::from(node.0 as u8)] = Some(rank));
        }
        Self(ranks)
    }

    fn of(&self, page: &PageStat) -> Side {
        let known = page.flags.has(PageFlags::KNOWN);
        match self.0[usize::from(page.node)].filter(|_| page.movable()) {
            Some(0) if known => Side::Known,
            Some(1) if !known => Side::New,
            _ => Side::Other,
        }
    }

    /// Base pages that came on the worse tier.
    fn new_pages(&self, snap: &Snapshot) -> u64 {
        let pages = snap.areas.iter().flat_map(|area| &area.pages);
        pages.filter(|page| self.of(page) == Side::New).count() as u64
    }

    /// All newcomers up, and the coldest pages of the better tier down, `space` base pages; of
    /// those worth the same the ones at the highest addresses, which lie together. None where there
    /// are not as many.
    fn moves(
        &self,
        p: &Params,
        snap: &Snapshot,
        worth: &AccessWorth,
        space: u64,
    ) -> Option<(Vec<Move>, Vec<Move>)> {
        let bucket = |unit: &MoveUnit| buckets::bucket_of(value_of(&unit.stat, worth) as f32);
        let all = || snap.areas.iter().flat_map(|area| units(area).map(move |unit| (area, unit)));
        let mut counts = vec![0u64; buckets::COUNT];
        for (_, unit) in all().filter(|(_, unit)| self.of(&unit.stat) == Side::Known) {
            counts[bucket(&unit)] += u64::from(unit.pages);
        }
        let mut below = 0;
        let edge = counts.iter().position(|n| {
            below += n;
            below >= space
        })?;
        let mut spared = below - space;
        let [best, worse] = [0, 1].map(|rank| NearestNodes::new(p, &snap.tiers[rank].nodes));
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for (area, unit) in all() {
            let (moves, to, reason) = match self.of(&unit.stat) {
                Side::New => (&mut up, best.of(unit.stat.node()), MoveReason::Hot),
                Side::Known if space > 0 && bucket(&unit) < edge => {
                    (&mut down, worse.of(unit.stat.node()), MoveReason::Cold)
                }
                Side::Known if space > 0 && bucket(&unit) == edge => {
                    let size = u64::from(unit.pages);
                    if spared >= size {
                        spared -= size;
                        continue;
                    }
                    (&mut down, worse.of(unit.stat.node()), MoveReason::Cold)
                }
                _ => continue,
            };
            let Some(to) = to else { continue };
            let start = Vpn(area.start.0 + unit.index as u64);
            add(
                moves,
                Move {
                    pid: area.pid,
                    start,
                    pages: unit.pages,
                    from: unit.stat.node(),
                    to,
                    reason,
                },
            );
        }
        Some((up, down))
    }
}

fn pages(moves: &[Move]) -> u64 {
    moves.iter().map(|m| u64::from(m.pages)).sum()
}

fn samples(tuning: &TerraceTuning, moves: &[Move]) -> Vec<(Pid, Vpn)> {
    let stride = (pages(moves) / tuning.found_samples as u64).max(1) as usize;
    let each = |m: &Move| {
        (m.start.0..m.range().end.0).map(move |vpn| (m.pid, Vpn(vpn))).collect::<Vec<_>>()
    };
    moves.iter().flat_map(each).step_by(stride).take(tuning.found_samples).collect()
}

/// Of those that something is known of; none while that is too small a part.
fn mean_value(
    tuning: &TerraceTuning,
    snap: &Snapshot,
    samples: &[(Pid, Vpn)],
    worth: &AccessWorth,
) -> Option<f64> {
    let stats = samples.iter().filter_map(|(pid, vpn)| snap.page(*pid, *vpn));
    let known: Vec<f64> = stats
        .filter(|page| page.flags.has(PageFlags::KNOWN))
        .map(|page| value_of(page, worth))
        .collect();
    (tuning.new_known_part * known.len() >= samples.len())
        .then(|| known.iter().sum::<f64>() / known.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::tier;
    use super::*;
    use crate::place::worth::AccessKnowledge;
    use terrace_types::{Area, Bytes, Heat, NodeId};

    const OLD: u64 = 9_600;
    const FAST: u64 = 6_000;
    const SECOND: u64 = 1_000_000_000;

    /// Old pages, the fast tier full of them but for `free`, every third of them cold, and `new`
    /// ones after them on the slow tier.
    fn grown(new: u64, free: u64) -> Snapshot {
        let known = PageFlags::PRESENT.with(PageFlags::KNOWN);
        let page = |i: u64| PageStat {
            reads: Heat::from_rate(if i >= OLD || i % 3 == 0 { 0 } else { 900 }),
            node: u8::from(i >= FAST),
            flags: if i < OLD { known } else { PageFlags::PRESENT },
            ..PageStat::default()
        };
        Snapshot {
            page_size: Bytes(4096),
            tiers: vec![tier(0, FAST + free, free), tier(1, 100_000, 50_000)],
            areas: vec![Area {
                pid: Pid(1),
                start: Vpn(0x1000),
                pages: (0..OLD + new).map(page).collect(),
            }],
            ..Snapshot::default()
        }
    }

    fn parts(preset: &str) -> (Params, AccessWorth) {
        let machine = terrace_machine::preset(preset).unwrap();
        let params = Params::for_machine(&machine);
        let worth = params.worth_between(&[NodeId(0)], &[NodeId(1)], &AccessKnowledge::BUSY);
        (params, worth)
    }

    fn placed_unseen(new_pages: &mut NewPageHeat, new: u64, now: Tick) -> u64 {
        let (p, worth) = parts("lab-cxl");
        new_pages.take_in(&p, &grown(new, 0), &worth, now).1
    }

    /// What samples then find of the newcomers.
    fn found(new_pages: &mut NewPageHeat, rate: u64, now: Tick) {
        let (_, worth) = parts("lab-cxl");
        let mut snap = grown(600, 0);
        for page in &mut snap.areas[0].pages[OLD as usize..] {
            page.reads = Heat::from_rate(rate);
            page.flags = page.flags.with(PageFlags::KNOWN);
        }
        new_pages.review(&TerraceTuning::USUAL, &snap, &worth, now);
    }

    #[test]
    fn they_take_the_places_of_the_coldest_which_lie_together() {
        let (p, worth) = parts("lab-cxl");
        let snap = grown(500, 130);
        let (moves, count) = NewPageHeat::default().take_in(&p, &snap, &worth, Tick(0));
        assert_eq!(count, 500);
        let (up, down): (Vec<&Move>, Vec<&Move>) = moves.iter().partition(|m| m.to == NodeId(0));
        let total = |moves: &[&Move]| moves.iter().map(|m| u64::from(m.pages)).sum::<u64>();
        // A two-hundredth of the tier is left free for others.
        assert_eq!((total(&up), total(&down)), (500, 500 - (130 - 30)));
        assert!(up.iter().all(|m| m.start.0 >= 0x1000 + OLD));
        assert!(down.iter().all(|m| m.pages == 1 && (m.start.0 - 0x1000) % 3 == 0), "cold ones");
        assert!(
            down.iter().all(|m| m.start.0 >= 0x1000 + FAST - 3 * 400),
            "at the highest addresses"
        );
    }

    #[test]
    fn unseen_placement_costs_at_most_a_sample_and_needs_many_pages() {
        let mut new_pages = NewPageHeat::default();
        assert_eq!(
            [63, 64, 640, 700].map(|new| placed_unseen(&mut new_pages, new, Tick(0))),
            [0, 64, 640, 0]
        );
    }

    #[test]
    fn cold_new_pages_lower_the_credit_for_a_while() {
        let mut new_pages = NewPageHeat::default();
        let at = |ms: u64| Tick(ms * SECOND / 1000);
        assert_eq!(placed_unseen(&mut new_pages, 600, at(0)), 600);
        found(&mut new_pages, 1, at(20));
        assert_eq!(
            placed_unseen(&mut new_pages.clone(), 600, at(30)),
            600,
            "nothing was known yet"
        );
        found(&mut new_pages, 0, at(100));
        assert_eq!(
            [300, 330].map(|new| placed_unseen(&mut new_pages.clone(), new, at(110))),
            [300, 0]
        );
        assert_eq!(
            placed_unseen(&mut new_pages.clone(), 600, at(10_200)),
            600,
            "twice as many after ten seconds"
        );
        assert_eq!(placed_unseen(&mut new_pages, 300, at(200)), 300);
        found(&mut new_pages, 5_000, at(300));
        assert_eq!(placed_unseen(&mut new_pages, 600, at(310)), 600, "these were hot");
    }

    #[test]
    fn no_new_pages_are_placed_where_no_tier_is_better() {
        let (p, _) = parts("lab-cxl");
        let nothing = AccessWorth { read_ns: 0.0, write_ns: 0.0 };
        assert!(NewPageHeat::default().take_in(&p, &grown(500, 0), &nothing, Tick(0)).0.is_empty());
    }
}
