//! Memory that a settled program fills on a worse tier: taken in before anything is known of its heat.
//!
//! A program that fills memory begins something new, and uses what it has filled: TPP leaves room for new pages on the better tier
//! because they are hot more often than old ones (Al Maruf et al., ASPLOS 2023, section 5.2). Room that is left is paid for all the time,
//! so none is left here; but newcomers change places at once with the coldest pages of the better tier, where that costs no
//! more than the look that would tell whether they are hot. Whether they were is looked up afterwards, and as often as they were not, fewer are
//! taken in unseen.

use super::census::value_of;
use super::{Params, Targets};
use crate::place::runs::{add, free_pages, interleave, page_size, units, Unit};
use crate::place::worth::Worth;
use serde::{Deserialize, Serialize};
use terrace_types::{buckets, Move, MoveReason, PageFlags, PageStat, Pid, Snapshot, Tick, Vpn};

/// A look at all pages, with the decision after it, costs what moving this part of them does both ways: 0.4 us a page looked at, 4.6 us a
/// pair moved (`lab-cxl`).
const AS_A_LOOK: u64 = 16;
/// What a look at all pages costs, with the decision after it.
pub(super) fn look_cost_ns(p: &Params, snap: &Snapshot) -> f64 {
    2.0 * p.page_cost_ns(snap.move_cost) * snap.page_count() as f64 / AS_A_LOOK as f64
}

/// Fewer are no reason to do anything.
const FEW: u64 = 64;
/// Base pages put out before as many are taken in.
const CHUNK: u64 = 4096;
/// Pages of each kind that are looked up afterwards.
const SAMPLES: usize = 64;
/// By then the heat map shows what became of them.
const KNOWN_AFTER: f64 = 0.05;
/// After so many seconds twice as many may be taken in unseen again.
const RECOVERS: f64 = 10.0;

/// Whether newcomers were hot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Newcomers {
    /// Part of what a look costs that is spent on them unseen, 0 to 1.
    credit: f64,
    /// Since when.
    since: Tick,
    taken_in: Vec<(Pid, Vpn)>,
    put_out: Vec<(Pid, Vpn)>,
}

impl Default for Newcomers {
    fn default() -> Self {
        Self { credit: 1.0, since: Tick(0), taken_in: Vec::new(), put_out: Vec::new() }
    }
}

impl Newcomers {
    fn credit_at(&self, now: Tick) -> f64 {
        (self.credit * (now.since(self.since).as_secs_f64() / RECOVERS).min(8.0).exp2()).min(1.0)
    }

    /// Looks up what became of those taken in last.
    pub fn review(&mut self, snap: &Snapshot, worth: &Worth, now: Tick) {
        if self.taken_in.is_empty() || now.since(self.since).as_secs_f64() < KNOWN_AFTER {
            return;
        }
        let [inside, outside] = [&self.taken_in, &self.put_out].map(|samples| mean_value(snap, samples, worth));
        let Some((inside, outside)) = inside.zip(outside) else { return };
        let credit = self.credit_at(now);
        self.credit = if inside > outside { (2.0 * credit).min(1.0) } else { (0.5 * credit).max(1.0 / 64.0) };
        self.since = now;
        self.taken_in.clear();
        self.put_out.clear();
    }

    /// The moves that take them in, and how many they are; empty where there are too few or too many.
    pub fn take_in(&mut self, p: &Params, snap: &Snapshot, worth: &Worth, now: Tick) -> (Vec<Move>, u64) {
        const NOTHING: (Vec<Move>, u64) = (Vec::new(), 0);
        let most = (snap.page_count() as f64 / AS_A_LOOK as f64 * self.credit_at(now)) as u64;
        let sides = Sides::new(snap);
        let count = sides.newcomers(snap);
        let reserve = snap.tiers[0].capacity.pages(page_size(snap)) as f64 * p.reserve;
        let room = free_pages(snap, 0).saturating_sub(reserve as u64);
        if count < FEW || count > most || worth.unit() <= 0.0 {
            return NOTHING;
        }
        let Some((up, down)) = sides.moves(p, snap, worth, count.saturating_sub(room)) else { return NOTHING };
        (self.taken_in, self.put_out) = (samples(&up), samples(&down));
        self.credit = self.credit_at(now);
        self.since = now;
        let count = pages(&up);
        (interleave(down, up, room, CHUNK), count)
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
struct Sides([Option<u8>; 256]);

impl Sides {
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
    fn newcomers(&self, snap: &Snapshot) -> u64 {
        let pages = snap.areas.iter().flat_map(|area| &area.pages);
        pages.filter(|page| self.of(page) == Side::New).count() as u64
    }

    /// All newcomers up, and the coldest pages of the better tier down, `room` base pages; of those worth the same the ones at the
    /// highest addresses, which lie together. None where there are not as many.
    fn moves(&self, p: &Params, snap: &Snapshot, worth: &Worth, room: u64) -> Option<(Vec<Move>, Vec<Move>)> {
        let bucket = |unit: &Unit| buckets::of(value_of(&unit.stat, worth) as f32);
        let all = || snap.areas.iter().flat_map(|area| units(area).map(move |unit| (area, unit)));
        let mut counts = vec![0u64; buckets::COUNT];
        for (_, unit) in all().filter(|(_, unit)| self.of(&unit.stat) == Side::Known) {
            counts[bucket(&unit)] += u64::from(unit.pages);
        }
        let mut below = 0;
        let edge = counts.iter().position(|n| {
            below += n;
            below >= room
        })?;
        let mut spared = below - room;
        let [best, worse] = [0, 1].map(|rank| Targets::new(p, &snap.tiers[rank].nodes));
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for (area, unit) in all() {
            let (moves, to, reason) = match self.of(&unit.stat) {
                Side::New => (&mut up, best.of(unit.stat.node()), MoveReason::Hot),
                Side::Known if room > 0 && bucket(&unit) < edge => {
                    (&mut down, worse.of(unit.stat.node()), MoveReason::Cold)
                }
                Side::Known if room > 0 && bucket(&unit) == edge => {
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
            add(moves, Move { pid: area.pid, start, pages: unit.pages, from: unit.stat.node(), to, reason });
        }
        Some((up, down))
    }
}

fn pages(moves: &[Move]) -> u64 {
    moves.iter().map(|m| u64::from(m.pages)).sum()
}

fn samples(moves: &[Move]) -> Vec<(Pid, Vpn)> {
    let stride = (pages(moves) / SAMPLES as u64).max(1) as usize;
    let each = |m: &Move| (m.start.0..m.range().end.0).map(move |vpn| (m.pid, Vpn(vpn))).collect::<Vec<_>>();
    moves.iter().flat_map(each).step_by(stride).take(SAMPLES).collect()
}

/// Of those that something is known of; none while that is less than half.
fn mean_value(snap: &Snapshot, samples: &[(Pid, Vpn)], worth: &Worth) -> Option<f64> {
    let stat = |(pid, vpn): &(Pid, Vpn)| {
        let after = snap.areas.partition_point(|a| (a.pid, a.start) <= (*pid, *vpn));
        let area = after.checked_sub(1).and_then(|i| snap.areas.get(i)).filter(|a| a.pid == *pid)?;
        area.pages.get((vpn.0 - area.start.0) as usize).filter(|page| page.flags.has(PageFlags::KNOWN))
    };
    let known: Vec<f64> = samples.iter().filter_map(stat).map(|page| value_of(page, worth)).collect();
    (2 * known.len() >= samples.len()).then(|| known.iter().sum::<f64>() / known.len().max(1) as f64)
}
