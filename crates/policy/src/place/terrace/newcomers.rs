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
use terrace_types::{buckets, Area, Move, MoveReason, PageFlags, Pid, Snapshot, Tick, Vpn};

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
        let most = (snap.page_count() as f64 / AS_A_LOOK as f64 * self.credit_at(now)) as u64;
        let best = Targets::new(p, &snap.tiers[0].nodes);
        let mut up = Vec::new();
        for (area, unit) in all(snap, |unit| is_new(unit) && snap.rank_of(unit.stat.node()) == Some(1)) {
            let Some(to) = best.of(unit.stat.node()) else { continue };
            push(&mut up, area, &unit, to, MoveReason::Hot);
        }
        let count = pages(&up);
        let reserve = snap.tiers[0].capacity.pages(page_size(snap)) as f64 * p.reserve;
        let room = free_pages(snap, 0).saturating_sub(reserve as u64);
        if count < FEW || count > most || worth.unit() <= 0.0 {
            return (Vec::new(), 0);
        }
        let down = coldest(p, snap, worth, count.saturating_sub(room));
        if pages(&down) + room < count {
            return (Vec::new(), 0);
        }
        (self.taken_in, self.put_out) = (samples(&up), samples(&down));
        self.credit = self.credit_at(now);
        self.since = now;
        (interleave(down, up, room, CHUNK), count)
    }
}

fn is_new(unit: &Unit) -> bool {
    unit.stat.movable() && !unit.stat.flags.has(PageFlags::KNOWN)
}

fn all<'a>(snap: &'a Snapshot, which: impl Fn(&Unit) -> bool + 'a) -> impl Iterator<Item = (&'a Area, Unit)> + 'a {
    snap.areas.iter().flat_map(units_of).filter(move |(_, unit)| which(unit))
}

fn units_of(area: &Area) -> impl Iterator<Item = (&Area, Unit)> + '_ {
    units(area).map(move |unit| (area, unit))
}

fn push(moves: &mut Vec<Move>, area: &Area, unit: &Unit, to: terrace_types::NodeId, reason: MoveReason) {
    let start = Vpn(area.start.0 + unit.index as u64);
    add(moves, Move { pid: area.pid, start, pages: unit.pages, from: unit.stat.node(), to, reason });
}

fn pages(moves: &[Move]) -> u64 {
    moves.iter().map(|m| u64::from(m.pages)).sum()
}

/// The coldest pages of the best tier, so many; of those worth the same the ones at the highest addresses, which lie together.
fn coldest(p: &Params, snap: &Snapshot, worth: &Worth, count: u64) -> Vec<Move> {
    let known = |unit: &Unit| unit.stat.movable() && !is_new(unit) && snap.rank_of(unit.stat.node()) == Some(0);
    let bucket = |unit: &Unit| buckets::of(value_of(&unit.stat, worth) as f32);
    let mut counts = vec![0u64; buckets::COUNT];
    for (_, unit) in all(snap, known) {
        counts[bucket(&unit)] += u64::from(unit.pages);
    }
    let mut below = 0;
    let Some(edge) = counts.iter().position(|n| {
        below += n;
        below >= count
    }) else {
        return Vec::new();
    };
    let mut skipped = below - count;
    let worse = Targets::new(p, &snap.tiers[1].nodes);
    let mut down = Vec::new();
    for (area, unit) in all(snap, |unit| known(unit) && bucket(unit) <= edge) {
        let size = u64::from(unit.pages);
        if bucket(&unit) == edge && skipped >= size {
            skipped -= size;
        } else if let Some(to) = worse.of(unit.stat.node()) {
            push(&mut down, area, &unit, to, MoveReason::Cold);
        }
    }
    down
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
